//! From the engine's errors to the catalogue. No arm catches the rest: a new variant has to be
//! given a code here before it compiles.

use forkd_api::{ErrorCode, Reason};
use forkd_engine::EngineError;
use forkd_engine::guest::{GuestError, ProcessError};

/// The code under which clients see `error`.
pub(crate) fn code_of(error: &EngineError) -> ErrorCode {
    match error {
        EngineError::UnknownSnapshot { .. } => ErrorCode::SnapshotNotFound,
        EngineError::UnknownSandbox { .. } => ErrorCode::SandboxNotFound,
        EngineError::UnknownImage { .. } => ErrorCode::ImageNotFound,
        EngineError::ImageUnavailable { .. } => ErrorCode::ImageUnavailable,
        EngineError::RegistryFailed { .. } => ErrorCode::RegistryFailed,
        EngineError::TagTaken { .. } => ErrorCode::TagTaken,
        EngineError::SnapshotNotReady { .. } => ErrorCode::SnapshotNotReady,
        EngineError::SnapshotDamaged { .. } => ErrorCode::SnapshotDamaged,
        EngineError::NotYours { .. } => ErrorCode::NotYours,
        EngineError::AdminOnly { .. } => ErrorCode::AdminOnly,
        EngineError::Incompatible { .. } => ErrorCode::SnapshotIncompatible,
        EngineError::ArtifactUnfit { .. } => ErrorCode::ArtifactUnfit,
        EngineError::ArtifactRefused { .. } => ErrorCode::ArtifactRefused,
        EngineError::KeyNotTrusted { .. } => ErrorCode::KeyNotTrusted,
        EngineError::SnapshotPrivate { .. } => ErrorCode::SnapshotPrivate,
        EngineError::UnknownKey { .. } => ErrorCode::KeyNotFound,
        EngineError::SnapshotInUse { .. } => ErrorCode::SnapshotInUse,
        EngineError::SandboxNotRunning { .. } => ErrorCode::SandboxNotRunning,
        EngineError::SandboxBusy { .. } => ErrorCode::SandboxBusy,
        EngineError::ChainTooDeep { .. } => ErrorCode::ChainTooDeep,
        EngineError::RenewalNotConfirmed { .. } => ErrorCode::RenewalNotConfirmed,
        EngineError::BootFailed { .. } => ErrorCode::BootFailed,
        EngineError::WarmFailed { .. } => ErrorCode::WarmFailed,
        EngineError::NoSpace { .. } => ErrorCode::NoSpace,
        EngineError::BadRequest { .. } => ErrorCode::BadRequest,
        EngineError::LiveUnavailable(_) => ErrorCode::LiveUnavailable,
        EngineError::NetworkNotPermitted(_) => ErrorCode::NetworkNotPermitted,
        EngineError::NoNetworkDevice { .. } => ErrorCode::NoNetworkDevice,
        EngineError::GatewayNotTrusted { .. } => ErrorCode::GatewayNotTrusted,
        EngineError::UnknownSecret { .. } => ErrorCode::SecretNotFound,
        EngineError::UnknownNetwork { .. } | EngineError::NotMember { .. } => {
            ErrorCode::NetworkNotFound
        }
        EngineError::NetworkTaken { .. } => ErrorCode::NetworkExists,
        EngineError::PortClosed { .. } => ErrorCode::PortClosed,
        EngineError::TooManyPortTokens { .. } => ErrorCode::TooManyPortTokens,
        EngineError::PortSilent { .. } => ErrorCode::PortSilent,
        EngineError::TooManyConnections { .. } => ErrorCode::TooManyConnections,
        EngineError::NetworkUnavailable(_) => ErrorCode::NetworkUnavailable,
        EngineError::MemoryLimitUnavailable { .. } | EngineError::LimitUnavailable { .. } => {
            ErrorCode::MemoryLimitUnavailable
        }
        EngineError::OwnNetworkUnavailable { .. } => ErrorCode::OwnNetworkUnavailable,
        EngineError::MemoryLimitReached(_) => ErrorCode::MemoryLimitReached,
        EngineError::Guest(error) => code_of_guest(error),
        EngineError::Process(error) => code_of_process(error),
        EngineError::Vmm(_) => ErrorCode::VmmFailed,
        EngineError::Capture(_) => ErrorCode::CaptureFailed,
        EngineError::Store(_) => ErrorCode::StoreFailed,
        EngineError::LimitReached { .. } | EngineError::DiskQuotaReached { .. } => {
            ErrorCode::LimitReached
        }
        EngineError::UnknownOperation { .. } => ErrorCode::OperationNotFound,
        EngineError::NotCancellable { .. } => ErrorCode::OperationNotCancellable,
        EngineError::Cancelled { .. } => ErrorCode::OperationCancelled,
        EngineError::NoKvm { .. } | EngineError::Internal(_) => ErrorCode::Internal,
    }
}

