// Generated from crates/api/src/catalogue.rs by sdk/python/scripts/typescript.py. Do not edit.
/** A class for each error of the daemon's catalogue. */

import { ApiError } from "../core/failure.js";

/**
 * A field is missing, malformed or out of bounds. Status 400; remedy: correct the field that the
 * error names; /openapi.json describes every request.
 */
export class BadRequestError extends ApiError {
  static override readonly code: string = "bad_request";
}

/**
 * The request has no token, or an unknown one. Status 401; remedy: send `Authorization: Bearer`
 * with a token of the daemon's token file (FORKD_TOKEN).
 */
export class UnauthorizedError extends ApiError {
  static override readonly code: string = "unauthorized";
}

/**
 * The peer's user is neither the daemon's nor root. Status 403; remedy: run the command as the
 * daemon's user, or use TCP with a token.
 */
export class PeerRefusedError extends ApiError {
  static override readonly code: string = "peer_refused";
}

/**
 * The network policy is more than the operator permits. Status 403; remedy: ask for less, or start
 * the daemon with `forkd serve --network` as the error says.
 */
export class NetworkNotPermittedError extends ApiError {
  static override readonly code: string = "network_not_permitted";
}

/**
 * Nobody here trusts the key that an artifact was signed with. Status 403; remedy: ask who exported
 * it for the output of `forkd key`; if it is that key, trust it with `forkd key trust NAME KEY`;
 * `forkd snapshot import --trust-once` imports what anybody has signed.
 */
export class KeyNotTrustedError extends ApiError {
  static override readonly code: string = "key_not_trusted";
}

/**
 * A private snapshot is not to leave the host. Status 403; remedy: it was made with `--private`, or
 * branched from one that was; build what others may have without it.
 */
export class SnapshotPrivateError extends ApiError {
  static override readonly code: string = "snapshot_private";
}

/**
 * A shared snapshot belongs to somebody else. Status 403; remedy: fork it, and branch or compact
 * what you get; only its owner and admins may remove it.
 */
export class NotYoursError extends ApiError {
  static override readonly code: string = "not_yours";
}

/**
 * Only an admin may do that. Status 403; remedy: use a token that the daemon's token file marks
 * `admin`, or the Unix socket as the daemon's user.
 */
export class AdminOnlyError extends ApiError {
  static override readonly code: string = "admin_only";
}

/**
 * A web page of another site sends the request. Status 403; remedy: forkd answers no web pages of
 * other sites: send the request from a program.
 */
export class CrossSiteError extends ApiError {
  static override readonly code: string = "cross_site";
}

/**
 * The request names a host that is not this machine's loopback. Status 403; remedy: address the
 * daemon as 127.0.0.1 or localhost, or use its Unix socket.
 */
export class HostRefusedError extends ApiError {
  static override readonly code: string = "host_refused";
}

/** No such route. Status 404; remedy: check the path; /openapi.json lists all routes. */
export class RouteNotFoundError extends ApiError {
  static override readonly code: string = "route_not_found";
}

/** No such snapshot. Status 404; remedy: list the snapshots with `forkd snapshots`. */
export class SnapshotNotFoundError extends ApiError {
  static override readonly code: string = "snapshot_not_found";
}

/** No such sandbox. Status 404; remedy: list the sandboxes with `forkd ls`. */
export class SandboxNotFoundError extends ApiError {
  static override readonly code: string = "sandbox_not_found";
}

/** No such secret. Status 404; remedy: list your secrets with `forkd secret ls`. */
export class SecretNotFoundError extends ApiError {
  static override readonly code: string = "secret_not_found";
}

/** No such trusted key. Status 404; remedy: list the trusted keys with `forkd key ls`. */
export class KeyNotFoundError extends ApiError {
  static override readonly code: string = "key_not_found";
}

/**
 * No such private network. Status 404; remedy: list your networks with `forkd network ls`, and the
 * members of one with its name.
 */
export class NetworkNotFoundError extends ApiError {
  static override readonly code: string = "network_not_found";
}

/** No such image. Status 404; remedy: list the images with `forkd images`. */
export class ImageNotFoundError extends ApiError {
  static override readonly code: string = "image_not_found";
}

/**
 * No such operation. Status 404; remedy: list the operations with `forkd operations`; the daemon
 * keeps only the last ones that ended.
 */
