//! Root disks: a Debian root file system made by mmdebstrap, packed into an ext4 disk.
//!
//! As root everything happens directly. Otherwise mmdebstrap uses a user namespace of its own, and
//! this program runs itself in a second one to own the files as root while packing them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::debian;
use super::product::Content;
use super::recipe::DebianBase;
use crate::command::{output, run_logged};
use crate::progress::Step;
use crate::workspace::Workspace;

/// Time stamp of what is generated (2025-01-01), so that equal inputs give equal disks.
const EPOCH: &str = "1735689600";

/// The disk's file name.
const DISK: &str = "root.ext4";

/// Where the guest agent reads what programs begin with.
const DEFAULTS_FILE: &str = "/etc/forkd/image-defaults";

/// What to build.
pub(super) struct Job<'a> {
    pub(super) name: &'a str,
    pub(super) base: &'a DebianBase,
    pub(super) directories: &'a [String],
    /// Files to copy over the root file system; may be missing.
    pub(super) files: &'a Path,
    pub(super) codename: &'a str,
    /// Where the disk goes.
    pub(super) folder: &'a Path,
}

/// Arguments of the packing step.
#[derive(clap::Args, Debug)]
pub(crate) struct PackOptions {
    /// The root file system.
    #[arg(long)]
    archive: PathBuf,
    /// Files to copy over it; may be missing.
    #[arg(long)]
    files: PathBuf,
    /// Absolute guest folders to create.
    #[arg(long)]
    directory: Vec<String>,
    /// An empty file of the disk's size.
    #[arg(long)]
    disk: PathBuf,
    #[arg(long)]
    label: String,
    #[arg(long)]
    uuid: String,
}

/// Builds the disk.
pub(super) fn build(workspace: &Workspace, step: &Step, job: &Job<'_>) -> anyhow::Result<Content> {
    let archive = job.folder.join("root.tar");
    let is_root = rustix::process::geteuid().is_root();
    let mode = if is_root { "root" } else { "unshare" };
    let mut mmdebstrap = mmdebstrap(job, mode, &archive)?;
    let list = job.folder.join("host.sources");
    if let Some(sources) = debian::sources(job.codename)? {
        fs::write(&list, sources).context("write the package sources")?;
        mmdebstrap.arg(&list);
    }
    let log = workspace.log(&format!("image-{}", job.name));
    run_logged(step, mmdebstrap, &log).context("build the root file system")?;
    if list.exists() {
        fs::remove_file(&list).context("remove the package sources")?;
    }

    let disk = job.folder.join(DISK);
    let disk_bytes = job.base.disk_mib.checked_mul(1024 * 1024).context("disk_mib is too large")?;
    fs::File::create(&disk)?.set_len(disk_bytes).context("create the disk")?;
    let packages = packages(&archive)?;
    let options = PackOptions {
        archive: archive.clone(),
        files: job.files.to_owned(),
        directory: job.directories.to_vec(),
        disk: disk.clone(),
        label: job.name.to_owned(),
        uuid: job.base.uuid.clone(),
    };
    step.detail("packing the disk");
    if is_root {
        pack(&options)?;
    } else {
        let log = workspace.log(&format!("image-{}-pack", job.name));
        run_logged(step, pack_in_user_namespace(&options)?, &log)?;
    }
    fs::remove_file(&archive).context("remove the archive")?;
    Ok(Content {
        initramfs: "../initramfs/initramfs.cpio",
        root_disk: Some(DISK),
        root_disk_bytes: Some(disk_bytes),
        stored_bytes: fs::metadata(&disk)?.blocks().saturating_mul(512),
        packages,
    })
}

/// A command that makes a root file system of Debian's smallest set and these packages, with commas
/// between them, fetched as this machine fetches them. The release and the target are to be added.
pub(super) fn bootstrap(mode: &str, format: &str, packages: &str) -> anyhow::Result<Command> {
    let mut command = Command::new("mmdebstrap");
    command
        .env("SOURCE_DATE_EPOCH", EPOCH)
        .env("LC_ALL", "C.UTF-8")
        .arg("--variant=minbase")
        .args([format!("--mode={mode}"), format!("--format={format}")])
        .arg(format!("--include={packages}"));
    for setting in debian::fetch_settings()? {
        command.arg(format!("--aptopt={setting}"));
    }
    Ok(command)
}

fn mmdebstrap(job: &Job<'_>, mode: &str, archive: &Path) -> anyhow::Result<Command> {
    let mut command = bootstrap(mode, "tar", &job.base.packages.join(","))?;
    for path in &job.base.exclude {
        command.arg(format!("--dpkgopt=path-exclude={path}"));
    }
    for path in &job.base.include {
        command.arg(format!("--dpkgopt=path-include={path}"));
    }
    let defaults = job.base.user.as_ref().map(|user| {
        let write = format!("mkdir -p /etc/forkd && printf 'user {user}\\0' > {DEFAULTS_FILE}");
        vec!["sh".to_owned(), "-c".to_owned(), write]
    });
    for argv in job.base.finish.iter().chain(&defaults) {
        let quoted: Vec<String> = argv.iter().map(|word| shell_quoted(word)).collect();
        command.arg(format!("--customize-hook=chroot \"$1\" {}", quoted.join(" ")));
    }
    // How the host fetches packages is no business of the guest.
    command.arg("--customize-hook=rm -f \"$1/etc/apt/apt.conf.d/99mmdebstrap\"");
    command.arg(job.codename).arg(archive);
    Ok(command)
}

