"""A program for E2B that does everything side by side: nothing in it knows of forkd.

It calls every method of the packages that waits, and prints `done` when all of it held. What is
refused must be refused with a reason.
"""

import asyncio
import time

from e2b import (
    ALL_TRAFFIC,
    AsyncSecret,
    AsyncTemplate,
    AsyncVolume,
    BuildInfo,
    CommandExitException,
    PtySize,
    SandboxQuery,
    SandboxState,
)
from e2b_code_interpreter import AsyncSandbox


async def soon(claim, what, seconds=60):
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, what
        await asyncio.sleep(0.1)


async def await_death(handle):
    try:
        await handle.wait()
    except CommandExitException:
        return
    raise AssertionError("a killed command must raise")


async def commands(sandbox):
    run = sandbox.commands.run
    both = await asyncio.gather(*[run(f"sleep 1; echo {word}") for word in ["one", "two"]])
    assert [result.stdout for result in both] == ["one\n", "two\n"], both
    cat = await run("cat", background=True, stdin=True, timeout=0)
    again = await sandbox.commands.connect(cat.pid)
    await sandbox.commands.send_stdin(cat.pid, "by number\n")
    await cat.send_stdin("by handle\n")
    stream = sandbox.commands.stream_input(cat.pid)
    await stream.send("streamed\n")
    await stream.close()
    await again.disconnect()
    await cat.close_stdin()
    assert (await cat.wait()).stdout == "by number\nby handle\nstreamed\n"
    counter = await run("wc -c", background=True, stdin=True, timeout=0)
    await counter.send_stdin("four")
    await sandbox.commands.close_stdin(counter.pid)
    assert (await counter.wait()).stdout == "4\n"
    first = await run("sleep 600", background=True, timeout=0)
    second = await run("sleep 600", background=True, timeout=0)
    pids = {process.pid for process in await sandbox.commands.list()}
    assert pids == {first.pid, second.pid}, pids
    assert await first.kill() and await sandbox.commands.kill(second.pid)
    await asyncio.gather(await_death(first), await_death(second))
    assert not await first.kill()


async def terminals(sandbox):
    seen = []
    pty = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=seen.append, timeout=0)
    await sandbox.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    await sandbox.pty.send_stdin(pty.pid, b"stty size\n")
    stream = sandbox.pty.stream_input(pty.pid)
    await stream.send("echo st''reamed\n")
    await stream.close()
    await soon(lambda: b"streamed" in b"".join(seen), "what is typed is run")
    assert b"30 100" in b"".join(seen), seen
    again = await sandbox.pty.connect(pty.pid, on_data=seen.append)
    assert await sandbox.pty.kill(pty.pid)
    await asyncio.gather(await_death(pty), await_death(again))


async def files(sandbox):
    fs = sandbox.files
    names = set()
    assert await fs.make_dir("/tmp/watched")
    watch = await fs.watch_dir("/tmp/watched", lambda event: names.add(event.name))
    await fs.write("/tmp/watched/new", "text")
    await soon(lambda: "new" in names, "a new file is told")
    await watch.stop()
    assert await fs.read("/tmp/watched/new") == "text"
    several = [{"path": f"/tmp/watched/{name}", "data": name} for name in "12"]
    await fs.write_files(several)
    listed = [entry.name for entry in await fs.list("/tmp/watched")]
    assert listed == ["1", "2", "new"], listed
    assert (await fs.get_info("/tmp/watched/1")).size == 1
    await fs.rename("/tmp/watched/1", "/tmp/watched/one")
    assert await fs.exists("/tmp/watched/one")
    await fs.remove("/tmp/watched")
    assert not await fs.exists("/tmp/watched")
    assert "signature=" in sandbox.download_url("/tmp/a")
    assert "signature=" in sandbox.upload_url("/tmp/a")


async def repository(sandbox):
    git = sandbox.git
    path, origin, other = "/tmp/git/one", "/tmp/git/origin", "/tmp/git/two"
    await git.init(origin, bare=True, initial_branch="main")
    await git.init(path, initial_branch="main")
    await git.configure_user("A", "a@b.test")
    await git.set_config("core.abbrev", "12", scope="local", path=path)
    assert await git.get_config("core.abbrev", scope="local", path=path) == "12"
    await git.dangerously_authenticate("user", "password", host="git.test")
    await sandbox.files.write(f"{path}/file", "one")
    await git.add(path)
    await git.commit(path, "first")
    await git.remote_add(path, "origin", origin)
    assert await git.remote_get(path, "origin") == origin
    await git.push(path, remote="origin", branch="main")
    await git.create_branch(path, "side")
    await git.checkout_branch(path, "main")
    await git.delete_branch(path, "side")
    assert (await git.branches(path)).branches == ["main"]
    await git.clone(origin, path=other)
    await sandbox.files.write(f"{other}/file", "two")
    await git.add(other)
    await git.reset(other)
    assert (await git.status(other)).staged_count == 0
    await git.restore(other, ["file"])
    assert (await git.status(other)).is_clean
    await git.pull(path)


