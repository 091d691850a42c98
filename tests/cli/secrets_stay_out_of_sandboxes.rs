//! Goal: a program in a sandbox uses a key that is nowhere in the sandbox: the server gets it, and
//! no page of RAM, layer, disk, log or row of the sandbox, of its children or of their snapshots
//! has it; nor has the live memory of a VMM, while the key is used and after.
//!
//! Method: Python in the guest asks a server with TLS, whose certificate an authority of the test
//! has signed, by a name with a rule; so do its children. Every readable mapping of their VMMs is
//! searched while they fetch, and at the end; then every file of the daemon is. The key must not be
//! found, and a word that the guest made for itself must be. Breaks when a
//! value travels with a policy, or a guest does not trust the gateway.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rcgen::KeyPair;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use tempfile::TempDir;
use tokio_rustls::rustls::ServerConfig;

use crate::forkd::Forkd;
use crate::internet::Internet;
use crate::processes::{kill_and_wait, wait_until};
use crate::sandboxes_reach_the_network_by_policy::gateway;
use crate::upstream::{NAME, Request, trusting};

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const RULE: &str = "api.example:Authorization: Bearer ${secrets.KEY}";

/// In the guest: the page behind a name, by what the image has for that.
const FETCH: &str = r#"
import ssl, urllib.error, urllib.request
# Reading all authorities takes an emulated guest seconds.
trusted = ssl.create_default_context()
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=120, context=trusted).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read().decode()}"
    except OSError as error:
        return type(error).__name__
"#;

/// Answers one request with a page, and notes the request.
fn answer(stream: TcpStream, config: Arc<ServerConfig>, seen: &Mutex<Vec<String>>) {
    let Some(mut request) = Request::read(stream, config) else { return };
    seen.lock().unwrap().push(std::mem::take(&mut request.head));
    request.answer("200 OK", "text/plain", b"page");
}

/// The files below a folder in which the first word is, and those in which the second is.
fn files_with(folder: &Path, words: [&[u8]; 2], found: &mut [BTreeSet<PathBuf>; 2]) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
        if kind.is_dir() {
            files_with(&path, words, found);
        } else if kind.is_file() {
            for (found, has) in found.iter_mut().zip(contains(&path, words)) {
                found.extend(has.then(|| path.clone()));
            }
        }
    }
}

/// Which of the words a file contains. One that is gone contains none, and holes are passed over.
fn contains(path: &Path, words: [&[u8]; 2]) -> [bool; 2] {
    let mut found = [false; 2];
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return found,
        opened => opened.unwrap(),
    };
    let finders = words.map(memchr::memmem::Finder::new);
    let overlap = words.map(<[u8]>::len).into_iter().max().unwrap_or_default() - 1;
    let (mut chunk, mut from) = (vec![0; (1 << 20) + overlap], 0);
    loop {
        match rustix::fs::seek(&file, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => return found,
            data => from = data.unwrap(),
        }
        let read = file.read_at(&mut chunk, from).unwrap();
        for (found, finder) in found.iter_mut().zip(&finders) {
            *found |= finder.find(&chunk[..read]).is_some();
        }
        from += 1 << 20;
    }
}

/// How many times the first and the second word are in the memory of a process, wherever it can be
/// read. Bytes of a mapping that changes meanwhile are skipped.
fn in_memory(pid: u64, words: [&[u8]; 2]) -> [usize; 2] {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let [memory, pagemap] =
        ["mem", "pagemap"].map(|name| File::open(format!("/proc/{pid}/{name}")).unwrap());
    let finders = words.map(memchr::memmem::Finder::new);
    let overlap = words.map(<[u8]>::len).into_iter().max().unwrap_or_default() - 1;
    let mut found = [0; 2];
    let mut chunk = vec![0; (1 << 20) + overlap];
    for line in maps.lines() {
        let mut parts = line.split_whitespace();
        let (range, rights) = (parts.next().unwrap(), parts.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap());
        if !rights.starts_with('r') {
            continue;
        }
        for at in (from..to).step_by(1 << 20) {
            let most = usize::try_from(to - at).unwrap().min(chunk.len());
            // Much of a mapping was never touched; eight bytes tell of a page.
            let mut pages = vec![0; most.div_ceil(4096) * 8];
            let told = pagemap.read_at(&mut pages, at / 4096 * 8);
            if told.is_ok_and(|bytes| pages[..bytes].iter().all(|byte| *byte == 0)) {
                continue;
            }
            let Ok(read) = memory.read_at(&mut chunk[..most], at) else { continue };
            for (count, finder) in found.iter_mut().zip(&finders) {
                *count += finder.find_iter(&chunk[..read]).count();
            }
        }
    }
    found
}

