//! Where this process may make cgroups, and which controllers they have.
//!
//! ```text
//! version 1: <own group>/...               for each controller, where the mount can be written
//! version 2: <unit>/daemon   own group     -> <unit>/...     (systemd: DelegateSubgroup=daemon)
//!            any other                     -> <root>/...     where this process may write there
//!            nobody else in the own group  -> <own>/daemon for this process, <own>/... for others
//!                                             (not in the group of a unit)
//! ```
//!
//! A host may have some controllers in version 1 and the others in version 2. With version 2 a
//! group that has processes cannot limit those below it. The root is an exception; it comes second
//! because groups there do not count as the daemon's, but a service manager can start the daemon
//! anew in the group that it knows, which it could not after the third way.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The subgroup of a unit's group that the daemon itself is in.
const DAEMON: &str = "daemon";

/// What a cgroup can limit or share out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// Memory and swap.
    Memory,
    /// Time of the processors.
    Cpu,
    /// Processes and threads.
    Pids,
    /// Time of block devices.
    Io,
}

impl Controller {
    /// The most important first.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Cpu, Self::Pids, Self::Io];

    /// Its name in `cgroup.controllers` of version 2, and in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Io => "io",
        }
    }

    const fn name_in_version_one(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.name(),
        }
    }
}

/// The interface of a group's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Version {
    One,
    Two,
}

/// A group below which this process may make others, and what those can limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) base: PathBuf,
    /// Never empty.
    pub(super) controllers: Vec<Controller>,
}

/// What this process may make, and what it may not for which reason.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) hierarchies: Vec<Hierarchy>,
    pub(super) missing: Vec<(Controller, String)>,
}

/// Looks for groups with each controller below which this process may make others.
pub(super) fn find() -> Found {
    let read = |path: &str| {
        fs::read_to_string(path).map_err(|error| format!("`{path}` cannot be read: {error}"))
    };
    match read("/proc/self/cgroup").and_then(|groups| Ok((groups, read("/proc/self/mountinfo")?))) {
        Ok((groups, mounts)) => find_in(&groups, &mounts),
        Err(reason) => {
            let missing = Controller::ALL.map(|controller| (controller, reason.clone())).into();
            Found { missing, ..Found::default() }
        }
    }
}

fn find_in(groups: &str, mounts: &str) -> Found {
    let mut found = Found::default();
    let mut in_two: Vec<(Controller, OwnGroup)> = Vec::new();
    for controller in Controller::ALL {
        let own = own_group(groups, mounts, controller);
        match own.and_then(|own| require_writable(&own.path).map(|()| own)) {
            Ok(own) if own.version == Version::Two => in_two.push((controller, own)),
            Ok(own) => found.add(Version::One, own.path, controller),
            Err(reason) => found.missing.push((controller, reason)),
        }
    }
    let wanted: Vec<Controller> = in_two.iter().map(|(controller, _)| *controller).collect();
    let Some((_, own)) = in_two.first() else { return found };
    match find_in_two(own, &wanted) {
        Ok((base, given)) => {
            for controller in wanted {
                if given.contains(&controller) {
                    found.add(Version::Two, base.clone(), controller);
                } else {
                    found.missing.push((controller, not_delegated(controller, &base)));
                }
            }
        }
        Err(reason) => {
            found.missing.extend(wanted.into_iter().map(|controller| (controller, reason.clone())));
        }
    }
    found
}

impl Found {
    fn add(&mut self, version: Version, base: PathBuf, controller: Controller) {
        match self.hierarchies.iter_mut().find(|known| known.base == base) {
            Some(known) => known.controllers.push(controller),
            None => {
                let controllers = vec![controller];
                self.hierarchies.push(Hierarchy { version, base, controllers });
            }
        }
    }
}

/// The group of this process in the hierarchy that has a controller.
#[derive(Debug, PartialEq, Eq)]
struct OwnGroup {
    version: Version,
    path: PathBuf,
    root: PathBuf,
}

/// Reads `/proc/self/cgroup` and `/proc/self/mountinfo` (`cgroups(7)`, `proc(5)`).
fn own_group(groups: &str, mounts: &str, controller: Controller) -> Result<OwnGroup, String> {
    let lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some((controllers, path))
    });
    let wanted = controller.name_in_version_one();
    let mut found = None;
    for (controllers, path) in lines {
        if controllers.split(',').any(|name| name == wanted) {
            found = Some((Version::One, path));
            break;
        }
        if controllers.is_empty() {
            found = Some((Version::Two, path));
        }
    }
    let (version, path) = found.ok_or("this kernel has no cgroups")?;
    let mount = mounts.lines().find_map(|line| mount_of(line, version, wanted, path));
    let (root, path) = mount.ok_or_else(|| match version {
        Version::One => format!("the {wanted} controller's group `{path}` is not mounted"),
        Version::Two => format!("the cgroup `{path}` is not mounted"),
    })?;
    Ok(OwnGroup { version, path, root })
}