fn shell_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The installed packages as `name version`, read from the package database in the archive.
fn packages(archive: &Path) -> anyhow::Result<Vec<String>> {
    let mut tar = Command::new("tar");
    tar.arg("-xOf").arg(archive).arg("./var/lib/dpkg/status");
    let status = output(&mut tar).context("read the list of installed packages")?;
    Ok(packages_in(&status))
}

fn packages_in(status: &str) -> Vec<String> {
    let stanzas = status.split("\n\n").filter_map(|stanza| {
        let field = |name: &str| stanza.lines().find_map(|line| line.strip_prefix(name));
        Some(format!("{} {}", field("Package: ")?, field("Version: ")?))
    });
    stanzas.collect()
}

/// This program again, as root of a user namespace with a whole range of users.
fn pack_in_user_namespace(options: &PackOptions) -> anyhow::Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--map-auto", "--map-root-user", "--"]);
    command.arg(std::env::current_exe().context("find this program")?);
    command.args(["pack-root-disk", "--label", &options.label, "--uuid", &options.uuid]);
    command.arg("--archive").arg(&options.archive);
    command.arg("--files").arg(&options.files).arg("--disk").arg(&options.disk);
    for directory in &options.directory {
        command.arg("--directory").arg(directory);
    }
    Ok(command)
}

/// Unpacks the archive, adds files and folders, and makes the file system. Needs to be root, if
/// only of a user namespace.
pub(crate) fn pack(options: &PackOptions) -> anyhow::Result<()> {
    let tree = options.disk.with_extension("tree");
    fs::create_dir(&tree).with_context(|| format!("create {}", tree.display()))?;
    // No devices: the guest mounts devtmpfs, and a user namespace may not make them.
    let mut tar = Command::new("tar");
    tar.args(["--numeric-owner", "--exclude=./dev/*", "-xpf"]).arg(&options.archive);
    output(tar.arg("-C").arg(&tree)).context("unpack the root file system")?;
    for directory in &options.directory {
        let path = tree.join(directory.trim_start_matches('/'));
        fs::create_dir_all(&path).with_context(|| format!("create {directory}"))?;
    }
    copy_files(&options.files, &tree)?;
    let uuid = &options.uuid;
    let mut mke2fs = Command::new("mke2fs");
    // Where it is not on an ordinary user's path.
    let path = std::env::var("PATH").unwrap_or_default();
    mke2fs.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("E2FSPROGS_FAKE_TIME", EPOCH);
    mke2fs.args(["-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=8"]);
    // Tables are zero already because the file is new: nothing is left for the guest to write.
    let extended = format!(
        "lazy_itable_init=0,lazy_journal_init=0,assume_storage_prezeroed=1,hash_seed={uuid}"
    );
    mke2fs.args(["-E", &extended, "-U", uuid, "-L", &options.label]);
    output(mke2fs.arg("-d").arg(&tree).arg(&options.disk)).context("make the file system")?;
    fs::remove_dir_all(&tree).with_context(|| format!("remove {}", tree.display()))
}

/// Copies files over the root file system; they belong to root there.
fn copy_files(files: &Path, tree: &Path) -> anyhow::Result<()> {
    for entry in super::product::tree(files)? {
        let target = tree.join(&entry.path);
        let Some(content) = &entry.content else {
            fs::create_dir_all(&target).with_context(|| format!("create {}", entry.path))?;
            continue;
        };
        match fs::remove_file(&target) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                bail!("replace {}: {error}", entry.path)
            }
            _ => {}
        }
        fs::write(&target, content).with_context(|| format!("write {}", entry.path))?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(entry.mode);
        fs::set_permissions(&target, permissions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_listed_with_their_versions() {
        let status = "Package: a\nStatus: ok\nVersion: 1.2-3\n\nPackage: b\nVersion: 4\n";
        assert_eq!(packages_in(status), ["a 1.2-3", "b 4"]);
    }

    #[test]
    fn shell_words_stay_one_word() {
        let word = "it's $HOME; `x`";
        let text = output(Command::new("sh").args(["-c", &format!("echo {}", shell_quoted(word))]));
        assert_eq!(text.unwrap().trim_end(), word);
    }

    #[test]
    fn copied_files_replace_links_instead_of_following_them() {
        let folder = tempfile::tempdir().unwrap();
        let (files, tree) = (folder.path().join("files"), folder.path().join("tree"));
        fs::create_dir_all(files.join("etc")).unwrap();
        fs::create_dir_all(tree.join("etc")).unwrap();
        fs::write(folder.path().join("host"), "host").unwrap();
        fs::write(files.join("etc/resolv.conf"), "guest").unwrap();
        std::os::unix::fs::symlink(folder.path().join("host"), tree.join("etc/resolv.conf"))
            .unwrap();
        copy_files(&files, &tree).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("host")).unwrap(), "host");
        assert_eq!(fs::read_to_string(tree.join("etc/resolv.conf")).unwrap(), "guest");
    }
}