export class OperationNotFoundError extends ApiError {
  static override readonly code: string = "operation_not_found";
}

/**
 * No such file in the guest. Status 404; remedy: check the path: it must be an absolute path in the
 * sandbox.
 */
export class FileNotFoundError extends ApiError {
  static override readonly code: string = "file_not_found";
}

/**
 * No such background process in this sandbox. Status 404; remedy: list the sandbox's processes with
 * `forkd ps`; the daemon forgets ended ones when it needs their place.
 */
export class ProcessNotFoundError extends ApiError {
  static override readonly code: string = "process_not_found";
}

/**
 * The route exists, the method does not. Status 405; remedy: use a method that the Allow header
 * names.
 */
export class MethodNotAllowedError extends ApiError {
  static override readonly code: string = "method_not_allowed";
}

/**
 * The tag is taken. Status 409; remedy: choose another tag, or remove the snapshot with `forkd
 * snapshot rm`.
 */
export class TagTakenError extends ApiError {
  static override readonly code: string = "tag_taken";
}

/**
 * The snapshot is being written, or has failed. Status 409; remedy: wait until its status is
 * `ready`; if it has failed, take the snapshot again.
 */
export class SnapshotNotReadyError extends ApiError {
  static override readonly code: string = "snapshot_not_ready";
}

/**
 * A part of the snapshot is missing or damaged. Status 409; remedy: put the named file back and
 * restart the daemon, or remove the snapshot and take it again.
 */
export class SnapshotDamagedError extends ApiError {
  static override readonly code: string = "snapshot_damaged";
}

/**
 * The snapshot does not fit this host's QEMU, accelerator or CPU model. Status 409; remedy: build
 * the template again with the QEMU and accelerator in use.
 */
export class SnapshotIncompatibleError extends ApiError {
  static override readonly code: string = "snapshot_incompatible";
}

/**
 * An artifact needs another machine, or another build of its image. Status 409; remedy: import it
 * on a host that is as the error says, or build the template here.
 */
export class ArtifactUnfitError extends ApiError {
  static override readonly code: string = "artifact_unfit";
}

/**
 * Others depend on the snapshot. Status 409; remedy: `forkd snapshot rm --cascade` removes what
 * depends on it too; `--force` keeps what depends on it.
 */
export class SnapshotInUseError extends ApiError {
  static override readonly code: string = "snapshot_in_use";
}

/**
 * The sandbox's state does not permit the request. Status 409; remedy: look at its state with
 * `forkd ls`; you can only remove a dead sandbox.
 */
export class SandboxNotRunningError extends ApiError {
  static override readonly code: string = "sandbox_not_running";
}

/**
 * The sandbox's disk has as many overlays as are allowed. Status 409; remedy: compact the snapshot
 * that it started from with `forkd snapshot compact`, then fork that.
 */
export class ChainTooDeepError extends ApiError {
  static override readonly code: string = "chain_too_deep";
}

/**
 * The operation has ended, or it is too late to undo it. Status 409; remedy: wait until it ends,
 * then remove what it has made.
 */
export class OperationNotCancellableError extends ApiError {
  static override readonly code: string = "operation_not_cancellable";
}

/**
 * Somebody cancelled the operation behind the request. Status 409; remedy: send the request again;
 * nothing is left of what was cancelled.
 */
export class OperationCancelledError extends ApiError {
  static override readonly code: string = "operation_cancelled";
}

/**
 * The sandbox runs as many background processes as are allowed. Status 409; remedy: end a process
 * that you no longer need: DELETE kills and forgets it.
 */
export class TooManyProcessesError extends ApiError {
  static override readonly code: string = "too_many_processes";
}

/** The process has ended. Status 409; remedy: see how it ended with a GET of the process. */
export class ProcessEndedError extends ApiError {
  static override readonly code: string = "process_ended";
}

/**
 * The process takes no input. Status 409; remedy: start the process with `stdin` true, and send
 * input before its end.
 */
export class NoInputError extends ApiError {
  static override readonly code: string = "no_input";
}

/** The process has no terminal. Status 409; remedy: start the process with `tty`. */
export class NoTerminalError extends ApiError {
  static override readonly code: string = "no_terminal";
}

/**
 * This host cannot branch live. Status 409; remedy: use mode `diff`; `forkd doctor` tells you what
 * live branching needs.
 */
