"""What `forkd push` and `pull` cost beside `skopeo copy` of the very same artifact.

    copies.py N         needs FORKD_BIN and its variables, docker-registry, skopeo; prints a table

Both do the same in turns, and every other time the order is changed. A push goes to a registry that
has nothing, a pull comes to a daemon or a folder that has nothing. Bytes on the wire are counted
once, by a relay, both ways.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

FORKD = os.environ["FORKD_BIN"]
MEBIBYTES = os.environ.get("MEBIBYTES", "512")
BRANCHES = 10
PAGE = 4096
SKOPEO = ["skopeo", "copy", "-q", "--insecure-policy", "--preserve-digests"]
WORK = "state = [bytes([n % 251]) * 3000 for n in range({}, {} + 2000)]"


class Forkd:
    """A daemon with directories of its own."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="fh-")
        self.hot = tempfile.mkdtemp(prefix="fh-", dir="/dev/shm")
        self.variables = os.environ | {"FORKD_HOME": self.home, "FORKD_HOT_DIR": self.hot}

    def __call__(self, *args):
        return ran([FORKD, *args], env=self.variables)

    def end(self):
        self("stop", "--stop-sandboxes")
        for folder in (self.home, self.hot):
            shutil.rmtree(folder)


class Registry:
    """Debian's, with nothing in it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="registry-"))
        storage = {"filesystem": {"rootdirectory": str(self.folder / "content")}}
        http = {"addr": "127.0.0.1:0", "secret": "of this run"}
        config = {"version": "0.1", "log": {"level": "info"}, "storage": storage, "http": http}
        (self.folder / "config.yml").write_text(json.dumps(config))
        log = self.folder / "log"
        with log.open("w") as out:
            command = ["docker-registry", "serve", self.folder / "config.yml"]
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)
        while not (found := re.search(r"listening on 127.0.0.1:(\d+)", log.read_text())):
            time.sleep(0.01)
        self.port = int(found[1])

    def reference(self, tag):
        return f"localhost:{self.port}/team/s:{tag}"

    def end(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


class Relay:
    """Passes on to a registry what comes, and counts it."""

    def __init__(self, registry):
        self.there = registry.port
        self.bytes = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            far = socket.create_connection(("127.0.0.1", self.there))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source, sink):
        while piece := source.recv(1 << 16):
            with self.lock:
                self.bytes += len(piece)
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)

    def of(self, act):
        """The bytes of one transfer."""
        before = self.bytes
        act(f"localhost:{self.port}/team/s")
        return self.bytes - before


def ran(command, **options):
    done = subprocess.run(command, check=True, capture_output=True, text=True, **options)
    return done.stdout.strip()


def seconds(act):
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def skopeo(source, target):
    ran([*SKOPEO, "--src-tls-verify=false", "--dest-tls-verify=false", source, target])


def in_turns(times, ours, theirs):
    """Does both so often. The median seconds of each, and the median of their ratios."""
    pairs = []
    for turn in range(times):
        acts = [ours, theirs]
        order = -1 if turn % 2 else 1
        pairs.append([act() for act in acts[::order]][::order])
    columns = [*zip(*pairs, strict=True), [a / b for a, b in pairs]]
    return [statistics.median(column) for column in columns]


def unique_bytes(layout):
    """Bytes of distinct pages that are not zero in all parts of the artifact, and of its blobs."""
    blobs = layout / "blobs/sha256"

    def blob(descriptor):
        return blobs / descriptor["digest"].removeprefix("sha256:")

    index = json.loads((layout / "index.json").read_text())
    image = json.loads(blob(index["manifests"][0]).read_text())
    seen, unique = set(), 0
    # The first is the signature.
    for part in image["layers"][1:]:
        content = subprocess.run(["zstd", "-dcq", blob(part)], check=True, capture_output=True)
        for at in range(0, len(content.stdout), PAGE):
            page = content.stdout[at : at + PAGE]
            name = hashlib.blake2b(page, digest_size=16).digest()
            if any(page) and name not in seen:
                seen.add(name)
                unique += len(page)
    return unique, sum(file.stat().st_size for file in blobs.iterdir())


def pushed_to_new(act):
    registry = Registry()
    took = seconds(lambda: act(registry.reference("v1")))
    registry.end()
    return took


def megabytes(count):
    return f"{count / 1e6:.1f}"


def measure(name, tag, here, times):
    """Prints what one snapshot costs."""
    registry, there = Registry(), Forkd()
    there("key", "trust", "here", here("key"))
    reference = registry.reference("v1")
    relay = Relay(registry)
    up = relay.of(lambda place: here("push", tag, f"{place}:v1"))
    down = relay.of(lambda place: there("pull", f"{place}:v1", "--tag", "x"))
    there("snapshot", "rm", "x")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="copy-"))
    skopeo(f"docker://{reference}", f"oci:{folder}/first:v1")
    unique, blobs = unique_bytes(folder / "first")

    def pull():
        took = seconds(lambda: there("pull", reference, "--tag", "x"))
        there("snapshot", "rm", "x")
        return took

    def copy():
        took = seconds(lambda: skopeo(f"docker://{reference}", f"oci:{folder}/next:v1"))
        shutil.rmtree(folder / "next")
        return took

    again = relay.of(lambda place: there("pull", f"{place}:v1", "--tag", "x"))
    if again < down * 0.99:
        raise RuntimeError(f"{again} bytes of {down} came: a pull found some there")
    there("snapshot", "rm", "x")
    push = in_turns(
        times,
        lambda: pushed_to_new(lambda to: here("push", tag, to)),
        lambda: pushed_to_new(lambda to: skopeo(f"oci:{folder}/first:v1", f"docker://{to}")),
    )
    got = in_turns(times, pull, copy)
    wire = [f"{megabytes(it)} ({it / unique:.2f})" for it in (up, down)]
    both = [f"{ours:.2f} | {theirs:.2f} | {ratio:.2f}" for ours, theirs, ratio in (push, got)]
    cells = [name, megabytes(unique), megabytes(blobs), *wire, *both]
    print(f"| {' | '.join(cells)} |", flush=True)
    there.end()
    registry.end()
    shutil.rmtree(folder)


def main():
    times, here = int(sys.argv[1]), Forkd()
    here("template", "build", "python", "--tag", "t", "--mem-size-mib", MEBIBYTES)
    sandbox = here("fork", "t")
    for number in range(BRANCHES):
        here("eval", sandbox, WORK.format(number * 2000, number * 2000))
        here("-q", "branch", sandbox, "--tag", f"b{number}")
    here("rm", sandbox)
    sizes = ["", "unique, MB", "blobs, MB", "up, MB (of unique)", "down, MB (of unique)"]
    columns = [*sizes, "push, s", "skopeo, s", "ratio", "pull, s", "skopeo, s", "ratio"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    measure(f"`python`, {MEBIBYTES} MiB", "t", here, times)
    measure(f"chain of {BRANCHES} branches", f"b{BRANCHES - 1}", here, times)
    here.end()


main()
