//! Users of the guest: from what an image or a request calls them to numbers.

use std::fs;

/// Where users and groups are looked up. A guest without them has numbers only.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// As whom a program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) id: u32,
    pub(crate) group: u32,
    /// Groups besides.
    pub(crate) groups: Vec<u32>,
    /// The home directory, if it is known.
    pub(crate) home: Option<String>,
}

/// Who `USER[:GROUP]` is, names or numbers, as Docker reads it.
pub(crate) fn find(text: &str) -> Result<User, String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    find_in(text, &read(USERS), &read(GROUPS))
}

fn find_in(text: &str, users: &str, groups: &str) -> Result<User, String> {
    let (name, group) = match text.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (text, None),
    };
    let name = if name.is_empty() { "0" } else { name };
    // name:password:uid:gid:comment:home:shell
    let known = entries(users).find(|entry| entry[0] == name || entry.get(2) == Some(&name));
    let number = |field: Option<&&str>| field.and_then(|field| field.parse::<u32>().ok());
    let id = match &known {
        Some(entry) => number(entry.get(2)),
        None => name.parse().ok(),
    };
    let id = id.ok_or_else(|| format!("the guest has no user {name:?}"))?;
    let own_group = known.as_ref().and_then(|entry| number(entry.get(3))).unwrap_or_default();
    let home = known.as_ref().and_then(|entry| entry.get(5)).filter(|home| !home.is_empty());
    let home = home.map(|home| (*home).to_owned());
    // name:password:gid:members
    let Some(group) = group.filter(|group| !group.is_empty()) else {
        let user = known.map(|entry| entry[0]);
        let has_user = |entry: &Vec<&str>| {
            let members = entry.get(3).copied().unwrap_or_default();
            user.is_some_and(|user| members.split(',').any(|member| member == user))
        };
        let groups = entries(groups).filter(has_user);
        let groups = groups.filter_map(|entry| number(entry.get(2))).collect();
        return Ok(User { id, group: own_group, groups, home });
    };
    let found = entries(groups).find(|entry| entry[0] == group);
    let group = match found {
        Some(entry) => number(entry.get(2)),
        None => group.parse().ok(),
    }
    .ok_or_else(|| format!("the guest has no group {group:?}"))?;
    Ok(User { id, group, groups: Vec::new(), home })
}

/// The users that the guest has, by number.
pub(crate) fn users() -> Vec<(u32, String)> {
    names_in(&fs::read_to_string(USERS).unwrap_or_default())
}

/// The groups that the guest has, by number.
pub(crate) fn groups() -> Vec<(u32, String)> {
    names_in(&fs::read_to_string(GROUPS).unwrap_or_default())
}

fn names_in(text: &str) -> Vec<(u32, String)> {
    let named = |entry: Vec<&str>| Some((entry.get(2)?.parse().ok()?, entry[0].to_owned()));
    entries(text).filter_map(named).collect()
}

fn entries(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_the_name_of_its_line_and_broken_lines_have_none() {
        let text = "root:x:0:0::/root:/bin/sh\nme:x:1000:100::/home/me:/bin/sh\nbroken\nx:x:y:\n";
        assert_eq!(names_in(text), [(0, "root".to_owned()), (1000, "me".to_owned())]);
    }

    #[test]
    fn names_and_numbers_are_found_as_docker_does() {
        let users = "root:x:0:0::/root:/bin/sh\nme:x:1000:100::/home/me:/bin/sh\n";
        let groups = "root:x:0:\nus:x:100:\nwheel:x:10:other,me\n";
        let user = |id, group, groups: &[u32], home: Option<&str>| {
            Ok(User { id, group, groups: groups.to_vec(), home: home.map(str::to_owned) })
        };
        for (text, wanted) in [
            ("me", user(1000, 100, &[10], Some("/home/me"))),
            ("1000", user(1000, 100, &[10], Some("/home/me"))),
            ("me:wheel", user(1000, 10, &[], Some("/home/me"))),
            ("me:7", user(1000, 7, &[], Some("/home/me"))),
            ("65532:65532", user(65532, 65532, &[], None)),
            ("65532", user(65532, 0, &[], None)),
            (":wheel", user(0, 10, &[], Some("/root"))),
            ("nobody", Err("the guest has no user \"nobody\"".to_owned())),
            ("me:x", Err("the guest has no group \"x\"".to_owned())),
        ] {
            assert_eq!(find_in(text, users, groups), wanted, "{text}");
        }
        assert_eq!(find_in("5", "", ""), user(5, 0, &[], None));
    }
}
