//! Goal: code shows values wherever it wants to, waits for what is asynchronous at its top level,
//! and says what it has raised; interpreters keep their variables apart, and end when told to.
//! Method: the real agent and interpreter. Broken by: a display that comes late or not at all, a
//! variable of the environment that stays, an interpreter that is another's, code that outlives
//! its interpreter or the host's interest in it.

use std::time::Duration;

use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{
    Cell, CellEnd, CellError, CellEvent, CellRequest, GuestAgent, GuestError,
};

/// What a piece of code said, the forms of what it showed by their types, and how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    count: u64,
    /// Output and displays in their order.
    said: Vec<String>,
    end: CellEnd,
}

async fn next(cell: &mut Cell) -> CellEvent {
    tokio::time::timeout(SOON, cell.next()).await.expect("it goes on").unwrap()
}

/// Waits until the code has printed a word, in however many pieces.
async fn printed(cell: &mut Cell, word: &str) {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(word) {
        match next(cell).await {
            CellEvent::Stdout(data) => all.extend(data),
            CellEvent::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn run_in(agent: &GuestAgent, context: Option<&str>, code: &str) -> Told {
    let context = context.map(str::to_owned);
    let request = CellRequest { code: code.to_owned(), context, env: Vec::new() };
    follow(agent.run_cell(request).unwrap()).await
}

async fn follow(mut cell: Cell) -> Told {
    let mut told = Told::default();
    loop {
        match next(&mut cell).await {
            CellEvent::Started { execution_count } => told.count = execution_count,
            CellEvent::Stdout(data) | CellEvent::Stderr(data) => {
                let text = String::from_utf8(data).unwrap();
                // A line may come in pieces.
                match told
                    .said
                    .last_mut()
                    .filter(|last| !last.contains('/') && !last.ends_with('\n'))
                {
                    Some(last) => last.push_str(&text),
                    None => told.said.push(text),
                }
            }
            CellEvent::Displayed(parts) => {
                let parts = parts.iter().map(|it| format!("{} {}", it.mime, it.data.len()));
                told.said.push(parts.collect::<Vec<_>>().join(", "));
            }
            CellEvent::Ended(end) => return Told { end, ..told },
        }
    }
}

/// The value of a piece of code, as text.
async fn value_in(agent: &GuestAgent, context: Option<&str>, code: &str) -> String {
    let told = run_in(agent, context, code).await;
    let parts = told.end.value.first().unwrap_or_else(|| panic!("no value: {told:?}"));
    String::from_utf8(parts.data.clone()).unwrap()
}

fn raised(told: &Told) -> (&str, &str, &str) {
    let Some(CellError { exception: Some((name, value)), text }) = &told.end.error else {
        panic!("nothing was raised: {told:?}");
    };
    (name, value, text)
}

fn code_of(error: GuestError) -> String {
    let GuestError::Remote { code, .. } = error else { panic!("{error}") };
    code
}

#[tokio::test]
async fn what_is_shown_comes_at_once_and_apart_from_the_value() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let setup = "class Picture:\n def __repr__(self): return 'p'\n \
                 def _repr_png_(self): return bytes(200_000)";
    assert_eq!(run_in(&agent, None, setup).await, Told { count: 1, ..Told::default() });
    let code = "print('before')\ndisplay(Picture(), 7)\nprint('after')\n8";
    let told = run_in(&agent, None, code).await;
    let shown = ["text/plain 1, image/png 200000", "text/plain 1"];
    assert_eq!(told.count, 2);
    assert!(shown.iter().all(|shown| told.said.iter().any(|said| said == shown)), "{told:?}");
    assert_eq!(told.end.value.len(), 1);
    assert_eq!(told.end.value[0].data, b"8");

    let waits = "display(1)\nimport time; time.sleep(100_000)";
    let request = CellRequest { code: waits.to_owned(), ..CellRequest::default() };
    let mut cell = agent.run_cell(request).unwrap();
    assert_eq!(next(&mut cell).await, CellEvent::Started { execution_count: 3 });
    assert!(matches!(next(&mut cell).await, CellEvent::Displayed(_)), "while the code runs");
    drop(cell);
    assert_eq!(value_in(&agent, None, "1 + 1").await, "2", "nobody's code was interrupted");
}

#[tokio::test]
async fn the_top_level_waits_for_what_is_asynchronous_and_goes_on_after_an_interrupt() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let setup = "import asyncio\nasync def add(a, b):\n await asyncio.sleep(0.01)\n return a + b";
    run_in(&agent, None, setup).await;
    assert_eq!(value_in(&agent, None, "await add(1, 2)").await, "3");
    assert_eq!(value_in(&agent, None, "x = await add(1, 3)\nx").await, "4");
    let task = "task = asyncio.ensure_future(add(5, 6))\nprint('made')";
    assert_eq!(run_in(&agent, None, task).await.said, ["made\n"]);
    assert_eq!(value_in(&agent, None, "await task").await, "11", "one loop serves all code");
    let raises = run_in(&agent, None, "await add(1, 'a')").await;
    assert_eq!(raised(&raises).0, "TypeError");

    let waits = "print('waits')\nawait asyncio.sleep(100_000)";
    let request = CellRequest { code: waits.to_owned(), ..CellRequest::default() };
    let mut cell = agent.run_cell(request).unwrap();
    printed(&mut cell, "waits\n").await;
    drop(cell);
    assert_eq!(value_in(&agent, None, "await add(2, 2)").await, "4");
}

#[tokio::test]
async fn an_exception_has_a_name_what_it_says_and_a_traceback() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let told =
        run_in(&agent, None, "display(1)\ndef f():\n  raise ValueError('no\\0way')\nf()").await;
    let (name, value, text) = raised(&told);
    assert_eq!((name, value), ("ValueError", "no way"));
    assert!(text.starts_with("Traceback") && text.contains("line 3, in f"), "{text}");
    assert_eq!(told.said, ["text/plain 1"]);
    let told = run_in(&agent, None, "x =").await;
    assert_eq!(raised(&told).0, "SyntaxError");
    let told = run_in(&agent, None, "import os; os._exit(3)").await;
    let error = told.end.error.unwrap();
    assert!(error.exception.is_none() && error.text.contains("exit code 3"), "{error:?}");
    assert!(told.end.state_lost);
}

