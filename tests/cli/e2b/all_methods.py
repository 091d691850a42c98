"""A program for E2B that calls what `e2b_session.py` leaves out: nothing in it knows of forkd.

Prints `done` when all of it held. What is refused must be refused with a reason.
"""

import time

from e2b import (
    ALL_TRAFFIC,
    BuildInfo,
    CommandExitException,
    FileType,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxQuery,
    Secret,
    Template,
    TimeoutException,
    Volume,
)


# Stands for the server of MCP servers that an image for them has.
GATEWAY = """#!/bin/sh
set -eu
mkdir -p /etc/mcp-gateway
cd /etc/mcp-gateway
(umask 077; printf %s "$GATEWAY_ACCESS_TOKEN" > .token)
[ "$1" = --config ]
printf %s "$2" > config
"""


def soon(claim, what, seconds=60):
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def await_death(handle):
    try:
        handle.wait()
    except CommandExitException:
        return
    raise AssertionError("a killed command must raise")


def commands(sandbox):
    told = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    told.send_stdin("of the handle\n")
    sandbox.commands.stream_input(told.pid, ["stream", b"ed\n"])
    told.close_stdin()
    assert told.wait().stdout == "of the handle\nstreamed\n"
    sleeper = sandbox.commands.run("sleep 600", background=True, timeout=0)
    watched = sandbox.commands.connect(sleeper.pid)
    watched.disconnect()
    assert [process.pid for process in sandbox.commands.list()] == [sleeper.pid]
    assert sleeper.kill()
    await_death(sleeper)
    assert not sleeper.kill()


def what_outlives_its_stream(sandbox):
    """A command goes on when nobody reads, and ends when its time is over."""
    reader = sandbox.commands.run("sleep 600", background=True, timeout=0)
    reader.disconnect()
    try:
        sandbox.commands.run("sleep 601", timeout=3)
        raise AssertionError("a command whose time is over must raise")
    except TimeoutException:
        pass
    soon(
        lambda: [one.args[-1] for one in sandbox.commands.list()] == ["sleep 600"],
        "only the command whose time is over has ended",
    )
    assert sandbox.commands.kill(reader.pid)


def watching_below(sandbox):
    """What was done before changes are asked for is among them, in its order."""
    fs = sandbox.files
    fs.make_dir("/tmp/watched")
    handle = fs.watch_dir("/tmp/watched", recursive=True, include_entry=True)
    fs.make_dir("/tmp/watched/below")
    fs.write("/tmp/watched/below/new", "text")
    events = handle.get_new_events()
    kinds = [(event.name, event.type.value) for event in events]
    steps = [("below/new", kind) for kind in ("create", "chmod", "write")]
    expected = [("below", "create"), *steps]
    assert kinds == expected, kinds
    assert events[-1].entry.size == 4, events
    fs.write("/tmp/watched/below/new", "other")
    events = handle.get_new_events()
    kinds = [(event.name, event.type.value) for event in events]
    assert kinds == [("below/new", "write")], kinds
    assert handle.get_new_events() == []
    handle.stop()


def terminals(sandbox):
    seen = []
    pty = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    again = sandbox.pty.connect(pty.pid, timeout=0)
    sandbox.pty.stream_input(pty.pid, ["stty size; ", "exit\n"])
    try:
        again.wait(on_pty=seen.append)
    except CommandExitException:
        pass
    assert b"24 80" in b"".join(seen), seen
    other = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    assert sandbox.pty.kill(other.pid)
    await_death(other)
    assert not sandbox.pty.kill(other.pid)


def packed_files(sandbox):
    fs = sandbox.files
    text = "half a thought\n" * 100_000
    assert fs.write("/tmp/packed", text, gzip=True).path == "/tmp/packed"
    assert sandbox.commands.run("wc -c < /tmp/packed").stdout == f"{len(text)}\n"
    assert fs.read("/tmp/packed", gzip=True) == text
    several = [{"path": f"/tmp/packed-{n}", "data": f"of {n}"} for n in "12"]
    fs.write_files(several, gzip=True)
    assert [fs.read(one["path"]) for one in several] == ["of 1", "of 2"]


def links(sandbox):
    """A link is told as what it leads to, with where that is."""
    fs = sandbox.files
    fs.write("/tmp/links/file", "text")
    made = "ln -s file /tmp/links/to-file && ln -s .. /tmp/links/up && ln -s none /tmp/links/dead"
    sandbox.commands.run(made)
    listed = {entry.name: (entry.type, entry.symlink_target) for entry in fs.list("/tmp/links")}
    assert listed == {
        "file": (FileType.FILE, None),
        "to-file": (FileType.FILE, "/tmp/links/file"),
        "up": (FileType.DIR, "/tmp"),
    }, listed
    assert fs.get_info("/tmp/links/to-file").permissions.startswith("L")
    assert fs.read("/tmp/links/to-file") == "text"
    fs.remove("/tmp/links/to-file")
    assert fs.exists("/tmp/links/file") and not fs.exists("/tmp/links/to-file")


