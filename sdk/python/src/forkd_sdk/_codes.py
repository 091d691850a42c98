# Generated from crates/api/src/catalogue.rs by sdk/python/scripts/generate.py. Do not edit.
"""A class for each error of the daemon's catalogue."""

from __future__ import annotations

from ._core.failure import ApiError

__all__ = [
    "BY_CODE",
    "AdminOnlyError",
    "ArtifactRefusedError",
    "ArtifactUnfitError",
    "BadRequestError",
    "BootFailedError",
    "CaptureFailedError",
    "ChainTooDeepError",
    "CrossSiteError",
    "DaemonBusyError",
    "GatewayNotTrustedError",
    "GuestFailedError",
    "GuestFileNotFoundError",
    "GuestRefusedError",
    "GuestSilentError",
    "HostRefusedError",
    "ImageNotFoundError",
    "ImageUnavailableError",
    "InputWaitsError",
    "InternalError",
    "KeyNotFoundError",
    "KeyNotTrustedError",
    "LimitReachedError",
    "LiveUnavailableError",
    "MemoryLimitReachedError",
    "MemoryLimitUnavailableError",
    "MethodNotAllowedError",
    "NetworkExistsError",
    "NetworkNotFoundError",
    "NetworkNotPermittedError",
    "NetworkUnavailableError",
    "NoInputError",
    "NoNetworkDeviceError",
    "NoPreviewsError",
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
    "PortClosedError",
    "PortSilentError",
    "ProcessEndedError",
    "ProcessNotFoundError",
    "RegistryFailedError",
    "RenewalNotConfirmedError",
    "RequestTooLargeError",
    "RouteNotFoundError",
    "SandboxBusyError",
    "SandboxNotFoundError",
    "SandboxNotRunningError",
    "SecretNotFoundError",
    "SnapshotDamagedError",
    "SnapshotInUseError",
    "SnapshotIncompatibleError",
    "SnapshotNotFoundError",
    "SnapshotNotReadyError",
    "SnapshotPrivateError",
    "StoreFailedError",
    "TagTakenError",
    "TooManyConnectionsError",
    "TooManyPortTokensError",
    "TooManyProcessesError",
    "UnauthorizedError",
    "UpgradeRequiredError",
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


class NetworkNotPermittedError(ApiError):
    """The network policy is more than the operator permits. Status 403; remedy: ask for less,
    or start the daemon with `forkd serve --network` as the error says.
    """

    code = "network_not_permitted"


class KeyNotTrustedError(ApiError):
    """Nobody here trusts the key that an artifact was signed with. Status 403; remedy: ask who
    exported it for the output of `forkd key`; if it is that key, trust it with `forkd key trust
    NAME KEY`; `forkd snapshot import --trust-once` imports what anybody has signed.
    """

    code = "key_not_trusted"


class SnapshotPrivateError(ApiError):
    """A private snapshot is not to leave the host. Status 403; remedy: it was made with
    `--private`, or branched from one that was; build what others may have without it.
    """

    code = "snapshot_private"


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


class SecretNotFoundError(ApiError):
    """No such secret. Status 404; remedy: list your secrets with `forkd secret ls`."""

    code = "secret_not_found"


class KeyNotFoundError(ApiError):
    """No such trusted key. Status 404; remedy: list the trusted keys with `forkd key ls`."""

    code = "key_not_found"


class NetworkNotFoundError(ApiError):
    """No such private network. Status 404; remedy: list your networks with `forkd network ls`,
    and the members of one with its name.
    """

    code = "network_not_found"


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


class ArtifactUnfitError(ApiError):
    """An artifact needs another machine, or another build of its image. Status 409; remedy:
    import it on a host that is as the error says, or build the template here.
    """

    code = "artifact_unfit"


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
    `per_child_netns`: guests reach only what `network` allows anyway.
    """

    code = "own_network_unavailable"


class NetworkExistsError(ApiError):
    """You have a private network of this name. Status 409; remedy: choose another name, or use
    that network: `forkd network ls` shows it.
    """

    code = "network_exists"


class NoNetworkDeviceError(ApiError):
    """The sandbox has no network device. Status 409; remedy: build its template anew: snapshots
    that an earlier forkd has made have no network device.
    """

    code = "no_network_device"


class PortClosedError(ApiError):
    """Nothing in the sandbox listens on the port. Status 409; remedy: list what listens with
    `forkd ports`; a server that has just been started may need a moment.
    """

    code = "port_closed"


class NoPreviewsError(ApiError):
    """The daemon shows no ports of sandboxes. Status 409; remedy: start the daemon with `forkd
    serve --preview-listen 127.0.0.1:8890`, or use `forkd port`, which needs no preview.
    """

    code = "no_previews"


class TooManyPortTokensError(ApiError):
    """As many tokens for ports as a sandbox may have. Status 409; remedy: revoke those of a
    port with `forkd port SANDBOX PORT --revoke`, or wait until some end.
    """

    code = "too_many_port_tokens"


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


class ArtifactRefusedError(ApiError):
    """The file is no artifact, or is damaged. Status 422; remedy: transfer the file again, or
    export the snapshot again; nothing of it was kept.
    """

    code = "artifact_refused"


class MemoryLimitReachedError(ApiError):
    """The sandbox's VMM reached its memory limit, and the kernel ended it. Status 422; remedy:
    fork again with a larger `memory_limit_mib` or none; docs/limits.md says what counts.
    """

    code = "memory_limit_reached"


class UpgradeRequiredError(ApiError):
    """A connection to a port is asked for by a request that cannot become one. Status 426;
    remedy: send the headers `Connection: Upgrade` and `Upgrade: tcp` over HTTP/1.1, as the SDKs
    and `forkd port` do.
    """

    code = "upgrade_required"


class WarmFailedError(ApiError):
    """The warm-up command failed. Status 422; remedy: run the command in a sandbox of the image
    to see why it fails.
    """

    code = "warm_failed"


class OutputTooLargeError(ApiError):
    """The output is larger than the daemon accepts. Status 422; remedy: write the output to a
    file in the sandbox; read a large file piece by piece: `forkd cp` does.
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


class ImageUnavailableError(ApiError):
    """An OCI image cannot be had, or is not one. Status 502; remedy: check the reference, and
    that the daemon's user can pull it: `docker login` keeps the credentials that it uses.
    """

    code = "image_unavailable"


class RegistryFailedError(ApiError):
    """A registry does not take or give a snapshot. Status 502; remedy: check the reference, and
    that the daemon's user may push or pull there: `docker login` keeps the credentials that it
    uses; then try again, what was sent is not sent again.
    """

    code = "registry_failed"


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


class GatewayNotTrustedError(ApiError):
    """Programs in the guest do not trust the network gateway. Status 409; remedy: build its
    template anew with this daemon, or leave out the header rules.
    """

    code = "gateway_not_trusted"


class TooManyConnectionsError(ApiError):
    """The sandbox has as many connections as it may have. Status 503; remedy: close connections
    that you no longer need, then try again.
    """

    code = "too_many_connections"


class NetworkUnavailableError(ApiError):
    """The network gateway does not answer. Status 503; remedy: try again: the daemon starts
    another gateway; its log says why one ended.
    """

    code = "network_unavailable"


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


class PortSilentError(ApiError):
    """The guest has not answered a connection to a port in time. Status 504; remedy: the guest
    may be overloaded, or a firewall in it drops packets: try again, or connect from within the
    sandbox with `forkd exec`.
    """

    code = "port_silent"


class NoSpaceError(ApiError):
    """Not enough space. Status 507; remedy: remove sandboxes and snapshots that you no longer
    need, or enlarge the file system.
    """

    code = "no_space"


BY_CODE: dict[str, type[ApiError]] = {
    "bad_request": BadRequestError,
    "unauthorized": UnauthorizedError,
    "peer_refused": PeerRefusedError,
    "network_not_permitted": NetworkNotPermittedError,
    "key_not_trusted": KeyNotTrustedError,
    "snapshot_private": SnapshotPrivateError,
    "not_yours": NotYoursError,
    "admin_only": AdminOnlyError,
    "cross_site": CrossSiteError,
    "host_refused": HostRefusedError,
    "route_not_found": RouteNotFoundError,
    "snapshot_not_found": SnapshotNotFoundError,
    "sandbox_not_found": SandboxNotFoundError,
    "secret_not_found": SecretNotFoundError,
    "key_not_found": KeyNotFoundError,
    "network_not_found": NetworkNotFoundError,
    "image_not_found": ImageNotFoundError,
    "operation_not_found": OperationNotFoundError,
    "file_not_found": GuestFileNotFoundError,
    "process_not_found": ProcessNotFoundError,
    "method_not_allowed": MethodNotAllowedError,
    "tag_taken": TagTakenError,
    "snapshot_not_ready": SnapshotNotReadyError,
    "snapshot_damaged": SnapshotDamagedError,
    "snapshot_incompatible": SnapshotIncompatibleError,
    "artifact_unfit": ArtifactUnfitError,
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
    "network_exists": NetworkExistsError,
    "no_network_device": NoNetworkDeviceError,
    "port_closed": PortClosedError,
    "no_previews": NoPreviewsError,
    "too_many_port_tokens": TooManyPortTokensError,
    "request_too_large": RequestTooLargeError,
    "not_json": NotJsonError,
    "artifact_refused": ArtifactRefusedError,
    "memory_limit_reached": MemoryLimitReachedError,
    "upgrade_required": UpgradeRequiredError,
    "warm_failed": WarmFailedError,
    "output_too_large": OutputTooLargeError,
    "guest_refused": GuestRefusedError,
    "internal": InternalError,
    "vmm_failed": VmmFailedError,
    "capture_failed": CaptureFailedError,
    "store_failed": StoreFailedError,
    "image_unavailable": ImageUnavailableError,
    "registry_failed": RegistryFailedError,
    "boot_failed": BootFailedError,
    "renewal_not_confirmed": RenewalNotConfirmedError,
    "guest_failed": GuestFailedError,
    "sandbox_busy": SandboxBusyError,
    "gateway_not_trusted": GatewayNotTrustedError,
    "too_many_connections": TooManyConnectionsError,
    "network_unavailable": NetworkUnavailableError,
    "limit_reached": LimitReachedError,
    "daemon_busy": DaemonBusyError,
    "input_waits": InputWaitsError,
    "guest_silent": GuestSilentError,
    "port_silent": PortSilentError,
    "no_space": NoSpaceError,
}