#[tokio::test]
async fn variables_of_the_environment_hold_for_one_piece_of_code() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let env = vec![("A".to_owned(), "é=1".to_owned()), ("PATH".to_owned(), "/x".to_owned())];
    let code = "import os, subprocess, sys\nos.environ['B'] = '2'\n\
                child = 'import os; print(os.environ[\"A\"])'\n\
                subprocess.run([sys.executable, '-c', child], check=True)";
    let request = CellRequest { code: code.to_owned(), context: None, env };
    assert_eq!(follow(agent.run_cell(request).unwrap()).await.said, ["é=1\n"]);
    let code = "[os.environ.get(name) for name in 'AB'], os.environ['PATH'] == '/x'";
    assert_eq!(value_in(&agent, None, code).await, "([None, '2'], False)");
    let env = vec![("A".to_owned(), "1".to_owned())];
    let code = "os.environ['A'] = 'of the code'".to_owned();
    follow(agent.run_cell(CellRequest { code, context: None, env }).unwrap()).await;
    let kept = value_in(&agent, None, "os.environ['A']").await;
    assert_eq!(kept, "'of the code'", "what code sets stays");
}

#[tokio::test]
async fn interpreters_keep_apart_and_end_when_they_are_told_to() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let folder = local.folder.path().canonicalize().unwrap().display().to_string();
    let made = agent.make_context(Some(folder.clone())).await.unwrap();
    let other = agent.make_context(None).await.unwrap();
    let all = agent.contexts().await.unwrap();
    let ids: Vec<&str> = all.iter().map(|context| &*context.id).collect();
    assert_eq!(ids, ["default", &made.id, &other.id]);
    assert_eq!(made.cwd.as_ref(), Some(&folder));

    run_in(&agent, None, "x = 'default'").await;
    run_in(&agent, Some(&made.id), "import os\nx = 'made'").await;
    assert_eq!(value_in(&agent, None, "x").await, "'default'");
    assert_eq!(value_in(&agent, Some(&made.id), "x").await, "'made'");
    assert_eq!(value_in(&agent, Some(&made.id), "os.getcwd()").await, format!("'{folder}'"));
    let unset = run_in(&agent, Some(&other.id), "x").await;
    assert_eq!((raised(&unset).0, unset.count), ("NameError", 1));

    // One that runs code ends too, and the code is told.
    let waits = "print('waits')\nimport time; time.sleep(100_000)";
    let context = Some(made.id.clone());
    let request = CellRequest { code: waits.to_owned(), context, env: Vec::new() };
    let mut cell = agent.run_cell(request).unwrap();
    printed(&mut cell, "waits\n").await;
    agent.end_context(&made.id, true).await.unwrap();
    let CellEvent::Ended(end) = next(&mut cell).await else { panic!("it has ended") };
    assert!(end.error.unwrap().text.contains("restarted"));
    let anew = run_in(&agent, Some(&made.id), "x").await;
    assert_eq!((raised(&anew).0, anew.count), ("NameError", 1));

    agent.end_context(&made.id, false).await.unwrap();
    let gone = agent.end_context(&made.id, true).await.unwrap_err();
    assert_eq!(code_of(gone), "context_not_found");
    let request = CellRequest { code: "1".to_owned(), context: Some(made.id), env: Vec::new() };
    let refused = agent.run_cell(request).unwrap().next().await.unwrap_err();
    assert_eq!(code_of(refused), "context_not_found");
    assert_eq!(code_of(agent.end_context("default", false).await.unwrap_err()), "bad_request");
    assert_eq!(value_in(&agent, None, "x").await, "'default'", "others go on");
}

