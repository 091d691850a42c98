//! Goal: a template can ask for a level of x86-64 in place of all that the host has. Its guests,
//! and those of its branches, see that level and nothing above it, so that they start elsewhere.
//!
//! Method: a template of each level, whose guests say what their processor has. Breaks when QEMU is
//! told of another model than the template asked for, when a child gets the host's, and when a
//! level has more or less than the psABI says.

use serde_json::json;

use crate::forkd::Forkd;

/// What a level adds, as Linux calls it.
const LEVELS: [(&str, &[&str]); 2] = [
    ("x86-64-v2", &["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]),
    ("x86-64-v3", &["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"]),
];

/// What the processor of a sandbox has.
fn flags(forkd: &Forkd, sandbox: &str) -> Vec<String> {
    let said = forkd.ok(&["exec", sandbox, "--", "grep", "-m", "1", "^flags", "/proc/cpuinfo"]);
    said.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn guests_and_branches_see_the_level_that_their_template_asks_for_and_no_more() {
    let forkd = Forkd::new();
    for (number, (level, _)) in LEVELS.into_iter().enumerate() {
        let build = ["template", "build", "tiny", "--tag", level, "--mem-size-mib", "128"];
        forkd.ok(&[&build[..], &["--cpu", level]].concat());
        assert_eq!(forkd.json(&["snapshot", "info", level])["cpu"], json!(level));
        let source = forkd.ok(&["fork", level]);
        let branch = forkd.json(&["branch", &source, "-n", "1"]);
        let child = branch["children"][0]["sandbox"]["id"].as_str().unwrap().to_owned();
        for sandbox in [source, child] {
            let seen = flags(&forkd, &sandbox);
            for (step, (_, added)) in LEVELS.into_iter().enumerate() {
                for flag in added {
                    let has = seen.iter().any(|one| one == flag);
                    assert_eq!(has, step <= number, "{flag} in {level}: {seen:?}");
                }
            }
        }
    }
    let (errors, code) =
        forkd.refused(&["template", "build", "tiny", "--tag", "x", "--cpu", "x86-64-v9"]);
    assert!(errors.contains("x86-64-v3") && code == 2, "{errors}");
}
