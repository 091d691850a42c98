"""The TypeScript SDK's generated files, from the same sources as the Python ones.

| file | from |
|---|---|
| `models.ts` | the schemas of `openapi/v1.json` |
| `codes.ts` | the error catalogue, `crates/api/src/catalogue.rs` |

Names are written as TypeScript writes them: `pause_ms` on the wire is `pauseMs`, also in the texts.
Pure: it gets the schemas and the catalogue, and gives text.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

Schema = dict[str, Any]

WIDTH = 100


def header(source: str) -> str:
    """The first line of a generated file."""
    return f"// Generated from {source} by sdk/python/scripts/typescript.py. Do not edit.\n"


def camel(name: str) -> str:
    """A name of the wire in TypeScript."""
    first, *more = name.split("_")
    return first + "".join(word.capitalize() for word in more)


def comment(text: str, indent: str = "") -> list[str]:
    """A text as the lines of a comment."""
    text = " ".join(text.split()).replace("*/", "* /")
    if not text:
        return []
    if len(indent) + len(text) + len("/**  */") <= WIDTH:
        return [f"{indent}/** {text} */"]
    prefix = f"{indent} * "
    lines = textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=prefix)
    return [f"{indent}/**", *lines, f"{indent} */"]


class Models:
    """The module of all models."""

    def __init__(self, known: dict[str, Schema]) -> None:
        self._known = known
        fields = {field for name in known for field in self.fields(known[name])[0]}
        self._words = {word for word in fields if "_" in word}

    def text(self) -> str:
        """The whole module."""
        names = sorted(self._known)
        objects = [name for name in names if "enum" not in self._known[name]]
        parts = "\n".join([*map(self.declaration, names), *map(self.reader, objects)])
        # What is not used is an error of the compiler.
        found = re.findall(
            r"\b(list|map|needed|number|object|otherwise|perhaps|text|truth)\(", parts
        )
        found += re.findall(r"\b(number|text|truth)\b(?=[,)])", parts)
        imports = "".join(f"  {word},\n" for word in sorted(set(found)))
        return (
            header("openapi/v1.json")
            + "/**\n * What the daemon answers with.\n *\n"
            + " * Fields that this version does not know are left out when an answer is read, and\n"
            + " * words that it does not know are kept: a newer daemon may say more.\n"
            + " */\n\n"
            + f'import {{\n{imports}  type Reader,\n}} from "../core/decode.js";\n\n{parts}'
        )

    def words(self, description: str) -> str:
        """A description with fields as they are called here."""
        return re.sub(
            r"`(\w+)`",
            lambda match: f"`{camel(match[1])}`" if match[1] in self._words else match[0],
            description,
        )

    def declaration(self, name: str) -> str:
        """The type of an object, or of a word."""
        return self.union(name) if "enum" in self._known[name] else self.interface(name)

    def union(self, name: str) -> str:
        """The type of a word."""
        schema = self._known[name]
        words = " | ".join(f'"{each}"' for each in schema["enum"])
        lines = comment(f"The words of `{name}` that this version knows.")
        lines += textwrap.wrap(f"export type Known{name} = {words};", WIDTH, subsequent_indent="  ")
        lines += comment(schema["description"])
        # A newer daemon may know more words; editors still offer these.
        return "\n".join([*lines, f"export type {name} = Known{name} | (string & {{}});"]) + "\n"

    def interface(self, name: str) -> str:
        """The type of an object."""
        schema = self._known[name]
        base, own = inherited(schema)
        fields, required = self.fields(own)
        lines = comment(self.words(schema.get("description", name)))
        lines.append(f"export interface {name}{f' extends {base}' if base else ''} {{")
        for field in sorted(fields, key=lambda field: (field not in required, field)):
            lines += comment(self.words(fields[field].get("description", "")), "  ")
            kind = self.kind(fields[field])
            there = field in required or has_empty(fields[field])
            name = camel(field)
            lines.append(
                f"  readonly {name}: {kind};"
                if there and not nullable(fields[field])
                else f"  readonly {name}?: {kind} | undefined;"
            )
        return "\n".join([*lines, "}"]) + "\n"

    def reader(self, name: str) -> str:
        """What reads an object."""
        fields, required = self.fields(self._known[name])
        lines = [f'export const read{name}: Reader<{name}> = object("{name}", {{']
        for field in sorted(fields, key=lambda field: (field not in required, field)):
            schema = fields[field]
            given = f'"{field}", {self.reads(schema)}'
            if nullable(schema) or (field not in required and not has_empty(schema)):
                call = f"perhaps({given})"
            elif field in required:
                call = f"needed({given})"
            else:
                empty = "[]" if schema.get("type") == "array" else "({})"
                call = f"otherwise({given}, () => {empty})"
            lines.append(f"  {camel(field)}: {call},")
        return "\n".join([*lines, "});"]) + "\n"

    def kind(self, schema: Schema) -> str:
        """The type of a value that is there."""
        schema = value(schema)
        if name := reference(schema):
            return name
        if "items" in schema:
            return f"readonly {self.kind(schema['items'])}[]"
        if "additionalProperties" in schema:
            return f"Readonly<Record<string, {self.kind(schema['additionalProperties'])}>>"
        return PLAIN[word(schema)][0]

    def reads(self, schema: Schema) -> str:
        """What reads a value that is there."""
        schema = value(schema)
        if name := reference(schema):
            if "enum" in self._known[name]:
                return PLAIN["string"][1]
            # It may be defined further below.
            return f"(value, where) => read{name}(value, where)"
        if "items" in schema:
            return f"list({self.reads(schema['items'])})"
        if "additionalProperties" in schema:
            return f"map({self.reads(schema['additionalProperties'])})"
        return PLAIN[word(schema)][1]

    def fields(self, schema: Schema) -> tuple[dict[str, Schema], set[str]]:
        """All fields of an object and which of them are required."""
        if name := reference(schema):
            return self.fields(self._known[name])
        fields: dict[str, Schema] = {}
        required: set[str] = set()
        if "oneOf" in schema:
            # Exactly one of several: all fields are optional.
            for choice in schema["oneOf"]:
                fields.update(self.fields(choice)[0])
            return fields, set()
        for part in schema.get("allOf", []):
            more, also_required = self.fields(part)
            fields.update(more)
            required |= also_required
        fields.update(schema.get("properties", {}))
        required |= set(schema.get("required", []))
        return fields, required


PLAIN = {
    "string": ("string", "text"),
    "integer": ("number", "number"),
    "number": ("number", "number"),
    "boolean": ("boolean", "truth"),
}


def reference(schema: Schema) -> str | None:
    """The name of the schema that this one refers to."""
    name = schema.get("$ref")
    return None if name is None else str(name).rsplit("/", 1)[1]


def value(schema: Schema) -> Schema:
    """The schema of a value that is not null."""
    choices = [choice for choice in schema.get("oneOf", []) if choice.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def word(schema: Schema) -> str:
    """The type of a plain value."""
    kind = schema["type"]
    return str(next(each for each in kind if each != "null") if isinstance(kind, list) else kind)


def nullable(schema: Schema) -> bool:
    """Whether null is among the values."""
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        return True
    return any(choice.get("type") == "null" for choice in schema.get("oneOf", []))


def has_empty(schema: Schema) -> bool:
    """Whether an absent one is as good as an empty one."""
    return schema.get("type") == "array" or "additionalProperties" in schema


def inherited(schema: Schema) -> tuple[str, Schema]:
    """The base of an object that is another one and more, and what is more."""
    parts = schema.get("allOf", [])
    names = [name for name in map(reference, parts) if name]
    if len(names) != 1:
        return "", schema
    return names[0], {"allOf": [part for part in parts if not reference(part)]}


def codes_text(catalogue: list[tuple[str, str, str, int, str]]) -> str:
    """The module with a class for each error of the catalogue."""
    classes, rows = [], []
    for doc, name, code, status, hint in catalogue:
        lines = comment(f"{doc} Status {status}; remedy: {hint}.")
        lines.append(f"export class {name}Error extends ApiError {{")
        lines.append(f'  static override readonly code: string = "{code}";')
        classes.append("\n".join([*lines, "}"]) + "\n")
        rows.append(f'  ["{code}", {name}Error],\n')
    return (
        header("crates/api/src/catalogue.rs")
        + "/** A class for each error of the daemon's catalogue. */\n\n"
        + 'import { ApiError } from "../core/failure.js";\n\n'
        + "\n".join(classes)
        + "\n/** The classes by their codes. */\n"
        + "export const BY_CODE: ReadonlyMap<string, typeof ApiError> = new Map([\n"
        + "".join(rows)
        + "]);\n"
    )


def outputs(
    known: dict[str, Schema], catalogue: list[tuple[str, str, str, int, str]]
) -> dict[str, str]:
    """Each generated file of the SDK and what belongs into it."""
    return {"models.ts": Models(known).text(), "codes.ts": codes_text(catalogue)}