#[test]
fn a_key_is_used_in_sandboxes_and_is_in_none() {
    Scene::new().use_and_search(2);
}

#[test]
#[ignore = "takes minutes: the same with ten children"]
fn a_key_is_used_in_ten_children_and_is_in_none() {
    Scene::new().use_and_search(10);
}

/// A sandbox that uses a key.
struct Scene {
    forkd: Forkd,
    internet: Internet,
    /// The heads of the requests that the server has had.
    seen: Arc<Mutex<Vec<String>>>,
    key: String,
    /// A word of the guest's own.
    control: String,
    id: String,
    _folder: TempDir,
}

impl Scene {
    fn new() -> Self {
        let (forkd, folder, config) = trusting();
        let internet = Internet::with(&[SERVER]);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = seen.clone();
        internet.serve_with(SERVER, 443, move |stream| answer(stream, config.clone(), &noted));
        // Not one that was imported: it trusts the gateway of the daemon that made it.
        internet.run(&forkd, &["template", "build", "python", "--tag", "py"]);
        let random = KeyPair::generate().unwrap().serialize_der();
        let hex: String = random[40..56].iter().map(|byte| format!("{byte:02x}")).collect();
        let key = format!("sk-{hex}");
        let mut set = forkd.command(&["secret", "set", "KEY"]);
        let mut set = set.stdin(Stdio::piped()).spawn().unwrap();
        set.stdin.take().unwrap().write_all(format!("{key}\n").as_bytes()).unwrap();
        assert!(set.wait().unwrap().success());

        let allow = format!("{SERVER}:443");
        let started = forkd.json(&["fork", "py", "--allow", &allow, "--header", RULE]);
        let id = started[0]["id"].as_str().unwrap().to_owned();
        assert!(forkd.ok(&["network", "show", &id]).contains("${secrets.KEY}"));
        forkd.ok(&["exec", &id, "--", "sh", "-c", &format!("echo {SERVER} {NAME} >> /etc/hosts")]);
        forkd.ok(&["eval", &id, FETCH]);
        // In RAM and on its disk; no request has it as a whole.
        let make = format!("control = 'control-' + '{}' + '{}'", &hex[..9], &hex[9..]);
        forkd.ok(&["eval", &id, &make]);
        forkd.ok(&["eval", &id, "f = open('/root/control', 'w'); f.write(control); f.close()"]);
        forkd.ok(&["exec", &id, "--", "sync"]);
        Self { forkd, internet, seen, key, control: format!("control-{hex}"), id, _folder: folder }
    }

    fn fetch(&self, id: &str) -> String {
        self.forkd.ok(&["eval", id, &format!("fetch('https://{NAME}/')")])
    }

