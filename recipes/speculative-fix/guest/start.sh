#!/bin/sh
# Starts the guest programs, which live on when this has ended.
cd "$(dirname "$0")" || exit 1
for program in peer worker meter; do
    setsid python3 -B "$program.py" </dev/null >"/var/log/$program.log" 2>&1 &
done
