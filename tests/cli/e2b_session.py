"""A program for E2B: nothing in it knows of forkd. Prints `done` when all of it held."""

import copy
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

from e2b import (
    AuthenticationException,
    CommandExitException,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def soon(claim, what, seconds=60):
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until, what
        time.sleep(0.2)


def commands(sandbox):
    said = "echo out; echo err >&2; echo $GREETING $E2B_SANDBOX $EXTRA"
    result = sandbox.commands.run(said, envs={"EXTRA": "x"})
    assert (result.stdout, result.stderr) == ("out\nhello true x\n", "err\n"), result
    assert sandbox.commands.run("echo -n $E2B_SANDBOX_ID").stdout == sandbox.sandbox_id
    try:
        sandbox.commands.run("exit 3")
        raise AssertionError("a command that fails must raise")
    except CommandExitException as failure:
        assert failure.exit_code == 3, failure
    try:
        sandbox.commands.run("sleep 60", timeout=3)
        raise AssertionError("a command whose time is over must raise")
    except TimeoutException:
        pass
    seen = []
    sandbox.commands.run("echo one; echo two", on_stdout=seen.append)
    assert "".join(seen) == "one\ntwo\n", seen


def background(sandbox):
    cat = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    assert any(process.pid == cat.pid for process in sandbox.commands.list())
    sandbox.commands.send_stdin(cat.pid, "typed\n")
    again = sandbox.commands.connect(cat.pid)
    sandbox.commands.send_stdin(cat.pid, "more\n")
    sandbox.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "typed\nmore\n"
    assert again.wait().stdout.endswith("more\n")
    sleeper = sandbox.commands.run("sleep 600", background=True, timeout=0)
    assert sandbox.commands.kill(sleeper.pid)
    try:
        sleeper.wait()
        raise AssertionError("a killed command must raise")
    except CommandExitException as failure:
        assert failure.exit_code == -1, failure
    assert not sandbox.commands.kill(999_999)


def terminal(sandbox):
    seen = []
    pty = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=0)
    sandbox.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    try:
        pty.wait(on_pty=seen.append)
    except CommandExitException:
        pass
    assert b"30 100" in b"".join(seen), seen


def files(sandbox):
    fs = sandbox.files
    fs.write("notes/a b.txt", "text")
    assert fs.read("notes/a b.txt") == "text"
    assert sandbox.commands.run("cat 'notes/a b.txt'", cwd="~").stdout == "text"
    many = bytes(range(256)) * 4096
    fs.write("/tmp/bytes", many)
    assert bytes(fs.read("/tmp/bytes", format="bytes")) == many
    several = [{"path": f"/tmp/m/{name}", "data": name} for name in "12"]
    written = fs.write_files(several)
    assert [entry.path for entry in written] == ["/tmp/m/1", "/tmp/m/2"], written
    assert fs.make_dir("/tmp/m/below") and not fs.make_dir("/tmp/m/below")
    fs.write("/tmp/m/below/3", "3")
    listed = fs.list("/tmp/m", depth=2)
    assert [entry.name for entry in listed] == ["1", "2", "below", "3"], listed
    assert listed[2].type == FileType.DIR
    assert fs.get_info("/tmp/m/1").size == 1
    assert fs.rename("/tmp/m/1", "/tmp/m/one").path == "/tmp/m/one"
    assert fs.exists("/tmp/m/one") and not fs.exists("/tmp/m/1")
    fs.remove("/tmp/m")
    assert not fs.exists("/tmp/m")
    try:
        fs.read("/tmp/m/1")
        raise AssertionError("a file that is not there must raise")
    except NotFoundException:
        pass
    users_files(sandbox)
    metadata_of_files(sandbox)


