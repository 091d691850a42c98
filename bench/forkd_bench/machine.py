"""The machine that is measured, as the head of each file has it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any


def describe(root: Path, report: dict[str, Any]) -> dict[str, Any]:
    """What decides figures, besides the settings; `report` is what `forkd bench` printed."""
    place = Path(os.environ.get("TMPDIR", "/tmp"))  # noqa: S108 - where `forkd bench` writes
    return {
        "forkd": report["forkd"],
        "commit": commit(root),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "accelerator": report["accelerator"],
        "host": host(),
        "qemu": _output("qemu-system-x86_64", "--version").partition("\n")[0],
        "store_file_system": _output(
            "findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(place)
        ),
        "store_rotates": rotates(place),
        "settings": report["settings"],
    }


def commit(root: Path) -> str:
    """The commit that the program is of, and whether it has been changed since."""
    found = _output("git", "-C", str(root), "rev-parse", "--short", "HEAD")
    program = ("crates", "images", "Cargo.lock")
    changed = _output("git", "-C", str(root), "status", "--porcelain", "--", *program)
    return f"{found} and changes" if changed else found


def host() -> dict[str, Any]:
    """Processors, memory and kernel."""
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    memory = Path("/proc/meminfo").read_text().split(maxsplit=2)[1]
    return {
        "cpus": os.cpu_count(),
        "cpu_model": models[0].partition(":")[2].strip() if models else None,
        "memory_mib": int(memory) // 1024,
        "kernel": os.uname().release,
    }


def load() -> float:
    """Programs that ran or waited to, in the mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def rotates(place: Path) -> bool | None:
    """Whether the place is on a disk that turns; None if nothing says so."""
    device = place.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (block, block.resolve().parent):
        flag = folder / "queue/rotational"
        if flag.exists():
            return flag.read_text().strip() == "1"
    return None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