#[tokio::test]
async fn there_are_sixteen_interpreters_at_most_and_a_wrong_directory_makes_none() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    for wrong in ["/nowhere", "tmp", ""] {
        let refused = agent.make_context(Some(wrong.to_owned())).await.unwrap_err();
        assert_eq!(code_of(refused), "bad_request", "{wrong}");
    }
    for _ in 1..16 {
        agent.make_context(None).await.unwrap();
    }
    assert_eq!(code_of(agent.make_context(None).await.unwrap_err()), "busy");
    assert_eq!(agent.contexts().await.unwrap().len(), 16);
    let last = agent.contexts().await.unwrap().pop().unwrap().id;
    agent.end_context(&last, false).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), agent.make_context(None)).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_interrupt_while_values_are_shown_leaves_the_interpreter_its_variables() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let setup = "kept = 'kept'\nclass Large:\n def __repr__(self): return 'l'\n \
                 def _repr_png_(self): return bytes(3_000_000)";
    run_in(&agent, None, setup).await;
    for pause in 0..20 {
        let code = "while True: display(Large())".to_owned();
        let mut cell = agent.run_cell(CellRequest { code, ..CellRequest::default() }).unwrap();
        while !matches!(next(&mut cell).await, CellEvent::Displayed(_)) {}
        tokio::time::sleep(Duration::from_millis(pause)).await;
        drop(cell);
        assert_eq!(value_in(&agent, None, "kept").await, "'kept'", "after {pause} ms");
    }
}

#[tokio::test]
async fn a_thread_that_outlives_its_code_shows_nothing_and_breaks_nothing() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    let code = "import threading, time\nstop = False\ndef show():\n while not stop:\n  \
                display(1)\n  time.sleep(0.001)\nthread = threading.Thread(target=show)\n\
                thread.start()\ntime.sleep(0.05)";
    let told = run_in(&agent, None, code).await;
    assert!(told.said.iter().any(|said| said.starts_with("text/plain")), "{told:?}");
    for number in 0..50 {
        assert_eq!(value_in(&agent, None, &format!("{number}")).await, number.to_string());
    }
    let told = run_in(&agent, None, "stop = True\nthread.join()\nthread.is_alive()").await;
    assert_eq!(told.end.value[0].data, b"False");
}

/// A stand-in for the package of that name, as far as the interpreter looks at it.
const PYPLOT: &str = r#"
import os, sys, tempfile
folder = tempfile.mkdtemp()
os.mkdir(folder + "/matplotlib")
open(folder + "/matplotlib/__init__.py", "w").close()
with open(folder + "/matplotlib/figure.py", "w") as file:
    file.write("class Figure:\n def __repr__(self): return 'figure'\n"
               " def savefig(self, file, **how): file.write(b'picture')\n")
with open(folder + "/matplotlib/pyplot.py", "w") as file:
    file.write("from .figure import Figure\nopen_ones = {}\n"
               "def get_fignums(): return list(open_ones)\n"
               "def figure(number=None):\n"
               " return open_ones.setdefault(number or len(open_ones) + 1, Figure())\n"
               "def close(one): open_ones.clear()\n"
               "def show(): raise RuntimeError('there is no window')\n")
sys.path.insert(0, folder)
"#;

#[tokio::test]
async fn figures_come_where_they_are_shown_or_when_the_code_ends_and_once() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    run_in(&agent, None, PYPLOT).await;
    let shown = "text/plain 6, image/png 7";
    let code = "import matplotlib.pyplot as plt\nfigure = plt.figure()\nplt.show()\nprint('after')";
    let mut told = run_in(&agent, None, code).await.said;
    told.sort();
    assert_eq!(told, ["after\n", shown]);
    assert_eq!(run_in(&agent, None, "1").await.said, [""; 0], "once");
    assert_eq!(run_in(&agent, None, "plt.figure()\nNone").await.said, [shown]);
    assert_eq!(run_in(&agent, None, "plt.figure()\n1 / 0").await.said, [shown]);
    let told = run_in(&agent, None, "display(figure)\nfigure").await;
    assert_eq!((told.said, told.end.value.len()), (vec![shown.to_owned()], 2));
    // A copy of the process that comes back here shows nothing.
    let copies = "plt.figure()\nchild = os.fork()\nif child: os.waitpid(child, 0)";
    assert_eq!(run_in(&agent, None, copies).await.said, [shown]);
}
