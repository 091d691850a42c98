"""Both shells have the same classes, the same methods and the same arguments; so has the
TypeScript SDK, as far as names go.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import forkd_sdk

ASYNC_NAMES = sorted(name for name in forkd_sdk.__all__ if name.startswith("Async"))

# A stream is a socket for the one, and what asyncio has for the other.
OTHER_STREAMS = {"AsyncPorts.connect"}

RENAMED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def public(kind: type[Any]) -> dict[str, Any]:
    found = {}
    for name, member in vars(kind).items():
        plain = RENAMED.get(name, name)
        if plain in RENAMED.values() or not plain.startswith("_"):
            found[plain] = member
    found.pop("__anext__", None)
    return found


def synchronous(text: str) -> str:
    for pattern, replacement in (
        (r"Async(?=[A-Z])", ""),
        (r"Awaitable\[(.*?)\]", r"\1"),
    ):
        text = re.sub(pattern, replacement, text)
    return text.replace("_async", "_sync")


def signature(member: Any) -> str:
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, classmethod):
        member = member.__func__
    return synchronous(str(inspect.signature(member))) if callable(member) else "attribute"


def documentation(member: Any) -> str:
    return synchronous(inspect.getdoc(member) or "")


@pytest.mark.parametrize("name", ASYNC_NAMES)
def test_an_asynchronous_class_has_a_twin_with_the_same_signatures(name: str) -> None:
    ours = public(getattr(forkd_sdk, name))
    twin = public(getattr(forkd_sdk, name.removeprefix("Async")))
    assert sorted(ours) == sorted(twin)
    for member, content in ours.items():
        if f"{name}.{member}" in OTHER_STREAMS:
            arguments = inspect.signature(content).parameters
            assert arguments == inspect.signature(twin[member]).parameters, member
            continue
        assert signature(content) == signature(twin[member]), member
        assert documentation(content) == documentation(twin[member]), member


def test_both_searches_take_the_same() -> None:
    ours = inspect.signature(forkd_sdk.explore_async).parameters
    twin = inspect.signature(forkd_sdk.explore).parameters
    assert {n: (p.kind, p.default) for n, p in ours.items()} == {
        n: (p.kind, p.default) for n, p in twin.items()
    }


def test_all_that_is_exported_and_public_is_documented() -> None:
    for name in forkd_sdk.__all__:
        kind = getattr(forkd_sdk, name)
        assert inspect.getdoc(kind), name
        if inspect.isclass(kind):
            for member, content in public(kind).items():
                if callable(content) and not member.startswith("__"):
                    assert inspect.getdoc(content), f"{name}.{member}"


TYPESCRIPT = Path(__file__).resolve().parents[3] / "typescript" / "src"

# What is another word there.
WORDS = {"make_dir": "mkdir", "raise_for_error": "throwForError", "raise_for_exit": "throwForExit"}

# It lets go of a sandbox: connections need no such thing there.
# Each language has its own client of HTTP.
PYTHON_ONLY = {"Sandbox.close", "Ports.http"}

SHARED = [
    *(getattr(forkd_sdk, name.removeprefix("Async")) for name in ASYNC_NAMES),
    forkd_sdk.CommandResult,
    forkd_sdk.Execution,
    forkd_sdk.OutputChunk,
    forkd_sdk.Part,
    forkd_sdk.ForkdError,
    forkd_sdk.ApiError,
]


def typescript_class(name: str) -> str:
    """The text of a class of the TypeScript SDK."""
    for source in sorted(TYPESCRIPT.rglob("*.ts")):
        found = re.search(rf"^export class {name}\b.*?^}}", source.read_text(), re.S | re.M)
        if found:
            return found[0]
    raise AssertionError(f"there is no class {name}")


@pytest.mark.parametrize("kind", SHARED, ids=lambda kind: str(kind.__name__))
def test_the_typescript_sdk_has_the_same_surface(kind: type[Any]) -> None:
    text = typescript_class(kind.__name__)
    members = {name for name in vars(kind) if not name.startswith("_")}
    members |= {name for name in getattr(kind, "__annotations__", {}) if not name.startswith("_")}
    for name in sorted(members):
        if f"{kind.__name__}.{name}" in PYTHON_ONLY or name == "of":
            continue
        first, *more = name.split("_")
        camel = WORDS.get(name, first + "".join(word.capitalize() for word in more))
        declared = rf"^\s+(?:static |async |get |readonly |override )*{camel}\b[(<:?; ]"
        assert re.search(declared, text, re.M), f"{kind.__name__}.{camel}"
