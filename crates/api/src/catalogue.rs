//! Every error of the API: its stable code, its HTTP status, and what to do about it.

use std::fmt;

use serde::de::IntoDeserializer;
use serde::de::value::Error as ValueError;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What happened, for people.
    pub error: String,
    /// A stable word for programs; one of the catalogue.
    pub code: String,
    /// What to do about it.
    pub hint: String,
    /// What exactly it was, where a program may want to know more than the code says.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// Why a guest refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// There is no such program in the sandbox.
    ProgramNotFound,
    /// The program is there, but cannot be executed.
    ProgramNotExecutable,
}

/// A reason that this version knows: a daemon of a later one may give others.
fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Reason>, D::Error> {
    let Some(word) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    Ok(Reason::deserialize(IntoDeserializer::<ValueError>::into_deserializer(word)).ok())
}

impl ErrorBody {
    /// The body for `code` with this text and the catalogue's hint.
    #[must_use]
    pub fn new(code: ErrorCode, error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            code: code.name().to_owned(),
            hint: code.entry().hint.to_owned(),
            reason: None,
        }
    }
}

/// One line of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// The code.
    pub code: ErrorCode,
    /// Its stable word.
    pub name: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What happened, as the code's documentation says it.
    pub meaning: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

macro_rules! catalogue {
    ($(
        $(#[doc = $doc:literal])*
        $code:ident = $name:literal, $status:literal, $hint:literal;
    )*) => {
        /// A stable word for each kind of failure.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[doc = $doc])* $code,)*
        }

        /// All errors, in the order of their codes' declaration.
        pub const CATALOGUE: &[CatalogueEntry] = &[
            $(CatalogueEntry {
                code: ErrorCode::$code,
                name: $name,
                status: $status,
                meaning: concat!($($doc),*),
                hint: $hint,
            },)*
        ];
    };
}