fn code_of_guest(error: &GuestError) -> ErrorCode {
    match error {
        GuestError::Timeout { .. } | GuestError::NotReading { .. } => ErrorCode::GuestSilent,
        GuestError::Closed { .. } | GuestError::Protocol { .. } | GuestError::HookFailed { .. } => {
            ErrorCode::GuestFailed
        }
        // The word comes from the guest: it can choose between two refusals, no more.
        GuestError::Remote { code, .. } if code == "file_not_found" => ErrorCode::FileNotFound,
        GuestError::Remote { .. } => ErrorCode::GuestRefused,
        GuestError::OutputTooLarge { .. }
        | GuestError::FileTooLarge { .. }
        | GuestError::OutputsTooLarge { .. } => ErrorCode::OutputTooLarge,
        GuestError::RequestTooLarge { .. } => ErrorCode::RequestTooLarge,
        GuestError::Entropy { .. } => ErrorCode::Internal,
    }
}

fn code_of_process(error: &ProcessError) -> ErrorCode {
    match error {
        ProcessError::Unknown { .. } => ErrorCode::ProcessNotFound,
        ProcessError::TooMany { .. } => ErrorCode::TooManyProcesses,
        ProcessError::Ended { .. } => ErrorCode::ProcessEnded,
        ProcessError::NoInput { .. } => ErrorCode::NoInput,
        ProcessError::NoTerminal { .. } => ErrorCode::NoTerminal,
        ProcessError::InputWaits { .. } => ErrorCode::InputWaits,
        ProcessError::PastTheEnd { .. } => ErrorCode::BadRequest,
        ProcessError::Guest(error) => code_of_guest(error),
    }
}

/// What a client may want to know besides: whether the guest knows the program. The guest chooses
/// among these, no more.
pub(crate) fn reason_of(error: &EngineError) -> Option<Reason> {
    let (EngineError::Guest(error) | EngineError::Process(ProcessError::Guest(error))) = error
    else {
        return None;
    };
    let GuestError::Remote { code, .. } = error else { return None };
    match code.as_str() {
        "exec_not_found" => Some(Reason::ProgramNotFound),
        "exec_denied" | "exec_failed" => Some(Reason::ProgramNotExecutable),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_choose_a_code_that_blames_the_daemon() {
        for word in ["internal", "store_failed", "", "exec_not_found"] {
            let error = GuestError::Remote { code: word.to_owned(), message: String::new() };
            assert_eq!(code_of(&error.into()), ErrorCode::GuestRefused);
        }
        let code = "file_not_found".to_owned();
        let error = GuestError::Remote { code, message: String::new() };
        assert_eq!(code_of(&error.into()), ErrorCode::FileNotFound);
    }

    #[test]
    fn a_program_that_cannot_be_started_has_its_reason_however_it_was_asked_for() {
        for (word, reason) in [
            ("exec_not_found", Some(Reason::ProgramNotFound)),
            ("exec_denied", Some(Reason::ProgramNotExecutable)),
            ("exec_failed", Some(Reason::ProgramNotExecutable)),
            ("cwd_not_found", None),
            ("program_not_found", None),
        ] {
            let error = GuestError::Remote { code: word.to_owned(), message: String::new() };
            assert_eq!(reason_of(&error.clone().into()), reason, "{word}");
            assert_eq!(reason_of(&ProcessError::Guest(error).into()), reason, "{word}");
        }
    }

    #[test]
    fn what_a_client_got_wrong_is_never_a_server_error() {
        let tag: forkd_types::SnapshotTag = "t".parse().unwrap();
        let id = forkd_types::SandboxId::random();
        let errors = [
            EngineError::UnknownSnapshot { tag: tag.clone() },
            EngineError::UnknownSandbox { id },
            EngineError::SnapshotInUse { tag, dependents: "x".into() },
            EngineError::BadRequest { field: "n", problem: "p".into() },
            EngineError::WarmFailed { exit_code: 1, output: String::new() },
        ];
        for error in errors {
            assert!(code_of(&error).entry().status < 500, "{error}");
        }
    }
}