export class LiveUnavailableError extends ApiError {
  static override readonly code: string = "live_unavailable";
}

/**
 * The daemon cannot enforce a memory limit. Status 409; remedy: run the daemon as root, or under
 * systemd with the unit in deploy/, which delegates the memory controller; `forkd doctor` tests it;
 * or leave out `memory_limit_mib`.
 */
export class MemoryLimitUnavailableError extends ApiError {
  static override readonly code: string = "memory_limit_unavailable";
}

/**
 * The daemon cannot create network namespaces. Status 409; remedy: give the daemon CAP_SYS_ADMIN
 * (docs/guides/deployment.md says how, `forkd doctor` tests it), or leave out `per_child_netns`:
 * guests reach only what `network` allows anyway.
 */
export class OwnNetworkUnavailableError extends ApiError {
  static override readonly code: string = "own_network_unavailable";
}

/**
 * You have a private network of this name. Status 409; remedy: choose another name, or use that
 * network: `forkd network ls` shows it.
 */
export class NetworkExistsError extends ApiError {
  static override readonly code: string = "network_exists";
}

/**
 * The sandbox has no network device. Status 409; remedy: build its template anew: snapshots that an
 * earlier forkd has made have no network device.
 */
export class NoNetworkDeviceError extends ApiError {
  static override readonly code: string = "no_network_device";
}

/**
 * Nothing in the sandbox listens on the port. Status 409; remedy: list what listens with `forkd
 * ports`; a server that has just been started may need a moment.
 */
export class PortClosedError extends ApiError {
  static override readonly code: string = "port_closed";
}

/**
 * The daemon shows no ports of sandboxes. Status 409; remedy: start the daemon with `forkd serve
 * --preview-listen 127.0.0.1:8890`, or use `forkd port`, which needs no preview.
 */
export class NoPreviewsError extends ApiError {
  static override readonly code: string = "no_previews";
}

/**
 * As many tokens for ports as a sandbox may have. Status 409; remedy: revoke those of a port with
 * `forkd port SANDBOX PORT --revoke`, or wait until some end.
 */
export class TooManyPortTokensError extends ApiError {
  static override readonly code: string = "too_many_port_tokens";
}

/**
 * The body is too large. Status 413; remedy: send less at once; put large data into a file of the
 * sandbox.
 */
export class RequestTooLargeError extends ApiError {
  static override readonly code: string = "request_too_large";
}

/**
 * The body is not declared as JSON. Status 415; remedy: send the header `Content-Type:
 * application/json`.
 */
export class NotJsonError extends ApiError {
  static override readonly code: string = "not_json";
}

/**
 * The file is no artifact, or is damaged. Status 422; remedy: transfer the file again, or export
 * the snapshot again; nothing of it was kept.
 */
export class ArtifactRefusedError extends ApiError {
  static override readonly code: string = "artifact_refused";
}

/**
 * The sandbox's VMM reached its memory limit, and the kernel ended it. Status 422; remedy: fork
 * again with a larger `memory_limit_mib` or none; docs/limits.md says what counts.
 */
export class MemoryLimitReachedError extends ApiError {
  static override readonly code: string = "memory_limit_reached";
}

/**
 * A connection to a port is asked for by a request that cannot become one. Status 426; remedy: send
 * the headers `Connection: Upgrade` and `Upgrade: tcp` over HTTP/1.1, as the SDKs and `forkd port`
 * do.
 */
export class UpgradeRequiredError extends ApiError {
  static override readonly code: string = "upgrade_required";
}

/**
 * The warm-up command failed. Status 422; remedy: run the command in a sandbox of the image to see
 * why it fails.
 */
export class WarmFailedError extends ApiError {
  static override readonly code: string = "warm_failed";
}

/**
 * The output is larger than the daemon accepts. Status 422; remedy: write the output to a file in
 * the sandbox; read a large file piece by piece: `forkd cp` does.
 */
export class OutputTooLargeError extends ApiError {
  static override readonly code: string = "output_too_large";
}

/**
 * The guest could not carry out the request. Status 422; remedy: check the command, its path and
 * its working directory in the sandbox.
 */
export class GuestRefusedError extends ApiError {
  static override readonly code: string = "guest_refused";
}

/**
 * A task of the daemon died: a bug. Status 500; remedy: this is a bug in forkd: look up the request
 * id in the daemon's log and report both.
 */
