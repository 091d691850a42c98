//! Files and links as clients see them: what is said of a path, and how a file comes out.

use std::io::Read as _;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tower::ServiceExt as _;

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

/// An answer as it is.
struct Raw {
    status: u16,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Raw {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Lab {
    async fn get(&self, path: &str, of: &(String, String), more: &[(&str, &str)]) -> Raw {
        let mut request = Request::builder().uri(format!("/files?path={path}"));
        let of =
            [("e2b-sandbox-id", &*of.0), ("e2b-sandbox-port", "49983"), ("x-access-token", &*of.1)];
        for (name, value) in of.iter().chain(more) {
            request = request.header(*name, *value);
        }
        let answer = self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await;
        let (head, body) = answer.unwrap().into_parts();
        let bytes = to_bytes(body, 1 << 20).await.unwrap().to_vec();
        Raw { status: head.status.as_u16(), headers: head.headers, bytes }
    }
}

#[tokio::test]
async fn a_file_comes_packed_to_those_who_want_it_so_and_plain_with_its_length_to_others() {
    let lab = Lab::new().await;
    let content: Vec<u8> = b"some content ".iter().copied().cycle().take(200_000).collect();
    let of = lab.with_file("/tmp/a", &content).await;
    let plain = lab.get("/tmp/a", &of, &[]).await;
    assert_eq!((plain.status, plain.header("content-encoding")), (200, None));
    assert_eq!(plain.header("content-length"), Some("200000"));
    assert_eq!(plain.header("vary"), Some("Accept-Encoding"));
    assert!(plain.bytes == content);

    let packed = lab.get("/tmp/a", &of, &[("accept-encoding", "gzip, deflate")]).await;
    assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    assert_eq!(packed.header("vary"), Some("Accept-Encoding"));
    assert_eq!(packed.header("content-length"), None, "it is not known before");
    assert!(packed.bytes.len() < content.len() / 10);
    let mut unpacked = Vec::new();
    GzDecoder::new(&*packed.bytes).read_to_end(&mut unpacked).unwrap();
    assert!(unpacked == content);

    let neither = lab.get("/tmp/a", &of, &[("accept-encoding", "br, *;q=0")]).await;
    assert_eq!((neither.status, neither.header("vary")), (406, Some("Accept-Encoding")));
    let said: Value = serde_json::from_slice(&neither.bytes).unwrap();
    assert_eq!(said["code"], 406);
    let through_link = lab.get("/tmp/a.link", &of, &[]).await;
    assert_eq!(through_link.header("content-length"), Some("200000"));
    assert!(through_link.bytes == content);
}

#[tokio::test]
async fn a_range_of_a_file_comes_plain_and_one_behind_its_end_is_refused() {
    let lab = Lab::new().await;
    let content: Vec<u8> = (0..100_000_u32).map(|number| number.to_be_bytes()[3]).collect();
    let of = lab.with_file("/tmp/a", &content).await;
    let ask = async |range: &str, more: &[(&str, &str)]| {
        let mut headers = vec![("range", range), ("accept-encoding", "gzip")];
        headers.extend(more);
        lab.get("/tmp/a", &of, &headers).await
    };
    for (range, shown, expected) in [
        ("bytes=10-19", "bytes 10-19/100000", 10..20),
        ("bytes=99990-", "bytes 99990-99999/100000", 99_990..100_000),
        ("bytes=-70000", "bytes 30000-99999/100000", 30_000..100_000),
    ] {
        let part = ask(range, &[]).await;
        assert_eq!((part.status, part.header("content-range")), (206, Some(shown)), "{range}");
        assert_eq!(part.header("content-length"), Some(&*expected.len().to_string()));
        assert_eq!(part.header("content-encoding"), None);
        assert_eq!(part.header("vary"), Some("Accept-Encoding"));
        assert!(part.bytes == content[expected], "{range}");
    }
    let behind = ask("bytes=100000-", &[]).await;
    assert_eq!((behind.status, behind.header("content-range")), (416, Some("bytes */100000")));
    // Several ranges, and one of what the client believes to have: the whole file is right.
    for (range, more) in [("bytes=0-1,5-6", &[][..]), ("bytes=0-1", &[("if-range", "\"x\"")])] {
        let whole = ask(range, more).await;
        assert_eq!((whole.status, whole.header("content-encoding")), (200, None), "{range}");
        assert!(whole.bytes == content, "{range}");
    }
}

#[tokio::test]
async fn a_name_in_a_form_is_what_the_client_means_whatever_its_letters() {
    let lab = Lab::new().await;
    let (id, token) = lab.sandbox(json!({})).await;
    let headers =
        [("x-access-token", &*token), ("content-type", "multipart/form-data; boundary=x")];
    for (sent, meant) in [
        ("/tmp/say %22hi%22.txt", "/tmp/say \"hi\".txt"),
        ("/tmp/Grüße/日本語 🦀.txt", "/tmp/Grüße/日本語 🦀.txt"),
        ("/tmp/a;b=c, d.txt", "/tmp/a;b=c, d.txt"),
        ("/tmp/100%.txt", "/tmp/100%.txt"),
        ("/tmp/a'b.txt", "/tmp/a'b.txt"),
        (r"/tmp/python\\s.txt", r"/tmp/python\s.txt"),
        (r"/tmp/node\s.txt", r"/tmp/node\s.txt"),
    ] {
        let form = format!(
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{sent}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\ncontent\r\n--x--\r\n"
        );
        let written = lab.data("POST /files", &id, &headers, form.into()).await;
        assert_eq!(written.status, 200, "{sent}: {}", written.body);
        assert_eq!(written.body[0]["path"], meant);
        assert_eq!(written.body[0]["name"], meant.rsplit('/').next().unwrap());
        let stat = lab.call("Stat", &(id.clone(), token.clone()), json!({"path": meant})).await;
        assert_eq!(stat.body["entry"]["size"], "7", "{sent}: {}", stat.body);
    }
}