async def code(sandbox):
    assert (await sandbox.run_code("x = 41\nx + 1")).text == "42"
    context = await sandbox.create_code_context(cwd="/tmp")
    told = await sandbox.run_code("import os\nos.getcwd()", context=context)
    assert told.text == "/tmp", told
    assert context.id in [one.id for one in await sandbox.list_code_contexts()]
    await sandbox.restart_code_context(context)
    assert (await sandbox.run_code("os", context=context)).error.name == "NameError"
    await sandbox.remove_code_context(context)
    assert context.id not in [one.id for one in await sandbox.list_code_contexts()]


async def life(sandbox):
    name = sandbox.sandbox_id
    await sandbox.set_timeout(900)
    assert (await sandbox.get_info()).sandbox_id == name
    assert len(await sandbox.get_metrics()) == 1
    assert await sandbox.is_running()
    assert sandbox.get_host(3000).startswith(f"3000-{name}.")
    await sandbox.update_network({"deny_out": [ALL_TRAFFIC]})
    assert await sandbox.pause()
    query = SandboxQuery(state=[SandboxState.PAUSED])
    page = await AsyncSandbox.list(query=query).next_items()
    assert [one.sandbox_id for one in page] == [name], page
    again = await AsyncSandbox.connect(name, timeout=900)
    assert await again.beta_pause() and not await again.beta_pause()
    await sandbox.connect(timeout=900)
    assert (await sandbox.run_code("x")).text == "41"


async def servers_of_tools(sandbox):
    gateway = '#!/bin/sh\nmkdir -p /etc/mcp-gateway\nprintf %s "$2" > /etc/mcp-gateway/config\n'
    await sandbox.files.write("/usr/local/bin/mcp-gateway", gateway, gzip=True)
    await sandbox.commands.run("chmod 755 /usr/local/bin/mcp-gateway")
    template = (await sandbox.create_snapshot()).snapshot_id
    tools = await AsyncSandbox.create(template, timeout=300, mcp={"time": {}})
    assert len(await tools.get_mcp_token()) == 36
    assert tools.get_mcp_url() == f"https://{tools.get_host(50005)}/mcp"
    assert await tools.files.read("/etc/mcp-gateway/config", gzip=True) == '{"time": {}}'
    assert await tools.kill() and await AsyncSandbox.delete_snapshot(template)


async def branches(sandbox):
    snapshot = await sandbox.create_snapshot()
    listed = await sandbox.list_snapshots().next_items()
    assert [one.snapshot_id for one in listed] == [snapshot.snapshot_id], listed
    child, forks = await asyncio.gather(
        AsyncSandbox.create(snapshot.snapshot_id, timeout=600), sandbox.fork(count=2, timeout=600)
    )
    values = await asyncio.gather(*[one.run_code("x") for one in [child, *forks]])
    assert [value.text for value in values] == ["41"] * 3, values
    assert all(await asyncio.gather(*[one.kill() for one in [child, *forks]]))
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id)


async def templates(_):
    assert await AsyncTemplate.exists("base") and await AsyncTemplate.alias_exists("base")
    assert not await AsyncTemplate.exists("none")


async def refused(waiting, why):
    try:
        await waiting
    except Exception as refusal:
        assert why in str(refusal), refusal
    else:
        raise AssertionError(f"{why}: this must be refused")


async def refusals(_):
    built = BuildInfo(template_id="t", build_id="b", name="t", alias="t")
    recipe = AsyncTemplate().from_python_image().run_cmd("true")
    for waiting in [
        AsyncTemplate.build(recipe, "t"),
        AsyncTemplate.build_in_background(recipe, "t"),
        AsyncTemplate.get_build_status(built),
        AsyncTemplate.assign_tags("base:default", "t"),
        AsyncTemplate.remove_tags("base", "t"),
        AsyncTemplate.get_tags("base"),
    ]:
        await refused(waiting, "build templates with `forkd template build`")
    for waiting in [
        AsyncSecret.create("key", "value"),
        AsyncSecret.update("key", "value"),
        AsyncSecret.get_info("key"),
        AsyncSecret.exists("key"),
        AsyncSecret.destroy("key"),
        AsyncSecret.list().next_items(),
    ]:
        await refused(waiting, "keep keys with `forkd secret`")
    for waiting in [
        AsyncVolume.create("v"),
        AsyncVolume.connect("v"),
        AsyncVolume.get_info("v"),
        AsyncVolume.list(),
        AsyncVolume.destroy("v"),
    ]:
        await refused(waiting, "it has no volumes")


async def main():
    sandbox = await AsyncSandbox.create("base", timeout=900)
    parts = [templates, refusals, commands, terminals, files, repository, code, life, branches]
    for part in [*parts, servers_of_tools]:
        begun = time.monotonic()
        await part(sandbox)
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    assert await sandbox.kill()
    print("done")


asyncio.run(main())
