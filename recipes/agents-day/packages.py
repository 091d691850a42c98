"""The package `spelling` in four versions, as wheels: what an index of packages offers."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

# What the versions differ in.
VERSIONS = {
    "1.0": """
def distance(wrong, word):
    return abs(len(wrong) - len(word))
""",
    "1.1": """
def distance(wrong, word):
    return len(set(wrong) ^ set(word))
""",
    "1.2": """
def distance(wrong, word):
    pairs = lambda text: {text[at : at + 2] for at in range(len(text) - 1)}
    return len(pairs(wrong) ^ pairs(word))
""",
    "2.0": """
def distance(wrong, word):
    row = list(range(len(word) + 1))
    for at, letter in enumerate(wrong, 1):
        before, row[0] = row[0], at
        for to, other in enumerate(word, 1):
            step = min(row[to] + 1, row[to - 1] + 1, before + (letter != other))
            before, row[to] = row[to], step
    return row[-1]
""",
}


def publish(folder: Path) -> None:
    """Puts all versions into a folder that pip takes for the package's page."""
    folder.mkdir(parents=True)
    for version, code in VERSIONS.items():
        about = f"spelling-{version}.dist-info"
        files = {
            "spelling.py": f'VERSION = "{version}"\n{code}',
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: spelling\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        rows = [f"{name},sha256={digest(text)},{len(text)}" for name, text in files.items()]
        files[f"{about}/RECORD"] = "\n".join([*rows, f"{about}/RECORD,,\n"])
        with zipfile.ZipFile(folder / f"spelling-{version}-py3-none-any.whl", "w") as wheel:
            for name, text in files.items():
                wheel.writestr(name, text)


def digest(text: str) -> str:
    """A checksum as wheels have it."""
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).decode().rstrip("=")
