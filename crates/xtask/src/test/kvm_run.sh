#!/bin/sh
# Runs the tests of the KVM tier; everything is on the disk at /payload, where `tests` has them.
exec > /dev/vport0p1 2>&1
mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /run
mkdir -p /dev/shm && mount -t tmpfs -o size=90% tmpfs /dev/shm
# Its console shows that the machine itself lives, whatever the tests do.
while :; do echo alive; sleep 5; done > /dev/ttyS0 &
. /payload/environment
code=0
while read -r test; do /bin/sh -c "/payload/$test" < /dev/null || code=$?; done < /payload/tests
if [ "$code" != 0 ]; then
    echo "KVM tier: kernel"
    cat /sys/devices/system/clocksource/clocksource0/current_clocksource
    dmesg | tail -n 40
fi
echo "KVM tier: exit code $code"
sync
reboot() { echo 1 > /proc/sys/kernel/sysrq; echo b > /proc/sysrq-trigger; }
reboot
sleep 60
