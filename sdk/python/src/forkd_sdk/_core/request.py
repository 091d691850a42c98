"""One function for each route: its arguments as a `Call`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .. import models
from .call import Answer, Call, Content, many, nothing, one, raw, text
from .result import CommandResult, Execution, command_result, execution

Command = str | Sequence[str]

# The longest time that the daemon lets a command or code run.
COMMAND_SECS_MAX = 86_400

# What an answer may take beyond the time that the guest is given.
MARGIN_SECS = 30.0

# The daemon holds a request to wait at most this long.
WAIT_SECS_MAX = 30


def argv(command: Command) -> tuple[str, ...]:
    """Program and arguments: text is for a shell."""
    if isinstance(command, str):
        return ("/bin/sh", "-c", command)
    return tuple(command)


def shown(command: Command) -> str:
    """The command for people."""
    return command if isinstance(command, str) else shlex.join(command)


def _path(*segments: str) -> str:
    return "/" + "/".join(quote(segment, safe="") for segment in segments)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _secs(secs: float | None) -> int | None:
    """Whole seconds, at least 1."""
    return None if secs is None else max(1, math.ceil(secs))


def _limit(secs: float | None) -> int:
    return min(_secs(secs) or COMMAND_SECS_MAX, COMMAND_SECS_MAX)


# The daemon.


def healthz() -> Call[models.Health]:
    """GET /healthz."""
    return Call("GET", "/healthz", one(models.Health))


def version() -> Call[models.Version]:
    """GET /version."""
    return Call("GET", "/version", one(models.Version))


def metrics() -> Call[str]:
    """GET /metrics."""
    return Call("GET", "/metrics", text)


def images() -> Call[list[models.Image]]:
    """GET /v1/images."""
    return Call("GET", "/v1/images", many(models.Image))


# Snapshots.


def snapshots() -> Call[list[models.Snapshot]]:
    """GET /v1/snapshots."""
    return Call("GET", "/v1/snapshots", many(models.Snapshot))


def snapshot_info(tag: str) -> Call[models.SnapshotInfo]:
    """GET /v1/snapshots/:tag/info."""
    return Call("GET", _path("v1", "snapshots", tag, "info"), one(models.SnapshotInfo))


def build(
    tag: str,
    image: str | None,
    *,
    from_reference: str | None = None,
    mem_size_mib: int | None = None,
    vcpus: int | None = None,
    cpu: str | None = None,
    warm: Sequence[str] = (),
    private: bool = False,
    wait: bool = True,
) -> Call[models.Snapshot]:
    """POST /v1/snapshots."""
    body = _given(tag=tag, image=image, mem_size_mib=mem_size_mib, vcpus=vcpus, cpu=cpu)
    if from_reference is not None:
        body["from"] = from_reference
    if warm:
        body["warm"] = list(warm)
    if private:
        body["private"] = True
    if not wait:
        body["wait"] = False
    return Call("POST", "/v1/snapshots", one(models.Snapshot), body=body, timeout_secs=None)


def compact(tag: str, to: str, *, wait: bool = True) -> Call[models.Snapshot]:
    """POST /v1/snapshots/:tag/compact."""
    body = {"to": to} if wait else {"to": to, "wait": False}
    path = _path("v1", "snapshots", tag, "compact")
    return Call("POST", path, one(models.Snapshot), body=body, timeout_secs=None)


def export_artifact(tag: str) -> Call[None]:
    """GET /v1/snapshots/:tag/artifact, piece by piece."""
    path = _path("v1", "snapshots", tag, "artifact")
    return Call("GET", path, nothing, timeout_secs=None)


def import_artifact(
    content: Content, tag: str | None, *, trust_once: bool
) -> Call[models.Snapshot]:
    """POST /v1/artifacts."""
    return Call(
        "POST",
        "/v1/artifacts",
        one(models.Snapshot),
        params=_given(tag=tag, trust_once="true" if trust_once else None),
        content=content,
        headers={"content-type": "application/octet-stream"},
        timeout_secs=None,
    )


def push(tag: str, reference: str) -> Call[models.PushedSnapshot]:
    """POST /v1/snapshots/:tag/push."""
    path = _path("v1", "snapshots", tag, "push")
    body = {"reference": reference}
    return Call("POST", path, one(models.PushedSnapshot), body=body, timeout_secs=None)


def pull(reference: str, tag: str | None, *, trust_once: bool) -> Call[models.Snapshot]:
    """POST /v1/pulls."""
    body = _given(reference=reference, tag=tag, trust_once=True if trust_once else None)
    return Call("POST", "/v1/pulls", one(models.Snapshot), body=body, timeout_secs=None)


def hub_info(reference: str) -> Call[models.HubSnapshot]:
    """GET /v1/hub/snapshot."""
    params = {"reference": reference}
    return Call("GET", "/v1/hub/snapshot", one(models.HubSnapshot), params=params)


def hub_search(registry: str, name: str) -> Call[models.HubListing]:
    """GET /v1/hub/snapshots."""
    params = {"registry": registry, "name": name}
    path = "/v1/hub/snapshots"
    return Call("GET", path, one(models.HubListing), params=params, timeout_secs=None)


def keys() -> Call[models.Keys]:
    """GET /v1/keys."""
    return Call("GET", "/v1/keys", one(models.Keys))


def trust_key(name: str, key: str) -> Call[None]:
    """PUT /v1/keys/:name."""
    return Call("PUT", _path("v1", "keys", name), nothing, body={"key": key})


def remove_key(name: str) -> Call[None]:
    """DELETE /v1/keys/:name."""
    return Call("DELETE", _path("v1", "keys", name), nothing)


def remove_snapshot(tag: str, *, cascade: bool = False, force: bool = False) -> Call[None]:
    """DELETE /v1/snapshots/:tag."""
    params = _given(cascade="true" if cascade else None, force="true" if force else None)
    path = _path("v1", "snapshots", tag)
    return Call("DELETE", path, nothing, params=params, timeout_secs=None)


# Sandboxes.


def sandboxes(metadata: Mapping[str, str] | None = None) -> Call[list[models.Sandbox]]:
    """GET /v1/sandboxes."""
    params = {f"metadata.{key}": value for key, value in (metadata or {}).items()}
    return Call("GET", "/v1/sandboxes", many(models.Sandbox), params=params)


def fork(
    tag: str,
    n: int = 1,
    *,
    metadata: Mapping[str, str] | None = None,
    ttl: float | None = None,
    idle_timeout: float | None = None,
    memory_limit_mib: int | None = None,
    per_child_netns: bool = False,
    network: models.NetworkPolicy | None = None,
) -> Call[list[models.Sandbox]]:
    """POST /v1/sandboxes."""
    body = _given(
        snapshot_tag=tag,
        n=n,
        metadata=dict(metadata) if metadata else None,
        ttl_secs=_secs(ttl),
        idle_timeout_secs=_secs(idle_timeout),
        memory_limit_mib=memory_limit_mib,
        per_child_netns=per_child_netns or None,
        network=_policy(network) if network else None,
    )
    parse = many(models.Sandbox)
    return Call("POST", "/v1/sandboxes", parse, body=body, timeout_secs=None)


def _policy(network: models.NetworkPolicy) -> dict[str, Any]:
    return _given(
        allow_internet_access=network.allow_internet_access,
        allow_out=list(network.allow_out) or None,
        deny_out=list(network.deny_out) or None,
        allow_public_traffic=network.allow_public_traffic or None,
        public_ports=list(network.public_ports) or None,
        mask_request_host=network.mask_request_host,
        rules={
            host: [{"transform": {"headers": dict(rule.transform.headers)}} for rule in rules]
            for host, rules in network.rules.items()
        }
        or None,
        join=None if network.join is None else list(network.join),
    )


# Private networks and secrets.


def networks() -> Call[list[models.Network]]:
    """GET /v1/networks."""
    return Call("GET", "/v1/networks", many(models.Network))


def create_network(name: str) -> Call[models.Network]:
    """POST /v1/networks."""
    return Call("POST", "/v1/networks", one(models.Network), body={"name": name})


def private_network(name: str) -> Call[models.Network]:
    """GET /v1/networks/:name."""
    return Call("GET", _path("v1", "networks", name), one(models.Network))


def remove_network(name: str) -> Call[None]:
    """DELETE /v1/networks/:name."""
    return Call("DELETE", _path("v1", "networks", name), nothing)


def join_network(sandbox_id: str, name: str) -> Call[models.Sandbox]:
    """PUT /v1/networks/:name/members/:sandbox."""
    path = _path("v1", "networks", name, "members", sandbox_id)
    return Call("PUT", path, one(models.Sandbox))


def leave_network(sandbox_id: str, name: str) -> Call[models.Sandbox]:
    """DELETE /v1/networks/:name/members/:sandbox."""
    path = _path("v1", "networks", name, "members", sandbox_id)
    return Call("DELETE", path, one(models.Sandbox))


def secrets() -> Call[list[models.Secret]]:
    """GET /v1/secrets."""
    return Call("GET", "/v1/secrets", many(models.Secret))


def set_secret(name: str, value: str) -> Call[None]:
    """PUT /v1/secrets/:name."""
    headers = {"content-type": "application/octet-stream"}
    content = value.encode()
    return Call("PUT", _path("v1", "secrets", name), nothing, content=content, headers=headers)


def remove_secret(name: str) -> Call[None]:
    """DELETE /v1/secrets/:name."""
    return Call("DELETE", _path("v1", "secrets", name), nothing)


# The network of a sandbox.


def network(sandbox_id: str) -> Call[models.NetworkPolicy]:
    """GET /v1/sandboxes/:id/network."""
    path = _path("v1", "sandboxes", sandbox_id, "network")
    return Call("GET", path, one(models.NetworkPolicy))


def network_log(sandbox_id: str, after: int | None) -> Call[models.NetworkLog]:
    """GET /v1/sandboxes/:id/network/log."""
    path = _path("v1", "sandboxes", sandbox_id, "network", "log")
    params = {} if after is None else {"after": str(after)}
    return Call("GET", path, one(models.NetworkLog), params=params)


def set_network(sandbox_id: str, policy: models.NetworkPolicy) -> Call[models.Sandbox]:
    """PUT /v1/sandboxes/:id/network."""
    path = _path("v1", "sandboxes", sandbox_id, "network")
    return Call("PUT", path, one(models.Sandbox), body=_policy(policy))


def sandbox(sandbox_id: str) -> Call[models.Sandbox]:
    """GET /v1/sandboxes/:id."""
    return Call("GET", _path("v1", "sandboxes", sandbox_id), one(models.Sandbox))


def remove_sandbox(sandbox_id: str) -> Call[None]:
    """DELETE /v1/sandboxes/:id."""
    return Call("DELETE", _path("v1", "sandboxes", sandbox_id), nothing)


def branch(
    sandbox_id: str,
    *,
    n: int = 0,
    mode: models.KnownBranchMode | None = None,
    tag: str | None = None,
    wait: bool = True,
    measure_diff: bool = False,
    network: models.NetworkPolicy | None = None,
    private: bool = False,
) -> Call[models.BranchAnswer]:
    """POST /v1/sandboxes/:id/branch."""
    body = _given(
        n=n,
        mode=mode,
        tag=tag,
        wait=wait,
        measure_diff=measure_diff or None,
        private=private or None,
        network=_policy(network) if network else None,
    )
    path = _path("v1", "sandboxes", sandbox_id, "branch")
    return Call("POST", path, one(models.BranchAnswer), body=body, timeout_secs=None)


def ports(sandbox_id: str) -> Call[list[models.Port]]:
    """GET /v1/sandboxes/:id/ports."""
    return Call("GET", _path("v1", "sandboxes", sandbox_id, "ports"), many(models.Port))


def connect_port(sandbox_id: str, port: int) -> Call[None]:
    """GET /v1/sandboxes/:id/ports/:port, which becomes a byte stream."""
    return Call("GET", _path("v1", "sandboxes", sandbox_id, "ports", str(port)), nothing)


def create_port_token(sandbox_id: str, port: int, ttl: int) -> Call[models.PortToken]:
    """POST /v1/sandboxes/:id/ports/:port/token."""
    path = _path("v1", "sandboxes", sandbox_id, "ports", str(port), "token")
    return Call("POST", path, one(models.PortToken), body={"ttl_secs": ttl})


def revoke_port_tokens(sandbox_id: str, port: int) -> Call[None]:
    """DELETE /v1/sandboxes/:id/ports/:port/token."""
    path = _path("v1", "sandboxes", sandbox_id, "ports", str(port), "token")
    return Call("DELETE", path, nothing)


def pause(sandbox_id: str) -> Call[models.Sandbox]:
    """POST /v1/sandboxes/:id/pause."""
    return Call("POST", _path("v1", "sandboxes", sandbox_id, "pause"), one(models.Sandbox))


def resume(sandbox_id: str) -> Call[models.Sandbox]:
    """POST /v1/sandboxes/:id/resume."""
    return Call("POST", _path("v1", "sandboxes", sandbox_id, "resume"), one(models.Sandbox))


def rollback(sandbox_id: str, tag: str) -> Call[models.Sandbox]:
    """POST /v1/sandboxes/:id/rollback."""
    path, body = _path("v1", "sandboxes", sandbox_id, "rollback"), {"snapshot_tag": tag}
    return Call("POST", path, one(models.Sandbox), body=body, timeout_secs=None)


def ping(sandbox_id: str) -> Call[models.Pong]:
    """POST /v1/sandboxes/:id/ping."""
    return Call("POST", _path("v1", "sandboxes", sandbox_id, "ping"), one(models.Pong))


def logs(sandbox_id: str) -> Call[bytes]:
    """GET /v1/sandboxes/:id/logs."""
    return Call("GET", _path("v1", "sandboxes", sandbox_id, "logs"), raw)


def eval_code(sandbox_id: str, code: str, timeout: float | None) -> Call[Execution]:
    """POST /v1/sandboxes/:id/eval."""
    limit = _limit(timeout)
    return Call(
        "POST",
        _path("v1", "sandboxes", sandbox_id, "eval"),
        lambda answer: execution(one(models.EvalAnswer)(answer)),
        body={"code": code, "timeout_secs": limit},
        timeout_secs=limit + MARGIN_SECS,
    )


def exec_command(
    sandbox_id: str,
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: str | None = None,
    stdin_base64: str | None = None,
    timeout: float | None = None,
) -> Call[CommandResult]:
    """POST /v1/sandboxes/:id/exec."""
    args, limit = argv(command), _limit(timeout)
    body = _given(
        args=list(args),
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        stdin=stdin,
        stdin_base64=stdin_base64,
        timeout_secs=limit,
    )

    def parse(answer: Answer) -> CommandResult:
        return command_result(args, one(models.ExecAnswer)(answer))

    path = _path("v1", "sandboxes", sandbox_id, "exec")
    return Call("POST", path, parse, body=body, timeout_secs=limit + MARGIN_SECS)


# Processes of a sandbox.


def _process(sandbox_id: str, process_id: str, *more: str) -> str:
    return _path("v1", "sandboxes", sandbox_id, "processes", process_id, *more)


def start_process(
    sandbox_id: str,
    command: Command,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | None = None,
    stdin: bool = False,
    timeout: float | None = None,
    tty: tuple[int, int] | None = None,
    hold_output: bool = False,
) -> Call[models.Process]:
    """POST /v1/sandboxes/:id/processes."""
    body = _given(
        args=list(argv(command)),
        env=dict(env) if env else None,
        cwd=cwd,
        user=user,
        stdin=stdin or None,
        timeout_secs=_secs(timeout),
        tty=None if tty is None else {"rows": tty[0], "cols": tty[1]},
        hold_output=hold_output or None,
    )
    path = _path("v1", "sandboxes", sandbox_id, "processes")
    return Call("POST", path, one(models.Process), body=body)


def processes(sandbox_id: str) -> Call[list[models.Process]]:
    """GET /v1/sandboxes/:id/processes."""
    return Call("GET", _path("v1", "sandboxes", sandbox_id, "processes"), many(models.Process))


def process(sandbox_id: str, process_id: str) -> Call[models.Process]:
    """GET /v1/sandboxes/:id/processes/:pr."""
    return Call("GET", _process(sandbox_id, process_id), one(models.Process))


def remove_process(sandbox_id: str, process_id: str) -> Call[None]:
    """DELETE /v1/sandboxes/:id/processes/:pr."""
    return Call("DELETE", _process(sandbox_id, process_id), nothing)


def signal_process(sandbox_id: str, process_id: str, signal: str | int) -> Call[None]:
    """POST /v1/sandboxes/:id/processes/:pr/signal."""
    word = signal.removeprefix("SIG") if isinstance(signal, str) else int(signal)
    path = _process(sandbox_id, process_id, "signal")
    return Call("POST", path, nothing, body={"signal": word})


def write_stdin(sandbox_id: str, process_id: str, data: bytes, *, eof: bool) -> Call[None]:
    """POST /v1/sandboxes/:id/processes/:pr/stdin."""
    return Call(
        "POST",
        _process(sandbox_id, process_id, "stdin"),
        nothing,
        params={"eof": "true"} if eof else {},
        content=data,
        headers={"content-type": "application/octet-stream"},
        # The program takes it when it likes.
        timeout_secs=None,
        patient=True,
    )


def resize_process(sandbox_id: str, process_id: str, rows: int, cols: int) -> Call[None]:
    """POST /v1/sandboxes/:id/processes/:pr/resize."""
    path = _process(sandbox_id, process_id, "resize")
    return Call("POST", path, nothing, body={"rows": rows, "cols": cols})


def process_output(sandbox_id: str, process_id: str, offset: int | None) -> Call[None]:
    """GET /v1/sandboxes/:id/processes/:pr/output."""
    params = {} if offset is None else {"from": str(offset)}
    path = _process(sandbox_id, process_id, "output")
    return Call("GET", path, nothing, params=params, headers={"accept": "text/event-stream"})


# Files of a sandbox.

STREAMED_BYTES_MAX = 16 << 30
"""A file that comes piece by piece may have so many bytes."""


def _files(sandbox_id: str, *more: str) -> str:
    return _path("v1", "sandboxes", sandbox_id, "files", *more)


def read_file(sandbox_id: str, path: str) -> Call[bytes]:
    """GET /v1/sandboxes/:id/files."""
    return Call("GET", _files(sandbox_id), raw, params={"path": path})


def stream_file(sandbox_id: str, path: str) -> Call[None]:
    """The same, piece by piece, and as large as there can be."""
    params = {"path": path, "max_bytes": str(STREAMED_BYTES_MAX)}
    return Call("GET", _files(sandbox_id), nothing, params=params)


def write_file(
    sandbox_id: str, path: str, content: Content, mode: int | None, user: str | None
) -> Call[None]:
    """PUT /v1/sandboxes/:id/files."""
    params = {"path": path} | ({} if mode is None else {"mode": f"{mode:04o}"}) | _of_user(user)
    headers = {"content-type": "application/octet-stream"}
    return Call("PUT", _files(sandbox_id), nothing, params=params, content=content, headers=headers)


def remove_file(sandbox_id: str, path: str, *, recursive: bool) -> Call[None]:
    """DELETE /v1/sandboxes/:id/files."""
    params = {"path": path} | ({"recursive": "true"} if recursive else {})
    return Call("DELETE", _files(sandbox_id), nothing, params=params)


def list_files(sandbox_id: str, path: str) -> Call[list[models.FileEntry]]:
    """GET /v1/sandboxes/:id/files/list."""
    return Call("GET", _files(sandbox_id, "list"), many(models.FileEntry), params={"path": path})


def stat_file(sandbox_id: str, path: str) -> Call[models.FileEntry]:
    """GET /v1/sandboxes/:id/files/stat."""
    return Call("GET", _files(sandbox_id, "stat"), one(models.FileEntry), params={"path": path})


def make_dir(sandbox_id: str, path: str, user: str | None) -> Call[None]:
    """POST /v1/sandboxes/:id/files/mkdir."""
    params = {"path": path} | _of_user(user)
    return Call("POST", _files(sandbox_id, "mkdir"), nothing, params=params)


def _of_user(user: str | None) -> dict[str, str]:
    return {} if user is None else {"user": user}


def watch_files(sandbox_id: str, path: str, *, recursive: bool) -> Call[None]:
    """GET /v1/sandboxes/:id/files/watch."""
    params = {"path": path} | ({"recursive": "true"} if recursive else {})
    headers = {"accept": "text/event-stream"}
    return Call("GET", _files(sandbox_id, "watch"), nothing, params=params, headers=headers)


# Operations and events.


def operations(state: models.KnownOperationState | None = None) -> Call[list[models.Operation]]:
    """GET /v1/operations."""
    params = _given(state=state)
    return Call("GET", "/v1/operations", many(models.Operation), params=params)


def operation(operation_id: str) -> Call[models.Operation]:
    """GET /v1/operations/:id."""
    return Call("GET", _path("v1", "operations", operation_id), one(models.Operation))


def wait_operation(operation_id: str, secs: float) -> Call[models.Operation]:
    """GET /v1/operations/:id/wait."""
    path = _path("v1", "operations", operation_id, "wait")
    params = {"timeout_secs": str(min(_secs(secs) or 1, WAIT_SECS_MAX))}
    return Call("GET", path, one(models.Operation), params=params)


def cancel_operation(operation_id: str) -> Call[None]:
    """POST /v1/operations/:id/cancel."""
    return Call("POST", _path("v1", "operations", operation_id, "cancel"), nothing)


def events(
    *,
    after: str | None = None,
    type: str | None = None,
    sandbox: str | None = None,
    snapshot: str | None = None,
) -> Call[None]:
    """GET /v1/events."""
    headers = {"accept": "text/event-stream"}
    if after is not None:
        headers["last-event-id"] = after
    params = _given(type=type, sandbox=sandbox, snapshot=snapshot)
    return Call("GET", "/v1/events", nothing, params=params, headers=headers)
