//! Programs, libraries and images that guests need.

use std::path::Path;
use std::time::Duration;

use forkd_engine::host;

use super::check::Check;
use crate::ServeConfig;

/// For a program to tell its version.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);
/// The oldest QEMU that is tested.
const QEMU_OLDEST: (u32, u32) = (7, 2);

const QEMU: &str = "QEMU";
pub(super) const COMMANDS: &str = "QEMU's commands";
const SHIM: &str = "shim";
const IMAGES: &str = "images";
const QEMU_IMG: &str = "qemu-img";

const INSTALL: &str = "install QEMU: apt-get install qemu-system-x86";

/// Runs QEMU and reads its version.
pub(super) async fn qemu(config: &ServeConfig) -> Check {
    let engine = config.engine();
    let asked = tokio::task::spawn_blocking(move || host::qemu(&engine));
    match tokio::time::timeout(VERSION_DEADLINE, asked).await {
        Ok(Ok(Ok((program, version)))) => {
            let detail = format!("{version} ({})", program.display());
            if version_of(&version).is_none_or(|version| version < QEMU_OLDEST) {
                let (major, minor) = QEMU_OLDEST;
                let remedy = format!("forkd is tested with QEMU {major}.{minor} and later");
                return Check::warn(QEMU, detail, remedy);
            }
            Check::ok(QEMU, detail)
        }
        Ok(Ok(Err(problem))) => Check::fail(QEMU, problem, INSTALL),
        Ok(Err(error)) => Check::fail(QEMU, error.to_string(), INSTALL),
        Err(_) => Check::fail(QEMU, "it does not print its version", INSTALL),
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Starts QEMU's machine with the shim and asks it for its commands.
pub(super) async fn commands(config: &ServeConfig) -> Check {
    let engine = config.engine();
    let asked = tokio::task::spawn_blocking(move || host::missing_commands(&engine));
    let remedy = "use the distribution's QEMU 7.2 or later, with the machine `microvm`, and the \
                  shim of this forkd";
    match asked.await {
        Ok(Ok(missing)) if missing.is_empty() => {
            Check::ok(COMMANDS, "the machine `microvm` starts and has all that forkd needs")
        }
        Ok(Ok(missing)) => Check::fail(COMMANDS, format!("lacks {}", missing.join(", ")), remedy),
        Ok(Err(problem)) => Check::fail(COMMANDS, problem, remedy),
        Err(error) => Check::fail(COMMANDS, error.to_string(), remedy),
    }
}

pub(super) fn shim(path: &Path) -> Check {
    if path.is_file() {
        return Check::ok(SHIM, path.display().to_string());
    }
    let remedy = "build it with `make build`, or set FORKD_SHIM to its path";
    Check::fail(SHIM, format!("`{}` does not exist", path.display()), remedy)
}

/// `qemu-img` makes the disks of guests.
pub(super) async fn qemu_img() -> Check {
    let remedy = "install it: apt-get install qemu-utils";
    let mut command = tokio::process::Command::new("qemu-img");
    command.arg("--version").kill_on_drop(true);
    match tokio::time::timeout(VERSION_DEADLINE, command.output()).await {
        Ok(Ok(output)) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            Check::ok(QEMU_IMG, text.lines().next().unwrap_or_default())
        }
        Ok(Ok(output)) => Check::fail(QEMU_IMG, format!("it ended with {}", output.status), remedy),
        Ok(Err(error)) => Check::fail(QEMU_IMG, format!("cannot be run: {error}"), remedy),
        Err(_) => Check::fail(QEMU_IMG, "it does not answer", remedy),
    }
}

pub(super) fn images(directory: &Path) -> Check {
    let remedy = "build them with `make images`, or set FORKD_IMAGE_DIR to their directory";
    let found = host::images(directory);
    let (good, bad): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, problem)| problem.is_none());
    let names: Vec<String> = good.into_iter().map(|(name, _)| name).collect();
    let problems: Vec<String> = bad
        .into_iter()
        .map(|(name, problem)| format!("{name}: {}", problem.unwrap_or_default()))
        .collect();
    if names.is_empty() {
        let why = if problems.is_empty() { "none".to_owned() } else { problems.join("; ") };
        return Check::fail(IMAGES, format!("{why} in `{}`", directory.display()), remedy);
    }
    let detail = format!("{} in `{}`", names.join(", "), directory.display());
    if problems.is_empty() {
        return Check::ok(IMAGES, detail);
    }
    Check::warn(IMAGES, format!("{detail}; unusable: {}", problems.join("; ")), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn what_is_missing_fails_with_a_remedy() {
        let nowhere = Path::new("/nonexistent/forkd");
        for check in [shim(nowhere), images(nowhere)] {
            assert_eq!(check.outcome, Outcome::Fail, "{check:?}");
            assert!(check.remedy.is_some());
        }
    }

    #[test]
    fn an_image_without_its_files_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let image = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).unwrap();
            let json = format!(
                r#"{{"name":"{name}","content_hash":"h","kernel":"k","initramfs":"i",
                    "command_line":"quiet"}}"#
            );
            std::fs::write(path.join("image.json"), json).unwrap();
            path
        };
        let good = image("good");
        let check = images(directory.path());
        assert!(check.outcome == Outcome::Fail && check.detail.contains("good/k"), "{check:?}");
        for file in ["k", "i"] {
            std::fs::write(good.join(file), "").unwrap();
        }
        assert_eq!(images(directory.path()).outcome, Outcome::Ok);
        image("hollow");
        let check = images(directory.path());
        assert!(check.outcome == Outcome::Warn && check.detail.contains("hollow"), "{check:?}");
    }

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(version_of("7.2.22"), Some((7, 2)));
        assert!(version_of("10.0.2").unwrap() > QEMU_OLDEST);
        assert!(version_of("6.2.0").unwrap() < QEMU_OLDEST && version_of("x").is_none());
    }
}
