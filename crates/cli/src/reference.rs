//! The reference of the command line, `docs/reference/cli.md`: made from the grammar, and checked.

use std::path::{Path, PathBuf};

use clap::{Arg, Command};

use crate::command_line;

/// Routes of the interface and the verb that asks for each.
const ROUTES: [(&str, &str); 67] = [
    ("GET /healthz", "doctor"),
    ("GET /metrics", "metrics"),
    ("GET /version", "version"),
    ("GET /v1/events", "events"),
    ("GET /v1/images", "images"),
    ("POST /v1/artifacts", "snapshot import"),
    ("POST /v1/pulls", "pull"),
    ("GET /v1/hub/snapshot", "hub info"),
    ("GET /v1/hub/snapshots", "hub search"),
    ("GET /v1/keys", "key"),
    ("PUT /v1/keys/{name}", "key trust"),
    ("DELETE /v1/keys/{name}", "key rm"),
    ("GET /v1/networks", "network ls"),
    ("POST /v1/networks", "network create"),
    ("GET /v1/networks/{name}", "network ls"),
    ("DELETE /v1/networks/{name}", "network rm"),
    ("PUT /v1/networks/{name}/members/{sandbox}", "network join"),
    ("DELETE /v1/networks/{name}/members/{sandbox}", "network leave"),
    ("GET /v1/operations", "operations"),
    ("GET /v1/operations/{id}", "operation info"),
    ("POST /v1/operations/{id}/cancel", "operation cancel"),
    ("GET /v1/operations/{id}/wait", "operation wait"),
    ("GET /v1/sandboxes", "ls"),
    ("POST /v1/sandboxes", "fork"),
    ("GET /v1/sandboxes/{id}", "info"),
    ("DELETE /v1/sandboxes/{id}", "rm"),
    ("POST /v1/sandboxes/{id}/branch", "branch"),
    ("POST /v1/sandboxes/{id}/eval", "eval"),
    ("POST /v1/sandboxes/{id}/exec", "exec"),
    ("GET /v1/sandboxes/{id}/files", "file cat"),
    ("PUT /v1/sandboxes/{id}/files", "cp"),
    ("DELETE /v1/sandboxes/{id}/files", "file rm"),
    ("GET /v1/sandboxes/{id}/files/list", "file ls"),
    ("POST /v1/sandboxes/{id}/files/mkdir", "file mkdir"),
    ("GET /v1/sandboxes/{id}/files/stat", "file stat"),
    ("GET /v1/sandboxes/{id}/files/watch", "file watch"),
    ("GET /v1/sandboxes/{id}/logs", "logs"),
    ("GET /v1/sandboxes/{id}/network", "network show"),
    ("PUT /v1/sandboxes/{id}/network", "network set"),
    ("GET /v1/sandboxes/{id}/network/log", "network log"),
    ("GET /v1/secrets", "secret ls"),
    ("PUT /v1/secrets/{name}", "secret set"),
    ("DELETE /v1/secrets/{name}", "secret rm"),
    ("POST /v1/sandboxes/{id}/pause", "pause"),
    ("POST /v1/sandboxes/{id}/ping", "ping"),
    ("GET /v1/sandboxes/{id}/ports", "ports"),
    ("GET /v1/sandboxes/{id}/ports/{port}", "port"),
    ("POST /v1/sandboxes/{id}/ports/{port}/token", "port --preview"),
    ("DELETE /v1/sandboxes/{id}/ports/{port}/token", "port --revoke"),
    ("GET /v1/sandboxes/{id}/processes", "processes"),
    ("POST /v1/sandboxes/{id}/processes", "process start"),
    ("GET /v1/sandboxes/{id}/processes/{process}", "process info"),
    ("DELETE /v1/sandboxes/{id}/processes/{process}", "process rm"),
    ("GET /v1/sandboxes/{id}/processes/{process}/output", "process logs"),
    ("POST /v1/sandboxes/{id}/processes/{process}/resize", "process resize"),
    ("POST /v1/sandboxes/{id}/processes/{process}/signal", "process kill"),
    ("POST /v1/sandboxes/{id}/processes/{process}/stdin", "process input"),
    ("GET /v1/sandboxes/{id}/processes/{process}/wait", "process wait"),
    ("POST /v1/sandboxes/{id}/resume", "resume"),
    ("POST /v1/sandboxes/{id}/rollback", "rollback"),
    ("GET /v1/snapshots", "snapshots"),
    ("POST /v1/snapshots", "template build"),
    ("DELETE /v1/snapshots/{tag}", "snapshot rm"),
    ("GET /v1/snapshots/{tag}/artifact", "snapshot export"),
    ("POST /v1/snapshots/{tag}/push", "push"),
    ("POST /v1/snapshots/{tag}/compact", "snapshot compact"),
    ("GET /v1/snapshots/{tag}/info", "snapshot info"),
];

const HEAD: &str = "# The command line

<!-- Made from the program by `FORKD_UPDATE=1 cargo test -p forkd-cli`; not to be edited. -->

