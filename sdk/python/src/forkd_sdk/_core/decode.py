"""From JSON to the generated models."""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast

from .failure import NotUnderstoodError

T = TypeVar("T")


def decode(kind: type[T], value: Any) -> T:
    """`value` as an object of the class.

    Unknown fields are left out, so that a newer daemon is understood. A missing or wrong one is an
    error.
    """
    return cast("T", _decode(kind, value, kind.__name__))


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        return _object(cast("type[Any]", kind), value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        # A closed set of words is any text: a newer daemon may know more of them.
        wanted = [argument for argument in arguments if argument is not type(None)]
        inner = str if str in wanted else wanted[0]
        return _decode(inner, value, where)
    if origin is list:
        _expect(isinstance(value, list), where, "a list", value)
        return [_decode(arguments[0], item, where) for item in value]
    if origin is dict:
        _expect(isinstance(value, dict), where, "an object", value)
        return {key: _decode(arguments[1], item, where) for key, item in value.items()}
    if kind is float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _expect(is_number, where, "a number", value)
        return float(value)
    if kind in (int, str, bool):
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        _expect(right, where, kind.__name__, value)
    return value


def _object(kind: type[Any], value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), where, "an object", value)
    hints, found = _hints(cast("Hashable", kind)), {}
    for entry in fields(kind):
        if entry.name in value:
            content = value[entry.name]
            # Null is as good as absent where there is a default.
            has_default = entry.default_factory is not MISSING
            if not (content is None and has_default):
                found[entry.name] = _decode(hints[entry.name], content, f"{where}.{entry.name}")
        elif entry.default is MISSING and entry.default_factory is MISSING:
            if type(None) not in typing.get_args(hints[entry.name]):
                raise NotUnderstoodError(f"the answer lacks `{where}.{entry.name}`")
            found[entry.name] = None
    return kind(**found)


def _expect(right: bool, where: str, what: str, value: Any) -> None:
    if not right:
        raise NotUnderstoodError(f"`{where}` is not {what} but {value!r:.80}")
