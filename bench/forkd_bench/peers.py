"""What QEMU itself offers for a snapshot of a running machine, measured on forkd's guest.

Each way saves an idle guest of the image `python`, again and again, with the QEMU and the
accelerator that forkd uses. The pause is the time between QEMU's events STOP and RESUME, by QEMU's
clock: forkd's `held_by_vmm_ms` is the same.

Guarantees: the machine and its files are gone at the end, however it ends. Does not do: measure in
the guest, or restore what was saved.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEADLINE_SECS = 300.0
# A guest that uses less of a CPU has booted and has nothing to do.
IDLE_PART, IDLE_SECS = 0.1, 2.0


class PeerError(Exception):
    """A way of saving failed; the text says which step and why."""


@dataclass
class Monitor:
    """A QMP connection."""

    link: socket.socket
    events: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.link.settimeout(DEADLINE_SECS)
        self._lines = self.link.makefile("rb")
        self._message()
        self.ask("qmp_capabilities")

    def _message(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise PeerError("QEMU has ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, command: str, **arguments: Any) -> Any:
        """The answer to a command; events on the way are kept."""
        request = {"execute": command, "arguments": arguments}
        try:
            self.link.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise PeerError("QEMU has ended") from error
        while True:
            message = self._message()
            if "event" in message:
                self.events.append(message)
            elif "error" in message:
                raise PeerError(f"{command}: {message['error']['desc']}")
            else:
                return message["return"]

    def moment_ms(self, event: str) -> float:
        """When the last such event was, by QEMU's clock."""
        moments = [each["timestamp"] for each in self.events if each["event"] == event]
        if not moments:
            raise PeerError(f"QEMU told of no {event}")
        return float(moments[-1]["seconds"] * 1000 + moments[-1]["microseconds"] / 1000)


@dataclass(frozen=True)
class Machine:
    """A guest that runs."""

    monitor: Monitor
    disk: Path
    folder: Path


def processor_khz() -> int:
    """The rate of the processor's time stamp counter, as far as the kernel tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "cpu MHz":
            return round(float(value) * 1000)
    raise PeerError("/proc/cpuinfo does not tell the processor's rate")


def image_parts(image: Path) -> tuple[list[str], Path]:
    """The options that boot an image of forkd's, and its root disk."""
    about = json.loads((image / "image.json").read_text())
    kernel, initramfs = (image / about[name] for name in ("kernel", "initramfs"))
    # An emulated guest may fail to measure the clock that it reads; forkd tells it too.
    clock = f"tsc_early_khz={processor_khz()} tsc=reliable no_timer_check"
    command_line = f"{about['command_line']} {clock}"
    options = ["-kernel", str(kernel), "-initrd", str(initramfs), "-append", command_line]
    return options, image / about["root_disk"]


@contextmanager
def booted(image: Path, mem_size_mib: int) -> Iterator[Machine]:
    """A guest that has booted and is idle."""
    with tempfile.TemporaryDirectory(prefix="forkd-peer-") as name:
        folder = Path(name)
        boot, base = image_parts(image)
        disk, monitor = folder / "disk.qcow2", folder / "monitor"
        backing = ["-f", "qcow2", "-F", "raw", "-b", str(base)]
        subprocess.run(["qemu-img", "create", "-q", *backing, str(disk)], check=True)
        command = [
            "qemu-system-x86_64", "-machine", "microvm,memory-backend=ram",
            "-object", f"memory-backend-ram,id=ram,size={mem_size_mib}M", "-m", f"{mem_size_mib}M",
            "-accel", "tcg,thread=multi,tb-size=32", "-cpu", "max,la57=off", "-smp", "1",
            "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-serial", f"file:{folder / 'console'}",
            "-device", "virtio-serial-device,max_ports=2",
            "-chardev", f"socket,id=agent,path={folder / 'agent'},server=on,wait=off",
            "-device", "virtserialport,chardev=agent,name=forkd.agent",
            "-drive", f"if=none,id=disk,file={disk},format=qcow2",
            "-device", "virtio-blk-device,drive=disk",
            "-qmp", f"unix:{monitor},server=on,wait=off", *boot,
        ]  # fmt: skip
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
            try:
                with connected(monitor, process) as link:
                    wait_until_idle(process.pid)
                    yield Machine(Monitor(link), disk, folder)
            finally:
                process.kill()


