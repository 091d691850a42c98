//! A registry on this host that keeps everything in memory, as the OCI distribution specification
//! has it, and that behaves badly where a test says so.
//!
//! Guarantees: a blob is there only under its own digest, a manifest only when all is there that it
//! names. Every request is remembered.
//!
//! Does not do: give tokens, redirect or delete; keep manifests of two repositories apart.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_types::Digest;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection ends after so many bytes of the answer's body.
    CutAnswer(usize),
    /// The connection ends after so many bytes of the request's body, which are kept.
    CutBody(usize),
    /// It is answered with this status and these headers instead.
    Answer(&'static str, &'static str),
    /// One bit of the answer's body is another.
    Flip,
    /// The answer is no HTTP.
    Nonsense,
}

/// A request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `GET` and so on.
    pub method: String,
    /// With what follows a question mark.
    pub path: String,
    /// Where a download goes on.
    pub range: Option<String>,
    /// Bytes of its body.
    pub bytes: usize,
    /// How many there were before it.
    pub before: usize,
}

type Faults = Box<dyn Fn(&Asked) -> Fault + Send + Sync>;

#[derive(Default)]
struct Stock {
    blobs: BTreeMap<String, Vec<u8>>,
    manifests: BTreeMap<String, Vec<u8>>,
    /// Tags of each repository.
    tags: BTreeMap<String, BTreeSet<String>>,
    uploads: BTreeMap<String, Vec<u8>>,
    asked: Vec<Asked>,
    /// Bytes that clients have got.
    given: usize,
}

struct Shared {
    stock: Mutex<Stock>,
    /// What the header `Authorization` must be.
    authorization: Option<&'static str>,
    faults: Faults,
}

/// A registry that runs as long as the test.
pub struct Registry {
    address: String,
    shared: Arc<Shared>,
}

struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: &'static str, headers: &str, body: &[u8]) -> Self {
        Self { status, headers: headers.to_owned(), body: body.to_vec() }
    }
}

impl Registry {
    /// One that is open to all and does everything right.
    #[must_use]
    pub fn good() -> Self {
        Self::start(None, |_| Fault::None)
    }

    /// One that wants this `Authorization`, and behaves as `faults` says.
    ///
    /// # Panics
    /// When this host gives no port.
    #[must_use]
    pub fn start(
        authorization: Option<&'static str>,
        faults: impl Fn(&Asked) -> Fault + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this host");
        let address = listener.local_addr().expect("an address").to_string();
        let stock = Mutex::default();
        let shared = Arc::new(Shared { stock, authorization, faults: Box::new(faults) });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                // A client that hangs up is no fault of the registry.
                std::thread::spawn(move || shared.serve(stream).ok());
            }
        });
        Self { address, shared }
    }

    /// `name` in it, as a reference.
    #[must_use]
    pub fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// What was asked, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.stock().asked.clone()
    }

    /// Bytes of all blobs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.stock().blobs.values().map(Vec::len).sum()
    }

    /// Bytes that clients have got so far.
    #[must_use]
    pub fn given_bytes(&self) -> usize {
        self.shared.stock().given
    }

    /// How many manifests there are.
    #[must_use]
    pub fn manifests(&self) -> usize {
        self.shared.stock().manifests.len()
    }

    /// Another one with all that this one has, which behaves as `faults` says.
    #[must_use]
    pub fn copy(&self, faults: impl Fn(&Asked) -> Fault + Send + Sync + 'static) -> Self {
        let copy = Self::start(self.shared.authorization, faults);
        let (blobs, manifests) = {
            let stock = self.shared.stock();
            (stock.blobs.clone(), stock.manifests.clone())
        };
        let tags = self.shared.stock().tags.clone();
        *copy.shared.stock() = Stock { blobs, manifests, tags, ..Stock::default() };
        copy
    }
}

impl Shared {
    fn stock(&self) -> MutexGuard<'_, Stock> {
        self.stock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let head = head_of(&mut stream)?;
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|found| found.1)
        };
        let mut words = head.split_whitespace().map(str::to_owned);
        let bytes = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let asked = Asked {
            method: words.next().unwrap_or_default(),
            path: words.next().unwrap_or_default(),
            range: header("range").map(str::to_owned),
            bytes,
            before: self.stock().asked.len(),
        };
        self.stock().asked.push(asked.clone());
        let fault = (self.faults)(&asked);
        let mut body =
            vec![0; if let Fault::CutBody(most) = fault { most.min(bytes) } else { bytes }];
        stream.read_exact(&mut body)?;
        let allowed =
            self.authorization.is_none_or(|wanted| header("authorization") == Some(wanted));
        let mut answer = match fault {
            Fault::Nonsense => return stream.write_all(b"\x16\x03\x01 what?\r\n\r\n"),
            Fault::CutBody(_) => {
                self.stock().append(&asked.path, &body);
                return Ok(());
            }
            Fault::Answer(status, headers) => Answer::new(status, headers, b""),
            _ if !allowed => {
                let challenge = "WWW-Authenticate: Basic realm=\"x\"\r\n";
                Answer::new("401 Unauthorized", challenge, b"")
            }
            _ => self.stock().answer(&asked, body),
        };
        let length = answer.body.len();
        match fault {
            Fault::CutAnswer(most) => answer.body.truncate(most),
            Fault::Flip => {
                answer.body.iter_mut().skip(length / 2).take(1).for_each(|byte| *byte ^= 1)
            }
            _ => {}
        }
        if asked.method == "HEAD" {
            answer.body.clear();
        }
        let Answer { status, headers, body } = answer;
        let no_content = status.starts_with("204");
        let length =
            if no_content { String::new() } else { format!("Content-Length: {length}\r\n") };
        let head = format!("HTTP/1.1 {status}\r\n{length}Connection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes())?;
        self.stock().given += body.len();
        stream.write_all(&body)
    }
}

