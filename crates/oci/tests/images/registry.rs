//! A registry that behaves as the specification says, or badly in one way; and what a pull makes of
//! it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use forkd_oci::{Digest, OciError};

use crate::image::{Layer, Layout, Packing, pull};

const TOKEN: &str = "the-token";

/// How it behaves when it is asked for a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Good,
    /// Each answer breaks off after so many bytes.
    Cut(usize),
    /// As `Cut`, and it knows no ranges: only the first answer breaks off.
    CutWithoutRanges(usize),
    /// One byte is another, in the first answer only.
    CorruptOnce,
    Corrupt,
    /// The first answers are that it has too much to do.
    Busy,
    /// More comes than the manifest names.
    Endless,
}

pub(crate) struct Registry {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

/// What a registry has, by path.
struct Stock {
    manner: Manner,
    wants_token: bool,
    address: String,
    documents: BTreeMap<String, Vec<u8>>,
    layers: BTreeMap<String, Vec<u8>>,
}

impl Registry {
    /// Has the image of `layout` as `team/app:v1`.
    pub(crate) fn of(layout: &Layout, manner: Manner, wants_token: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let manifest = layout.manifest.to_string().into_bytes();
        let mut documents = BTreeMap::new();
        documents.insert("manifests/v1".to_owned(), manifest.clone());
        documents.insert(format!("manifests/{}", Digest::of(&manifest)), manifest);
        let blob = |descriptor: &serde_json::Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            let bytes = std::fs::read(layout.blob_path(&digest.parse().unwrap())).unwrap();
            (format!("blobs/{digest}"), bytes)
        };
        documents.extend([blob(&layout.manifest["config"])]);
        let layers = layout.manifest["layers"].as_array().unwrap().iter().map(blob).collect();
        let stock = Stock { manner, wants_token, address: address.clone(), documents, layers };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut layer_requests = 0;
            for stream in listener.incoming().flatten() {
                stock.answer(stream, &heard, &mut layer_requests);
            }
        });
        Self { address, asked }
    }

    pub(crate) fn reference(&self) -> String {
        format!("{}/team/app:v1", self.address)
    }

    /// The requests whose path or range has `part`.
    pub(crate) fn asked(&self, part: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|request| request.contains(part)).count()
    }
}

impl Stock {
    fn answer(&self, mut stream: TcpStream, heard: &Mutex<Vec<String>>, layer_requests: &mut u32) {
        let Some(request) = head_of(&mut stream) else { return };
        heard.lock().unwrap().push(request.clone());
        let path = request.split_whitespace().nth(1).unwrap_or_default();
        let header = |name: &str| {
            let lines = request.lines().filter_map(|line| line.split_once(": "));
            lines
                .into_iter()
                .find(|(known, _)| known.eq_ignore_ascii_case(name))
                .map(|found| found.1)
        };
        if path.starts_with("/token?") {
            let good = path.contains("scope=repository%3Ateam%2Fapp%3Apull");
            let token = if good { TOKEN } else { "other" };
            let body = format!(r#"{{"token":"{token}"}}"#);
            return send(&mut stream, "200 OK", "", body.as_bytes(), body.len());
        }
        if self.wants_token && header("authorization") != Some(&format!("Bearer {TOKEN}")) {
            let challenge = format!(
                "WWW-Authenticate: Bearer realm=\"http://{}/token\",service=\"s\",\
                 scope=\"repository:team/app:pull\"\r\n",
                self.address
            );
            return send(&mut stream, "401 Unauthorized", &challenge, b"", 0);
        }
        let name = path.strip_prefix("/v2/team/app/").unwrap_or_default();
        if let Some(document) = self.documents.get(name) {
            return send(&mut stream, "200 OK", "", document, document.len());
        }
        let Some(layer) = self.layers.get(name) else {
            return send(&mut stream, "404 Not Found", "", b"{}", 2);
        };
        *layer_requests += 1;
        let from = header("range").and_then(|range| range.strip_prefix("bytes="));
        let from = from.and_then(|range| range.strip_suffix('-')?.parse().ok());
        self.send_layer(&mut stream, layer, from, *layer_requests);
    }

    fn send_layer(&self, stream: &mut TcpStream, layer: &[u8], from: Option<usize>, time: u32) {
        let mut bytes = layer.to_vec();
        match self.manner {
            Manner::Busy if time < 3 => {
                let pause = "Retry-After: 0\r\n";
                return send(stream, "429 Too Many Requests", pause, b"", 0);
            }
            Manner::Corrupt => bytes[1000] ^= 1,
            Manner::CorruptOnce if time == 1 => bytes[1000] ^= 1,
            Manner::Endless => bytes.extend([0; 100_000]),
            _ => {}
        }
        let from = from.filter(|_| !matches!(self.manner, Manner::CutWithoutRanges(_)));
        let rest = &bytes[from.unwrap_or_default().min(bytes.len())..];
        let most = match self.manner {
            Manner::Cut(most) => most,
            Manner::CutWithoutRanges(most) if time == 1 => most,
            Manner::CorruptOnce if time == 1 => 5000,
            _ => rest.len(),
        };
        let (status, range) = match from {
            Some(from) => {
                let (last, all) = (bytes.len() - 1, bytes.len());
                ("206 Partial Content", format!("Content-Range: bytes {from}-{last}/{all}\r\n"))
            }
            None => ("200 OK", String::new()),
        };
        send(stream, status, &range, &rest[..most.min(rest.len())], rest.len());
    }
}

fn head_of(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

/// Says that `length` bytes come and sends `body`, which may be less.
fn send(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8], length: usize) {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
    );
    // The other side may have hung up.
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).ok();
}