@contextmanager
def connected(path: Path, process: subprocess.Popen[bytes]) -> Iterator[socket.socket]:
    """A connection to a socket that QEMU is about to make."""
    until = time.monotonic() + DEADLINE_SECS
    with socket.socket(socket.AF_UNIX) as link:
        while link.connect_ex(str(path)) != 0:
            if process.poll() is not None or time.monotonic() > until:
                raise PeerError("QEMU did not start")
            time.sleep(0.05)
        yield link


def wait_until_idle(pid: int) -> None:
    """Waits until a process has used little of a CPU for a while."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks_per_s

    until, before = time.monotonic() + DEADLINE_SECS, used()
    while True:
        time.sleep(IDLE_SECS)
        now = used()
        if now - before < IDLE_PART * IDLE_SECS:
            return
        if time.monotonic() > until:
            raise PeerError("the guest does not become idle")
        before = now


def savevm(machine: Machine) -> int:
    """Saves RAM and devices into the disk's own file, while the guest stands still."""
    before = machine.disk.stat().st_blocks
    said = machine.monitor.ask("human-monitor-command", **{"command-line": "savevm bench"})
    if said:
        raise PeerError(f"savevm: {said.strip()}")
    written = (machine.disk.stat().st_blocks - before) * 512
    machine.monitor.ask("human-monitor-command", **{"command-line": "delvm bench"})
    return written


def migrate(machine: Machine) -> int:
    """Writes RAM and devices to a file while the guest runs; the rest while it stands still."""
    monitor, file = machine.monitor, machine.folder / "state"
    limits = {"max-bandwidth": 1 << 40, "downtime-limit": 300}
    monitor.ask("migrate-set-parameters", **limits)
    monitor.ask("migrate", uri=f"exec:cat > {file}")
    until = time.monotonic() + DEADLINE_SECS
    while (status := monitor.ask("query-migrate").get("status")) != "completed":
        if status in ("failed", "cancelled") or time.monotonic() > until:
            raise PeerError(f"migrate: {status}")
        time.sleep(0.002)
    if not monitor.ask("query-status")["running"]:
        monitor.ask("cont")
    written = file.stat().st_size
    file.unlink()
    return written


def background(machine: Machine) -> int:
    """The same from one instant: pages that the guest is about to write are saved first."""
    wanted = [{"capability": "background-snapshot", "state": True}]
    machine.monitor.ask("migrate-set-capabilities", capabilities=wanted)
    try:
        return migrate(machine)
    finally:
        wanted[0]["state"] = False
        machine.monitor.ask("migrate-set-capabilities", capabilities=wanted)


WAYS: Mapping[str, Callable[[Machine], int]] = {
    "savevm": savevm,
    "migrate to a file": migrate,
    "background-snapshot": background,
}


def measure(images: Path, mem_size_mib: int, iterations: int) -> list[dict[str, Any]]:
    """Saves a guest each way in turn. A way that QEMU refuses has rows without figures."""
    rows = []
    with booted(images / "python", mem_size_mib) as machine:
        for iteration in range(1, iterations + 1):
            for name, way in WAYS.items():
                row: dict[str, Any] = {"iteration": iteration, "way": name}
                row |= dict.fromkeys(("held_by_vmm_ms", "saved_ms", "written_bytes"))
                row["note"] = ""
                try:
                    machine.monitor.events.clear()
                    begun = time.monotonic()
                    row["written_bytes"] = way(machine)
                    row["saved_ms"] = (time.monotonic() - begun) * 1000
                    machine.monitor.ask("query-status")
                    stopped, resumed = map(machine.monitor.moment_ms, ("STOP", "RESUME"))
                    row["held_by_vmm_ms"] = resumed - stopped
                except PeerError as error:
                    row["note"] = str(error)
                rows.append(row)
                time.sleep(1)
    return rows