export class InternalError extends ApiError {
  static override readonly code: string = "internal";
}

/** The VMM failed. Status 500; remedy: look at the daemon's log, and run `forkd doctor`. */
export class VmmFailedError extends ApiError {
  static override readonly code: string = "vmm_failed";
}

/**
 * Guest memory could not be captured. Status 500; remedy: the source runs on: try again, and look
 * at the daemon's log if it fails again.
 */
export class CaptureFailedError extends ApiError {
  static override readonly code: string = "capture_failed";
}

/**
 * The store failed. Status 500; remedy: check the file system of the store directory, then look at
 * the daemon's log.
 */
export class StoreFailedError extends ApiError {
  static override readonly code: string = "store_failed";
}

/**
 * An OCI image cannot be had, or is not one. Status 502; remedy: check the reference, and that the
 * daemon's user can pull it: `docker login` keeps the credentials that it uses.
 */
export class ImageUnavailableError extends ApiError {
  static override readonly code: string = "image_unavailable";
}

/**
 * A registry does not take or give a snapshot. Status 502; remedy: check the reference, and that
 * the daemon's user may push or pull there: `docker login` keeps the credentials that it uses; then
 * try again, what was sent is not sent again.
 */
export class RegistryFailedError extends ApiError {
  static override readonly code: string = "registry_failed";
}

/**
 * The guest did not come up. Status 502; remedy: read the last lines of the console in the error;
 * the image may need more memory.
 */
export class BootFailedError extends ApiError {
  static override readonly code: string = "boot_failed";
}

/**
 * A child did not confirm its new identity and was destroyed. Status 502; remedy: try again; if
 * that fails, the snapshot's guest agent is stuck: take the snapshot again.
 */
export class RenewalNotConfirmedError extends ApiError {
  static override readonly code: string = "renewal_not_confirmed";
}

/**
 * The guest agent broke the connection or the protocol. Status 502; remedy: look at the sandbox's
 * console with `forkd logs`; if it fails again, remove the sandbox.
 */
export class GuestFailedError extends ApiError {
  static override readonly code: string = "guest_failed";
}

/**
 * Too many requests wait for one sandbox. Status 503; remedy: wait for the requests under way, then
 * try again; the header Retry-After says when.
 */
export class SandboxBusyError extends ApiError {
  static override readonly code: string = "sandbox_busy";
}

/**
 * Programs in the guest do not trust the network gateway. Status 409; remedy: build its template
 * anew with this daemon, or leave out the header rules.
 */
export class GatewayNotTrustedError extends ApiError {
  static override readonly code: string = "gateway_not_trusted";
}

/**
 * The sandbox has as many connections as it may have. Status 503; remedy: close connections that
 * you no longer need, then try again.
 */
export class TooManyConnectionsError extends ApiError {
  static override readonly code: string = "too_many_connections";
}

/**
 * The network gateway does not answer. Status 503; remedy: try again: the daemon starts another
 * gateway; its log says why one ended.
 */
export class NetworkUnavailableError extends ApiError {
  static override readonly code: string = "network_unavailable";
}

/**
 * The request would exceed a limit of the daemon. Status 503; remedy: remove what you no longer
 * need, wait for branches under way, or start the daemon with higher limits: `forkd serve` has
 * --max-sandboxes, --max-guest-memory-mib and --max-branches, and for each owner --owner-max-
 * sandboxes, --owner-max-guest-memory-mib and --owner-max-disk-mib, or set variables such as
 * FORKD_MAX_SANDBOXES.
 */
export class LimitReachedError extends ApiError {
  static override readonly code: string = "limit_reached";
}

/**
 * Other requests hold the memory that there is for bodies. Status 503; remedy: other requests send
 * much at once: try again; the header Retry-After says when.
 */
export class DaemonBusyError extends ApiError {
  static override readonly code: string = "daemon_busy";
}

/**
 * The program has not read the input that was sent before. Status 503; remedy: the program got
 * nothing of this input: send it again once the program reads.
 */
export class InputWaitsError extends ApiError {
  static override readonly code: string = "input_waits";
}

/**
 * The guest agent did not answer in time. Status 504; remedy: the guest may be overloaded: try
 * again, or look at `forkd logs`.
 */
