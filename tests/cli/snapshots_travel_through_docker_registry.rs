//! Goal: the registry that most hosts have keeps snapshots: whole, and again only what is new;
//! by TLS with an authority of one's own, with a certificate to show and a password; and nothing
//! comes to who lacks one of these.
//!
//! Method: Debian's `docker-registry`, once open and once locked; what lies on its disk is compared
//! with what a push says. Breaks when a part is sent that is there, when the registry refuses a
//! request, or when certificates are not those of Docker's folders.

use crate::docker_registry::{DockerRegistry, Door};
use crate::forkd::Forkd;

#[test]
fn docker_registry_keeps_snapshots_and_each_part_once() {
    let registry = DockerRegistry::start(Door::Open);
    let [base, branch] = ["base", "branch"].map(|tag| registry.reference(&format!("team/s:{tag}")));
    let here = Forkd::new();
    here.template("tiny", "t", 128);
    let id = here.ok(&["fork", "t"]);
    here.ok(&["exec", &id, "--", "sh", "-c", "echo warm > /tmp/state"]);
    here.ok(&["-q", "branch", &id, "--tag", "warm"]);

    let push = |tag: &str, to: &str| {
        let (before, told) = (registry.bytes(), here.json(&["push", tag, to]));
        let [all, sent] = ["bytes", "bytes_sent"].map(|name| told[name].as_u64().unwrap());
        let manifests = 128 << 10;
        let came = registry.bytes() - before;
        println!("{tag}: {sent} bytes of {all} sent, {came} came");
        assert!((sent..sent + manifests).contains(&came), "{came} bytes came, {sent} were sent");
        (all, sent)
    };
    let (all, sent) = push("t", &base);
    assert!(sent <= all && sent > all / 2, "{sent} of {all}");
    let (all, sent) = push("warm", &branch);
    assert!(sent < all / 2, "the parts of the template are there: {sent} of {all}");
    let (_, sent) = push("warm", &branch);
    assert_eq!(sent, 0, "all is there");

    let there = Forkd::new();
    there.ok(&["key", "trust", "here", &here.ok(&["key"])]);
    assert_eq!(there.ok(&["pull", &branch]), "warm");
    let child = there.ok(&["fork", "warm"]);
    assert_eq!(there.ok(&["exec", &child, "--", "cat", "/tmp/state"]), "warm");
}

#[test]
fn locked_docker_registry_wants_certificates_and_a_password() {
    let registry = DockerRegistry::start(Door::CertificateAndPassword);
    let login = registry.logged_in();
    let reference = registry.reference("team/s:v1");
    let with = |certificates: &[&str], login: &'static str| {
        let certificates = registry.trusted(certificates);
        Forkd::with_variables(&[("XDG_CONFIG_HOME", certificates), ("DOCKER_CONFIG", login)])
    };
    let all = ["ca.crt", "own.cert", "own.key"];
    let here = with(&all, login);
    here.template("tiny", "t", 128);
    here.ok(&["push", "t", &reference]);
    assert_eq!(here.ok(&["pull", &reference, "--tag", "again"]), "again");

    for (certificates, login, told) in [
        (&all[..], "/nonexistent", "docker login"),
        (&all[..1], login, "ertificate"),
        (&all[1..], login, "ertificate"),
    ] {
        let (errors, _) = with(certificates, login).refused(&["pull", &reference]);
        assert!(errors.contains(told), "{certificates:?}: {errors}");
    }
}
