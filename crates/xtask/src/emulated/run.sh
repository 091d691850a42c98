#!/bin/sh
# Runs in the emulated machine: the commands in /payload/jobs, where all that they need is. The last
# line tells whether they succeeded.
exec > /dev/vport0p1 2>&1
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /run
mkdir -p /dev/shm && mount -t tmpfs -o size=90% tmpfs /dev/shm
. /payload/environment
code=0
while read -r job; do /bin/sh -c "/payload/$job" < /dev/null || code=$?; done < /payload/jobs
if [ "$code" != 0 ]; then
    echo "emulated machine: kernel"
    cat /sys/devices/system/clocksource/clocksource0/current_clocksource
    dmesg | tail -n 40
fi
echo "emulated machine: exit code $code"
sync
reboot() { echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger; }
reboot
sleep 60