impl Stock {
    fn append(&mut self, path: &str, body: &[u8]) {
        let place = path.split('?').next().unwrap_or_default();
        if let Some(upload) = self.uploads.get_mut(place) {
            upload.extend_from_slice(body);
        }
    }

    fn answer(&mut self, asked: &Asked, body: Vec<u8>) -> Answer {
        let (place, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        let unknown = || Answer::new("404 Not Found", "", b"{}");
        let name = place.rsplit('/').next().unwrap_or_default();
        if place.contains("/blobs/uploads/") {
            return self.upload(&asked.method, place, query, body);
        }
        let documents = place.contains("/manifests/");
        if asked.method == "PUT" && documents {
            let text = String::from_utf8_lossy(&body);
            let mut named = text.split("\"digest\":\"").skip(1);
            let whole = named.all(|rest| self.blobs.contains_key(&rest[..71.min(rest.len())]));
            if !whole {
                return Answer::new("400 Bad Request", "", b"a blob is unknown");
            }
            self.manifests.insert(Digest::of(&body).to_string(), body.clone());
            self.manifests.insert(name.to_owned(), body);
            if let Some(repository) = repository_of(place, "manifests") {
                self.tags.entry(repository.to_owned()).or_default().insert(name.to_owned());
            }
            return Answer::new("201 Created", "", b"");
        }
        if place == "/v2/_catalog" {
            return page("repositories", place, query, self.tags.keys());
        }
        if let Some(repository) = repository_of(place, "tags") {
            let Some(tags) = self.tags.get(repository) else { return unknown() };
            return page("tags", place, query, tags.iter());
        }
        let shelf = if documents { &self.manifests } else { &self.blobs };
        let Some(found) = shelf.get(name) else { return unknown() };
        let from = asked.range.as_deref().and_then(|range| range.strip_prefix("bytes="));
        match from.and_then(|range| range.strip_suffix('-')?.parse::<usize>().ok()) {
            Some(from) if from < found.len() => {
                let (last, all) = (found.len() - 1, found.len());
                let range = format!("Content-Range: bytes {from}-{last}/{all}\r\n");
                Answer::new("206 Partial Content", &range, &found[from..])
            }
            _ => Answer::new("200 OK", "", found),
        }
    }

    fn upload(&mut self, method: &str, place: &str, query: &str, body: Vec<u8>) -> Answer {
        let location = |place: &str| format!("Location: {place}\r\n");
        if method == "POST" {
            let place = format!("{place}{}", self.asked.len());
            self.uploads.insert(place.clone(), Vec::new());
            return Answer::new("202 Accepted", &location(&place), b"");
        }
        let Some(upload) = self.uploads.get_mut(place) else {
            return Answer::new("404 Not Found", "", b"{}");
        };
        upload.extend_from_slice(&body);
        let range = format!("{}Range: 0-{}\r\n", location(place), upload.len().saturating_sub(1));
        match method {
            "GET" => Answer::new("204 No Content", &range, b""),
            "PATCH" => Answer::new("202 Accepted", &range, b""),
            _ => {
                let content = self.uploads.remove(place).unwrap_or_default();
                let digest = Digest::of(&content).to_string();
                if query != format!("digest={}", digest.replace(':', "%3A")) {
                    return Answer::new("400 Bad Request", "", b"another digest");
                }
                self.blobs.insert(digest, content);
                Answer::new("201 Created", "", b"")
            }
        }
    }
}

/// The repository in `/v2/REPOSITORY/PART/..`.
fn repository_of<'a>(place: &'a str, part: &str) -> Option<&'a str> {
    let (repository, _) = place.strip_prefix("/v2/")?.rsplit_once(&format!("/{part}/"))?;
    Some(repository)
}

/// Two names of a list that follow `last`, and where the next ones are, as registries say it.
fn page<'a>(
    what: &str,
    place: &str,
    query: &str,
    names: impl Iterator<Item = &'a String>,
) -> Answer {
    let last = query.split('&').find_map(|field| field.strip_prefix("last=")).unwrap_or_default();
    let mut left: Vec<&String> = names.filter(|name| name.as_str() > last).collect();
    let are_all = left.len() <= 2;
    left.truncate(2);
    let link = match left.last() {
        Some(last) if !are_all => format!("Link: <{place}?n=2&last={last}>; rel=\"next\"\r\n"),
        _ => String::new(),
    };
    Answer::new("200 OK", &link, format!("{{\"{what}\":{left:?}}}").as_bytes())
}

fn head_of(stream: &mut TcpStream) -> std::io::Result<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}
