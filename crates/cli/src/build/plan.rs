//! What is to be done: the key of each step, and from which one on.

use std::collections::BTreeSet;

use forkd_recipe::{CopiedFile, Key, Placed, Recipe, Settings, Step, place};

use super::context::Context;
use super::failure::StepFailed;
use crate::console::report::Hinted;

/// A step with all that is known before it is run.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) line: usize,
    pub(super) step: Step,
    pub(super) key: Key,
    /// What it is run with.
    pub(super) settings: Settings,
    /// What it copies, and what of it the key covers.
    pub(super) files: Vec<(Placed, CopiedFile)>,
}

/// Finds the key of every step. The context is listed only if a step copies something.
pub(super) fn plan(
    recipe: Recipe,
    origin: Key,
    list: impl Fn() -> anyhow::Result<Context>,
) -> anyhow::Result<(Vec<Planned>, Option<Context>)> {
    let copies = recipe.steps.iter().any(|step| matches!(step.step, Step::Copy(_)));
    let context = copies.then(list).transpose()?;
    let (mut key, mut settings) = (origin, Settings::default());
    let mut planned = Vec::new();
    for at in recipe.steps {
        let mut files = Vec::new();
        if let (Step::Copy(copy), Some(context)) = (&at.step, &context) {
            let placed = place(copy, &settings, &context.entries).map_err(|problem| {
                let hint = "look at the names in the context; a link is not copied";
                StepFailed {
                    number: planned.len() + 1,
                    line: at.line,
                    step: at.step.shown(),
                    sandbox: None,
                    source: Hinted::new(problem, hint).into(),
                }
            })?;
            for file in placed {
                let described = context.describe(&file, copy.mode)?;
                files.push((file, described));
            }
        }
        let described: Vec<_> = files.iter().map(|(_, described)| described.clone()).collect();
        key = key.after(&at.step, &described);
        settings.apply(&at.step);
        let settings = settings.clone();
        planned.push(Planned { line: at.line, step: at.step, key, settings, files });
    }
    Ok((planned, context))
}

/// How many steps are done: up to the last one whose snapshot is there. Earlier ones may be gone.
pub(super) fn done(planned: &[Planned], there: &BTreeSet<String>) -> usize {
    let is_there = |step: &Planned| step.step.changes_sandbox() && there.contains(&step.key.tag());
    planned.iter().rposition(is_there).map_or(0, |index| index + 1)
}

/// The snapshot that has the state after `steps`; none if nothing changed the sandbox.
pub(super) fn last_tag(steps: &[Planned]) -> Option<String> {
    let last = steps.iter().rfind(|step| step.step.changes_sandbox());
    last.map(|step| step.key.tag())
}

#[cfg(test)]
mod tests {
    use forkd_recipe::{Origin, parse_forkd_toml};

    use super::*;

    fn planned(steps: &str) -> Vec<Planned> {
        let recipe = parse_forkd_toml(&format!("from = \"t\"\n{steps}")).unwrap();
        let origin = Origin::Snapshot { tag: "t".into(), created_at_unix: 1 };
        plan(recipe, Key::of_origin(&origin), || unreachable!("nothing is copied")).unwrap().0
    }

    fn runs(words: &[&str]) -> String {
        words.iter().map(|word| format!("[[step]]\nrun = \"{word}\"\n")).collect()
    }

    #[test]
    fn a_build_goes_on_after_the_last_step_that_is_there() {
        let before = planned(&runs(&["a", "b", "c", "d"]));
        let tags = |steps: &[Planned]| steps.iter().map(|step| step.key.tag()).collect();
        let there: BTreeSet<String> = tags(&before);
        assert_eq!(done(&before, &there), 4);
        assert_eq!(done(&before, &BTreeSet::new()), 0);
        let changed = planned(&runs(&["a", "b", "x", "d"]));
        assert_eq!(done(&changed, &there), 2);
        let only_third: BTreeSet<String> = tags(&before[2..3]);
        assert_eq!(done(&before, &only_third), 3, "earlier ones are not needed");
    }

    #[test]
    fn settings_have_no_snapshot_and_change_the_steps_after_them() {
        let with = planned("[[step]]\nenv = { A = \"1\" }\n[[step]]\nrun = \"a\"\n");
        let without = planned(&runs(&["a"]));
        assert_ne!(last_tag(&with), last_tag(&without));
        assert_eq!(last_tag(&with[..1]), None);
        assert_eq!(with[1].settings.env["A"], "1");
        let there = [with[0].key.tag()].into();
        assert_eq!(done(&with, &there), 0, "a step without a snapshot is none to go on from");
    }
}
