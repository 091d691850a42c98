//! Ids that the host has set aside for an ordinary user (`subuid(5)`, `subgid(5)`), and the
//! programs that map them into a user namespace of that user's (`newuidmap(1)`).
//!
//! Guarantees: an id means the same inside and outside of the namespace; who cannot have such ids
//! is told what is missing and what helps.
//!
//! Does not do: read ranges from anywhere but the two files; decide who gets which id.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// How many ids a range must have. They are drawn until one is free: of as many as this, at least
/// half are, however many VMMs a daemon has.
pub const SUBORDINATE_IDS_MIN: u32 = 1 << 16;

/// Where ranges begin that `useradd(8)` gives out.
const FIRST_GIVEN_OUT: u32 = 100_000;
const USERS: &str = "/etc/subuid";
const GROUPS: &str = "/etc/subgid";
const MAP_USERS: &str = "newuidmap";
const MAP_GROUPS: &str = "newgidmap";

/// Ids that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

impl IdRange {
    /// Whether an id is one of these.
    #[must_use]
    pub fn contains(self, id: u32) -> bool {
        id.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }
}

/// What was set aside for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubordinateIds {
    /// Users.
    pub users: IdRange,
    /// Groups.
    pub groups: IdRange,
}

/// Why programs cannot have ids that were set aside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct NoSubordinateIds {
    /// What stands in the way.
    pub problem: String,
    /// What would help.
    pub remedy: String,
}

impl SubordinateIds {
    /// Those of the user of this process, if there are programs that map them.
    pub(crate) fn find() -> Result<Self, NoSubordinateIds> {
        if rustix::thread::no_new_privs().unwrap_or(false) {
            return Err(NoSubordinateIds {
                problem: format!(
                    "`{MAP_USERS}` cannot get its rights here: who started the daemon gave up new \
                     privileges for it (NoNewPrivileges= of a unit)"
                ),
                remedy: "start the daemon without that".to_owned(),
            });
        }
        helper(MAP_USERS)?;
        helper(MAP_GROUPS)?;
        let own = Owner {
            name: own_name(),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
        };
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        own.choose(&read(USERS), &read(GROUPS))
    }

    /// Writes the maps of the new user namespace that process `pid` is in.
    pub(crate) fn map(self, pid: u32) -> Result<(), NoSubordinateIds> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        run(MAP_USERS, pid, user.as_raw(), self.users)?;
        run(MAP_GROUPS, pid, group.as_raw(), self.groups)
    }
}

/// Runs a program that maps `own` and a range to themselves.
fn run(program: &str, pid: u32, own: u32, range: IdRange) -> Result<(), NoSubordinateIds> {
    let IdRange { first, count } = range;
    let numbers = [pid, own, own, 1, first, first, count].map(|number| number.to_string());
    let failed = |why: String| NoSubordinateIds {
        problem: format!("`{program} {}` failed: {why}", numbers.join(" ")),
        remedy: format!("check that `{program}` belongs to root and that this user may run it so"),
    };
    let output = Command::new(helper(program)?).args(&numbers).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().escape_debug().to_string();
    Err(failed(if said.is_empty() { output.status.to_string() } else { said }))
}

/// Where a program is that maps ids.
fn helper(name: &str) -> Result<PathBuf, NoSubordinateIds> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path)
        // Where it is installed, whatever the daemon's surroundings say.
        .chain([PathBuf::from("/usr/bin")])
        .map(|folder| folder.join(name))
        .find(|program| program.is_absolute() && program.is_file());
    found.ok_or_else(|| NoSubordinateIds {
        problem: format!("there is no `{name}`"),
        remedy: "install it: `apt-get install uidmap`".to_owned(),
    })
}

/// The name of this user. It may come from elsewhere than `/etc/passwd`.
fn own_name() -> Option<String> {
    let output = Command::new("id").arg("-un").stdin(Stdio::null()).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}

/// Whose ranges are looked for.
struct Owner {
    name: Option<String>,
    user: u32,
    group: u32,
}

impl Owner {
    /// The largest range of users and of groups, by what the two files say.
    fn choose(&self, users: &str, groups: &str) -> Result<SubordinateIds, NoSubordinateIds> {
        let largest = |text: &str, own: u32| {
            let ranges = lines(text).filter(|(owner, _)| self.is(owner)).map(|(_, range)| range);
            ranges.filter(|range| !range.contains(own)).max_by_key(|range| range.count)
        };
        let enough = |found: Option<IdRange>, file: &str| match found {
            Some(range) if range.count >= SUBORDINATE_IDS_MIN => Ok(range),
            Some(range) => Err(self.needs(
                format!("{file} gives this user {} ids only", range.count),
                [users, groups],
            )),
            None => Err(self.needs(format!("{file} gives this user no ids"), [users, groups])),
        };
        Ok(SubordinateIds {
            users: enough(largest(users, self.user), USERS)?,
            groups: enough(largest(groups, self.group), GROUPS)?,
        })
    }

    fn is(&self, owner: &str) -> bool {
        self.name.as_deref() == Some(owner) || owner == self.user.to_string()
    }