export class GuestSilentError extends ApiError {
  static override readonly code: string = "guest_silent";
}

/**
 * The guest has not answered a connection to a port in time. Status 504; remedy: the guest may be
 * overloaded, or a firewall in it drops packets: try again, or connect from within the sandbox with
 * `forkd exec`.
 */
export class PortSilentError extends ApiError {
  static override readonly code: string = "port_silent";
}

/**
 * Not enough space. Status 507; remedy: remove sandboxes and snapshots that you no longer need, or
 * enlarge the file system.
 */
export class NoSpaceError extends ApiError {
  static override readonly code: string = "no_space";
}

/** The classes by their codes. */
export const BY_CODE: ReadonlyMap<string, typeof ApiError> = new Map([
  ["bad_request", BadRequestError],
  ["unauthorized", UnauthorizedError],
  ["peer_refused", PeerRefusedError],
  ["network_not_permitted", NetworkNotPermittedError],
  ["key_not_trusted", KeyNotTrustedError],
  ["snapshot_private", SnapshotPrivateError],
  ["not_yours", NotYoursError],
  ["admin_only", AdminOnlyError],
  ["cross_site", CrossSiteError],
  ["host_refused", HostRefusedError],
  ["route_not_found", RouteNotFoundError],
  ["snapshot_not_found", SnapshotNotFoundError],
  ["sandbox_not_found", SandboxNotFoundError],
  ["secret_not_found", SecretNotFoundError],
  ["key_not_found", KeyNotFoundError],
  ["network_not_found", NetworkNotFoundError],
  ["image_not_found", ImageNotFoundError],
  ["operation_not_found", OperationNotFoundError],
  ["file_not_found", FileNotFoundError],
  ["process_not_found", ProcessNotFoundError],
  ["method_not_allowed", MethodNotAllowedError],
  ["tag_taken", TagTakenError],
  ["snapshot_not_ready", SnapshotNotReadyError],
  ["snapshot_damaged", SnapshotDamagedError],
  ["snapshot_incompatible", SnapshotIncompatibleError],
  ["artifact_unfit", ArtifactUnfitError],
  ["snapshot_in_use", SnapshotInUseError],
  ["sandbox_not_running", SandboxNotRunningError],
  ["chain_too_deep", ChainTooDeepError],
  ["operation_not_cancellable", OperationNotCancellableError],
  ["operation_cancelled", OperationCancelledError],
  ["too_many_processes", TooManyProcessesError],
  ["process_ended", ProcessEndedError],
  ["no_input", NoInputError],
  ["no_terminal", NoTerminalError],
  ["live_unavailable", LiveUnavailableError],
  ["memory_limit_unavailable", MemoryLimitUnavailableError],
  ["own_network_unavailable", OwnNetworkUnavailableError],
  ["network_exists", NetworkExistsError],
  ["no_network_device", NoNetworkDeviceError],
  ["port_closed", PortClosedError],
  ["no_previews", NoPreviewsError],
  ["too_many_port_tokens", TooManyPortTokensError],
  ["request_too_large", RequestTooLargeError],
  ["not_json", NotJsonError],
  ["artifact_refused", ArtifactRefusedError],
  ["memory_limit_reached", MemoryLimitReachedError],
  ["upgrade_required", UpgradeRequiredError],
  ["warm_failed", WarmFailedError],
  ["output_too_large", OutputTooLargeError],
  ["guest_refused", GuestRefusedError],
  ["internal", InternalError],
  ["vmm_failed", VmmFailedError],
  ["capture_failed", CaptureFailedError],
  ["store_failed", StoreFailedError],
  ["image_unavailable", ImageUnavailableError],
  ["registry_failed", RegistryFailedError],
  ["boot_failed", BootFailedError],
  ["renewal_not_confirmed", RenewalNotConfirmedError],
  ["guest_failed", GuestFailedError],
  ["sandbox_busy", SandboxBusyError],
  ["gateway_not_trusted", GatewayNotTrustedError],
  ["too_many_connections", TooManyConnectionsError],
  ["network_unavailable", NetworkUnavailableError],
  ["limit_reached", LimitReachedError],
  ["daemon_busy", DaemonBusyError],
  ["input_waits", InputWaitsError],
  ["guest_silent", GuestSilentError],
  ["port_silent", PortSilentError],
  ["no_space", NoSpaceError],
]);
