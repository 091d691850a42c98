#!/bin/bash
# Runs in the emulated machine: starts children and branches a source, one after the other, for each
# size of guest RAM that is given in MiB. Prints a line for each: what it was, the size, JSON.
set -euo pipefail
export PATH="$PATH:/payload" FORKD_HOME=/tmp/home
# The machine waits, so that nothing of the last request is done during the next.
settle() { sleep 0.5; }
flat() { tr -d ' \n'; echo; }
memory() {
    awk '/^Anonymous:/ { own = $2 } /^AnonHugePages:/ { huge = $2 }
        END { printf "{\"private\":%d,\"huge\":%d}\n", own, huge }' "/proc/$1/smaps_rollup"
}

starts() {
    for _ in 1 2 3 4 5 6; do
        echo "$1 $mib $(forkd fork "t$mib" --json | flat)"
        settle
        if [ "$1" = start ]; then
            echo "idle_child $mib $(memory "$(pidof qemu-system-x86_64-microvm)")"
        fi
        forkd rm --all --quiet
        settle; settle
    done
}

branches() {
    box=$(forkd fork "t$mib" --quiet)
    settle
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        echo "branch $mib $(forkd branch "$box" --json | flat)"
        settle
    done
    forkd rm --all --quiet
}

for mib in "$@"; do
    export FORKD_STANDBY=0
    forkd template build python --tag "t$mib" --mem-size-mib "$mib" --quiet
    settle
    starts start
    branches
    forkd stop
    export FORKD_STANDBY=1
    starts start_standby
    forkd stop
done