def metadata_of_files(sandbox):
    fs, said = sandbox.files, {"Author": "me & you", "empty": ""}
    kept = {"author": "me & you", "empty": ""}
    written = fs.write("/root/kept/one", "1", metadata=said)
    assert written.metadata == kept, written
    several = fs.write_files([{"path": f"/root/kept/{n}", "data": n} for n in "23"], metadata=said)
    assert [entry.metadata for entry in several] == [kept, kept], several
    assert fs.get_info("/root/kept/one").metadata == kept
    listed = {entry.name: entry.metadata for entry in fs.list("/root/kept")}
    assert listed == {"one": kept, "2": kept, "3": kept}, listed
    assert fs.rename("/root/kept/2", "/root/kept/two").metadata == kept
    shown = "import os; print(os.getxattr('/root/kept/two', 'user.e2b.author').decode())"
    assert sandbox.commands.run(f'python3 -c "{shown}"').stdout == "me & you\n"
    # What is written over has what was said last.
    assert fs.write("/root/kept/one", "2").metadata is None
    assert fs.get_info("/root/kept/one").metadata is None
    for wrong in ({"k" * 247: "v"}, {"k": "v" * 4096}):
        try:
            fs.write("/root/kept/one", "3", metadata=wrong)
            raise AssertionError("metadata that cannot be kept must raise")
        except InvalidArgumentException:
            pass
    assert fs.read("/root/kept/one") == "2"


def users_files(sandbox):
    fs = sandbox.files
    fs.write("/tmp/users/below/file", "theirs", user="nobody")
    for path in ("/tmp/users", "/tmp/users/below", "/tmp/users/below/file"):
        info = fs.get_info(path, user="nobody")
        assert (info.owner, info.group) == ("nobody", "nogroup"), info
    assert fs.read("/tmp/users/below/file", user="nobody") == "theirs"
    sandbox.commands.run("echo -n more >> /tmp/users/below/file", user="nobody")
    assert fs.make_dir("/tmp/users/made/here", user="nobody")
    fs.rename("/tmp/users/below/file", "/tmp/users/moved/file", user="nobody")
    owners = {entry.path: entry.owner for entry in fs.list("/tmp/users", depth=3)}
    assert set(owners.values()) == {"nobody"} and "/tmp/users/moved/file" in owners, owners
    fs.write("/tmp/users/of-the-image", "ours")
    assert fs.get_info("/tmp/users/of-the-image").owner == "root"
    fs.write("in-the-home", "x", user="root")
    assert fs.exists("/root/in-the-home")
    try:
        fs.write("/tmp/users/strange", "x", user="no-such-user")
        raise AssertionError("a user that is not there must raise")
    except AuthenticationException:
        pass
    assert not fs.exists("/tmp/users/strange")


def addresses(sandbox):
    sandbox.files.write("/tmp/signed", "content")
    with urllib.request.urlopen(sandbox.download_url("/tmp/signed")) as answer:
        assert answer.read() == b"content"
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="n"\r\n\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    address = sandbox.upload_url("/tmp/put")
    request = urllib.request.Request(address, data=head + b"body\r\n--x--\r\n", headers=kind)
    urllib.request.urlopen(request).close()
    assert sandbox.files.read("/tmp/put") == "body"
    wrong = sandbox.download_url("/tmp/signed").replace("signed", "shadow")
    try:
        urllib.request.urlopen(wrong)
        raise AssertionError("the address of one file must not open another")
    except urllib.error.HTTPError as refusal:
        assert refusal.code == 401, refusal


def watch(sandbox):
    sandbox.files.make_dir("/tmp/watched")
    handle = sandbox.files.watch_dir("/tmp/watched")
    sandbox.files.write("/tmp/watched/new", "x")
    names = set()

    def has_come():
        names.update(event.name for event in handle.get_new_events())
        return "new" in names

    soon(has_come, "a new file is told")
    handle.stop()


def life(sandbox):
    sandbox.set_timeout(900)
    info = sandbox.get_info()
    left = info.end_at - info.started_at
    assert info.sandbox_id == sandbox.sandbox_id and info.state == SandboxState.RUNNING
    assert info.metadata == {"a b": "c&d"}, info
    assert left.total_seconds() >= 900
    again = Sandbox.connect(sandbox.sandbox_id, timeout=1)
    assert again.get_info().end_at == info.end_at, "connect must not shorten"
    assert again.commands.run("echo -n same").stdout == "same"
    page = Sandbox.list(query=SandboxQuery(metadata={"a b": "c&d"})).next_items()
    assert [one.sandbox_id for one in page] == [sandbox.sandbox_id], page
    assert Sandbox.list(query=SandboxQuery(metadata={"a b": "other"})).next_items() == []
    uses(sandbox)
    assert sandbox.is_running()


