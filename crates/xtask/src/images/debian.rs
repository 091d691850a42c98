//! The host's Debian: its release, and the parts of its apt configuration that a root file system
//! is built with, so that mirrors and proxies configured on the host are used.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::command::output;
use crate::setup::os_release_field;

/// Used where the host's release has no name (testing) or the host's sources do not offer it.
const FALLBACK_CODENAME: &str = "bookworm";

/// apt settings that decide how packages are fetched, by the start of their name.
const FETCH_SETTINGS: [&str; 4] =
    ["Acquire::http::", "Acquire::https::", "Acquire::Check-Valid-Until", "Acquire::Check-Date"];

/// The host's Debian release.
pub(super) fn codename() -> anyhow::Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    if os_release_field(&text, "ID") != Some("debian") {
        bail!("images are built on Debian 12 or 13; run them in a Debian container or VM");
    }
    let found = os_release_field(&text, "VERSION_CODENAME").unwrap_or(FALLBACK_CODENAME);
    Ok(found.to_owned())
}

/// The host's package sources of the release, in apt's deb822 format; None if it has none (then
/// Debian's own mirrors are to be used).
pub(super) fn sources(codename: &str) -> anyhow::Result<Option<String>> {
    let mut stanzas = all_stanzas();
    stanzas.retain(|stanza| is_of_release(stanza, codename));
    Ok((!stanzas.is_empty()).then(|| stanzas.join("\n")))
}

/// Package sources of any release: those of the host if it has some, else of the mirrors that its
/// own release comes from.
pub(super) fn sources_as_here(wanted: &str) -> anyhow::Result<Option<String>> {
    let own = codename()?;
    let found = match sources(wanted)? {
        None => sources(&own)?.map(|stanzas| of_other_release(&stanzas, &own, wanted)),
        found => found,
    };
    Ok(found)
}

/// The same stanzas for another release.
fn of_other_release(stanzas: &str, from: &str, to: &str) -> String {
    let renamed = |suite: &str| match suite.strip_prefix(from) {
        Some(rest) => format!("{to}{rest}"),
        None => suite.to_owned(),
    };
    let line = |line: &str| match line.strip_prefix("Suites:") {
        Some(suites) => {
            let suites: Vec<_> = suites.split_whitespace().map(renamed).collect();
            format!("Suites: {}\n", suites.join(" "))
        }
        None => format!("{line}\n"),
    };
    stanzas.lines().map(line).collect()
}

/// Every binary package stanza of the host.
fn all_stanzas() -> Vec<String> {
    let mut stanzas = Vec::new();
    let mut files = vec![Path::new("/etc/apt/sources.list").to_owned()];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        let mut more: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        more.sort();
        files.extend(more);
    }
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => stanzas.extend(text.lines().filter_map(one_line_stanza)),
            Some("sources") => stanzas.extend(deb822_stanzas(&text)),
            _ => {}
        }
    }
    stanzas
}

/// `deb [signed-by=..] URI SUITE COMPONENT...` as a deb822 stanza.
fn one_line_stanza(line: &str) -> Option<String> {
    let rest = line.trim().strip_prefix("deb")?;
    let mut rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let mut options = String::new();
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (inside, after) = bracketed.split_once(']')?;
        for option in inside.split_whitespace() {
            let (key, value) = option.split_once('=')?;
            let key = match key {
                "signed-by" => "Signed-By",
                "trusted" => "Trusted",
                "check-valid-until" => "Check-Valid-Until",
                _ => continue,
            };
            options.push_str(&format!("{key}: {}\n", value.replace(',', " ")));
        }
        rest = after;
    }
    let mut words = rest.split_whitespace().take_while(|word| !word.starts_with('#'));
    let (uri, suite) = (words.next()?, words.next()?);
    let components: Vec<&str> = words.collect();
    let components = components.join(" ");
    Some(format!("Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: {components}\n{options}"))
}

/// The enabled binary package stanzas of a `.sources` file, without comments.
fn deb822_stanzas(text: &str) -> Vec<String> {
    let uncommented: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    uncommented
        .split(|line| line.trim().is_empty())
        .filter(|lines| !lines.is_empty())
        .map(|lines| lines.join("\n") + "\n")
        .filter(|stanza| {
            let types = field(stanza, "Types").unwrap_or_default();
            let enabled = field(stanza, "Enabled").unwrap_or("yes");
            types.split_whitespace().any(|kind| kind == "deb") && enabled != "no"
        })
        .collect()
}

fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    stanza.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

/// Whether it offers the release itself, its updates or its security fixes, and nothing else:
/// other vendors' packages have no place in an image.
fn is_of_release(stanza: &str, codename: &str) -> bool {
    let suites = field(stanza, "Suites").unwrap_or_default();
    let is_ours = |suite: &str| {
        suite
            .strip_prefix(codename)
            .is_some_and(|rest| matches!(rest, "" | "-updates" | "-security"))
    };
    !suites.is_empty() && suites.split_whitespace().all(is_ours)
}

/// The host's apt settings for fetching, each as `Name "value";`.
pub(super) fn fetch_settings() -> anyhow::Result<Vec<String>> {
    let dump = output(Command::new("apt-config").arg("dump"))?;
    Ok(fetch_settings_in(&dump))
}

fn fetch_settings_in(dump: &str) -> Vec<String> {
    dump.lines()
        .filter(|line| FETCH_SETTINGS.iter().any(|name| line.starts_with(name)))
        .filter(|line| !line.ends_with(" \"\";"))
        .map(str::to_owned)
        .collect()
}

/// One field of the newest known version of a package; None if apt does not know the package.
pub(super) fn package_field(package: &str, name: &str) -> Option<String> {
    let arguments = ["show", "--no-all-versions", package];
    let text = output(Command::new("apt-cache").env("LC_ALL", "C.UTF-8").args(arguments)).ok()?;
    field(&text, name).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_line_source_keeps_mirror_suite_components_and_key() {
        let line = "deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian trixie main contrib # c";
        assert_eq!(
            one_line_stanza(line).unwrap(),
            "Types: deb\nURIs: http://mirror/debian\nSuites: trixie\n\
             Components: main contrib\nSigned-By: /k.gpg\n"
        );
    }

    #[test]
    fn comments_and_source_packages_are_no_sources() {
        for line in ["# deb http://mirror/debian trixie main", "deb-src http://m/d trixie main", ""]
        {
            assert_eq!(one_line_stanza(line), None, "{line}");
        }
    }

    #[test]
    fn stanzas_are_split_and_disabled_and_source_ones_dropped() {
        let text = "# c\nTypes: deb deb-src\nURIs: http://a\nSuites: trixie\n\n\n\
                    Types: deb-src\nURIs: http://b\nSuites: trixie\n\n\
                    Enabled: no\nTypes: deb\nURIs: http://c\nSuites: trixie\n";
        let stanzas = deb822_stanzas(text);
        assert_eq!(stanzas.len(), 1);
        assert!(stanzas[0].contains("http://a"));
    }

    #[test]
    fn only_the_release_with_updates_and_security_is_taken() {
        for (suites, taken) in [
            ("trixie trixie-updates", true),
            ("trixie-security", true),
            ("nodistro", false),
            ("trixie-backports", false),
            ("cloud-tool-trixie", false),
            ("bookworm", false),
        ] {
            let stanza = format!("Types: deb\nSuites: {suites}\n");
            assert_eq!(is_of_release(&stanza, "trixie"), taken, "{suites}");
        }
    }

    #[test]
    fn sources_of_another_release_have_the_same_mirrors_and_keys() {
        let text = "Types: deb\nURIs: http://mirror/bookworm\nSuites: bookworm bookworm-updates\n\
                    Signed-By: /k.gpg\n\nTypes: deb\nURIs: http://s\nSuites: bookworm-security\n";
        assert_eq!(
            of_other_release(text, "bookworm", "trixie"),
            "Types: deb\nURIs: http://mirror/bookworm\nSuites: trixie trixie-updates\n\
             Signed-By: /k.gpg\n\nTypes: deb\nURIs: http://s\nSuites: trixie-security\n"
        );
    }

    #[test]
    fn proxy_and_date_settings_are_kept_and_empty_ones_dropped() {
        let dump = "APT::Get::Assume-Yes \"true\";\nAcquire::http::Proxy \"http://p:1\";\n\
                    Acquire::https::CaInfo \"\";\nAcquire::Check-Date \"false\";\n";
        assert_eq!(
            fetch_settings_in(dump),
            ["Acquire::http::Proxy \"http://p:1\";", "Acquire::Check-Date \"false\";"]
        );
    }
}
