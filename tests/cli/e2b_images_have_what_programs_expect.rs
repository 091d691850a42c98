//! Goal: the images for programs that were written for E2B have what these expect: a user of their
//! own with a home and `sudo`, and the libraries of a data analysis, whose figures, tables and
//! pictures reach E2B's packages, forkd's command line and models.
//!
//! Method: the image `code-interpreter` with real libraries, asked over each of these. It is large
//! and is built by hand, so this does not run with the others. Breaks when a library shows its
//! values in another way, or when an image loses its user.

use std::path::Path;
use std::process::Stdio;

use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::e2b_packages::{NEWEST, Player, checked, file_of, variables};
use crate::forkd::Forkd;

const FIGURE: &str = "import matplotlib.pyplot as plt; plt.bar(['a', 'b'], [1, 2]); plt.show()";

fn is_png(file: &Path) -> bool {
    std::fs::read(file).unwrap().starts_with(b"\x89PNG")
}

/// The command line saves the figure that code shows, and the value that it ends with.
fn figures_are_saved(forkd: &Forkd, sandbox: &str) {
    let folder = forkd.home().join("parts");
    let picture = "from PIL import Image; Image.new('RGB', (2, 2))";
    for (code, file) in [(FIGURE, "display-1.png"), (picture, "value.png")] {
        forkd.ok(&["eval", sandbox, code, "--save-parts", folder.to_str().unwrap()]);
        assert!(is_png(&folder.join(file)), "{file}: {:?}", std::fs::read_dir(&folder).unwrap());
    }
}

/// A model sees the figure.
async fn models_see_figures(forkd: &Forkd, sandbox: &str) {
    let mut command = tokio::process::Command::from(forkd.command(&["mcp"]));
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let pipes = (child.stdout.take().unwrap(), child.stdin.take().unwrap());
    let model = ().serve(pipes).await.unwrap();
    let given = json!({ "sandbox": sandbox, "code": FIGURE });
    let request =
        CallToolRequestParams::new("run_code").with_arguments(given.as_object().unwrap().clone());
    let answer = model.call_tool(request).await.unwrap();
    let images = answer.content.iter().filter_map(|content| content.as_image());
    let kinds: Vec<&str> = images.map(|image| image.mime_type.as_str()).collect();
    assert_eq!(kinds, ["image/png"], "{answer:?}");
    model.cancel().await.unwrap();
    child.wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the image code-interpreter: cargo run -p xtask -- images code-interpreter"]
async fn figures_tables_and_pictures_of_real_libraries_reach_everybody() {
    let forkd = Forkd::with_variables(&[("FORKD_E2B_LISTEN", "127.0.0.1:0")]);
    let build = ["template", "build", "code-interpreter", "--mem-size-mib", "1024", "--tag", "t"];
    forkd.ok(&build);
    forkd.ok(&["e2b", "alias", "base=t", "code-interpreter-v1=t"]);
    let variables = variables(&forkd);
    let python = Player::python(&NEWEST);
    let mut program = python.command(&file_of("e2b/libraries.py"));
    assert_eq!(checked(program.envs(variables.clone())), "done\n");
    let program = file_of("e2b/libraries.mjs");
    let node = Player::node(forkd.home(), &NEWEST, std::slice::from_ref(&program));
    let mut program = node.expect("Node 20").command(&program);
    assert_eq!(checked(program.envs(variables.clone())), "done\n");
    let fork = forkd.json(&["fork", "t"]);
    let sandbox = fork[0]["id"].as_str().unwrap();
    figures_are_saved(&forkd, sandbox);
    models_see_figures(&forkd, sandbox).await;
}

#[test]
#[ignore = "needs the image base: cargo run -p xtask -- images base"]
fn a_programs_user_has_a_home_and_may_become_the_superuser() {
    let forkd = Forkd::new();
    forkd.ok(&["template", "build", "base", "--tag", "t"]);
    let fork = forkd.json(&["fork", "t"]);
    let sandbox = fork[0]["id"].as_str().unwrap();
    let asked = "id -un; pwd; sudo -n id -un; git --version; curl --version; tput -T xterm cols";
    let said = forkd.ok(&["exec", sandbox, "--", "bash", "-c", asked]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(&lines[..3], ["user", "/home/user", "root"], "{said}");
    assert!(lines[3].starts_with("git version") && lines[4].starts_with("curl"), "{said}");
}