A session is in the [guide](../guides/command-line.md). `forkd VERB --help` shows what is here, and
the options of every verb besides, which are named once below.
";

const ROUTES_HEAD: &str = "
## Verbs and routes

Which verb asks for which route of [the interface](../../openapi/v1.json). Some verbs ask for
several: `run` builds templates, starts, follows and removes; `shell` starts a process on a
terminal; `tree` and `top` list.

| route | verb |
|---|---|
";

fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// The grammar with all that clap adds to it.
fn grammar() -> Command {
    let mut command = command_line::grammar().term_width(100);
    command.build();
    command
}

/// The verbs and what is below them, each with its full name.
fn every_verb(command: &mut Command, name: &str, visit: &mut impl FnMut(&str, &mut Command)) {
    visit(name, command);
    let names: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for below in names {
        if let Some(verb) = command.find_subcommand_mut(&below) {
            every_verb(verb, format!("{name} {below}").trim(), visit);
        }
    }
}

fn reference() -> String {
    let mut text = HEAD.to_owned();
    every_verb(&mut grammar(), "forkd", &mut |name, verb| {
        // Said once, at the top.
        let hidden = |option: Arg| {
            let everywhere = option.is_global_set() || option.get_id() == "help";
            option.hide(everywhere && name != "forkd")
        };
        let help = verb.clone().mut_args(hidden).render_long_help().to_string();
        text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.trim_end()));
    });
    text.push_str(ROUTES_HEAD);
    for (route, verb) in ROUTES {
        text.push_str(&format!("| `{route}` | `forkd {verb}` |\n"));
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// `FORKD_UPDATE=1` writes the file anew.
#[test]
fn the_committed_reference_is_current() {
    let path = path_of("docs/reference/cli.md");
    let current = reference();
    if std::env::var_os("FORKD_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == current, "run the tests with FORKD_UPDATE=1 and commit the change");
}

#[test]
fn every_route_of_the_interface_has_a_verb() {
    let document = std::fs::read_to_string(path_of("openapi/v1.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let paths = document["paths"].as_object().unwrap().iter();
    let mut routes: Vec<String> = paths
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let mut known: Vec<String> = ROUTES.iter().map(|(route, _)| (*route).to_owned()).collect();
    routes.sort();
    known.sort();
    assert_eq!(routes, known, "a route without a verb, or a verb for no route");
    let mut verbs = Vec::new();
    every_verb(&mut grammar(), "forkd", &mut |name, verb| {
        verbs.push(name.to_owned());
        // With an option a verb may ask for another route.
        let options = verb.get_arguments().filter_map(clap::Arg::get_long);
        verbs.extend(options.map(|option| format!("{name} --{option}")));
    });
    for (route, verb) in ROUTES {
        assert!(verbs.contains(&format!("forkd {verb}")), "{route}: there is no `forkd {verb}`");
    }
}

#[test]
fn every_verb_has_help_and_its_family_an_example() {
    every_verb(&mut grammar(), "forkd", &mut |name, verb| {
        assert!(verb.get_about().is_some(), "{name} has no help");
        for option in verb.get_arguments() {
            let known = option.get_help().is_some() || option.is_hide_set();
            assert!(known, "{name}: {} is not explained", option.get_id());
        }
    });
    for verb in grammar().get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let examples = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(examples.contains("Example"), "{} has no example", verb.get_name());
        for below in verb.get_subcommands() {
            let shown = format!("forkd {} {} ", verb.get_name(), below.get_name());
            let of_its_own = below.get_after_help().is_some();
            assert!(of_its_own || examples.contains(&shown), "{shown}has no example");
        }
    }
}

/// The commands of ours that a line of shell has.
fn commands(line: &str) -> Vec<Vec<String>> {
    let words = shell_words::split(&line.replace("$(", "$( ")).unwrap();
    let ends = |word: &String| {
        let bare = word.trim_end_matches(';').trim_end_matches(')');
        ["|", ">", "<", "&&"].contains(&bare)
    };
    let parts = words.split(|word| ends(word) || word.ends_with("$("));
    parts
        .filter(|part| part.first().is_some_and(|word| word == "forkd"))
        .map(<[_]>::to_vec)
        .collect()
}

#[test]
fn every_example_is_understood() {
    let mut count = 0;
    every_verb(&mut grammar(), "forkd", &mut |name, verb| {
        let text = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = text.lines().take_while(|line| !line.starts_with("Exit codes"));
        let examples = examples.filter(|line| line.starts_with("  ") && !line.contains('{'));
        for line in examples {
            // An explanation may stand behind it.
            let line = line.trim();
            let example = line.split("   ").next().unwrap();
            for command in commands(example) {
                let parsed = command_line::grammar().try_get_matches_from(&command);
                assert!(parsed.is_ok(), "{name}: `{example}`: {}", parsed.unwrap_err());
                count += 1;
            }
        }
    });
    assert!(count > 60, "{count}");
}
