"""Endless output: two commands write without end, and fifty others are followed all the same.

The reader of one takes all that comes, that of the other hardly anything. Each of the fifty goes
on, waits not much longer for its next line, and the sandbox keeps its memory.
"""

import asyncio
import itertools
import time

from e2b import AsyncSandbox

FOLLOWED = 50
STARTED_AT_ONCE = 6
# Says a word every two seconds, and starts no other program for it.
TICK = "while true; do echo tick; read -t 2; done"
QUIET_SECS = 8
# How busy the machine is must not decide.
TIMES_LONGER_MAX = 5
KIB_MAX = 16 * 1024


class Follower:
    """Reads one of the fifty."""

    def __init__(self):
        self.times = []

    async def start(self, sandbox, few):
        """Returns when its first word has come."""
        came = asyncio.Event()

        def take(_):
            self.times.append(time.monotonic())
            came.set()

        async with few:
            await sandbox.commands.run(TICK, background=True, stdin=True, timeout=0, on_stdout=take)
            await came.wait()

    def longest_wait(self, begin, end):
        """Seconds without a word, between two times."""
        times = [begin, *(one for one in self.times if begin < one < end), end]
        return max(after - before for before, after in itertools.pairwise(times))


async def looked_at(followers, secs):
    """The longest that one of them has waited for a word, from now on."""
    begin = time.monotonic()
    await asyncio.sleep(secs)
    return max(one.longest_wait(begin, time.monotonic()) for one in followers)


async def memory_left(sandbox):
    """In KiB."""
    said = await sandbox.commands.run("cat /proc/meminfo")
    [line] = [line for line in said.stdout.splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1])


async def takes_all(_):
    """An eager reader."""


async def takes_hardly_anything(_):
    """A reader that has other things to do."""
    await asyncio.sleep(600)


async def main():
    """Follows the fifty without the one, and beside it."""
    async with await AsyncSandbox.create(timeout=900) as sandbox:
        followers, few = [Follower() for _ in range(FOLLOWED)], asyncio.Semaphore(STARTED_AT_ONCE)
        await asyncio.gather(*(one.start(sandbox, few) for one in followers))
        quiet = await looked_at(followers, QUIET_SECS)
        most = TIMES_LONGER_MAX * quiet
        print("followed:", len(followers))
        before = await memory_left(sandbox)
        endless = [
            await sandbox.commands.run(
                "cat /dev/zero", background=True, timeout=0, on_stdout=reader
            )
            for reader in (takes_all, takes_hardly_anything)
        ]
        # Longer than any may wait: else a stall would not be seen.
        longest = await looked_at(followers, most + 1)
        taken = before - await memory_left(sandbox)
        print("none stalls:", longest < most or (longest, quiet))
        print("memory is left:", taken < KIB_MAX or taken)
        print("ended:", [await one.kill() for one in endless])


asyncio.run(main())
