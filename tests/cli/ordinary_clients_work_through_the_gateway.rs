//! Goal: clients that people use every day work in a sandbox as they do elsewhere, with TLS that
//! the gateway ends because the host has a header rule.
//!
//! Method: a guest makes a repository and an index of packages; the test serves both with TLS, by a
//! name with a rule, to those who come with the header. Each client fetches from there by its
//! defaults. PostgreSQL's client asks the server of another member, whose children answer by
//! themselves. Breaks when a client does not find the gateway's certificate, or what it says is not
//! understood.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;

use crate::forkd::Forkd;
use crate::internet::Internet;
use crate::upstream::{NAME, Request, trusting};

const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const RULE: &str = "api.example:X-Key: the-key";

/// Makes `/srv/site`: a repository, a page of packages with one wheel, a file.
const SITE: &str = r#"
set -e
mkdir -p /srv/site/simple/greeting /srv/work && cd /srv/work
git init -q -b main . && echo 'hello from git' > note
git add . && git -c user.name=a -c user.email=a@example.com commit -qm one
git clone -q --bare . /srv/site/note.git && git -C /srv/site/note.git update-server-info
echo '{"said": "hello"}' > /srv/site/said
cd /srv/site/simple/greeting && python3 - <<'PY'
import zipfile
name = "greeting-1.0-py3-none-any.whl"
about = "greeting-1.0.dist-info"
with zipfile.ZipFile(name, "w") as wheel:
    wheel.writestr("greeting.py", "WORD = 'hello from pip'\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel.writestr(f"{about}/WHEEL", tags)
    wheel.writestr(f"{about}/RECORD", f"greeting.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n")
open("index.html", "w").write(f"<a href='{name}'>{name}</a>")
PY
"#;

/// Each client by its defaults, and what it must say.
const OF_PYTHON: [(&str, &str); 3] = [
    ("curl -sSf https://api.example/said", "hello"),
    ("git clone -q https://api.example/note.git /srv/note && cat /srv/note/note", "from git"),
    (
        "python3 -m venv --without-pip /srv/venv \
         && pip --python /srv/venv install -q --index-url https://api.example/simple greeting \
         && /srv/venv/bin/python -c 'import greeting; print(greeting.WORD)'",
        "from pip",
    ),
];

const OF_AGENT: [(&str, &str); 4] = [
    (
        "node -e \"fetch('https://api.example/said').then((it) => it.text()).then(console.log)\"",
        "hello",
    ),
    (
        "python3 -c \"import requests; print(requests.get('https://api.example/said').text)\"",
        "hello",
    ),
    ("python3 -c \"import httpx; print(httpx.get('https://api.example/said').text)\"", "hello"),
    ("npm ping --registry https://api.example/ 2>&1 | grep -i -e PONG -e 404 -e E4", "404"),
];

/// Serves files below a folder over one connection, to whoever has the key.
fn serve(stream: TcpStream, config: Arc<ServerConfig>, site: &Path) {
    let Some(request) = Request::read(stream, config) else { return };
    let path = request.head.split(' ').nth(1).unwrap().split('?').next().unwrap();
    let mut file = site.join(path.trim_matches('/'));
    if file.is_dir() {
        file = file.join("index.html");
    }
    let page = match request.head.to_lowercase().contains("\r\nx-key: the-key\r\n") {
        true => std::fs::read(&file).map_err(|_| "404 Not Found"),
        false => Err("403 Forbidden"),
    };
    let (status, page) = page.map_or_else(|status| (status, Vec::new()), |page| ("200 OK", page));
    let kind = if file.ends_with("index.html") { "text/html" } else { "application/octet-stream" };
    request.answer(status, kind, &page);
}

/// Each client of an image fetches what it must.
fn clients_fetch(image: &str, clients: &[(&str, &str)]) {
    let (forkd, folder, config) = trusting();
    let internet = Internet::with(&[SERVER]);
    internet.run(&forkd, &["template", "build", image, "--tag", "t"]);

    let allow = format!("{SERVER}:443");
    let started = forkd.json(&["fork", "t", "--allow", &allow, "--header", RULE]);
    let id = started[0]["id"].as_str().unwrap();
    forkd.ok(&["exec", id, "--", "sh", "-c", SITE]);
    let mut tar = forkd.command(&["exec", id, "--", "tar", "-C", "/srv", "-c", "site"]);
    let mut tar = tar.stdout(Stdio::piped()).spawn().unwrap();
    let mut untar = std::process::Command::new("tar");
    untar.arg("-x").arg("-C").arg(folder.path()).stdin(tar.stdout.take().unwrap());
    assert!(untar.status().unwrap().success() && tar.wait().unwrap().success());

    let site = folder.path().join("site");
    internet.serve_with(SERVER, 443, move |stream| serve(stream, config.clone(), &site));
    forkd.ok(&["exec", id, "--", "sh", "-c", &format!("echo {SERVER} {NAME} >> /etc/hosts")]);
    for (client, said) in clients {
        let output = forkd.run(&["exec", "--timeout-secs", "110", id, "--", "sh", "-c", client]);
        let out = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(out.contains(said), "{client}: {out} {error}");
    }
}

#[test]
fn curl_git_and_pip_fetch_by_their_defaults() {
    clients_fetch("python", &OF_PYTHON);
}

#[test]
#[ignore = "needs the image agent: cargo run -p xtask -- images agent"]
fn node_npm_requests_and_httpx_fetch_by_their_defaults() {
    clients_fetch("agent", &OF_AGENT);
}

/// The server of the image trusts whoever reaches it, at all its addresses.
const SERVE: &str = "cd /etc/postgresql/*/main && echo 'host all all all trust' >> pg_hba.conf \
                     && echo \"listen_addresses = '*'\" >> postgresql.conf \
                     && pg_ctlcluster $(ls /usr/lib/postgresql) main start -- -w";
const FILL: &str = "create table words as select n, md5(n::text) from generate_series(1, 5000) n";
const COPY: &str = "copy (select * from words order by n) to stdout";

#[test]
fn psql_queries_the_server_of_another_member_and_of_its_child() {
    let forkd = Forkd::new();
    forkd.ok(&["template", "build", "postgresql", "--tag", "t"]);
    forkd.ok(&["network", "create", "team"]);
    let members = forkd.json(&["fork", "t", "--n", "2", "--join", "team"]);
    let [server, client] = [0, 1].map(|at| members[at]["id"].as_str().unwrap());
    forkd.ok(&["exec", server, "--timeout-secs", "120", "--", "sh", "-c", SERVE]);
    let ask = |server: &str, statement: &str| {
        let host = format!("{server}.team.forkd.internal");
        let psql = ["psql", "-XAtq", "-h", &host, "-U", "postgres", "-c", statement];
        forkd.ok(&[&["exec", client, "--"][..], &psql].concat())
    };
    ask(server, FILL);
    let sum = "select md5(string_agg(words::text, ',' order by n)) from words";
    let child = forkd.json(&["branch", server, "-n", "1"]);
    let child = child["children"][0]["sandbox"]["id"].as_str().unwrap();
    ask(child, "update words set md5 = 'of the child'");
    assert_ne!(ask(server, sum), ask(child, sum));
    // All of it over the network is what the server has.
    let copied = ask(server, COPY);
    let own = format!(
        "cd / && setpriv --reuid=postgres --regid=postgres --init-groups psql -Xc '{COPY}'"
    );
    assert_eq!(copied, forkd.ok(&["exec", server, "--", "sh", "-c", &own]));
    assert_eq!(copied.lines().count(), 5000);
}
