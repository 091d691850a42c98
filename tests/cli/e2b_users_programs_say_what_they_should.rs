//! Goal: what people write for E2B does here what it does there: small programs of the kinds that
//! its documentation describes, for its clients of both languages, waiting and asynchronous, with
//! the newest packages and with older ones. Commands that write without end hold up neither fifty
//! others nor the sandbox, whatever their readers take.
//!
//! Method: `e2b/programs` are run as they are, all with one daemon, and told of it by E2B's own
//! variables only; what each prints is compared. The two lines of packages run side by side.
//! Breaks when something that such a program relies on changes: see what it prints.

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use crate::e2b_packages::{NEWEST, OLDER, Player, Versions, checked, file_of, variables};
use crate::forkd::Forkd;

/// Programs, and what each must print.
const PROGRAMS: [(&str, &str); 11] = [
    (
        "chart.py",
        "{'north': 20, 'south': 40, 'west': 18}\n\
         a chart of 120 x 60, PNG\n\
         a mistake: ZeroDivisionError\n",
    ),
    ("web_app.py", "<h1>Hello from /</h1>\n<h1>Hello from /about</h1>\n"),
    (
        "file_watcher.mjs",
        "write index.html: told\n\
         create pages/one: told\n\
         remove pages/one: told\n\
         create last: told\n",
    ),
    (
        "terminal.py",
        "computed: 42\n\
         interrupted: KeyboardInterrupt\n\
         resized: columns=132, lines=40\n\
         left\n",
    ),
    (
        "background_server.py",
        "it answers: good morning\n\
         it runs as: python3 -u -m http.server 8000 --directory /srv\n\
         ended: True\n\
         its end: -1\n\
         commands left: 0\n",
    ),
    (
        "fork_of_ten.py",
        "forks: 10\n\
         misses: [570, 380, 190, 0, 190, 380, 570, 760, 950, 1140]\n\
         the best keeps what it tried: 3\n\
         the source has tried nothing: NameError\n\
         ended: 10\n",
    ),
    (
        "over_night.py",
        "in the evening the clock is behind: True\n\
         asleep: True\n\
         in the morning it is right: True\n\
         the work goes on: 42\n",
    ),
    (
        "streaming.py",
        "a line came before its command has ended: True\n\
         left 1\nleft 2\nleft 3\nright 1\nright 2\nright 3\n\
         both at once: True\n\
         of code: ['0', '1', '2']\n\
         piece by piece: True\n",
    ),
    (
        "signed_upload.py",
        "in the sandbox: of a client without a key\n\
         downloaded: of a client without a key\n\
         another file: refused\n\
         without signature: refused\n\
         too late: refused\n",
    ),
    (
        "side_by_side.py",
        "what was computed was written: True\n\
         totals: [3450, 2683, 2200, 2950]\n\
         each has the command: True\n\
         the source has no guess: True\n\
         its command goes on: True\n\
         ended: 5, snapshot: True\n",
    ),
    (
        "notebook.mjs",
        "value: notebook\n\
         printed: a notebook\n\
         shown: <h1>a notebook for a program</h1>\n\
         raised: IndexError\n\
         elsewhere: ('/tmp', False)\n",
    ),
];

/// What commands without end must not do to others.
const ENDLESS_OUTPUT: (&str, &str) = (
    "endless_output.py",
    "followed: 50\n\
     none stalls: True\n\
     memory is left: True\n\
     ended: [True, True]\n",
);

fn place_of(program: &str) -> PathBuf {
    file_of(&format!("e2b/programs/{program}"))
}

/// The packages of one line, and the daemon that programs find with them.
struct Runner<'a> {
    line: &'static str,
    python: Player,
    node: Option<Player>,
    variables: &'a [(String, String)],
}

impl<'a> Runner<'a> {
    fn new(
        line: &'static str,
        versions: &Versions,
        forkd: &Forkd,
        variables: &'a [(String, String)],
    ) -> Self {
        let home = forkd.home().join(line);
        std::fs::create_dir(&home).unwrap();
        let for_node = PROGRAMS.iter().map(|(program, _)| place_of(program));
        let for_node: Vec<PathBuf> =
            for_node.filter(|place| place.extension().is_some_and(|end| end == "mjs")).collect();
        let python = Player::python(versions);
        Self { line, python, node: Player::node(&home, versions, &for_node), variables }
    }

    /// Runs a program, and compares what it prints.
    #[expect(clippy::print_stderr, reason = "for whoever looks where the time goes")]
    fn run(&self, (program, expected): (&str, &str)) {
        let player = match program.ends_with(".py") {
            true => Some(&self.python),
            false => self.node.as_ref(),
        };
        let Some(player) = player else {
            eprintln!("not run: {program} needs Node 20");
            return;
        };
        let begun = Instant::now();
        let mut command = player.command(&place_of(program));
        let printed = checked(command.envs(self.variables.iter().cloned()));
        eprintln!("{} {program}: {:.1} s", self.line, begun.elapsed().as_secs_f64());
        assert_eq!(printed, expected, "{program} with the {} packages", self.line);
    }
}

#[test]
fn programs_of_the_usual_kinds_run_and_endless_output_holds_up_nobody() {
    let listen = [("FORKD_E2B_LISTEN", "127.0.0.1:0")];
    let forkd = Forkd::with_variables(&listen);
    forkd.template("python", "python", 256);
    forkd.ok(&["e2b", "alias", "base=python", "code-interpreter-v1=python"]);
    let variables = variables(&forkd);
    assert_eq!(variables.len(), 3, "{variables:?}");
    let newest = thread::scope(|scope| {
        let older = scope.spawn(|| {
            let older = Runner::new("older", &OLDER, &forkd, &variables);
            // From the end: else both would do the same at the same time.
            PROGRAMS.into_iter().rev().for_each(|program| older.run(program));
        });
        let newest = Runner::new("newest", &NEWEST, &forkd, &variables);
        PROGRAMS.into_iter().for_each(|program| newest.run(program));
        older.join().unwrap();
        newest
    });
    newest.run(ENDLESS_OUTPUT);
}
