# Generated from crates/api/src/catalogue.rs by sdk/python/scripts/generate.py. Do not edit.
"""A class for each error of the daemon's catalogue."""

from __future__ import annotations

from ._core.failure import ApiError

__all__ = [
    "BY_CODE",
    "AdminOnlyError",
    "BadRequestError",
    "BootFailedError",
    "CaptureFailedError",
    "ChainTooDeepError",
    "CrossSiteError",
    "DaemonBusyError",
    "GuestFailedError",
    "GuestFileNotFoundError",
    "GuestRefusedError",
    "GuestSilentError",
    "HostRefusedError",
    "ImageNotFoundError",
    "InputWaitsError",
    "InternalError",
    "LimitReachedError",
    "LiveUnavailableError",
    "MemoryLimitReachedError",
    "MemoryLimitUnavailableError",
    "MethodNotAllowedError",
    "NoInputError",
    "NoSpaceError",
    "NoTerminalError",
    "NotJsonError",
    "NotYoursError",
    "OperationCancelledError",
    "OperationNotCancellableError",
    "OperationNotFoundError",
    "OutputTooLargeError",
    "OwnNetworkUnavailableError",
    "PeerRefusedError",
    "ProcessEndedError",
    "ProcessNotFoundError",
    "RenewalNotConfirmedError",
    "RequestTooLargeError",
    "RouteNotFoundError",
    "SandboxBusyError",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SnapshotDamagedError",
    "SnapshotInUseError",
    "SnapshotIncompatibleError",
    "SnapshotNotFoundError",
    "SnapshotNotReadyError",
    "StoreFailedError",
    "TagTakenError",
    "TooManyProcessesError",
    "UnauthorizedError",
    "VmmFailedError",
    "WarmFailedError",
]


class BadRequestError(ApiError):
    """A field is missing, malformed or out of bounds. Status 400; remedy: correct the field
    that the error names; /openapi.json describes every request.
    """

    code = "bad_request"


class UnauthorizedError(ApiError):
    """The request has no token, or an unknown one. Status 401; remedy: send `Authorization:
    Bearer` with a token of the daemon's token file (FORKD_TOKEN).
    """

    code = "unauthorized"


class PeerRefusedError(ApiError):
    """The peer's user is neither the daemon's nor root. Status 403; remedy: run the command as
    the daemon's user, or use TCP with a token.
    """

    code = "peer_refused"


class NotYoursError(ApiError):
    """A shared snapshot belongs to somebody else. Status 403; remedy: fork it, and branch or
    compact what you get; only its owner and admins may remove it.
    """

    code = "not_yours"


class AdminOnlyError(ApiError):
    """Only an admin may do that. Status 403; remedy: use a token that the daemon's token file
    marks `admin`, or the Unix socket as the daemon's user.
    """

    code = "admin_only"


class CrossSiteError(ApiError):
    """A web page of another site sends the request. Status 403; remedy: forkd answers no web
    pages of other sites: send the request from a program.
    """

    code = "cross_site"


class HostRefusedError(ApiError):
    """The request names a host that is not this machine's loopback. Status 403; remedy: address
    the daemon as 127.0.0.1 or localhost, or use its Unix socket.
    """

    code = "host_refused"


class RouteNotFoundError(ApiError):
    """No such route. Status 404; remedy: check the path; /openapi.json lists all routes."""

    code = "route_not_found"


class SnapshotNotFoundError(ApiError):
    """No such snapshot. Status 404; remedy: list the snapshots with `forkd snapshots`."""

    code = "snapshot_not_found"


class SandboxNotFoundError(ApiError):
    """No such sandbox. Status 404; remedy: list the sandboxes with `forkd ls`."""

    code = "sandbox_not_found"


class ImageNotFoundError(ApiError):
    """No such image. Status 404; remedy: list the images with `forkd images`."""

    code = "image_not_found"


class OperationNotFoundError(ApiError):
    """No such operation. Status 404; remedy: list the operations with `forkd operations`; the
    daemon keeps only the last ones that ended.
    """

    code = "operation_not_found"


class GuestFileNotFoundError(ApiError, FileNotFoundError):
    """No such file in the guest. Status 404; remedy: check the path: it must be an absolute
    path in the sandbox.
    """

    code = "file_not_found"


class ProcessNotFoundError(ApiError):
    """No such background process in this sandbox. Status 404; remedy: list the sandbox's
    processes with `forkd ps`; the daemon forgets ended ones when it needs their place.
    """

    code = "process_not_found"


class MethodNotAllowedError(ApiError):
    """The route exists, the method does not. Status 405; remedy: use a method that the Allow
    header names.
    """

    code = "method_not_allowed"


class TagTakenError(ApiError):
    """The tag is taken. Status 409; remedy: choose another tag, or remove the snapshot with
    `forkd snapshot rm`.
    """

    code = "tag_taken"


