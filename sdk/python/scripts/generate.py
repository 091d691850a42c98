"""Writes the SDKs' generated files; `--check` only tells which of them are not current.

| file | from |
|---|---|
| `models.py` | the schemas of `openapi/v1.json` |
| `_codes.py` | the error catalogue, `crates/api/src/catalogue.rs` |
| `_sync/*.py` | `_async/*.py`, by leaving `async` and `await` out |
| those of the TypeScript SDK | see `typescript.py` |

Guarantees: the same input gives the same bytes. Writes nowhere else.
"""

from __future__ import annotations

import json
import keyword
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import typescript

PYTHON = Path(__file__).resolve().parents[1]
ROOT = PYTHON.parents[1]
PACKAGE = PYTHON / "src" / "forkd_sdk"
TYPESCRIPT = ROOT / "sdk" / "typescript" / "src" / "generated"
WIDTH = 92

Schema = dict[str, Any]

# A class of ours with the name of a built-in one would hide it.
EXTRA_BASES = {"FileNotFound": ("GuestFileNotFound", "FileNotFoundError")}

# Before the name of a closed set of words: those that this version knows, and no other.
WORDS = "Known"

# These are written twice: their two forms differ in more than `await`.
HAND_WRITTEN = {"__init__.py", "explore.py", "ports.py", "program.py", "transport.py"}

WITHOUT_ASYNC = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\baclose\b", "close"),
    (r"\banext\(", "next("),
    (r"\baiter_(bytes|lines|sse)\b", r"iter_\1"),
    (r"\bAsync([A-Z]\w+)\b", r"\1"),
    (r"\b_async\b", "_sync"),
    (r"\basyncio\b", "threads"),
)


def header(source: str) -> str:
    """The first line of a generated file."""
    return f"# Generated from {source} by sdk/python/scripts/generate.py. Do not edit.\n"


def schemas() -> dict[str, Schema]:
    """The schemas of the interface."""
    document = json.loads((ROOT / "openapi" / "v1.json").read_text())
    known: dict[str, Schema] = document["components"]["schemas"]
    answers = [
        operation["responses"] for path in document["paths"].values() for operation in path.values()
    ]
    used: set[str] = set()
    wanted = references(answers) | {"BuildEvent", "ErrorBody", "EventType"}
    while wanted:
        used |= wanted
        wanted = set().union(*(references(known[name]) for name in wanted)) - used
    # Requests are built by functions with arguments; their schemas give no class.
    return {name: schema for name, schema in known.items() if name in used}


def references(value: Any) -> set[str]:
    """The names of all schemas that a piece of the document refers to."""
    if isinstance(value, list):
        return set().union(*map(references, value))
    if not isinstance(value, dict):
        return set()
    own = reference(value)
    return references(list(value.values())) | ({own} if own else set())


def reference(schema: Schema) -> str | None:
    """The name of the schema that this one refers to."""
    name = schema.get("$ref")
    return None if name is None else str(name).rsplit("/", 1)[1]


def is_optional(schema: Schema) -> bool:
    """Whether null is among the values."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        return True
    return any(choice.get("type") == "null" for choice in schema.get("oneOf", []))


def python_type(schema: Schema) -> str:
    """The type of a value that is there."""
    if name := reference(schema):
        return name
    choices = [choice for choice in schema.get("oneOf", []) if choice.get("type") != "null"]
    if len(choices) == 1:
        return python_type(choices[0])
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next(word for word in kind if word != "null")
    if kind == "array":
        return f"list[{python_type(schema['items'])}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"dict[str, {python_type(schema['additionalProperties'])}]"
    plain = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
    return plain.get(str(kind), "Any")


def flattened(schema: Schema, known: dict[str, Schema]) -> tuple[dict[str, Schema], set[str]]:
    """All fields of an object and which of them are required."""
    if name := reference(schema):
        return flattened(known[name], known)
    fields: dict[str, Schema] = {}
    required: set[str] = set()
    if "oneOf" in schema:
        # Exactly one of several: a class whose fields are all optional.
        for choice in schema["oneOf"]:
            fields.update(flattened(choice, known)[0])
        return fields, set()
    for part in schema.get("allOf", []):
        more, also_required = flattened(part, known)
        fields.update(more)
        required |= also_required
    fields.update(schema.get("properties", {}))
    required |= set(schema.get("required", []))
    return fields, required


def inherited(schema: Schema) -> tuple[str, Schema]:
    """The base class of an object that is another one and more, and what is more."""
    parts = schema.get("allOf", [])
    names = [name for name in map(reference, parts) if name]
    if len(names) != 1:
        return "", schema
    return f"({names[0]})", {"allOf": [part for part in parts if not reference(part)]}


def field_lines(name: str, schema: Schema, *, required: bool) -> list[str]:
    """One field with its text."""
    kind = python_type(schema)
    optional = is_optional(schema)
    if required:
        text = f"{name}: {kind}" + (" | None" if optional else "")
    elif kind.startswith(("list[", "dict[")) and not optional:
        text = f"{name}: {kind} = field(default_factory={kind.partition('[')[0]})"
    else:
        text = f"{name}: {kind} | None = None"
    return [text, *docstring(schema.get("description", ""))]


def docstring(text: str) -> list[str]:
    """A text as the lines of a docstring."""
    text = " ".join(text.split())
    if not text:
        return []
    lines = textwrap.wrap(f'"""{text}"""', WIDTH)
    if len(lines) == 1:
        return lines
    return [*textwrap.wrap(f'"""{text}', WIDTH), '"""']


def model(name: str, known: dict[str, Schema]) -> str:
    """The class of a schema."""
    if "enum" in known[name]:
        words = ", ".join(f'"{word}"' for word in known[name]["enum"])
        strict = f"{WORDS}{name}: TypeAlias = Literal[{words}]"
        text = docstring(f"The words of `{name}` that this version knows.")
        # A newer daemon may know more words.
        tolerant = f"{name}: TypeAlias = {WORDS}{name} | str"
        return "\n".join([strict, *text, tolerant, *docstring(known[name]["description"])])
    base, schema = inherited(known[name])
    fields, required = flattened(schema, known)
    assert not any(keyword.iskeyword(field) for field in fields), name
    lines = ["@dataclass(frozen=True, kw_only=True)", f"class {name}{base}:"]
    body = docstring(known[name].get("description", name))
    ordered = sorted(fields, key=lambda field: (field not in required, field))
    for field in ordered:
        body += ["", *field_lines(field, fields[field], required=field in required)]
    lines += [f"    {line}" if line else "" for line in body]
    return "\n".join(lines)


def models_text() -> str:
    """The module of all models."""
    known = schemas()
    names = sorted(known)
    ordered = sorted(names, key=lambda name: bool(inherited(known[name])[0]))
    classes = "\n\n\n".join(model(name, known) for name in ordered)
    words = [f"{WORDS}{name}" for name in names if "enum" in known[name]]
    exported = "".join(f'    "{name}",\n' for name in sorted([*names, *words]))
    return (
        header("openapi/v1.json")
        + '"""What the daemon answers with, as it comes over the wire.\n\n'
        + "Fields that this version does not know are left out when an answer is read, and\n"
        + "words that it does not know are kept: a newer daemon may say more.\n"
        + '"""\n\nfrom __future__ import annotations\n\n'
        + "from dataclasses import dataclass, field\nfrom typing import Literal, TypeAlias\n\n"
        + f"__all__ = [\n{exported}]\n\n\n{classes}\n"
    )


