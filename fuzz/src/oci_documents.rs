//! An image's manifest, index and configuration from a registry: understood or refused, and within
//! the limits.

/// The text of a document.
pub fn check(text: &[u8]) {
    forkd_oci::fuzzing::fuzz_documents(text);
}

/// One of each kind.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let blob = format!(r#"{{"digest":"{digest}","size":7,"mediaType":"m"}}"#);
    let platform = r#""platform":{"os":"linux","architecture":"amd64"}"#;
    vec![
        format!(r#"{{"schemaVersion":2,"config":{blob},"layers":[{blob},{blob}]}}"#).into_bytes(),
        format!(
            r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}","size":7,{platform}}}]}}"#
        )
        .into_bytes(),
        format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{"Env":["A=b"],"User":"u"}},
            "rootfs":{{"diff_ids":["{digest}"]}}}}"#
        )
        .into_bytes(),
    ]
}
