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

# Children of these snapshots, one after the other. Of the first snapshots nothing is told.
starts() {
    work=$1 untold=$2
    shift 2
    for tag in "$@"; do
        answer=$(forkd fork "$tag" --json | flat)
        settle
        if [ "$untold" -gt 0 ]; then
            untold=$((untold - 1))
        else
            echo "$work $mib $answer"
            if [ "$work" = start ]; then
                echo "idle_child $mib $(memory "$(pidof qemu-system-x86_64-microvm)")"
            fi
        fi
        forkd rm --all --quiet
        settle; settle
    done
}

# A hundred of one source, all kept. Told are the first and the last.
branches() {
    box=$(forkd fork "t$mib" --quiet)
    settle
    for number in $(seq 100); do
        answer=$(forkd branch "$box" --json | flat)
        if [ "$number" -le 12 ]; then
            echo "branch $mib $answer"
        elif [ "$number" -gt 88 ]; then
            echo "branch_late $mib $answer"
        else
            echo "branched $number times of 100"
        fi
        settle
    done
    forkd rm --all --quiet
}

# Snapshots of which each is asked for once, so that no VMM is fitted with it.
snapshots() {
    for tag in "$@"; do
        box=$(forkd fork "t$mib" --quiet)
        forkd branch "$box" --tag "$tag" --quiet
        forkd rm --all --quiet
    done
}

for mib in "$@"; do
    export FORKD_STANDBY=0
    template=t$mib
    once=$(seq -f "once$mib-%g" 7)
    forkd template build python --tag "$template" --mem-size-mib "$mib" --quiet
    snapshots $once
    settle
    starts start 0 "$template" "$template" "$template" "$template" "$template" "$template"
    branches
    forkd stop
    export FORKD_STANDBY=1
    # The first child of all finds no VMM that stands by, and the first ones of the template find
    # one that is not fitted.
    starts start_standby 1 $once
    starts start_fitted 3 "$template" "$template" "$template" "$template" "$template" \
        "$template" "$template" "$template" "$template"
    forkd stop
done
