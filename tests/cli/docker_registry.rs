//! Debian's `docker-registry` on loopback: the registry that most hosts have.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::processes::wait_until;

/// Whom it lets in, where it wants a password.
const USER: &str = "me";
const PASSWORD: &str = "secret";
/// That user with that password, for the registry, at bcrypt's least cost.
const HTPASSWD: &str = "me:$2b$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// Whom it lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    /// Who has the password.
    Password,
    /// Who speaks TLS, shows a certificate of the right authority, and has the password.
    CertificateAndPassword,
}

/// It runs until this is dropped.
pub(crate) struct DockerRegistry {
    child: Child,
    folder: TempDir,
    /// `localhost` with its port.
    pub(crate) host: String,
}

impl DockerRegistry {
    pub(crate) fn start(door: Door) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let mut http = json!({"addr": "127.0.0.1:0", "secret": "of this test"});
        if door == Door::CertificateAndPassword {
            issue_certificates(folder.path());
            http["tls"] = json!({
                "certificate": place("server.cert"), "key": place("server.key"),
                "clientcas": [place("ca.crt")],
            });
        }
        let storage = json!({"filesystem": {"rootdirectory": place("content")}});
        let mut config = json!({"version": "0.1", "storage": storage, "http": http});
        if door != Door::Open {
            fs::write(place("htpasswd"), HTPASSWD).unwrap();
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": place("htpasswd")}});
        }
        // Its configuration is YAML, of which JSON is a part.
        fs::write(place("config.yml"), config.to_string()).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(place("config.yml")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(place("log")).unwrap());
        let child = command.spawn().expect("docker-registry; run the tests with `make test`");
        let mut registry = Self { child, folder, host: String::new() };
        wait_until("docker-registry listens", || registry.port().is_some());
        registry.host = format!("localhost:{}", registry.port().unwrap());
        registry
    }

    /// Which it says in its log.
    fn port(&self) -> Option<u16> {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        let (_, rest) = log.split_once("listening on 127.0.0.1:")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// `name` in it, as a reference.
    pub(crate) fn reference(&self, name: &str) -> String {
        format!("{}/{name}", self.host)
    }

    /// A folder for `DOCKER_CONFIG` with its password, as `docker login` leaves it.
    pub(crate) fn logged_in(&self) -> &'static str {
        let place = self.folder.path().join("docker");
        fs::create_dir_all(&place).unwrap();
        let login = ["login", "--tls-verify=false", "-u", USER, "-p", PASSWORD, "--authfile"];
        let mut command = Command::new("skopeo");
        command.args(login).arg(place.join("config.json")).arg(&self.host);
        finished(command.arg("--cert-dir").arg(self.folder.path()));
        leaked(place)
    }

    /// A folder for `XDG_CONFIG_HOME` with these files for this registry: of `ca.crt`, and
    /// `own.cert` with `own.key` to show.
    pub(crate) fn trusted(&self, files: &[&str]) -> &'static str {
        let home = self.folder.path().join(format!("trusted-{}", files.concat()));
        let place = home.join("docker/certs.d").join(&self.host);
        fs::create_dir_all(&place).unwrap();
        for file in files {
            fs::copy(self.folder.path().join(file), place.join(file)).unwrap();
        }
        leaked(home)
    }

    /// Bytes of all blobs, manifests among them.
    pub(crate) fn bytes(&self) -> u64 {
        fn of(folder: &Path) -> u64 {
            let entries = folder.read_dir().into_iter().flatten().map(|entry| entry.unwrap());
            let size = |entry: fs::DirEntry| match entry.metadata().unwrap() {
                metadata if metadata.is_dir() => of(&entry.path()),
                metadata => metadata.len(),
            };
            entries.map(size).sum()
        }
        of(&self.folder.path().join("content/docker/registry/v2/blobs"))
    }
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).unwrap();
    }
}

/// It lives as long as the test's program.
fn leaked(path: PathBuf) -> &'static str {
    path.into_os_string().into_string().unwrap().leak()
}

/// Writes an authority, and what it has signed for `localhost` and for a client.
fn issue_certificates(folder: &Path) {
    let write = |name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write("ca.crt", params.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(params, key);
    for (file, name) in [("server", "localhost"), ("own", "client.example")] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        write(&format!("{file}.cert"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{file}.key"), key.serialize_pem());
    }
}

/// What a tool prints that must succeed.
pub(crate) fn finished(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("a tool for images; run the tests with `make test`");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}
