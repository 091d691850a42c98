//! Bodies of requests: read and checked or refused; what passes its check is within the limits that
//! the contract states, and passes when it is sent again.

use forkd_api::{
    BranchRequest, CompactSnapshot, CreateProcess, CreateSandboxes, CreateSnapshot, EvalRequest,
    ExecRequest, FieldError, RollbackSandbox, SignalRequest, TtySize,
};
use forkd_types::{TagName, limit};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A body, given to every route that takes one.
pub fn check(body: &[u8]) {
    each::<BranchRequest, _>(body, |request| {
        let checked = request.check()?;
        assert!(request.n <= limit::CHILDREN_PER_REQUEST_MAX);
        assert!(checked.tag.is_none_or(|tag| is_tag(&tag)));
        Ok(())
    });
    each::<CreateSandboxes, _>(body, |request| {
        let checked = request.check()?;
        assert!((1..=limit::CHILDREN_PER_REQUEST_MAX).contains(&request.n));
        assert!(is_tag(&checked.tag));
        Ok(())
    });
    each::<CreateSnapshot, _>(body, |request| {
        let checked = request.check()?;
        assert!(is_tag(&checked.tag));
        Ok(())
    });
    each::<ExecRequest, _>(body, |request| request.check().map(|_| assert_program(&request.args)));
    each::<CreateProcess, _>(body, |request| {
        request.check().map(|_| assert_program(&request.args))
    });
    each::<EvalRequest, _>(body, |request| {
        request.check().map(|timeout| assert!(timeout <= limit::EXEC_TIMEOUT_MAX))
    });
    each::<CompactSnapshot, _>(body, |request| request.check().map(|tag| assert!(is_tag(&tag))));
    each::<RollbackSandbox, _>(body, |request| request.check().map(|tag| assert!(is_tag(&tag))));
    each::<SignalRequest, _>(body, |request| {
        request.check().map(|signal| assert!((1..=31).contains(&signal), "{signal}"))
    });
    each::<TtySize, _>(body, |request| request.check());
}

/// Reads a body as the daemon does, and checks it; then once more what a client would make of it.
fn each<T, F>(body: &[u8], check: F)
where
    T: DeserializeOwned + Serialize,
    F: Fn(&T) -> Result<(), FieldError>,
{
    let Ok(request) = serde_json::from_slice::<T>(body) else { return };
    let first = check(&request);
    let sent = serde_json::to_vec(&request).expect("a request has a text");
    let again: T = serde_json::from_slice(&sent).expect("what was sent can be read");
    assert_eq!(first, check(&again), "sent again, it is judged in another way");
}

fn is_tag(name: &TagName) -> bool {
    let text = name.to_string();
    let text = text.rsplit_once('/').map_or(text.as_str(), |(_, tag)| tag);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=limit::TAG_CHARS_MAX).contains(&text.len()) && text.bytes().all(plain)
}

fn assert_program(args: &[String]) {
    assert!(args.first().is_some_and(|program| !program.is_empty()));
    assert!(args.iter().all(|text| !text.contains('\0')));
}

/// One good body for each route.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"tag":"half-way","mode":"full","measure_diff":true,"wait":true,"n":3}"#,
        r#"{"diff":true,"wait":false}"#,
        r#"{"snapshot_tag":"base","n":2,"per_child_netns":true,"memory_limit_mib":512,
            "prewarm":true,"live_fork":true,"hugepages":true,"metadata":{"team":"a"},
            "ttl_secs":60,"idle_timeout_secs":30}"#,
        r#"{"tag":"base","image":"python","mem_size_mib":1536,"vcpus":2,"warm":["true"]}"#,
        r#"{"tag":"base","kernel":"/k","rootfs":"/r"}"#,
        r#"{"args":["sh","-c","true"],"timeout_secs":1.5,"env":{"A":"b"},"cwd":"/","stdin":"x"}"#,
        r#"{"args":["sh"],"env":{"A":"b"},"cwd":"/","tty":{"rows":24,"cols":80}}"#,
        r#"{"code":"1 + 1","timeout_secs":30}"#,
        r#"{"to":"flat"}"#,
        r#"{"snapshot_tag":"base"}"#,
        r#"{"signal":"TERM"}"#,
        r#"{"signal":9}"#,
        r#"{"rows":24,"cols":80}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