class SnapshotNotReadyError(ApiError):
    """The snapshot is being written, or has failed. Status 409; remedy: wait until its status
    is `ready`; if it has failed, take the snapshot again.
    """

    code = "snapshot_not_ready"


class SnapshotDamagedError(ApiError):
    """A part of the snapshot is missing or damaged. Status 409; remedy: put the named file back
    and restart the daemon, or remove the snapshot and take it again.
    """

    code = "snapshot_damaged"


class SnapshotIncompatibleError(ApiError):
    """The snapshot does not fit this host's QEMU, accelerator or CPU model. Status 409; remedy:
    build the template again with the QEMU and accelerator in use.
    """

    code = "snapshot_incompatible"


class SnapshotInUseError(ApiError):
    """Others depend on the snapshot. Status 409; remedy: `forkd snapshot rm --cascade` removes
    what depends on it too; `--force` keeps what depends on it.
    """

    code = "snapshot_in_use"


class SandboxNotRunningError(ApiError):
    """The sandbox's state does not permit the request. Status 409; remedy: look at its state
    with `forkd ls`; you can only remove a dead sandbox.
    """

    code = "sandbox_not_running"


class ChainTooDeepError(ApiError):
    """The sandbox's disk has as many overlays as are allowed. Status 409; remedy: compact the
    snapshot that it started from with `forkd snapshot compact`, then fork that.
    """

    code = "chain_too_deep"


class OperationNotCancellableError(ApiError):
    """The operation has ended, or it is too late to undo it. Status 409; remedy: wait until it
    ends, then remove what it has made.
    """

    code = "operation_not_cancellable"


class OperationCancelledError(ApiError):
    """Somebody cancelled the operation behind the request. Status 409; remedy: send the request
    again; nothing is left of what was cancelled.
    """

    code = "operation_cancelled"


class TooManyProcessesError(ApiError):
    """The sandbox runs as many background processes as are allowed. Status 409; remedy: end a
    process that you no longer need: DELETE kills and forgets it.
    """

    code = "too_many_processes"


class ProcessEndedError(ApiError):
    """The process has ended. Status 409; remedy: see how it ended with a GET of the process."""

    code = "process_ended"


class NoInputError(ApiError):
    """The process takes no input. Status 409; remedy: start the process with `stdin` true, and
    send input before its end.
    """

    code = "no_input"


class NoTerminalError(ApiError):
    """The process has no terminal. Status 409; remedy: start the process with `tty`."""

    code = "no_terminal"


class LiveUnavailableError(ApiError):
    """This host cannot branch live. Status 409; remedy: use mode `diff`; `forkd doctor` tells
    you what live branching needs.
    """

    code = "live_unavailable"


class MemoryLimitUnavailableError(ApiError):
    """The daemon cannot enforce a memory limit. Status 409; remedy: run the daemon as root, or
    under systemd with the unit in deploy/, which delegates the memory controller; `forkd
    doctor` tests it; or leave out `memory_limit_mib`.
    """

    code = "memory_limit_unavailable"


class OwnNetworkUnavailableError(ApiError):
    """The daemon cannot create network namespaces. Status 409; remedy: give the daemon
    CAP_SYS_ADMIN (docs/guides/deployment.md says how, `forkd doctor` tests it), or leave out
    `per_child_netns`: guests have no network device anyway.
    """

    code = "own_network_unavailable"


class RequestTooLargeError(ApiError):
    """The body is too large. Status 413; remedy: send less at once; put large data into a file
    of the sandbox.
    """

    code = "request_too_large"


class NotJsonError(ApiError):
    """The body is not declared as JSON. Status 415; remedy: send the header `Content-Type:
    application/json`.
    """

    code = "not_json"


class MemoryLimitReachedError(ApiError):
    """The sandbox's VMM reached its memory limit, and the kernel ended it. Status 422; remedy:
    fork again with a larger `memory_limit_mib` or none; docs/limits.md says what counts.
    """

    code = "memory_limit_reached"


class WarmFailedError(ApiError):
    """The warm-up command failed. Status 422; remedy: run the command in a sandbox of the image
    to see why it fails.
    """

    code = "warm_failed"


class OutputTooLargeError(ApiError):
    """The output is larger than the daemon accepts. Status 422; remedy: write the output to a
    file in the sandbox, or make it smaller.
    """

    code = "output_too_large"


class GuestRefusedError(ApiError):
    """The guest could not carry out the request. Status 422; remedy: check the command, its
    path and its working directory in the sandbox.
    """

    code = "guest_refused"


class InternalError(ApiError):
    """A task of the daemon died: a bug. Status 500; remedy: this is a bug in forkd: look up the
    request id in the daemon's log and report both.
    """

    code = "internal"


class VmmFailedError(ApiError):
    """The VMM failed. Status 500; remedy: look at the daemon's log, and run `forkd doctor`."""

    code = "vmm_failed"