def catalogue() -> list[tuple[str, str, str, int, str]]:
    """Each error: its text, name in Rust, word, status, hint."""
    text = (ROOT / "crates/api/src/catalogue.rs").read_text()
    table = text[text.index("\ncatalogue! {") :]
    table = table[: table.index("\n}")]
    entry = r'((?:\s*///[^\n]*\n)+)\s*(\w+) = "(\w+)", (\d+),\s*"((?:[^"\\]|\\.)*)";'
    found = [
        (
            " ".join(re.sub(r"^\s*///", "", doc, flags=re.MULTILINE).split()),
            name,
            word,
            int(status),
            re.sub(r"\\\n\s*", "", hint),
        )
        for doc, name, word, status, hint in re.findall(entry, table, re.DOTALL)
    ]
    assert len(found) == table.count(";\n") + table.endswith(";"), "an entry is not understood"
    return found


def codes_text() -> str:
    """The module with a class for each error of the catalogue."""
    classes, table = [], []
    for doc, rust, word, status, hint in catalogue():
        name, base = EXTRA_BASES.get(rust, (rust, ""))
        bases = f"ApiError, {base}" if base else "ApiError"
        table.append((word, f"{name}Error"))
        lines = docstring(f"{doc} Status {status}; remedy: {hint}.")
        body = "\n".join(f"    {line}" for line in lines)
        classes.append(f'class {name}Error({bases}):\n{body}\n\n    code = "{word}"\n')
    rows = "".join(f'    "{word}": {name},\n' for word, name in table)
    exported = "".join(f'    "{name}",\n' for name in sorted(name for _, name in table))
    return (
        header("crates/api/src/catalogue.rs")
        + '"""A class for each error of the daemon\'s catalogue."""\n\n'
        + "from __future__ import annotations\n\n"
        + "from ._core.failure import ApiError\n\n"
        + f'__all__ = [\n    "BY_CODE",\n{exported}]\n\n\n'
        + "\n\n".join(classes)
        + "\n\nBY_CODE: dict[str, type[ApiError]] = {\n"
        + rows
        + "}\n"
    )


def without_async(text: str, source: str) -> str:
    """The synchronous form of an asynchronous module."""
    for pattern, replacement in WITHOUT_ASYNC:
        text = re.sub(pattern, replacement, text)
    return header(source) + text


def formatted(text: str) -> str:
    """As `ruff format` would have it, and imports in order."""
    for arguments in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", "x.py", "-"]
        ruff = subprocess.run(  # noqa: S603 - the program is our own interpreter
            command, input=text, capture_output=True, text=True, cwd=PYTHON, check=True
        )
        text = ruff.stdout
    return text


def outputs() -> dict[Path, str]:
    """Every generated file and what belongs into it."""
    files = {PACKAGE / "models.py": models_text(), PACKAGE / "_codes.py": codes_text()}
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name not in HAND_WRITTEN:
            text = without_async(source.read_text(), f"_async/{source.name}")
            files[PACKAGE / "_sync" / source.name] = text
    found = {path: formatted(text) for path, text in files.items()}
    more = typescript.outputs(schemas(), catalogue())
    return found | {TYPESCRIPT / name: text for name, text in more.items()}


def stale() -> list[Path]:
    """Generated files that are not what they would be made now."""
    return [
        path for path, text in outputs().items() if not path.is_file() or path.read_text() != text
    ]


def main() -> int:
    """Writes the files, or checks them."""
    if "--check" in sys.argv[1:]:
        found = stale()
        for path in found:
            print(f"{path.relative_to(ROOT)} is not current: run `make generate` and commit it")
        return bool(found)
    for path, text in outputs().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