def uses(sandbox):
    """What its programs use: figures of now, and none of before it was there."""
    [now] = sandbox.get_metrics()
    info = sandbox.get_info()
    assert now.cpu_count == info.cpu_count and 0 <= now.cpu_used_pct <= 100, now
    assert 0 < now.mem_used < now.mem_total <= info.memory_mb << 20, now
    assert 0 < now.mem_cache < now.mem_total, now
    assert 0 < now.disk_used < now.disk_total, now
    assert abs(now.timestamp - datetime.now(timezone.utc)) < timedelta(minutes=5), now
    before = info.started_at - timedelta(minutes=2)
    assert sandbox.get_metrics(start=before, end=before + timedelta(minutes=1)) == []


def pause(sandbox):
    sandbox.commands.run("echo kept > /tmp/kept")
    sandbox.pause()
    assert not sandbox.is_running()
    page = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items()
    assert [one.sandbox_id for one in page] == [sandbox.sandbox_id], page
    again = sandbox.connect(timeout=900)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("/tmp/kept") == "kept\n"


def fork(sandbox):
    told = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    sandbox.files.write("/dev/shm/thought", "half")
    watcher = sandbox.files.watch_dir("/dev/shm")
    sandbox.files.write("/dev/shm/before", "x")
    first, second = sandbox.fork(count=2, timeout=600)
    assert isinstance(first, Sandbox) and isinstance(second, Sandbox), (first, second)
    assert len({sandbox.sandbox_id, first.sandbox_id, second.sandbox_id}) == 3
    assert first.files.read("/dev/shm/thought") == "half"
    first.files.write("/dev/shm/thought", "whole")
    assert second.files.read("/dev/shm/thought") == "half"
    assert sandbox.files.read("/dev/shm/thought") == "half"
    assert first.commands.run("echo -n $GREETING").stdout == "hello"
    assert first.get_info().metadata == {"a b": "c&d"}
    # A fork has the watchers of its source, and what they have seen and told to nobody.
    for one, writes in [(first, True), (second, False), (sandbox, False)]:
        here = copy.copy(watcher)
        here._rpc = one.files._rpc
        names = [event.name for event in here.get_new_events()]
        # A new file is made, given to its user and filled; one that was there is only filled.
        assert names == ["before"] * 3 + ["thought"] * writes, names
        assert here.get_new_events() == []
    watcher.stop()
    # A fork has the programs of its source, and they answer.
    for one, word in [(second, "second\n"), (first, "first\n"), (sandbox, "source\n")]:
        [cat] = one.commands.list()
        assert (cat.pid, cat.args[-1]) == (told.pid, "cat"), cat
        handle = told if one is sandbox else one.commands.connect(cat.pid)
        one.commands.send_stdin(cat.pid, word)
        one.commands.close_stdin(cat.pid)
        assert handle.wait().stdout == word
    assert first.kill() and second.kill()


def snapshots(sandbox):
    sandbox.files.write("/tmp/state", "of the snapshot")
    snapshot = sandbox.create_snapshot(name="kept")
    listed = sandbox.list_snapshots().next_items()
    assert [one.snapshot_id for one in listed] == [snapshot.snapshot_id], listed
    child = Sandbox.create(snapshot.snapshot_id, timeout=600)
    assert child.files.read("/tmp/state") == "of the snapshot"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert child.files.read("/tmp/state") == "of the snapshot"
    assert child.kill()
    assert not Sandbox.delete_snapshot(snapshot.snapshot_id)


def end(sandbox):
    stream = sandbox.commands.run("sleep 600", background=True, timeout=0)
    threading.Timer(1.0, lambda: Sandbox.kill(sandbox.sandbox_id)).start()
    try:
        stream.wait()
        raise AssertionError("a command of a killed sandbox must raise")
    except TimeoutException as failure:
        assert "killed" in str(failure), failure
    soon(lambda: not sandbox.is_running(), "a killed sandbox does not run")
    assert not Sandbox.kill(sandbox.sandbox_id)


def main():
    sandbox = Sandbox.create(timeout=600, metadata={"a b": "c&d"}, envs={"GREETING": "hello"})
    assert sandbox.is_running()
    parts = [commands, background, terminal, files, addresses, watch, life, pause]
    for part in [*parts, fork, snapshots, end]:
        begun = time.monotonic()
        part(sandbox)
        print(f"{part.__name__}: {time.monotonic() - begun:.1f} s", flush=True)
    print("done")


main()
