//! Goal: a script can tell from the exit code whether the program in the sandbox ended so, could
//! not be started, or was never asked for because forkd itself failed.
//!
//! Method: the released binary and a real guest; every verb that ends with a program's exit code.
//! Breaks when the daemon does not pass on why the guest refused, when a failure of forkd gets a
//! code that a program may have, or when a command line that is not understood ends with 2.

use crate::forkd::Forkd;

#[test]
fn exit_codes_tell_forkd_from_the_program() {
    let mut forkd = Forkd::new();
    forkd.template("tiny", "t", 128);
    forkd.hold_to_contract();
    let id = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    programs_that_do_not_start(&forkd, &id);
    programs_that_end(&forkd, &id);
    background_processes(&forkd, &id);
    failures_of_forkd(&forkd, &id);
    without_a_daemon();
}

/// Ends with this code, and says why on standard error unless the program has it.
fn ends(forkd: &Forkd, args: &[&str], expected: i32) -> String {
    let output = forkd.run(args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(expected), "{args:?}: {errors}");
    errors
}

fn programs_that_do_not_start(forkd: &Forkd, id: &str) {
    let script = "cd /tmp && touch plain && printf '#!/no/such/shell\\n' > orphan && \
                  chmod +x orphan && mkdir -p bin";
    forkd.ok(&["exec", id, "--", "sh", "-c", script]);
    for (program, code) in [
        ("no-such-program", 127),
        ("/no/such/program", 127),
        ("/tmp/plain", 126),
        ("/tmp/bin", 126),
        ("/tmp/orphan", 126),
    ] {
        let errors = ends(forkd, &["exec", id, "--", program], code);
        assert!(errors.starts_with("error: ") && errors.contains(program), "{errors}");
        assert!(errors.contains("\nhint: "), "{errors}");
    }
    ends(forkd, &["run", "t", "--no-stdin", "--", "no-such-program"], 127);
    ends(forkd, &["run", "t", "--no-stdin", "--", "/etc/passwd"], 126);
    ends(forkd, &["exec", id, "--cwd", "/no/such/folder", "--", "true"], 125);
    // Its end is not that of a program: what it starts runs on.
    ends(forkd, &["process", "start", id, "--", "no-such-program"], 1);
}

fn programs_that_end(forkd: &Forkd, id: &str) {
    let shell = |script| ["exec", id, "--", "sh", "-c", script];
    for (script, code) in [
        ("exit 3", 3),
        ("exit 125", 125),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("no-such-program", 127),
    ] {
        let errors = ends(forkd, &shell(script), code);
        assert!(!errors.contains("error: "), "these codes are the program's: {errors}");
    }
    let run = ["run", "t", "--no-stdin", "--", "sh", "-c", "kill -SEGV $$"];
    assert_eq!(ends(forkd, &run, 139), "");
    let late = ["exec", id, "--timeout-secs", "1", "--", "sleep", "1000"];
    assert!(ends(forkd, &late, 124).contains("after 1 s"));
}

fn background_processes(forkd: &Forkd, id: &str) {
    let process = forkd.ok(&["process", "start", id, "--", "sh", "-c", "kill -INT $$"]);
    ends(forkd, &["process", "wait", id, &process], 130);
    ends(forkd, &["process", "attach", id, &process, "--no-stdin"], 130);
    let process = forkd.ok(&["process", "start", id, "--", "sh", "-c", "exit 9"]);
    ends(forkd, &["process", "wait", id, &process], 9);
    for verb in ["wait", "attach"] {
        let errors = ends(forkd, &["process", verb, id, "pr-000000000000"], 125);
        assert!(errors.contains("pr-000000000000"), "{errors}");
    }
    ends(forkd, &["process", "info", id, "pr-000000000000"], 1);
}

fn failures_of_forkd(forkd: &Forkd, id: &str) {
    let nobody = "sb-000000000000";
    for args in [
        &["exec", nobody, "--", "true"][..],
        &["eval", nobody, "1"],
        &["process", "wait", nobody, "pr-000000000000"],
        &["run", "no-such-name", "--no-stdin", "--", "true"],
    ] {
        let errors = ends(forkd, args, 125);
        assert!(errors.starts_with("error: ") && errors.contains("\nhint: "), "{errors}");
    }
    for args in [
        &["exec", id, "--bogus", "--", "true"][..],
        &["exec", id],
        &["shell"],
        &["run", "t", "--timeout-secs", "soon", "--", "true"],
        &["process", "wait", id],
        // It would have to take the keys of a terminal, and there is none.
        &["shell", id],
    ] {
        ends(forkd, args, 125);
    }
    ends(forkd, &["process", "kill", id], 2);
    ends(forkd, &["exec", "--help"], 0);
}

fn without_a_daemon() {
    let forkd = Forkd::new();
    let socket = forkd.home().join("none.sock").display().to_string();
    for (args, code) in [
        (&["exec", "sb-000000000000", "--", "true"][..], 125),
        (&["run", "t", "--no-stdin", "--", "true"], 125),
        (&["ls"], 3),
    ] {
        let args = [&["--socket", &socket], args].concat();
        let errors = ends(&forkd, &args, code);
        assert!(errors.contains("no daemon answers"), "{errors}");
    }
}