    fn heard(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn use_and_search(&self, count: usize) {
        let Self { forkd, id, .. } = self;
        assert_eq!(self.fetch(id), "'page'");
        let branch = forkd.json(&["branch", id, "-n", &count.to_string(), "--tag", "first"]);
        let children = branch["children"].as_array().unwrap().iter();
        let children: Vec<&str> =
            children.map(|child| child["sandbox"]["id"].as_str().unwrap()).collect();
        self.search_memory_in_use(&children);
        for (number, child) in children.iter().take(2).enumerate() {
            assert_eq!(self.fetch(child), "'page'");
            forkd.ok(&["branch", child, "--mode", "full", "--tag", &format!("of-{number}")]);
        }
        forkd.ok(&["branch", id, "--mode", "full", "--tag", "last"]);
        let sent = format!("Authorization: Bearer {}\r\n", self.key).to_lowercase();
        let heads = self.seen.lock().unwrap().clone();
        assert!(heads.len() > count && heads.iter().all(|it| it.to_lowercase().contains(&sent)));
        self.search_files();
        self.lose_gateway_and_key();
    }

    /// Fetched again and again by each guest meanwhile, and by none at the end.
    fn search_memory_in_use(&self, children: &[&str]) {
        let using = format!(
            "import threading, time; using = True\n\
             def use():\n while using: fetch('https://{NAME}/'); time.sleep(1)\n\
             user = threading.Thread(target=use); user.start()"
        );
        let (heard, guests) = (self.heard(), children.iter().copied().chain([self.id.as_str()]));
        for guest in guests.clone() {
            self.forkd.ok(&["eval", guest, &using]);
        }
        let sandboxes = 1 + children.len();
        wait_until("they use the key", || self.heard() >= heard + sandboxes);
        self.search_memory(sandboxes, "while the key is used");
        for guest in guests {
            self.forkd.ok(&["eval", guest, "using = False; user.join()"]);
        }
        self.search_memory(sandboxes, "after the key was used");
        // The search would find it.
        let [keys, controls] = self.in_memory(gateway(&self.forkd).unwrap());
        assert!(keys > 0 && controls == 0, "the gateway has it: {keys}, {controls}");
    }

    /// The key is in the memory of no VMM, and the guest's own word is in that of each.
    fn search_memory(&self, sandboxes: usize, when: &str) {
        let list = self.forkd.json(&["ls"]);
        let pids = list.as_array().unwrap().iter().map(|one| one["pid"].as_u64().unwrap());
        let pids: Vec<u64> = pids.collect();
        assert_eq!(pids.len(), sandboxes, "{when}");
        for pid in pids {
            let [keys, controls] = self.in_memory(pid);
            assert_eq!(keys, 0, "{when}: the key is in the memory of VMM {pid}");
            assert!(controls > 0, "{when}: the search finds nothing in VMM {pid}");
        }
    }

    fn in_memory(&self, pid: u64) -> [usize; 2] {
        in_memory(pid, [self.key.as_bytes(), self.control.as_bytes()])
    }

    fn search_files(&self) {
        let words = [self.key.as_bytes(), self.control.as_bytes()];
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        for folder in [self.forkd.home(), self.forkd.hot()] {
            files_with(folder, words, &mut found);
        }
        let [with_key, with_control] = found;
        let has = |part| with_control.iter().any(|path| path.to_string_lossy().contains(part));
        assert!(has("/layers/") && has("/overlays/"), "the search finds nothing: {with_control:?}");
        let only = self.forkd.home().join("state/secrets");
        assert_eq!(with_key, [only].into(), "they have the key");
    }

    fn lose_gateway_and_key(&self) {
        let Self { forkd, internet, id, .. } = self;
        // Another gateway has the key too, and keeps it from core dumps.
        kill_and_wait(gateway(forkd).expect("a gateway"));
        wait_until("another gateway serves the sandbox", || self.fetch(id) == "'page'");
        let limits = format!("/proc/{}/limits", gateway(forkd).expect("a gateway"));
        let limits = std::fs::read_to_string(limits).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
        let before = internet.accepted(SERVER, 443);

        let heard = self.heard();
        forkd.ok(&["secret", "rm", "KEY"]);
        let refused = self.fetch(id);
        assert!(refused.contains("502: ") && refused.contains("secret `KEY`"), "{refused}");
        assert_eq!(internet.accepted(SERVER, 443), before + 1, "it is reached");
        assert_eq!(self.heard(), heard, "but hears nothing");
        let plain = forkd.ok(&["eval", id, &format!("fetch('http://{NAME}:443/')")]);
        assert!(plain.contains("403: ") && plain.contains("HTTPS only"), "{plain}");
    }
}
