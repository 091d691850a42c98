"""Both shells have the same classes, the same methods and the same arguments."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import forkd_sdk

ASYNC_NAMES = sorted(name for name in forkd_sdk.__all__ if name.startswith("Async"))

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
