//! What a client of E2B's interface sends in envelopes: cuts change nothing, nothing comes out that
//! did not come in, and no more is held than one message.

pub use forkd_e2b::fuzzing::check_envelopes as check;

/// Questions and input of a stream, whole and broken, cut in several ways.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let envelope = |flags: u8, message: &str| {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
        [&[flags][..], &length, message.as_bytes()].concat()
    };
    let start = envelope(0, r#"{"start":{"pid":7}}"#);
    let data = envelope(0, r#"{"data":{"input":{"stdin":"aGk="}}}"#);
    let streams = [
        envelope(0, r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","ls"],"envs":{}}}"#),
        [&start[..], &data, &envelope(2, "{}")].concat(),
        [&start[..], &envelope(0, r#"{"keepalive":{}}"#), &envelope(1, "x")].concat(),
        vec![0, 0xff, 0xff, 0xff, 0xff, b'{'],
        vec![0, 0, 0, 0],
    ];
    (1..).zip(streams).map(|(cut, stream)| [&[cut], &stream[..]].concat()).collect()
}