    /// An error whose remedy gives the user ids that nobody has by `files`.
    fn needs(&self, problem: String, files: [&str; 2]) -> NoSubordinateIds {
        let ends = files.into_iter().flat_map(lines);
        let ends = ends.map(|(_, range)| range.first.saturating_add(range.count));
        let first = ends.max().unwrap_or_default().max(FIRST_GIVEN_OUT);
        let range = format!("{first}-{}", first.saturating_add(SUBORDINATE_IDS_MIN - 1));
        let remedy = match &self.name {
            Some(name) => format!(
                "as root, give it ids that nothing else uses: `usermod --add-subuids {range} \
                 --add-subgids {range} {name}`"
            ),
            None => "run the daemon as a user that /etc/passwd has".to_owned(),
        };
        NoSubordinateIds { problem, remedy }
    }
}

/// The ranges of a file, each with its owner: a name, or a number.
fn lines(text: &str) -> impl Iterator<Item = (&str, IdRange)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let range = IdRange { first: first.parse().ok()?, count: count.parse().ok()? };
        // The highest number means nobody.
        let is_range = range.first > 0 && range.first.checked_add(range.count).is_some();
        (fields.next().is_none() && is_range).then_some((owner, range))
    })
}

/// Whether this process is in a user namespace with such a map.
pub(crate) fn is_mapped(ids: SubordinateIds) -> bool {
    let has = |path: &str, range: IdRange| {
        fs::read_to_string(Path::new(path)).is_ok_and(|map| map_has(&map, range))
    };
    has("/proc/self/uid_map", ids.users) && has("/proc/self/gid_map", ids.groups)
}

fn map_has(map: &str, range: IdRange) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse);
        let wanted = [range.first, range.first, range.count];
        wanted.into_iter().all(|number| numbers.next() == Some(Ok(number)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: IdRange = IdRange { first: 100_000, count: 65_536 };

    fn ann() -> Owner {
        Owner { name: Some("ann".to_owned()), user: 1000, group: 1000 }
    }

    fn users(text: &str) -> Result<IdRange, NoSubordinateIds> {
        ann().choose(text, "ann:100000:65536").map(|ids| ids.users)
    }

    #[test]
    fn a_range_is_found_by_the_name_of_its_owner_or_by_the_number() {
        for text in [
            "ann:100000:65536",
            "1000:100000:65536",
            "bob:1:2\n\n# ann:5:70000\nann:100000:65536\nbob:400000:65536\n",
            "  ann:100000:65536  ",
        ] {
            assert_eq!(users(text), Ok(ENOUGH), "{text}");
        }
        let nameless = Owner { name: None, ..ann() };
        assert!(nameless.choose("ann:100000:65536", "ann:100000:65536").is_err());
        let both = "1000:100000:65536";
        assert_eq!(nameless.choose(both, both).unwrap().groups, ENOUGH);
    }

    #[test]
    fn the_largest_range_is_taken_and_what_is_no_range_is_not() {
        let large = IdRange { first: 300_000, count: 131_072 };
        assert_eq!(users("ann:100000:65536\nann:300000:131072\nann:500000:65536"), Ok(large));
        for broken in [
            "",
            "ann",
            "ann:100000",
            "ann:100000:x",
            "ann:-1:65536",
            "ann:0:65536",
            "ann:100000:65536:7",
            "ann:4294960000:65536",
            "anna:100000:65536",
            "bob:100000:65536",
        ] {
            let error = users(broken).unwrap_err();
            assert!(error.problem.contains("/etc/subuid gives this user no ids"), "{error:?}");
        }
        // The user itself is in it, and would be mapped twice.
        assert!(users("ann:500:65536").is_err());
    }

    #[test]
    fn users_and_groups_may_have_different_ranges_and_both_are_needed() {
        let ids = ann().choose("ann:100000:65536", "ann:200000:65536").unwrap();
        assert_eq!((ids.users.first, ids.groups.first), (100_000, 200_000));
        let error = ann().choose("ann:100000:65536", "bob:100000:65536").unwrap_err();
        assert!(error.problem.contains("/etc/subgid"), "{error:?}");
    }

    #[test]
    fn what_is_missing_is_told_with_a_command_that_gives_ids_nobody_has() {
        let few = users("ann:100000:1000\nbob:101000:65536").unwrap_err();
        assert!(few.problem.contains("1000 ids only"), "{few:?}");
        let command = "usermod --add-subuids 166536-232071 --add-subgids 166536-232071 ann";
        assert!(few.remedy.contains(command), "{few:?}");
        let none = ann().choose("", "").unwrap_err();
        assert!(none.remedy.contains("100000-165535"), "{none:?}");
    }

    #[test]
    fn a_map_is_one_that_changes_no_number() {
        assert!(map_has("  1000 1000 1\n    100000     100000      65536\n", ENOUGH));
        assert!(!map_has("0 100000 65536\n", ENOUGH));
        assert!(!map_has("100000 100000 65535\n", ENOUGH));
        assert!(!map_has("", ENOUGH));
    }
}