class CaptureFailedError(ApiError):
    """Guest memory could not be captured. Status 500; remedy: the source runs on: try again,
    and look at the daemon's log if it fails again.
    """

    code = "capture_failed"


class StoreFailedError(ApiError):
    """The store failed. Status 500; remedy: check the file system of the store directory, then
    look at the daemon's log.
    """

    code = "store_failed"


class BootFailedError(ApiError):
    """The guest did not come up. Status 502; remedy: read the last lines of the console in the
    error; the image may need more memory.
    """

    code = "boot_failed"


class RenewalNotConfirmedError(ApiError):
    """A child did not confirm its new identity and was destroyed. Status 502; remedy: try
    again; if that fails, the snapshot's guest agent is stuck: take the snapshot again.
    """

    code = "renewal_not_confirmed"


class GuestFailedError(ApiError):
    """The guest agent broke the connection or the protocol. Status 502; remedy: look at the
    sandbox's console with `forkd logs`; if it fails again, remove the sandbox.
    """

    code = "guest_failed"


class SandboxBusyError(ApiError):
    """Too many requests wait for one sandbox. Status 503; remedy: wait for the requests under
    way, then try again; the header Retry-After says when.
    """

    code = "sandbox_busy"


class LimitReachedError(ApiError):
    """The request would exceed a limit of the daemon. Status 503; remedy: remove what you no
    longer need, wait for branches under way, or start the daemon with higher limits: `forkd
    serve` has --max-sandboxes, --max-guest-memory-mib and --max-branches, and for each owner
    --owner-max-sandboxes, --owner-max-guest-memory-mib and --owner-max-disk-mib, or set
    variables such as FORKD_MAX_SANDBOXES.
    """

    code = "limit_reached"


class DaemonBusyError(ApiError):
    """Other requests hold the memory that there is for bodies. Status 503; remedy: other
    requests send much at once: try again; the header Retry-After says when.
    """

    code = "daemon_busy"


class InputWaitsError(ApiError):
    """The program has not read the input that was sent before. Status 503; remedy: the program
    got nothing of this input: send it again once the program reads.
    """

    code = "input_waits"


class GuestSilentError(ApiError):
    """The guest agent did not answer in time. Status 504; remedy: the guest may be overloaded:
    try again, or look at `forkd logs`.
    """

    code = "guest_silent"


class NoSpaceError(ApiError):
    """Not enough space. Status 507; remedy: remove sandboxes and snapshots that you no longer
    need, or enlarge the file system.
    """

    code = "no_space"


BY_CODE: dict[str, type[ApiError]] = {
    "bad_request": BadRequestError,
    "unauthorized": UnauthorizedError,
    "peer_refused": PeerRefusedError,
    "not_yours": NotYoursError,
    "admin_only": AdminOnlyError,
    "cross_site": CrossSiteError,
    "host_refused": HostRefusedError,
    "route_not_found": RouteNotFoundError,
    "snapshot_not_found": SnapshotNotFoundError,
    "sandbox_not_found": SandboxNotFoundError,
    "image_not_found": ImageNotFoundError,
    "operation_not_found": OperationNotFoundError,
    "file_not_found": GuestFileNotFoundError,
    "process_not_found": ProcessNotFoundError,
    "method_not_allowed": MethodNotAllowedError,
    "tag_taken": TagTakenError,
    "snapshot_not_ready": SnapshotNotReadyError,
    "snapshot_damaged": SnapshotDamagedError,
    "snapshot_incompatible": SnapshotIncompatibleError,
    "snapshot_in_use": SnapshotInUseError,
    "sandbox_not_running": SandboxNotRunningError,
    "chain_too_deep": ChainTooDeepError,
    "operation_not_cancellable": OperationNotCancellableError,
    "operation_cancelled": OperationCancelledError,
    "too_many_processes": TooManyProcessesError,
    "process_ended": ProcessEndedError,
    "no_input": NoInputError,
    "no_terminal": NoTerminalError,
    "live_unavailable": LiveUnavailableError,
    "memory_limit_unavailable": MemoryLimitUnavailableError,
    "own_network_unavailable": OwnNetworkUnavailableError,
    "request_too_large": RequestTooLargeError,
    "not_json": NotJsonError,
    "memory_limit_reached": MemoryLimitReachedError,
    "warm_failed": WarmFailedError,
    "output_too_large": OutputTooLargeError,
    "guest_refused": GuestRefusedError,
    "internal": InternalError,
    "vmm_failed": VmmFailedError,
    "capture_failed": CaptureFailedError,
    "store_failed": StoreFailedError,
    "boot_failed": BootFailedError,
    "renewal_not_confirmed": RenewalNotConfirmedError,
    "guest_failed": GuestFailedError,
    "sandbox_busy": SandboxBusyError,
    "limit_reached": LimitReachedError,
    "daemon_busy": DaemonBusyError,
    "input_waits": InputWaitsError,
    "guest_silent": GuestSilentError,
    "no_space": NoSpaceError,
}