pub(crate) fn layout() -> Layout {
    let random = |seed: u32| -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..200_000).map(|_| next()).collect()
    };
    let layers = [1, 2].map(|seed| Layer::new().file("random", random(seed)).finish());
    Layout::packed(layers.into(), Packing::Gzip, serde_json::json!({}))
}

#[test]
fn a_pull_gets_a_token_and_fetches_each_layer_once() {
    let layout = layout();
    let registry = Registry::of(&layout, Manner::Good, true);
    let cache = tempfile::tempdir().unwrap();
    let image = pull(&registry.reference(), cache.path()).unwrap();
    assert!(image.name.starts_with(&format!("{}@sha256:", registry.reference())), "{}", image.name);
    assert_eq!((registry.asked("/token?"), registry.asked("/blobs/")), (1, 1 + 2));
    // By its digest too; only the configuration is asked for again.
    let by_digest = image.name.replace(":v1@", "@");
    assert_eq!(pull(&by_digest, cache.path()).unwrap().id, image.id);
    assert_eq!(registry.asked("/blobs/"), 1 + 2 + 1);
}

#[test]
fn what_breaks_off_goes_on_and_what_is_damaged_never_arrives() {
    let layout = layout();
    let size = layout.manifest["layers"][0]["size"].as_u64().unwrap();
    let half = usize::try_from(size / 2 + 2000).unwrap();
    for (manner, ranges) in [
        (Manner::Cut(half), 2),
        (Manner::CutWithoutRanges(half), 1),
        (Manner::CorruptOnce, 1),
        (Manner::Busy, 0),
    ] {
        let registry = Registry::of(&layout, manner, false);
        let cache = tempfile::tempdir().unwrap();
        pull(&registry.reference(), cache.path()).unwrap();
        assert_eq!(registry.asked("range: bytes="), ranges, "one for each layer that broke off");
        for layer in layout.manifest["layers"].as_array().unwrap() {
            let digest: Digest = layer["digest"].as_str().unwrap().parse().unwrap();
            let bytes = std::fs::read(cache.path().join("blobs").join(digest.hex())).unwrap();
            assert_eq!(Digest::of(&bytes), digest);
        }
    }
    let failed = |manner: Manner| {
        let cache = tempfile::tempdir().unwrap();
        let registry = Registry::of(&layout, manner, false);
        let error = pull(&registry.reference(), cache.path()).unwrap_err();
        assert_eq!(std::fs::read_dir(cache.path().join("blobs")).unwrap().count(), 0);
        error
    };
    assert!(matches!(failed(Manner::Corrupt), OciError::Digest { .. }));
    assert!(matches!(failed(Manner::Endless), OciError::TooLarge { .. }));
    // It goes on each time, and no further than so many times.
    assert!(matches!(failed(Manner::Cut(1000)), OciError::Unreachable { .. }));
}

#[test]
fn a_pull_that_failed_goes_on_where_it_was() {
    let layout = layout();
    let cache = tempfile::tempdir().unwrap();
    let broken = Registry::of(&layout, Manner::Cut(1000), false);
    pull(&broken.reference(), cache.path()).unwrap_err();
    let good = Registry::of(&layout, Manner::Good, false);
    pull(&good.reference(), cache.path()).unwrap();
    assert_eq!(good.asked("range: bytes=4000-"), 1, "after four answers of 1000 bytes");
}

#[test]
fn what_is_not_there_or_not_allowed_is_told_with_what_helps() {
    let layout = layout();
    let registry = Registry::of(&layout, Manner::Good, true);
    let cache = tempfile::tempdir().unwrap();
    let address = &registry.address;
    let told = |reference: &str| pull(reference, cache.path()).unwrap_err().to_string();
    let missing = told(&format!("{address}/team/app:v2"));
    assert_eq!(missing, format!("there is no image {address}/team/app:v2"));
    let wrong = format!("{address}/team/app@{}", Digest::of(b"other"));
    assert!(told(&wrong).starts_with("there is no image"), "{wrong}");
}
