//! Files and links as clients see them: what is said of a path, and how a file comes out.

use axum::body::Body;
use serde_json::json;

use super::Lab;

const OCTETS: (&str, &str) = ("content-type", "application/octet-stream");

impl Lab {
    /// A sandbox with a file, whose content is not so long that its guest forgets it.
    async fn with_file(&self, path: &str, content: &[u8]) -> (String, String) {
        let (id, token) = self.sandbox(json!({})).await;
        let more = [OCTETS, ("x-access-token", &*token)];
        let what = format!("POST /files?path={path}");
        let written = self.data(&what, &id, &more, content.to_vec().into()).await;
        assert_eq!(written.status, 200, "{}", written.body);
        (id, token)
    }
}

#[tokio::test]
async fn a_link_is_seen_as_what_it_leads_to_and_a_broken_one_as_nothing() {
    let lab = Lab::new().await;
    let of = lab.with_file("/tmp/a", b"text").await;
    let stat = async |path: &str| {
        let answer = lab.call("Stat", &of, json!({"path": path})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body["entry"].clone()
    };
    let link = stat("/tmp/a.link").await;
    assert_eq!(
        (&link["type"], &link["symlinkTarget"]),
        (&json!("FILE_TYPE_FILE"), &json!("/tmp/a"))
    );
    assert_eq!((&link["path"], &link["mode"]), (&json!("/tmp/a.link"), &json!(0o644)));
    let broken = stat("/tmp/b.link").await;
    assert_eq!(broken["type"], "FILE_TYPE_UNSPECIFIED");
    assert_eq!(broken["symlinkTarget"], "/tmp/b.link");
    assert!(stat("/tmp/a").await.get("symlinkTarget").is_none());
    // What wants a directory looks through a link too.
    for call in ["ListDir", "CreateWatcher"] {
        let refused = lab.call(call, &of, json!({"path": "/tmp/a.link"})).await;
        assert_eq!(refused.body["code"], "invalid_argument", "{call}: {}", refused.body);
    }
    let (id, token) = &of;
    let more = [("x-access-token", &**token)];
    let read = lab.data("GET /files?path=/tmp/a.link", id, &more, Body::empty()).await;
    assert_eq!(read.status, 200);
}