catalogue! {
    /// A field is missing, malformed or out of bounds.
    BadRequest = "bad_request", 400,
        "correct the field that the error names; /openapi.json describes every request";
    /// The request has no token, or an unknown one.
    Unauthorized = "unauthorized", 401,
        "send `Authorization: Bearer` with a token of the daemon's token file (FORKD_TOKEN)";
    /// The peer's user is neither the daemon's nor root.
    PeerRefused = "peer_refused", 403,
        "run the command as the daemon's user, or use TCP with a token";
    /// The network policy is more than the operator permits.
    NetworkNotPermitted = "network_not_permitted", 403,
        "ask for less, or start the daemon with `forkd serve --network` as the error says";
    /// Nobody here trusts the key that an artifact was signed with.
    KeyNotTrusted = "key_not_trusted", 403,
        "ask who exported it for the output of `forkd key`; if it is that key, trust it with \
         `forkd key trust NAME KEY`; `forkd snapshot import --trust-once` imports what anybody \
         has signed";
    /// A private snapshot is not to leave the host.
    SnapshotPrivate = "snapshot_private", 403,
        "it was made with `--private`, or branched from one that was; build what others may have \
         without it";
    /// A shared snapshot belongs to somebody else.
    NotYours = "not_yours", 403,
        "fork it, and branch or compact what you get; only its owner and admins may remove it";
    /// Only an admin may do that.
    AdminOnly = "admin_only", 403,
        "use a token that the daemon's token file marks `admin`, or the Unix socket as the \
         daemon's user";
    /// A web page of another site sends the request.
    CrossSite = "cross_site", 403,
        "forkd answers no web pages of other sites: send the request from a program";
    /// The request names a host that is not this machine's loopback.
    HostRefused = "host_refused", 403,
        "address the daemon as 127.0.0.1 or localhost, or use its Unix socket";
    /// No such route.
    RouteNotFound = "route_not_found", 404,
        "check the path; /openapi.json lists all routes";
    /// No such snapshot.
    SnapshotNotFound = "snapshot_not_found", 404,
        "list the snapshots with `forkd snapshots`";
    /// No such sandbox.
    SandboxNotFound = "sandbox_not_found", 404,
        "list the sandboxes with `forkd ls`";
    /// No such secret.
    SecretNotFound = "secret_not_found", 404,
        "list your secrets with `forkd secret ls`";
    /// No such trusted key.
    KeyNotFound = "key_not_found", 404,
        "list the trusted keys with `forkd key ls`";
    /// No such private network.
    NetworkNotFound = "network_not_found", 404,
        "list your networks with `forkd network ls`, and the members of one with its name";
    /// No such image.
    ImageNotFound = "image_not_found", 404,
        "list the images with `forkd images`";
    /// No such operation.
    OperationNotFound = "operation_not_found", 404,
        "list the operations with `forkd operations`; the daemon keeps only the last ones that \
         ended";
    /// No such file in the guest.
    FileNotFound = "file_not_found", 404,
        "check the path: it must be an absolute path in the sandbox";
    /// No such background process in this sandbox.
    ProcessNotFound = "process_not_found", 404,
        "list the sandbox's processes with `forkd ps`; the daemon forgets ended ones when it needs \
         their place";
    /// The route exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405,
        "use a method that the Allow header names";
    /// The tag is taken.
    TagTaken = "tag_taken", 409,
        "choose another tag, or remove the snapshot with `forkd snapshot rm`";
    /// The snapshot is being written, or has failed.
    SnapshotNotReady = "snapshot_not_ready", 409,
        "wait until its status is `ready`; if it has failed, take the snapshot again";
    /// A part of the snapshot is missing or damaged.
    SnapshotDamaged = "snapshot_damaged", 409,
        "put the named file back and restart the daemon, or remove the snapshot and take it again";
    /// The snapshot does not fit this host's QEMU, accelerator or CPU model.
    SnapshotIncompatible = "snapshot_incompatible", 409,
        "build the template again with the QEMU and accelerator in use";
    /// An artifact needs another machine, or another build of its image.
    ArtifactUnfit = "artifact_unfit", 409,
        "import it on a host that is as the error says, or build the template here";
    /// Others depend on the snapshot.
    SnapshotInUse = "snapshot_in_use", 409,
        "`forkd snapshot rm --cascade` removes what depends on it too; `--force` keeps what \
         depends on it";
    /// The sandbox's state does not permit the request.
    SandboxNotRunning = "sandbox_not_running", 409,
        "look at its state with `forkd ls`; you can only remove a dead sandbox";
    /// The sandbox's disk has as many overlays as are allowed.
    ChainTooDeep = "chain_too_deep", 409,
        "compact the snapshot that it started from with `forkd snapshot compact`, then fork that";
    /// The operation has ended, or it is too late to undo it.
    OperationNotCancellable = "operation_not_cancellable", 409,
        "wait until it ends, then remove what it has made";
    /// Somebody cancelled the operation behind the request.
    OperationCancelled = "operation_cancelled", 409,
        "send the request again; nothing is left of what was cancelled";
    /// The sandbox runs as many background processes as are allowed.
    TooManyProcesses = "too_many_processes", 409,
        "end a process that you no longer need: DELETE kills and forgets it";
    /// The process has ended.
    ProcessEnded = "process_ended", 409,
        "see how it ended with a GET of the process";
    /// The process takes no input.
    NoInput = "no_input", 409,
        "start the process with `stdin` true, and send input before its end";
    /// The process has no terminal.
    NoTerminal = "no_terminal", 409,
        "start the process with `tty`";
    /// This host cannot branch live.
    LiveUnavailable = "live_unavailable", 409,
        "use mode `diff`; `forkd doctor` tells you what live branching needs";
    /// The daemon cannot enforce a memory limit.
    MemoryLimitUnavailable = "memory_limit_unavailable", 409,
        "run the daemon as root, or under systemd with the unit in deploy/, which delegates the \
         memory controller; `forkd doctor` tests it; or leave out `memory_limit_mib`";
    /// The daemon cannot create network namespaces.
    OwnNetworkUnavailable = "own_network_unavailable", 409,
        "give the daemon CAP_SYS_ADMIN (docs/guides/deployment.md says how, `forkd doctor` tests \
         it), or leave out `per_child_netns`: guests reach only what `network` allows anyway";
    /// You have a private network of this name.
    NetworkExists = "network_exists", 409,
        "choose another name, or use that network: `forkd network ls` shows it";
    /// The sandbox has no network device.
    NoNetworkDevice = "no_network_device", 409,
        "build its template anew: snapshots that an earlier forkd has made have no network device";
    /// Nothing in the sandbox listens on the port.
    PortClosed = "port_closed", 409,
        "list what listens with `forkd ports`; a server that has just been started may need a \
         moment";
    /// The daemon shows no ports of sandboxes.
    NoPreviews = "no_previews", 409,
        "start the daemon with `forkd serve --preview-listen 127.0.0.1:8890`, or use `forkd port`, \
         which needs no preview";
    /// As many tokens for ports as a sandbox may have.
    TooManyPortTokens = "too_many_port_tokens", 409,
        "revoke those of a port with `forkd port SANDBOX PORT --revoke`, or wait until some end";
    /// The body is too large.
    RequestTooLarge = "request_too_large", 413,
        "send less at once; put large data into a file of the sandbox";
    /// The body is not declared as JSON.
    NotJson = "not_json", 415,
        "send the header `Content-Type: application/json`";
    /// The file is no artifact, or is damaged.
    ArtifactRefused = "artifact_refused", 422,
        "transfer the file again, or export the snapshot again; nothing of it was kept";
    /// The sandbox's VMM reached its memory limit, and the kernel ended it.
    MemoryLimitReached = "memory_limit_reached", 422,
        "fork again with a larger `memory_limit_mib` or none; docs/limits.md says what counts";
    /// A connection to a port is asked for by a request that cannot become one.
    UpgradeRequired = "upgrade_required", 426,
        "send the headers `Connection: Upgrade` and `Upgrade: tcp` over HTTP/1.1, as the SDKs and \
         `forkd port` do";
    /// The warm-up command failed.
    WarmFailed = "warm_failed", 422,
        "run the command in a sandbox of the image to see why it fails";
    /// The output is larger than the daemon accepts.
    OutputTooLarge = "output_too_large", 422,
        "write the output to a file in the sandbox; read a large file piece by piece: \
         `forkd cp` does";
    /// The guest could not carry out the request.
    GuestRefused = "guest_refused", 422,
        "check the command, its path and its working directory in the sandbox";
    /// A task of the daemon died: a bug.
    Internal = "internal", 500,
        "this is a bug in forkd: look up the request id in the daemon's log and report both";
    /// The VMM failed.
    VmmFailed = "vmm_failed", 500,
        "look at the daemon's log, and run `forkd doctor`";
    /// Guest memory could not be captured.
    CaptureFailed = "capture_failed", 500,
        "the source runs on: try again, and look at the daemon's log if it fails again";
    /// The store failed.
    StoreFailed = "store_failed", 500,
        "check the file system of the store directory, then look at the daemon's log";
    /// An OCI image cannot be had, or is not one.
    ImageUnavailable = "image_unavailable", 502,
        "check the reference, and that the daemon's user can pull it: `docker login` keeps the \
         credentials that it uses";
    /// A registry does not take or give a snapshot.
    RegistryFailed = "registry_failed", 502,
        "check the reference, and that the daemon's user may push or pull there: `docker login` \
         keeps the credentials that it uses; then try again, what was sent is not sent again";
    /// The guest did not come up.
    BootFailed = "boot_failed", 502,
        "read the last lines of the console in the error; the image may need more memory";
    /// A child did not confirm its new identity and was destroyed.
    RenewalNotConfirmed = "renewal_not_confirmed", 502,
        "try again; if that fails, the snapshot's guest agent is stuck: take the snapshot again";
    /// The guest agent broke the connection or the protocol.
    GuestFailed = "guest_failed", 502,
        "look at the sandbox's console with `forkd logs`; if it fails again, remove the sandbox";
    /// Too many requests wait for one sandbox.
    SandboxBusy = "sandbox_busy", 503,
        "wait for the requests under way, then try again; the header Retry-After says when";
    /// Programs in the guest do not trust the network gateway.
    GatewayNotTrusted = "gateway_not_trusted", 409,
        "build its template anew with this daemon, or leave out the header rules";
    /// The sandbox has as many connections as it may have.
    TooManyConnections = "too_many_connections", 503,
        "close connections that you no longer need, then try again";
    /// The network gateway does not answer.
    NetworkUnavailable = "network_unavailable", 503,
        "try again: the daemon starts another gateway; its log says why one ended";
    /// The request would exceed a limit of the daemon.
    LimitReached = "limit_reached", 503,
        "remove what you no longer need, wait for branches under way, or start the daemon with \
         higher limits: `forkd serve` has --max-sandboxes, --max-guest-memory-mib and \
         --max-branches, and for each owner --owner-max-sandboxes, --owner-max-guest-memory-mib \
         and --owner-max-disk-mib, or set variables such as FORKD_MAX_SANDBOXES";
    /// Other requests hold the memory that there is for bodies.
    DaemonBusy = "daemon_busy", 503,
        "other requests send much at once: try again; the header Retry-After says when";
    /// The program has not read the input that was sent before.
    InputWaits = "input_waits", 503,
        "the program got nothing of this input: send it again once the program reads";
    /// The guest agent did not answer in time.
    GuestSilent = "guest_silent", 504,
        "the guest may be overloaded: try again, or look at `forkd logs`";
    /// The guest has not answered a connection to a port in time.
    PortSilent = "port_silent", 504,
        "the guest may be overloaded, or a firewall in it drops packets: try again, or connect \
         from within the sandbox with `forkd exec`";
    /// Not enough space.
    NoSpace = "no_space", 507,
        "remove sandboxes and snapshots that you no longer need, or enlarge the file system";
}

