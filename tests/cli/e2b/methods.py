"""The public methods of E2B's packages for Python, as they are installed.

    methods.py list                  prints each: client, package, method
    methods.py play RECORD SESSION   runs a session, and appends what it called to RECORD

Public is what the packages export, and what one gets from that by properties and results. A method
is named after its class; one of a public base class after that. A line of the record is client,
method and outcome: nothing if it has returned, else what it raised. What a method calls itself is
not a call of the session.
"""

import contextvars
import functools
import inspect
import pathlib
import runpy
import sys
import threading
import typing

import e2b
import e2b_code_interpreter

PACKAGES = {"e2b": e2b, "e2b_code_interpreter": e2b_code_interpreter}


def is_ours(cls):
    return inspect.isclass(cls) and cls.__module__.split(".")[0] in PACKAGES


def is_generated(cls):
    """Whether it is of the layer below, which the packages do not show."""
    return cls.__module__.startswith(("e2b.api.", "e2b.envd."))


def exported(module):
    names = getattr(module, "__all__", None) or vars(module)
    return {name: getattr(module, name) for name in names if not name.startswith("_")}


def own_methods(cls):
    """Public methods by name, with what stands in the class for them."""
    named = {}
    for base in reversed(cls.__mro__):
        if is_ours(base):
            named.update(vars(base))
    for name, found in named.items():
        kind = type(found)
        is_method = hasattr(kind, "__get__") and not hasattr(kind, "__set__")
        if is_method and not name.startswith("_"):
            yield name, found


def classes_in(hint):
    if is_ours(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def leads_to(cls):
    """Classes whose objects one gets from a class."""
    members = [found for name, found in inspect.getmembers_static(cls) if name[0] != "_"]
    for member in members:
        parts = (getattr(member, name, None) for name in ("fget", "method", "__func__"))
        function = next((part for part in parts if part), member)
        try:
            hints = typing.get_type_hints(function)
        except (TypeError, NameError):
            continue
        yield from classes_in(hints.get("return"))


def public_classes():
    found = []
    for module in PACKAGES.values():
        found += [value for value in exported(module).values() if is_ours(value)]
    for cls in found:
        others = [other for other in leads_to(cls) if not is_generated(other)]
        found += [other for other in others if other not in found]
    return list(dict.fromkeys(found))


def client_of(cls):
    parts = cls.__module__.split(".")
    is_async = cls.__name__.startswith("Async") or any(part.endswith("_async") for part in parts)
    return "python-async" if is_async else "python"


def methods():
    """Client, package and name of each method, with its class and what stands in it."""
    public = public_classes()
    for cls in public:
        bases = [base for base in cls.__mro__[1:] if base in public]
        for name, found in own_methods(cls):
            if all(inspect.getattr_static(base, name, None) is not found for base in bases):
                home = inspect.unwrap(getattr(found, "method", None) or getattr(cls, name))
                package = (home.__module__ or cls.__module__).split(".")[0].replace("_", "-")
                yield (client_of(cls), package, f"{cls.__name__}.{name}"), (cls, name, found)
    for module in PACKAGES.values():
        for name, value in exported(module).items():
            if inspect.isfunction(value):
                yield ("python", value.__module__.split(".")[0].replace("_", "-"), name), None


class Watched:
    """Stands in a class for a method, and writes down each call of the session's own."""

    inside = contextvars.ContextVar("inside", default=False)
    writes = threading.Lock()
    record = None

    def __init__(self, key, found):
        self.key, self.found = key, found

    def __get__(self, instance, owner=None):
        bound = self.found.__get__(instance, owner)

        @functools.wraps(bound)
        def call(*arguments, **named):
            if self.inside.get():
                return bound(*arguments, **named)
            done = self.observed(lambda: bound(*arguments, **named))
            return self.awaited(done) if inspect.iscoroutine(done) else done

        return call

    def observed(self, act):
        before = self.inside.set(True)
        try:
            done = act()
        except Exception as failure:
            self.write(failure)
            raise
        finally:
            self.inside.reset(before)
        if not inspect.iscoroutine(done):
            self.write(None)
        return done

    async def awaited(self, coroutine):
        before = self.inside.set(True)
        try:
            done = await coroutine
        except Exception as failure:
            self.write(failure)
            raise
        finally:
            self.inside.reset(before)
        self.write(None)
        return done

    def write(self, failure):
        outcome = "" if failure is None else f"{type(failure).__name__}: {failure}"
        line = "\t".join([*self.key, " ".join(outcome.split())])
        with self.writes, self.record.open("a", encoding="utf-8") as record:
            record.write(f"{line}\n")


def play(record, session):
    Watched.record = pathlib.Path(record)
    for (client, _, method), place in list(methods()):
        if place is not None:
            cls, name, found = place
            setattr(cls, name, Watched((client, method), found))
    sys.argv = [session]
    runpy.run_path(session, run_name="__main__")


def main():
    match sys.argv[1:]:
        case ["list"]:
            for key in sorted({key for key, _ in methods()}):
                print(*key, sep="\t")
        case ["play", record, session]:
            play(record, session)
        case _:
            sys.exit(__doc__)


main()
