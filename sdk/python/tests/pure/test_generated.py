"""What is generated is what it should be. `make lint` checks that the files are current."""

from __future__ import annotations

import json

import generate
import pytest
import typescript

from forkd_sdk import errors, models
from forkd_sdk._codes import BY_CODE
from forkd_sdk._core import request


def test_every_code_of_the_catalogue_has_a_class_of_its_own() -> None:
    words = [word for _, _, word, _, _ in generate.catalogue()]
    assert len(words) > 20
    assert list(BY_CODE) == words
    assert len(set(BY_CODE.values())) == len(words)
    for word, kind in BY_CODE.items():
        assert kind.code == word
        assert issubclass(kind, errors.ApiError)
        assert getattr(errors, kind.__name__) is kind


def test_a_missing_file_is_also_pythons_own_error() -> None:
    error = errors.GuestFileNotFoundError("no file /x", hint="h", request_id="req-1")
    assert isinstance(error, FileNotFoundError)
    assert str(error) == "no file /x (hint: h) [file_not_found, req-1]"


def test_an_object_that_is_another_and_more_is_a_subclass() -> None:
    assert issubclass(models.SnapshotInfo, models.Snapshot)
    assert issubclass(models.BranchAnswer, models.Snapshot)


@pytest.mark.parametrize(
    ("schema", "required", "interface", "reader"),
    [
        ({"type": "integer"}, True, "readonly aB: number;", 'aB: needed("a_b", number),'),
        ({"type": "integer"}, False, "readonly aB?: number |", 'aB: perhaps("a_b", number),'),
        ({"type": ["string", "null"]}, True, "readonly aB?: string |", 'perhaps("a_b", text),'),
        (
            {"type": "array", "items": {"$ref": "#/c/X"}},
            False,
            "readonly aB: readonly X[];",
            'otherwise("a_b", list((value, where) => readX(value, where)), () => []),',
        ),
        (
            {"type": "object", "additionalProperties": {"type": "boolean"}},
            True,
            "readonly aB: Readonly<Record<string, boolean>>;",
            'needed("a_b", map(truth)),',
        ),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/c/X"}]}, False, "aB?: X |", 'perhaps("a_b", '),
    ],
)
def test_fields_in_typescript_have_the_type_of_their_schema(
    schema: generate.Schema, required: bool, interface: str, reader: str
) -> None:
    fields: generate.Schema = {"properties": {"a_b": schema}}
    if required:
        fields["required"] = ["a_b"]
    models = typescript.Models({"X": {"type": "object"}, "Y": fields})
    assert interface in models.interface("Y")
    assert reader in models.reader("Y")


STATE: generate.Schema = {"enum": ["on", "off"], "type": "string", "description": "How it is."}


def test_a_closed_set_of_words_is_a_type_that_takes_others_too() -> None:
    python = generate.model("State", {"State": STATE})
    assert 'KnownState: TypeAlias = Literal["on", "off"]' in python
    assert "\nState: TypeAlias = KnownState | str\n" in python
    known = {"State": STATE, "Y": {"properties": {"a": {"$ref": "#/c/State"}}, "required": ["a"]}}
    text = typescript.Models(known).text()
    assert 'export type KnownState = "on" | "off";' in text
    assert "export type State = KnownState | (string & {});" in text
    assert "readonly a: State;" in text
    assert 'a: needed("a", text),' in text
    assert "readState" not in text


@pytest.mark.parametrize("request_schema", ["ExecRequest", "EvalRequest", "CreateProcess"])
def test_the_longest_time_of_a_command_is_the_daemons(request_schema: str) -> None:
    text = (generate.ROOT / "openapi" / "v1.json").read_text()
    schema = json.loads(text)["components"]["schemas"][request_schema]
    longest = schema["properties"]["timeout_secs"]["maximum"]
    assert longest == request.COMMAND_SECS_MAX
    typescript_text = (generate.ROOT / "sdk/typescript/src/core/request.ts").read_text()
    assert f"COMMAND_SECS_MAX = {longest:_};" in typescript_text


def test_texts_in_typescript_call_fields_as_they_are_called_there() -> None:
    known = {"Y": {"properties": {"a_b": {"type": "integer"}}, "description": "`a_b` of `x_y`"}}
    assert "/** `aB` of `x_y` */" in typescript.Models(known).interface("Y")


@pytest.mark.parametrize(
    ("schema", "required", "line"),
    [
        ({"type": "integer"}, True, "a: int"),
        ({"type": ["string", "null"]}, True, "a: str | None"),
        ({"type": "boolean"}, False, "a: bool | None = None"),
        ({"type": "array", "items": {"type": "number"}}, False, "a: list[float] = field("),
        ({"$ref": "#/components/schemas/X"}, True, "a: X"),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/c/X"}]}, False, "a: X | None = None"),
    ],
)
def test_fields_have_the_type_of_their_schema(
    schema: generate.Schema, required: bool, line: str
) -> None:
    assert generate.field_lines("a", schema, required=required)[0].startswith(line)
