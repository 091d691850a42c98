//! Snapshots and sandboxes as trees: each below what it came from.

use std::collections::{BTreeMap, BTreeSet};

use forkd_api::{Sandbox, Snapshot};

/// A snapshot or a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Thing {
    Snapshot(Box<Snapshot>),
    Sandbox(Box<Sandbox>),
}

/// Where it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Leaf {
    /// How many are above it.
    pub(super) depth: usize,
    /// The nearest of them.
    pub(super) parent: Option<String>,
}

/// A thing in its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) thing: Thing,
    pub(super) leaf: Leaf,
    /// The branches of the tree left of its name.
    pub(super) drawing: String,
}

impl Thing {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Snapshot(snapshot) => &snapshot.tag,
            Self::Sandbox(sandbox) => &sandbox.id,
        }
    }

    fn age(&self) -> u64 {
        match self {
            Self::Snapshot(snapshot) => snapshot.created_at_unix,
            Self::Sandbox(sandbox) => sandbox.created_at_unix,
        }
    }
}

/// All of them from the roots down, the oldest first among those with the same parent.
pub(super) fn of(snapshots: Vec<Snapshot>, sandboxes: Vec<Sandbox>) -> Vec<Node> {
    let snapshots = snapshots.into_iter().map(|snapshot| Thing::Snapshot(Box::new(snapshot)));
    let sandboxes = sandboxes.into_iter().map(|sandbox| Thing::Sandbox(Box::new(sandbox)));
    let mut things: Vec<Thing> = snapshots.chain(sandboxes).collect();
    things.sort_by(|a, b| (a.age(), a.name()).cmp(&(b.age(), b.name())));
    let parents = Parents::of(&things);
    let mut below: BTreeMap<Option<String>, Vec<Thing>> = BTreeMap::new();
    for thing in things {
        below.entry(parents.parent_of(&thing)).or_default().push(thing);
    }
    let mut nodes = Vec::new();
    // What is still to be placed, the next one last. No recursion: a lineage can be long.
    let mut waiting = Vec::new();
    push(&mut waiting, below.remove(&None).unwrap_or_default(), &Leaf::default(), "");
    loop {
        while let Some(Waiting { node, continuation }) = waiting.pop() {
            let name = node.thing.name().to_owned();
            let leaf = Leaf { depth: node.leaf.depth + 1, parent: Some(name.clone()) };
            push(&mut waiting, below.remove(&Some(name)).unwrap_or_default(), &leaf, &continuation);
            nodes.push(node);
        }
        // Things that come from each other, in a circle: nothing is left out.
        let Some((_, rest)) = below.pop_first() else { return nodes };
        push(&mut waiting, rest, &Leaf::default(), "");
    }
}

/// What comes from what.
struct Parents {
    /// Everything that is there; of a sandbox, the snapshot that it comes from.
    known: BTreeMap<String, Option<String>>,
    /// The snapshots that snapshots build on.
    built_on: BTreeMap<String, String>,
}

impl Parents {
    fn of(things: &[Thing]) -> Self {
        let (mut known, mut built_on) = (BTreeMap::new(), BTreeMap::new());
        for thing in things {
            match thing {
                Thing::Sandbox(sandbox) => {
                    known.insert(sandbox.id.clone(), Some(sandbox.snapshot_tag.clone()));
                }
                Thing::Snapshot(snapshot) => {
                    known.insert(snapshot.tag.clone(), None);
                    let parent = snapshot.parent_tag.clone();
                    built_on.extend(parent.map(|parent| (snapshot.tag.clone(), parent)));
                }
            }
        }
        Self { known, built_on }
    }

    fn parent_of(&self, thing: &Thing) -> Option<String> {
        match thing {
            Thing::Sandbox(sandbox) => self.if_there(Some(&sandbox.snapshot_tag)),
            Thing::Snapshot(snapshot) => {
                let source = self.if_there(snapshot.branched_from.as_ref());
                source
                    .filter(|source| !self.was_put_back(source, &snapshot.tag))
                    .or_else(|| self.if_there(snapshot.parent_tag.as_ref()))
            }
        }
    }

    fn if_there(&self, name: Option<&String>) -> Option<String> {
        name.filter(|name| self.known.contains_key(*name)).cloned()
    }

    /// Whether a sandbox was rolled back to this branch of its own, or to what builds on it.
    fn was_put_back(&self, sandbox: &str, tag: &str) -> bool {
        let mut seen = BTreeSet::new();
        let mut at = self.known.get(sandbox).and_then(Option::as_ref);
        while let Some(snapshot) = at.filter(|snapshot| seen.insert(*snapshot)) {
            if snapshot == tag {
                return true;
            }
            at = self.built_on.get(snapshot);
        }
        false
    }
}

struct Waiting {
    node: Node,
    /// What is left of the names below it.
    continuation: String,
}

