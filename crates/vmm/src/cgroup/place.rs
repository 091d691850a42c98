//! Where this process may make cgroups that limit memory.
//!
//! ```text
//! version 1: <own group>/...               where the mount can be written
//! version 2: <unit>/daemon   own group     -> <unit>/...     (systemd: DelegateSubgroup=daemon)
//!            any other                     -> <root>/...     where this process may write there
//!            nobody else in the own group  -> <own>/daemon for this process, <own>/... for others
//! ```
//!
//! With version 2 a group that has processes cannot limit those below it. The root is an exception;
//! it comes second because groups there do not count as the daemon's, but a service manager can
//! start the daemon anew in the group that it knows, which it could not after the third way.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::Version;

/// The subgroup of a unit's group that the daemon itself is in.
const DAEMON: &str = "daemon";
const CONTROLLER: &str = "memory";

pub(super) fn find() -> Result<PathBuf, String> {
    let read = |path: &str| {
        fs::read_to_string(path).map_err(|error| format!("`{path}` cannot be read: {error}"))
    };
    let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
    let own = own_group(&groups, &mounts)?;
    match own.version {
        Version::One => require_writable(&own.path).map(|()| own.path),
        Version::Two => find_in_two(&own),
    }
}

/// The group of this process in the hierarchy that has the memory controller.
#[derive(Debug, PartialEq, Eq)]
struct OwnGroup {
    version: Version,
    path: PathBuf,
    root: PathBuf,
}

/// Reads `/proc/self/cgroup` and `/proc/self/mountinfo` (`cgroups(7)`, `proc(5)`).
fn own_group(groups: &str, mounts: &str) -> Result<OwnGroup, String> {
    let lines = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some((controllers, path))
    });
    let mut found = None;
    for (controllers, path) in lines {
        if controllers.split(',').any(|name| name == CONTROLLER) {
            found = Some((Version::One, path));
            break;
        }
        if controllers.is_empty() {
            found = Some((Version::Two, path));
        }
    }
    let (version, path) = found.ok_or("this kernel has no cgroups")?;
    let mount = mounts.lines().find_map(|line| mount_of(line, version, path));
    let (root, path) = mount.ok_or_else(|| match version {
        Version::One => format!("the memory controller's group `{path}` is not mounted"),
        Version::Two => format!("the cgroup `{path}` is not mounted"),
    })?;
    Ok(OwnGroup { version, path, root })
}

/// The mount point in a line of mountinfo and the group's directory below it, if the group is
/// there.
fn mount_of(line: &str, version: Version, group: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut filesystem = filesystem.split(' ');
    let (kind, options) = (filesystem.next()?, filesystem.nth(1)?);
    let fits = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == CONTROLLER),
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

fn find_in_two(own: &OwnGroup) -> Result<PathBuf, String> {
    let unit = own.path.parent().filter(|_| own.path.ends_with(DAEMON));
    if let Some(unit) = unit
        && unit.starts_with(&own.root)
        && offer(unit).is_ok()
    {
        return Ok(unit.to_owned());
    }
    let Err(at_root) = offer(&own.root) else { return Ok(own.root.clone()) };
    match make_room(&own.path) {
        Ok(()) => Ok(own.path.clone()),
        Err(problem) if own.path == own.root => Err(problem),
        Err(problem) => Err(format!("{problem}; {at_root}")),
    }
}

/// Makes a group of version 2 give the memory controller to those below it.
fn offer(group: &Path) -> Result<(), String> {
    require_writable(group)?;
    let read = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default();
    let has = |text: &str| text.split_ascii_whitespace().any(|name| name == CONTROLLER);
    if !has(&read("cgroup.controllers")) {
        return Err(format!("the memory controller is not delegated to `{}`", show(group)));
    }
    if has(&read("cgroup.subtree_control")) {
        return Ok(());
    }
    append(&group.join("cgroup.subtree_control"), "+memory").map_err(|error| {
        format!("`{}` does not give its memory controller to groups below: {error}", show(group))
    })
}

/// Moves this process below its group, if nobody else is in it.
fn make_room(own: &Path) -> Result<(), String> {
    require_writable(own)?;
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
    moved.map_err(|error| format!("`{}` cannot be entered: {error}", show(&below)))?;
    offer(own)
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
        own_group(groups, mounts).map(|own| (own.version, show(&own.path)))
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
        group(&unit, "cpu memory", "", "");
        group(&unit.join(DAEMON), "cpu memory", "", "1\n");
        let own = |path: &Path| OwnGroup {
            version: Version::Two,
            path: path.to_owned(),
            root: root.to_owned(),
        };
        assert_eq!(find_in_two(&own(&unit.join(DAEMON))).unwrap(), unit);
        let given = fs::read_to_string(unit.join("cgroup.subtree_control")).unwrap();
        assert_eq!(given, "+memory");
        assert_eq!(find_in_two(&own(&unit)).unwrap(), root);
        // From here on the root has nothing to give.
        group(root, "cpu", "", "");
        let scope = root.join("run.scope");
        group(&scope, "memory", "", &format!("{}\n", std::process::id()));
        group(&scope.join(DAEMON), "memory", "", "");
        assert_eq!(find_in_two(&own(&scope)).unwrap(), scope);
        assert_eq!(fs::read_to_string(scope.join(DAEMON).join("cgroup.procs")).unwrap(), "0");
        group(&scope, "memory", "", "1\n2\n");
        let problem = find_in_two(&own(&scope)).unwrap_err();
        let words = ["other processes are in", "run.scope", "not delegated to"];
        assert!(words.iter().all(|words| problem.contains(words)), "{problem}");
    }
}