impl ErrorCode {
    /// Its line of the catalogue.
    #[must_use]
    pub const fn entry(self) -> &'static CatalogueEntry {
        &CATALOGUE[self as usize]
    }

    /// Its stable word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.entry().name
    }

    /// After how many seconds to try again, for failures that pass by themselves.
    #[must_use]
    pub const fn retry_after_secs(self) -> Option<u32> {
        match self.entry().status {
            503 => Some(1),
            _ => None,
        }
    }

    /// The code that a stable word means, if this version knows it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        CATALOGUE.iter().find(|entry| entry.name == name).map(|entry| entry.code)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_finds_its_own_line_by_itself_and_by_name() {
        for entry in CATALOGUE {
            assert_eq!(entry.code.entry(), entry);
            assert_eq!(ErrorCode::from_name(entry.name), Some(entry.code), "names are unique");
        }
    }

    #[test]
    fn a_reason_that_is_not_known_is_none() {
        let reason = |text: &str| {
            let body = format!(r#"{{"error":"e","code":"guest_refused","hint":"h"{text}}}"#);
            serde_json::from_str::<ErrorBody>(&body).unwrap().reason
        };
        assert_eq!(reason(""), None);
        assert_eq!(reason(r#","reason":null"#), None);
        assert_eq!(reason(r#","reason":"out_of_cheese""#), None);
        assert_eq!(reason(r#","reason":"program_not_found""#), Some(Reason::ProgramNotFound));
        let without = ErrorBody::new(ErrorCode::GuestRefused, "e");
        assert!(!serde_json::to_string(&without).unwrap().contains("reason"));
    }

    #[test]
    fn every_line_has_an_error_status_and_a_hint() {
        for entry in CATALOGUE {
            assert!((400..600).contains(&entry.status), "{}", entry.name);
            assert!(!entry.hint.is_empty() && !entry.hint.ends_with('.'), "{}", entry.name);
            let is_word = |b: u8| b.is_ascii_lowercase() || b == b'_';
            assert!(entry.name.bytes().all(is_word), "{}", entry.name);
        }
    }
}
