//! Goal: with a domain and a certificate, E2B's packages find everything by names below the domain
//! alone, over TLS: the control interface, sandboxes, servers in them with and without a token, a
//! WebSocket; a visitor wakes a sandbox; and a sandbox reaches what its policy allows and no more.
//!
//! Method: the packages are told the domain by what `forkd e2b env` prints, and trust the test's
//! certificate. Names are found by a name server of the test's, in a network of its own, so that
//! all goes through the ordinary resolver. Breaks when a name, a certificate or a token is asked
//! for that E2B's clients do not have, or when a policy lets something through.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};

use crate::e2b_packages::{NEWEST, Player, checked, file_of, variables};
use crate::forkd::Forkd;
use crate::internet::Internet;
use crate::processes::wait_until;

/// The port is free: the network is the test's own.
const DOMAIN: &str = "e2b.test:8443";
const NAME: &str = "e2b.test";
const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const ALLOWED: u16 = 7000;
const FORBIDDEN: u16 = 7001;
const TOKEN: &str = "ci c2VjcmV0LXNlY3JldC1zZWNyZXQ\n";

/// Runs `$@` with the resolver's settings of the file `$0`.
const WITH_RESOLVER: &str = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";

/// Answers every question for an address of version 4 with that of this host.
fn answer_names(socket: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        let Some((head, question)) = packet[..length].split_at_checked(12) else { continue };
        // Behind the name's labels, of which the last has no bytes: kind and class.
        let Some(end) = question.iter().position(|byte| *byte == 0) else { continue };
        let Some(question) = question.get(..end + 5) else { continue };
        let is_address = question[end + 1..end + 3] == [0, 1];
        let mut answer =
            [head[0], head[1], 0x81, 0x80, 0, 1, 0, is_address.into(), 0, 0, 0, 0].to_vec();
        answer.extend(question);
        if is_address {
            // The name is that of the question; kind and class; a minute; four bytes.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(Ipv4Addr::LOCALHOST.octets());
        }
        socket.send_to(&answer, from).unwrap();
    }
}

/// A daemon that runs until this is dropped, and its sandboxes with it.
struct Server<'a> {
    daemon: Child,
    forkd: &'a Forkd,
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.forkd.run(&["rm", "--all"]);
        let pid = rustix::process::Pid::from_child(&self.daemon);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        self.daemon.wait().ok();
    }
}

fn serve<'a>(internet: &Internet, forkd: &'a Forkd, certificate: &str, key: &str) -> Server<'a> {
    let tokens = forkd.private_file("tokens", TOKEN);
    let options = [
        ["--listen", "127.0.0.1:8080"],
        ["--token-file", &tokens],
        ["--tls-cert", certificate],
        ["--tls-key", key],
        ["--e2b-listen", "127.0.0.1:8443"],
        ["--e2b-domain", DOMAIN],
    ];
    let log = std::fs::File::create(forkd.home().join("serve.log")).unwrap();
    let mut command = forkd.within(internet.command());
    let command = command.args(["forkd", "serve"]).args(options.as_flattened());
    let daemon = command.stderr(log).stdout(Stdio::null()).spawn().unwrap();
    let server = Server { daemon, forkd };
    wait_until("the daemon answers", || forkd.run(&["e2b", "env"]).status.success());
    server
}

/// Runs a program where the daemon is, with its variables.
fn play(internet: &Internet, forkd: &Forkd, program: &Command, certificate: &str) -> String {
    let resolver = forkd.private_file("resolv.conf", "nameserver 127.0.0.1\n");
    let mut command = internet.command();
    command.args(["unshare", "--mount", "sh", "-c", WITH_RESOLVER, &resolver]);
    command.arg(program.get_program()).args(program.get_args()).envs(variables(forkd));
    if let Some(directory) = program.get_current_dir() {
        command.current_dir(directory);
    }
    checked(command.env("NODE_EXTRA_CA_CERTS", certificate).env("SSL_CERT_FILE", certificate))
}

#[test]
fn everything_is_found_by_names_below_the_domain_over_tls() {
    let internet = Internet::with(&[SERVER]);
    for port in [ALLOWED, FORBIDDEN] {
        internet.serve(SERVER, port);
    }
    let names = internet.inside(|| UdpSocket::bind("127.0.0.1:53").unwrap());
    std::thread::spawn(move || answer_names(&names));
    let forkd = Forkd::new();
    let names = [NAME.to_owned(), format!("*.{NAME}")];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = forkd.private_file("cert.pem", &made.cert.pem());
    let key = forkd.private_file("key.pem", &made.signing_key.serialize_pem());
    let _server = serve(&internet, &forkd, &certificate, &key);
    forkd.template("python", "python", 256);
    forkd.ok(&["e2b", "alias", "base=python", "code-interpreter-v1=python"]);
    let program = Player::python(&NEWEST).command(&file_of("e2b/domain.py"));
    assert_eq!(play(&internet, &forkd, &program, &certificate), "done\n");
    let program = file_of("e2b/domain.mjs");
    let Some(node) = Player::node(forkd.home(), &NEWEST, std::slice::from_ref(&program)) else {
        eprintln!("not played: domain.mjs; it needs Node 20");
        return;
    };
    let mut program = node.command(&program);
    program.args([SERVER.to_string(), ALLOWED.to_string(), FORBIDDEN.to_string()]);
    let said = play(&internet, &forkd, &program, &certificate);
    assert!(said.ends_with("done\n"), "{said}");
}
