//! Goal: a preview shows what a server in a sandbox serves, to whoever has the token of that port.
//! Each child of a branch has an address of its own; the source's token does not open it, and the
//! next daemon knows tokens that an earlier one has given.
//!
//! Method: a page that Python serves in the guest on its loopback address, asked for by plain HTTP
//! at the daemon's listener of previews. Breaks when children are mixed up, when a token opens more
//! than its port, and when tokens end with a daemon.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::forkd::Forkd;
use crate::pages::PAGE;
use crate::processes::kill_daemon;

const PORT: &str = "8080";

const SERVER: &str = r#"
page = 'source'
class Own(Page):
    def text(self):
        return f"{page} {self.path} {'traffic' in str(self.headers)}"
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8080), Own)
threading.Thread(target=server.serve_forever, daemon=True).start()
"#;

/// A token that `forkd port --preview` gave.
struct Preview {
    host: String,
    token: String,
}

impl Preview {
    fn of(forkd: &Forkd, sandbox: &str) -> Self {
        let told = forkd.json(&["port", sandbox, PORT, "--preview"]);
        let text = |name: &str| told[name].as_str().unwrap().to_owned();
        let preview = Self { host: text("host"), token: text("token") };
        let url = format!("http://{}/?forkd_token={}", preview.host, preview.token);
        assert_eq!(told["url"], url.as_str());
        preview
    }

    /// The head and the body that the previews' listener answers to a request for `host`.
    fn ask(&self, host: &str, path: &str, header: &str) -> (String, String) {
        let (_, port) = self.host.rsplit_once(':').unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    /// The page at `host` for whoever has this token.
    fn page(&self, host: &str) -> String {
        self.ask(host, "/a?b", &format!("x-forkd-traffic-token: {}\r\n", self.token)).1
    }

    fn assert_opens_nothing_at(&self, host: &str) {
        let header = format!("x-forkd-traffic-token: {}\r\n", self.token);
        let (head, body) = self.ask(host, "/", &header);
        assert!(head.starts_with("HTTP/1.1 404 "), "{host}: {head}");
        assert!(body.contains("nothing here"), "{body}");
    }
}

#[test]
fn previews_show_each_child_its_own() {
    let forkd = Forkd::with_variables(&[("FORKD_PREVIEW_LISTEN", "127.0.0.1:0")]);
    forkd.template("python", "py", 256);
    let source = forkd.ok(&["fork", "py", "--no-internet"]);
    forkd.ok(&["eval", &source, &format!("{PAGE}{SERVER}")]);
    let preview = Preview::of(&forkd, &source);
    assert_eq!(preview.page(&preview.host), "source /a?b False");
    assert_a_browser_gets_a_cookie(&preview);

    let branch = forkd.json(&["branch", &source, "-n", "3", "--tag", "b"]);
    let children: Vec<String> = (0..3).map(|at| child(&branch, at)).collect();
    for (number, child) in children.iter().enumerate() {
        forkd.ok(&["eval", child, &format!("page = 'child {number}'")]);
        let of_child = Preview::of(&forkd, child);
        assert_eq!(of_child.page(&of_child.host), format!("child {number} /a?b False"));
        preview.assert_opens_nothing_at(&of_child.host);
        of_child.assert_opens_nothing_at(&preview.host);
    }
    assert_eq!(preview.page(&preview.host), "source /a?b False");

    kill_daemon(&forkd);
    // It listens elsewhere, because this one takes a free port.
    let next = Preview::of(&forkd, &source);
    let earlier = Preview { host: next.host.clone(), token: preview.token };
    assert_eq!(earlier.page(&earlier.host), "source /a?b False");
    forkd.ok(&["port", &source, PORT, "--revoke"]);
    earlier.assert_opens_nothing_at(&earlier.host);
    next.assert_opens_nothing_at(&next.host);
}

fn child(branch: &Value, at: usize) -> String {
    branch["children"][at]["sandbox"]["id"].as_str().unwrap().to_owned()
}

/// The address that a browser is given opens the page, and is gone from its bar then.
fn assert_a_browser_gets_a_cookie(preview: &Preview) {
    let Preview { host, token } = preview;
    let (head, _) = preview.ask(host, &format!("/x?forkd_token={token}"), "");
    assert!(head.starts_with("HTTP/1.1 303 "), "{head}");
    let header = |name: &str| {
        let found = head.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in {head}")).to_owned()
    };
    assert_eq!(header("location: "), "/x");
    let cookie = header("set-cookie: ");
    let cookie = format!("cookie: {}\r\n", cookie.split(';').next().unwrap());
    assert_eq!(preview.ask(host, "/x", &cookie).1, "source /x False");
}