def servers_of_tools(sandbox):
    """The package starts the gateway of the template, with a token and with what it is told."""
    try:
        Sandbox.create("base", timeout=300, metadata={"of": "tools"}, mcp={"time": {}})
        raise AssertionError("a template without a gateway must raise")
    except SandboxException as failure:
        assert "Failed to start MCP gateway" in str(failure), failure
    query = SandboxQuery(metadata={"of": "tools"})
    assert Sandbox.list(query=query).next_items() == [], "the package ends it"
    sandbox.files.write("/usr/local/bin/mcp-gateway", GATEWAY)
    sandbox.commands.run("chmod 755 /usr/local/bin/mcp-gateway")
    template = sandbox.create_snapshot().snapshot_id
    tools = Sandbox.create(template, timeout=300, mcp={"time": {"zone": "it's UTC"}})
    token = tools.get_mcp_token()
    assert tools.get_mcp_url() == f"https://{tools.get_host(50005)}/mcp"
    assert tools.files.read("/etc/mcp-gateway/config") == '{"time": {"zone": "it\'s UTC"}}'
    assert Sandbox.connect(tools.sandbox_id).get_mcp_token() == token and len(token) == 36
    assert tools.kill() and Sandbox.delete_snapshot(template)


def repository(sandbox):
    """A life of a repository, with another one beside it that it is pushed to."""
    git = sandbox.git
    path, origin = "/tmp/git/one", "/tmp/git/origin"
    git.init(origin, bare=True, initial_branch="main")
    git.init(path, initial_branch="main")
    git.configure_user("A", "a@b.test")
    git.set_config("core.abbrev", "12", scope="local", path=path)
    assert git.get_config("core.abbrev", scope="local", path=path) == "12"
    git.dangerously_authenticate("user", "password", host="git.test")
    sandbox.files.write(f"{path}/file", "one")
    assert git.status(path).untracked_count == 1
    git.add(path)
    git.commit(path, "first")
    git.remote_add(path, "origin", origin)
    assert git.remote_get(path, "origin") == origin
    git.push(path, remote="origin", branch="main")
    git.create_branch(path, "side")
    git.checkout_branch(path, "main")
    assert git.branches(path).current_branch == "main"
    git.delete_branch(path, "side")
    assert git.branches(path).branches == ["main"]
    git.clone(origin, path="/tmp/git/two")
    assert sandbox.files.read("/tmp/git/two/file") == "one"
    sandbox.files.write(f"{path}/file", "two")
    git.restore(path, ["file"])
    assert git.status(path).is_clean
    sandbox.files.write("/tmp/git/two/file", "three")
    git.add("/tmp/git/two")
    git.reset("/tmp/git/two")
    assert git.status("/tmp/git/two").staged_count == 0
    git.add("/tmp/git/two")
    git.commit("/tmp/git/two", "second")
    git.push("/tmp/git/two")
    git.pull(path)
    assert sandbox.files.read(f"{path}/file") == "three"


def by_id(sandbox):
    """What is asked of the class with an id instead of an object."""
    name = sandbox.sandbox_id
    Sandbox.set_timeout(name, 700)
    assert Sandbox.get_info(name).sandbox_id == name
    assert len(Sandbox.get_metrics(name)) == 1
    Sandbox.update_network(name, {"deny_out": [ALL_TRAFFIC]})
    sandbox.update_network({"deny_out": [ALL_TRAFFIC]})
    assert sandbox.get_info().network["deny_out"] == [ALL_TRAFFIC]
    assert Sandbox.beta_pause(name) and not sandbox.beta_pause()
    assert Sandbox.connect(name, timeout=600).is_running()
    snapshot = Sandbox.create_snapshot(name)
    listed = Sandbox.list_snapshots(sandbox_id=name).next_items()
    assert [one.snapshot_id for one in listed] == [snapshot.snapshot_id], listed
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    [fork] = Sandbox.fork(name, timeout=300)
    assert fork.get_host(3000).startswith(f"3000-{fork.sandbox_id}.")
    assert Sandbox.kill(fork.sandbox_id)


def templates():
    assert Template.exists("base") and Template.alias_exists("base")
    assert not Template.exists("none") and not Template.alias_exists("none")


def refused(call, why):
    try:
        call()
    except Exception as refusal:
        assert why in str(refusal), refusal
    else:
        raise AssertionError(f"{why}: this must be refused")


def refusals():
    built = BuildInfo(template_id="t", build_id="b", name="t", alias="t")
    recipe = Template().from_python_image().run_cmd("true")
    for call in [
        lambda: Template.build(recipe, "t"),
        lambda: Template.build_in_background(recipe, "t"),
        lambda: Template.get_build_status(built),
        lambda: Template.assign_tags("base:default", "t"),
        lambda: Template.remove_tags("base", "t"),
        lambda: Template.get_tags("base"),
    ]:
        refused(call, "build templates with `forkd template build`")
    for call in [
        lambda: Secret.create("key", "value"),
        lambda: Secret.update("key", "value"),
        lambda: Secret.get_info("key"),
        lambda: Secret.exists("key"),
        lambda: Secret.destroy("key"),
        lambda: Secret.list().next_items(),
    ]:
        refused(call, "keep keys with `forkd secret`")
    for call in [
        lambda: Volume.create("v"),
        lambda: Volume.connect("v"),
        lambda: Volume.get_info("v"),
        lambda: Volume.list(),
        lambda: Volume.destroy("v"),
    ]:
        refused(call, "it has no volumes")


def main():
    sandbox = Sandbox.create(timeout=900)
    templates()
    refusals()
    parts = [commands, what_outlives_its_stream, watching_below, packed_files, links, terminals]
    for part in [*parts, repository, servers_of_tools, by_id]:
        begun = time.monotonic()
        part(sandbox)
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    assert sandbox.kill()
    print("done")


main()