fn push(waiting: &mut Vec<Waiting>, things: Vec<Thing>, leaf: &Leaf, before: &str) {
    let count = things.len();
    for (index, thing) in things.into_iter().enumerate().rev() {
        let (branch, further) = match (leaf.depth, index + 1 == count) {
            (0, _) => ("", ""),
            (_, true) => ("└─ ", "   "),
            (_, false) => ("├─ ", "│  "),
        };
        let node = Node { thing, leaf: leaf.clone(), drawing: format!("{before}{branch}") };
        waiting.push(Waiting { node, continuation: format!("{before}{further}") });
    }
}

/// The node with this name and all below it, drawn anew from there.
pub(super) fn below(nodes: Vec<Node>, name: &str) -> Option<Vec<Node>> {
    let first = nodes.iter().position(|node| node.thing.name() == name)?;
    let top = nodes[first].leaf.depth;
    let inside = |node: &&Node| node.leaf.depth > top;
    let count = 1 + nodes[first + 1..].iter().take_while(inside).count();
    let (mut snapshots, mut sandboxes) = (Vec::new(), Vec::new());
    for node in nodes.into_iter().skip(first).take(count) {
        match node.thing {
            Thing::Snapshot(snapshot) => snapshots.push(*snapshot),
            Thing::Sandbox(sandbox) => sandboxes.push(*sandbox),
        }
    }
    Some(of(snapshots, sandboxes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(tag: &str, from: Option<&str>, parent: Option<&str>, age: u64) -> Snapshot {
        Snapshot {
            tag: tag.into(),
            branched_from: from.map(Into::into),
            parent_tag: parent.map(Into::into),
            created_at_unix: age,
            ..Snapshot::default()
        }
    }

    fn sandbox(id: &str, tag: &str, age: u64) -> Sandbox {
        serde_json::from_value(serde_json::json!({
            "id": id, "snapshot_tag": tag, "created_at_unix": age, "state": "running",
            "branch_count": 0, "hostname": id,
        }))
        .unwrap()
    }

    fn drawn(nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| format!("{}{}", node.drawing, node.thing.name())).collect()
    }

    fn family() -> Vec<Node> {
        of(
            vec![
                snapshot("b2", Some("sb-1"), Some("b1"), 5),
                snapshot("b1", Some("sb-1"), Some("py"), 3),
                snapshot("py", None, None, 1),
                snapshot("orphan", Some("sb-9"), Some("gone"), 2),
            ],
            vec![
                sandbox("sb-1", "py", 2),
                sandbox("sb-2", "b1", 4),
                sandbox("sb-3", "b1", 4),
                sandbox("sb-4", "py", 6),
            ],
        )
    }

    #[test]
    fn everything_is_below_what_it_came_from() {
        let expected = [
            "py",
            "├─ sb-1",
            "│  ├─ b1",
            "│  │  ├─ sb-2",
            "│  │  └─ sb-3",
            "│  └─ b2",
            "└─ sb-4",
            "orphan",
        ];
        let nodes = family();
        assert_eq!(drawn(&nodes), expected);
        assert_eq!(nodes[3].leaf, Leaf { depth: 3, parent: Some("b1".into()) });
    }

    #[test]
    fn branches_of_a_removed_source_are_below_what_they_build_on() {
        let nodes = of(
            vec![
                snapshot("py", None, None, 1),
                snapshot("b1", Some("sb-1"), Some("py"), 3),
                snapshot("b2", Some("sb-1"), Some("b1"), 5),
            ],
            Vec::new(),
        );
        assert_eq!(drawn(&nodes), ["py", "└─ b1", "   └─ b2"]);
    }

    #[test]
    fn a_source_that_was_put_back_is_below_its_branch_and_nothing_is_left_out() {
        let snapshots = vec![
            snapshot("py", None, None, 1),
            snapshot("b1", Some("sb-1"), Some("py"), 3),
            snapshot("b2", Some("sb-1"), Some("b1"), 4),
        ];
        let nodes = of(snapshots, vec![sandbox("sb-1", "b1", 2)]);
        assert_eq!(drawn(&nodes), ["py", "└─ b1", "   └─ sb-1", "      └─ b2"]);
        // Without a trace of what they build on.
        let circle =
            vec![snapshot("b1", Some("sb-2"), None, 3), snapshot("b2", Some("sb-1"), None, 4)];
        let nodes = of(circle, vec![sandbox("sb-1", "b1", 2), sandbox("sb-2", "b2", 2)]);
        assert_eq!(nodes.len(), 4, "{:?}", drawn(&nodes));
    }

    #[test]
    fn a_part_is_drawn_from_its_own_root() {
        let part = below(family(), "b1").unwrap();
        assert_eq!(drawn(&part), ["b1", "├─ sb-2", "└─ sb-3"]);
        assert_eq!(part[0].leaf.depth, 0);
        assert!(below(family(), "sb-9").is_none());
    }

    #[test]
    fn a_long_lineage_is_drawn_to_its_end() {
        let tag = |number: u64| format!("b{number}");
        let chain = (0..3000_u64).map(|number| {
            let parent = number.checked_sub(1).map(tag);
            snapshot(&tag(number), None, parent.as_deref(), number)
        });
        assert_eq!(of(chain.collect(), Vec::new()).len(), 3000);
    }
}