/// The mount point in a line of mountinfo and the group's directory below it, if the group is
/// there.
fn mount_of(
    line: &str,
    version: Version,
    controller: &str,
    group: &str,
) -> Option<(PathBuf, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut filesystem = filesystem.split(' ');
    let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
    let fits = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
        Version::Two => kind == "cgroup2",
    };
    let below = Path::new(group).strip_prefix(root).ok()?;
    // Outside of what this process can see.
    let hidden = below.components().any(|part| part == std::path::Component::ParentDir);
    (fits && !hidden).then(|| (PathBuf::from(point), Path::new(point).join(below)))
}

fn require_writable(group: &Path) -> Result<(), String> {
    rustix::fs::access(group, rustix::fs::Access::WRITE_OK)
        .map_err(|errno| format!("the cgroup `{}` cannot be written: {errno}", show(group)))
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

fn not_delegated(controller: Controller, group: &Path) -> String {
    format!("the {} controller is not delegated to `{}`", controller.name(), show(group))
}

/// A place that gives the first of the controllers `wanted`, and which of them it gives.
fn find_in_two(
    own: &OwnGroup,
    wanted: &[Controller],
) -> Result<(PathBuf, Vec<Controller>), String> {
    let unit = own.path.parent().filter(|_| own.path.ends_with(DAEMON));
    if let Some(unit) = unit
        && unit.starts_with(&own.root)
        && let Ok(given) = offer(unit, wanted)
    {
        return Ok((unit.to_owned(), given));
    }
    let at_root = match offer(&own.root, wanted) {
        Ok(given) => return Ok((own.root.clone(), given)),
        Err(problem) => problem,
    };
    match make_room(&own.path, wanted).and_then(|()| offer(&own.path, wanted)) {
        Ok(given) => Ok((own.path.clone(), given)),
        Err(problem) if own.path == own.root => Err(problem),
        Err(problem) => Err(format!("{problem}; {at_root}")),
    }
}

/// Makes a group of version 2 give controllers to those below it: the first of `wanted`, and those
/// of the others that it can.
fn offer(group: &Path, wanted: &[Controller]) -> Result<Vec<Controller>, String> {
    require_writable(group)?;
    let mut given = Vec::new();
    for (index, &controller) in wanted.iter().enumerate() {
        match give(group, controller) {
            Ok(()) => given.push(controller),
            Err(problem) if index == 0 => return Err(problem),
            Err(_) => {}
        }
    }
    Ok(given)
}

fn give(group: &Path, controller: Controller) -> Result<(), String> {
    let name = controller.name();
    if !lists(group, "cgroup.controllers", controller) {
        return Err(not_delegated(controller, group));
    }
    if lists(group, "cgroup.subtree_control", controller) {
        return Ok(());
    }
    append(&group.join("cgroup.subtree_control"), &format!("+{name}")).map_err(|error| {
        format!("`{}` does not give its {name} controller to groups below: {error}", show(group))
    })
}

fn lists(group: &Path, file: &str, controller: Controller) -> bool {
    let text = fs::read_to_string(group.join(file)).unwrap_or_default();
    text.split_ascii_whitespace().any(|name| name == controller.name())
}

/// Moves this process below its group, if nobody else is in it and the group has the first of the
/// controllers `wanted` to give.
fn make_room(own: &Path, wanted: &[Controller]) -> Result<(), String> {
    require_writable(own)?;
    if own.extension().is_some_and(|kind| kind == "service") {
        // A service manager starts the next daemon in this very group, which nobody can enter any
        // more once those below it have controllers.
        return Err(format!(
            "the cgroup `{}` is a unit's, which needs DelegateSubgroup={DAEMON} (systemd 254)",
            show(own)
        ));
    }
    if let Some(&first) = wanted.first()
        && !lists(own, "cgroup.controllers", first)
    {
        return Err(not_delegated(first, own));
    }
    let members = fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
    let me = std::process::id().to_string();
    if members.lines().any(|member| member != me) {
        return Err(format!("other processes are in the cgroup `{}`", show(own)));
    }
    let below = own.join(DAEMON);
    let moved = match fs::create_dir(&below) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => append(&below.join("cgroup.procs"), "0"),
    };
    moved.map_err(|error| format!("`{}` cannot be entered: {error}", show(&below)))
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";

    fn own(groups: &str, mounts: &str) -> Result<(Version, String), String> {
        own_group(groups, mounts, Controller::Memory).map(|own| (own.version, show(&own.path)))
    }

    #[test]
    fn the_hierarchy_that_has_the_memory_controller_is_used() {
        let hybrid = "5:devices:/\n4:memory:/session/a\n1:cpu:/\n0::/elsewhere\n";
        let want = (Version::One, "/sys/fs/cgroup/memory/session/a".to_owned());
        assert_eq!(own(hybrid, MOUNTS).unwrap(), want);
        let unified = "0::/system.slice/forkd.service/daemon\n";
        let mounts = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let want = "/sys/fs/cgroup/system.slice/forkd.service/daemon".to_owned();
        assert_eq!(own(unified, mounts).unwrap(), (Version::Two, want));
        // A container sees a part of the hierarchy.
        let mounts = "30 24 0:26 /docker/7 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        let inside = own("0::/docker/7/job\n", mounts).unwrap();
        assert_eq!(inside, (Version::Two, "/sys/fs/cgroup/job".to_owned()));
    }

    #[test]
    fn each_controller_is_found_in_its_own_hierarchy_or_missed_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["memory", "cpu,cpuacct"] {
            fs::create_dir(at(name)).unwrap();
        }
        group(&at("two"), "pids", "", "");
        let mount =
            |name: &str, rest: &str| format!("1 2 0:3 / {} rw - {rest}\n", at(name).display());
        let mounts = mount("memory", "cgroup cgroup rw,memory")
            + &mount("cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct")
            + &mount("two", "cgroup2 cgroup2 rw");
        let found = find_in("2:memory:/\n1:cpu,cpuacct:/\n0::/\n", &mounts);
        let bases: Vec<_> = found.hierarchies.iter().map(|one| (one.version, &one.base)).collect();
        let (memory, cpu) = (at("memory"), at("cpu,cpuacct"));
        let (one, two) = ((Version::One, &memory), (Version::One, &cpu));
        assert_eq!(bases, [one, two, (Version::Two, &at("two"))]);
        assert_eq!(found.hierarchies[2].controllers, [Controller::Pids]);
        let [(Controller::Io, reason)] = &found.missing[..] else { panic!("{found:?}") };
        assert!(reason.contains("io controller is not delegated"), "{reason}");
    }

    #[test]
    fn a_group_that_cannot_be_seen_is_refused_in_words() {
        for (groups, mounts, words) in [
            ("", MOUNTS, "no cgroups"),
            ("4:memory:/a\n", "", "`/a` is not mounted"),
            ("0::/../other\n", "30 24 0:26 / /cg rw - cgroup2 cgroup rw\n", "not mounted"),
            ("0::/x\n", "30 24 0:26 /docker/7 /cg rw - cgroup2 cgroup rw\n", "not mounted"),
        ] {
            let problem = own(groups, mounts).unwrap_err();
            assert!(problem.contains(words), "{problem}");
        }
    }

    /// A directory that looks like a group of version 2.
    fn group(path: &Path, controllers: &str, given: &str, members: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("cgroup.controllers"), controllers).unwrap();
        fs::write(path.join("cgroup.subtree_control"), given).unwrap();
        fs::write(path.join("cgroup.procs"), members).unwrap();
    }

    #[test]
    fn a_delegated_unit_comes_first_then_the_root_then_a_group_of_ones_own() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let unit = root.join("forkd.service");
        group(root, "cpu memory", "cpu memory", "");
        group(&unit, "cpu memory", "pids", "");
        group(&unit.join(DAEMON), "cpu memory", "", "1\n");
        let own = |path: &Path| OwnGroup {
            version: Version::Two,
            path: path.to_owned(),
            root: root.to_owned(),
        };
        let find = |path: &Path, wanted: &[Controller]| find_in_two(&own(path), wanted);
        let memory = [Controller::Memory];
        assert_eq!(find(&unit.join(DAEMON), &memory).unwrap(), (unit.clone(), memory.into()));
        let given = fs::read_to_string(unit.join("cgroup.subtree_control")).unwrap();
        assert_eq!(given, "+memory");
        let all = find(&unit, &Controller::ALL).unwrap();
        assert_eq!(all, (root.to_owned(), vec![Controller::Memory, Controller::Cpu]));
        // From here on the root has nothing to give.
        group(root, "cpu", "", "");
        let scope = root.join("run.scope");
        group(&scope, "memory", "", &format!("{}\n", std::process::id()));
        group(&scope.join(DAEMON), "memory", "", "");
        assert_eq!(find(&scope, &memory).unwrap(), (scope.clone(), memory.into()));
        assert_eq!(fs::read_to_string(scope.join(DAEMON).join("cgroup.procs")).unwrap(), "0");
        assert!(find(&root.join("absent"), &memory).is_err());
        let old = root.join("old.service");
        group(&old, "memory", "", &format!("{}\n", std::process::id()));
        let problem = find(&old, &memory).unwrap_err();
        assert!(problem.contains("DelegateSubgroup=daemon"), "{problem}");
        assert!(!old.join(DAEMON).exists(), "the next daemon finds its group as it was");
        group(&scope, "memory", "", "1\n2\n");
        let problem = find(&scope, &memory).unwrap_err();
        let words = ["other processes are in", "run.scope", "not delegated to"];
        assert!(words.iter().all(|words| problem.contains(words)), "{problem}");
    }
}
