"""Ideas are tried side by side from one prepared state, and the best is kept."""

import asyncio

from e2b_code_interpreter import AsyncSandbox


GUESS = """
guess = sum(range(0, 100, step))
with open("/tmp/ideas/guess", "w") as file:
    file.write(str(guess))
guess
"""


async def idea(sandbox, step):
    changed = asyncio.Event()
    watch = await sandbox.files.watch_dir("/tmp/ideas", lambda _: changed.set())
    value = (await sandbox.run_code(f"step = {step}\n{GUESS}")).text
    await asyncio.wait_for(changed.wait(), 60)
    await watch.stop()
    written = await sandbox.files.read("/tmp/ideas/guess")
    total = await sandbox.commands.run("expr $(cat /tmp/ideas/guess) + $OFFSET")
    return value == written, int(total.stdout)


async def main():
    sandbox = await AsyncSandbox.create("base", timeout=600, envs={"OFFSET": "1000"})
    await sandbox.files.make_dir("/tmp/ideas")
    cat = await sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    forks = await sandbox.fork(count=3, timeout=300)
    snapshot = await sandbox.create_snapshot()
    other = await AsyncSandbox.create(snapshot.snapshot_id, timeout=300, envs={"OFFSET": "2000"})
    every = [*forks, other]
    tried = await asyncio.gather(*[idea(one, step) for step, one in enumerate(every, 2)])
    print(f"what was computed was written: {all(same for same, _ in tried)}")
    print(f"totals: {[total for _, total in tried]}")
    listed = await asyncio.gather(*[one.commands.list() for one in every])
    print(f"each has the command: {all(one.pid == cat.pid for [one] in listed)}")
    await forks[0].commands.kill(cat.pid)
    print(f"the source has no guess: {not await sandbox.files.exists('/tmp/ideas/guess')}")
    print(f"its command goes on: {[one.pid for one in await sandbox.commands.list()] == [cat.pid]}")
    ended = await asyncio.gather(*[one.kill() for one in [sandbox, *every]])
    removed = await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)
    print(f"ended: {sum(ended)}, snapshot: {removed}")


asyncio.run(main())
