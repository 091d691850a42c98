"""Plays the scenarios of `sdk/conformance`, with either shell of the SDK."""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

from forkd_sdk import (
    AsyncClient,
    AsyncTemplate,
    BuildFailedError,
    BuildStep,
    Client,
    CodeTimeoutError,
    CommandResult,
    CommandTimeoutError,
    Execution,
    ForkdError,
    Template,
    command,
)
from forkd_sdk.errors import SnapshotNotFoundError

SCENARIOS = Path(__file__).resolve().parents[2] / "conformance" / "scenarios.json"

Step = dict[str, Any]


def scenarios() -> list[dict[str, Any]]:
    """All of them."""
    found: list[dict[str, Any]] = json.loads(SCENARIOS.read_text())
    return found


def lacking(scenario: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """What the scenario needs and the daemon's interface does not have."""
    return [need for need in scenario.get("needs", []) if not has(document, need)]


def has(document: dict[str, Any], need: str) -> bool:
    """Whether the interface has a route, or a schema's field."""
    method, _, path = need.partition(" ")
    if path:
        return method.lower() in document["paths"].get(path, {})
    schema, _, field = need.partition(".")
    return field in document["components"]["schemas"].get(schema, {}).get("properties", {})


async def settled(value: Any) -> Any:
    """The value, whether it is to be awaited or not."""
    return await value if inspect.isawaitable(value) else value


class Player:
    """Plays one scenario."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client: Any = client
        self.names: dict[str, dict[str, Any]] = {}
        self.made: list[Any] = []

    async def play(self, scenario: dict[str, Any]) -> None:
        """All steps; what they made is removed, whatever happens."""
        try:
            for number, step in enumerate(scenario["steps"], 1):
                where = f"step {number} ({step['do']})"
                await self.step(step, where)
        finally:
            for each in reversed(self.made):
                await settled(each.remove())

    async def step(self, step: Step, where: str) -> None:
        """One step and what is expected of it."""
        kept = ("do", "as", "expect", "error")
        arguments = {key: self.value(value) for key, value in step.items() if key not in kept}
        act = getattr(self, f"do_{step['do']}")
        try:
            outcome: dict[str, Any] = await act(**arguments) or {}
        except ForkdError as error:
            if code(error) != step.get("error"):
                raise AssertionError(f"{where}: {error!r}") from error
            return
        assert "error" not in step, f"{where} must fail with {step['error']}, gave {outcome}"
        for field, wanted in step.get("expect", {}).items():
            found = outcome[field]
            assert matches(found, self.value(wanted)), f"{where}: {field} is {found!r}"
        if "as" in step:
            self.names[step["as"]] = outcome

    def value(self, value: Any) -> Any:
        """With what names stand for."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        if not isinstance(value, str) or not re.match(r"\$[a-z]+(\.\w+)*$", value):
            # A dollar sign that is meant is written twice at the beginning.
            return value[1:] if isinstance(value, str) and value.startswith("$$") else value
        name, *path = value[1:].split(".")
        found: Any = self.names[name]
        for part in path:
            found = found[int(part)] if part.isdigit() else found[part]
        return found

    def box(self, sandbox: Any) -> dict[str, Any]:
        """A sandbox as steps see it."""
        shown = {"id": sandbox.id, "state": sandbox.state, "metadata": sandbox.metadata}
        return {"object": sandbox, **shown}

    async def do_create(self, template: str, **options: Any) -> Any:
        sandbox = await settled(self.client.sandboxes.create(template, **options))
        self.made.append(sandbox)
        return self.box(sandbox)

    async def do_connect(self, id: str) -> Any:
        return self.box(await settled(self.client.sandboxes.connect(id)))

    async def do_refresh(self, sandbox: Any) -> Any:
        await settled(sandbox["object"].refresh())
        return self.box(sandbox["object"])

    async def do_pause(self, sandbox: Any) -> Any:
        await settled(sandbox["object"].pause())
        return self.box(sandbox["object"])

    async def do_resume(self, sandbox: Any) -> Any:
        await settled(sandbox["object"].resume())
        return self.box(sandbox["object"])

    async def do_remove(self, sandbox: Any) -> None:
        await settled(sandbox["object"].remove())

    async def do_rollback(self, sandbox: Any, snapshot: Any) -> Any:
        await settled(sandbox["object"].rollback(snapshot))
        return self.box(sandbox["object"])

    async def do_find(self, metadata: dict[str, str]) -> Any:
        found = await settled(self.client.sandboxes.list(metadata=metadata))
        return {"ids": [sandbox.id for sandbox in found]}

    async def do_run_code(self, sandbox: Any, code: str, **options: Any) -> Any:
        execution: Execution = await settled(sandbox["object"].run_code(code, **options))
        names = ("result", "stdout", "stderr", "error")

        def forms(value: Any) -> dict[str, str]:
            return {part.mime: part.data for part in value.parts}

        return {name: getattr(execution, name) for name in names} | {
            "parts": forms(execution),
            "displays": [forms(display) for display in execution.displays],
        }

    async def do_run(self, sandbox: Any, command: Any, stream: bool = False, **options: Any) -> Any:
        seen: list[str] = []
        if stream:
            options["on_stdout"] = seen.append
        result = await settled(sandbox["object"].commands.run(command, **options))
        return ended(result) | {"seen": "".join(seen)}

    async def do_start(self, sandbox: Any, command: Any, **options: Any) -> Any:
        process = await settled(sandbox["object"].commands.start(command, **options))
        return {"object": process, "id": process.id, "args": process.info.args}

    async def do_wait(self, process: Any) -> Any:
        return ended(await settled(process["object"].wait()))

    async def do_send_stdin(self, process: Any, text: str, eof: bool = False) -> None:
        await settled(process["object"].send_stdin(text, eof=eof))

    async def do_signal(self, process: Any, signal: str) -> None:
        await settled(process["object"].send_signal(signal))

    async def do_write_file(self, sandbox: Any, path: str, **content: str) -> None:
        data = content.get("text") or base64.b64decode(content["base64"])
        await settled(sandbox["object"].files.write(path, data))

    async def do_read_file(self, sandbox: Any, path: str) -> Any:
        data = await settled(sandbox["object"].files.read(path, format="bytes"))
        encoded = base64.b64encode(data).decode()
        return {"text": data.decode(errors="replace"), "base64": encoded}

    async def do_exists(self, sandbox: Any, path: str) -> Any:
        return {"exists": await settled(sandbox["object"].files.exists(path))}

    async def do_stat_file(self, sandbox: Any, path: str) -> Any:
        entry = await settled(sandbox["object"].files.stat(path))
        return {"kind": entry.kind, "size_bytes": entry.size_bytes}

    async def do_list_files(self, sandbox: Any, path: str) -> Any:
        entries = await settled(sandbox["object"].files.list(path))
        return {"names": sorted(entry.name for entry in entries)}

    async def do_make_dir(self, sandbox: Any, path: str) -> None:
        await settled(sandbox["object"].files.make_dir(path))

    async def do_remove_file(self, sandbox: Any, path: str, recursive: bool = False) -> None:
        await settled(sandbox["object"].files.remove(path, recursive=recursive))

    async def do_branch(self, sandbox: Any, n: int = 0, **options: Any) -> Any:
        branch = await settled(sandbox["object"].branch(n, **options))
        self.made.append(branch)
        return self.taken(branch.snapshot) | {
            "children": [self.box(child) for child in branch.unwrap()]
        }

    def taken(self, snapshot: Any) -> dict[str, Any]:
        """A snapshot as steps see it."""
        return {"snapshot": snapshot, "tag": snapshot.tag, "status": snapshot.info.status}

    async def do_fork(self, snapshot: Any, n: int = 1) -> Any:
        return {"children": [self.box(child) for child in await settled(snapshot.fork(n))]}

    async def do_snapshot_info(self, tag: str) -> Any:
        info = await settled(self.client.snapshots.info(tag))
        return {"tag": info.tag, "status": info.status, "chain_depth": info.chain_depth}

    async def do_compact(self, snapshot: Any, to: str) -> Any:
        return self.taken(await settled(snapshot.compact(to)))

    async def do_remove_snapshot(self, snapshot: Any, cascade: bool = False) -> None:
        await settled(snapshot.remove(cascade=cascade))

    async def do_build(self, template: str, tag: str, steps: list[Step], **options: Any) -> Any:
        kind = AsyncTemplate if isinstance(self.client, AsyncClient) else Template
        recipe: Any = kind.from_snapshot(template)
        for step in steps:
            recipe = with_step(recipe, **step)
        options |= {"context": SCENARIOS.parent, "client": self.client}
        self.made.append(built := Built(self.client))
        found = await settled(recipe.build(tag, on_step=built.take, **options))
        return {"tag": found.tag, "cached": [step.cached for step in found.steps]}

    async def do_images(self) -> Any:
        return {"names": [image.name for image in await settled(self.client.images())]}

    async def do_version(self) -> Any:
        return {"api": (await settled(self.client.version())).api}


class Built:
    """The snapshots of a build's steps."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.tags: list[str] = []

    def take(self, step: BuildStep) -> None:
        """Notes what a build tells."""
        if step.snapshot_tag is not None:
            self.tags.append(step.snapshot_tag)

    async def remove(self) -> None:
        """Removes them with the result; another build of the same may have shared them."""
        for tag in self.tags:
            with contextlib.suppress(SnapshotNotFoundError):
                await settled(self.client.snapshots.remove(tag, cascade=True))


def with_step(template: Any, **step: Any) -> Any:
    """The template with a step more."""
    if "copy" in step:
        return template.copy(step["copy"], step["to"], mode=int(step["mode"], 8))
    if "start" in step:
        return template.start(step["start"], ready=command(step["ready"]))
    ((verb, argument),) = step.items()
    return getattr(template, verb)(argument)


def ended(result: CommandResult) -> dict[str, Any]:
    """How a command ended, as steps see it."""
    return {"stdout": result.stdout, "stderr": result.stderr, "exit_code": result.exit_code}


def code(error: ForkdError) -> str | None:
    """The word by which a scenario knows an error."""
    if isinstance(error, CommandTimeoutError):
        return "command_timeout"
    if isinstance(error, CodeTimeoutError):
        return "code_timeout"
    if isinstance(error, BuildFailedError):
        return "build_failed"
    return getattr(error, "word", None)


def matches(found: Any, wanted: Any) -> bool:
    """Whether a value is what a scenario wants."""
    if not isinstance(wanted, dict) or len(wanted) != 1:
        return bool(found == wanted)
    ((matcher, argument),) = wanted.items()
    if matcher == "contains":
        return bool(argument in (found or ""))
    if matcher == "matches":
        return re.search(argument, found) is not None
    if matcher == "length":
        return bool(len(found) == argument)
    if matcher == "at_least":
        return bool(found >= argument)
    if matcher == "is":
        return found is None if argument == "null" else isinstance(found, str) and found != ""
    return bool(found == wanted)
