//! Goal: `forkd shell` and `forkd run` without a program give a terminal to a program in a sandbox:
//! keys, sizes, the exit code; `forkd top` shows what goes on until q. Afterwards the terminal is
//! as it was, on every way out.
//!
//! Method: the released binary on a pseudo terminal. Breaks when a key is taken for a signal to us,
//! when a new size is not told, or when the mode of the terminal is not put back.

use rustix::process::Signal;

use crate::forkd::Forkd;
use crate::terminal::Session;

#[test]
fn terminals_belong_to_programs_and_come_back() {
    let forkd = Forkd::new();
    forkd.template("tiny", "t", 128);
    let id = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    shell(&forkd, &id);
    ways_out(&forkd, &id);
    sandbox_of_its_own(&forkd);
    top(&forkd, &id);
    without_a_terminal(&forkd, &id);
}

fn shell(forkd: &Forkd, id: &str) {
    let mut session = Session::start(&forkd.command(&["shell", id]), 40, 100);
    session.types("stty size; echo term=$TERM\r");
    session.shows("\n40 100\r\n");
    session.shows("term=xterm-256color");
    assert!(!session.is_as_usual(), "keys belong to the program");
    session.resize(50, 132);
    session.types("until stty size | grep 132; do :; done\r");
    session.shows("\n50 132\r\n");
    session.types("echo begin; cat\r");
    session.shows("\nbegin\r\n");
    session.types("typed\r");
    session.shows("typed\r\ntyped\r\n");
    session.types("\u{3}");
    session.shows("^C");
    session.shows("# ");
    session.types("echo code=$?\r");
    session.shows("code=130");
    session.types("exit 5\r");
    assert_eq!(session.ends(), Some(5));
    assert!(session.is_as_usual(), "{}", session.rest());
    assert_eq!(forkd.json(&["processes", id]).as_array().unwrap().len(), 0, "nothing is left");
}

fn ways_out(forkd: &Forkd, id: &str) {
    let stuck = ["shell", id, "--", "sh", "-c", "trap '' INT HUP; echo ready; sleep 1000"];
    let mut session = Session::start(&forkd.command(&stuck), 24, 80);
    session.shows("ready");
    session.types("~/x\u{3}\r~.");
    assert_eq!(session.ends(), Some(129), "{}", session.rest());
    assert!(session.is_as_usual(), "after ~.");

    let mut session = Session::start(&forkd.command(&stuck), 24, 80);
    session.shows("ready");
    session.signal(Signal::TERM);
    assert_eq!(session.ends(), Some(143), "{}", session.rest());
    assert!(session.is_as_usual(), "after SIGTERM");
    assert_eq!(forkd.json(&["processes", id]).as_array().unwrap().len(), 0, "nothing is left");

    let other = forkd.json(&["fork", "t"])[0]["id"].as_str().unwrap().to_owned();
    let mut session = Session::start(&forkd.command(&["shell", &other]), 24, 80);
    session.types("echo here$((6 * 7))\r");
    session.shows("here42");
    forkd.ok(&["rm", &other]);
    session.shows("\n\u{1b}[1;31merror:\u{1b}[0m lost the program");
    session.shows("hint:");
    assert_eq!(session.ends(), Some(125));
    assert!(session.is_as_usual(), "after the end of its sandbox");
}

fn sandbox_of_its_own(forkd: &Forkd) {
    let mut session = Session::start(&forkd.command(&["run", "t"]), 30, 90);
    session.types("stty size\r");
    session.shows("\n30 90\r\n");
    let all = forkd.json(&["ls"]).as_array().unwrap().len();
    assert_eq!(all, 2, "one of its own");
    session.types("exit 3\r");
    assert_eq!(session.ends(), Some(3));
    assert!(session.is_as_usual());
    assert_eq!(forkd.json(&["ls"]).as_array().unwrap().len(), 1, "it is removed");
}

fn top(forkd: &Forkd, id: &str) {
    let mut session = Session::start(&forkd.command(&["top", "--interval", "1"]), 24, 100);
    session.shows("\u{1b}[?1049h");
    session.shows("1 running");
    session.shows("pauses      none yet");
    session.shows(id);
    assert!(!session.is_as_usual(), "keys come at once");
    // No interval passes before that is seen: an event tells it.
    let pause = forkd.json(&["branch", id, "--tag", "b", "-n", "1"])["pause_ms"].as_f64().unwrap();
    session.shows("█ last ");
    session.shows("2 running");
    session.shows("b  ");
    assert!(pause > 0.0);
    session.types("q");
    session.shows("\u{1b}[?1049l");
    assert_eq!(session.ends(), Some(0));
    assert!(session.is_as_usual(), "after q");
    let mut session = Session::start(&forkd.command(&["top"]), 24, 100);
    session.shows("SANDBOX");
    session.types("\u{3}");
    session.shows("\u{1b}[?1049l");
    assert_eq!(session.ends(), Some(130));
    assert!(session.is_as_usual(), "after Ctrl-C");
    let text = forkd.ok(&["top"]);
    assert!(!text.contains('\u{1b}') && text.contains("branches    1 ready"), "{text}");
    assert!(text.lines().any(|line| line.starts_with(id) && line.contains('█')), "{text}");
    let look = forkd.json(&["top"]);
    assert!(look["memory"]["private_bytes"].as_u64().unwrap() > 1 << 20, "{look}");
    assert_eq!(look["pauses_ms"][0].as_f64(), Some(pause));
}

fn without_a_terminal(forkd: &Forkd, id: &str) {
    let (errors, code) = forkd.refused(&["shell", id]);
    assert!(errors.contains("terminal") && errors.contains("forkd exec"), "{errors}");
    assert_eq!(code, 125);
}
