//! Goal: images that others' tools have made and keep in others' registry are for forkd what they
//! are for those tools: each file with its kind, mode, owner, time, links and content, and none
//! that a later layer has removed.
//!
//! Method: `umoci` makes layers with gzip, one of which removes files and one of which replaces a
//! directory; `skopeo` puts them into `docker-registry` as an image of Docker's and, with zstd, as
//! one of OCI's; `buildah` adds a layer to the second. The guest lists what it has, and the host
//! what `umoci` and `buildah` unpack. The second image is asked for by the name of a registry whose
//! mirror has it. Breaks when a whiteout, a link, a compression or a kind of
//! manifest is read in another way than those tools mean it, or without the password.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::docker_registry::{DockerRegistry, Door, finished};
use crate::forkd::Forkd;

/// All that `$0` has below it. The size of a directory is the file system's affair.
const LIST: &str = r#"
cd "$0" && find . | sort | while read -r file; do
    format='%n %f %u:%g %h %Y %t:%T %s'
    test -d "$file" && format='%n %f %u:%g %h %Y'
    stat -c "$format" "$file"
    test -L "$file" && readlink "$file"
    test -f "$file" && md5sum "$file"
done
true
"#;

/// What the first layer has.
const FIRST: &str = r#"
mkdir -p bin data/replaced data/removed data/shared data/kept && cp /bin/busybox bin/
cd data && echo old > replaced/old && echo old > removed/old && echo old > removed-file
echo one > one && ln one two && ln one removed-link && chown -h 1000:100 one
echo many > shared/file && chmod 4755 shared/file && chmod 1777 shared
ln -s ../kept/none link && mkfifo pipe && mknod null c 1 3 && echo x > "kept/a name, ü"
dd if=/dev/urandom of=kept/random bs=1000 count=300 2>&1
long=$(printf '%0120d' 7) && mkdir -p "kept/$long" && echo long > "kept/$long/$long"
touch -d '2001-02-03 04:05:06' kept/random
"#;

/// What the second does to it: what is removed, and what one name of several becomes.
const SECOND: &str = "
cd data && rm -r removed removed-file removed-link && rm link && mkdir link && echo two > link/file
chmod 600 shared/file && mv kept/random kept/moved
";

/// What `buildah` does to it.
const THIRD: &str = "
cd data && rm -r replaced && mkdir replaced && echo newest > replaced/newest
rm kept/moved && echo three > three && ln three kept/three && mknod block b 7 0 && chmod 711 shared
";

fn shell(folder: &Path, script: &str) {
    finished(Command::new("sh").current_dir(folder).args(["-ec", script]));
}

/// Makes the layout `layout` in a folder, and `tree` of what it has.
fn make_with_umoci(folder: &Path) {
    let umoci = |args: &[&str]| finished(Command::new("umoci").current_dir(folder).args(args));
    umoci(&["init", "--layout", "layout"]);
    umoci(&["new", "--image", "layout:v1"]);
    umoci(&["unpack", "--image", "layout:v1", "bundle"]);
    for script in [FIRST, SECOND] {
        shell(&folder.join("bundle/rootfs"), script);
        umoci(&["repack", "--refresh-bundle", "--image", "layout:v1", "bundle"]);
    }
    fs::create_dir(folder.join("instead")).unwrap();
    fs::write(folder.join("instead/new"), "new\n").unwrap();
    umoci(&["insert", "--opaque", "--image", "layout:v1", "instead", "/data/replaced"]);
    umoci(&["config", "--image", "layout:v1", "--config.entrypoint", "/bin/busybox"]);
    umoci(&["unpack", "--image", "layout:v1", "tree"]);
}

/// `skopeo copy` without a policy of the host's.
fn copy(login: &str, options: &[&str], from: &str, to: &str) {
    let mut command = Command::new("skopeo");
    command.args(["copy", "--insecure-policy", "--dest-tls-verify=false", "--authfile"]);
    finished(command.arg(format!("{login}/config.json")).args(options).args([from, to]));
}

/// Adds a layer to the image `from` and puts it to `to`. Returns what is in it.
fn add_with_buildah(folder: &Path, login: &str, from: &str, to: &str) -> String {
    let login = format!("--authfile={login}/config.json");
    // Newer ones want a program for networks before they do anything, though no container runs.
    let (helpers, settings) = (folder.join("helpers"), folder.join("containers.conf"));
    fs::create_dir(&helpers).unwrap();
    fs::write(helpers.join("netavark"), "").unwrap();
    fs::set_permissions(helpers.join("netavark"), Permissions::from_mode(0o755)).unwrap();
    fs::write(&settings, format!("[engine]\nhelper_binaries_dir = [{helpers:?}]\n")).unwrap();
    let buildah = |args: &[&str]| {
        let mut command = Command::new("buildah");
        command.env("XDG_RUNTIME_DIR", folder).env("CONTAINERS_CONF", &settings);
        command.args(["--storage-driver", "vfs", "--root"]);
        finished(command.arg(folder.join("storage")).arg("--runroot").arg(folder).args(args))
    };
    let container = buildah(&["from", "--quiet", "--tls-verify=false", &login, from]);
    let tree = buildah(&["mount", &container]);
    shell(Path::new(&tree), THIRD);
    let to = format!("docker://{to}");
    buildah(&["commit", "--quiet", "--tls-verify=false", &login, &container, &to]);
    let listed = listed(Path::new(&tree));
    buildah(&["rm", &container]);
    listed
}

fn listed(tree: &Path) -> String {
    finished(Command::new("busybox").args(["sh", "-c", LIST]).arg(tree.join("data")))
}

#[test]
fn images_of_other_tools_become_templates() {
    let registry = DockerRegistry::start(Door::Password);
    let folder = tempfile::tempdir().unwrap();
    make_with_umoci(folder.path());
    let login = registry.logged_in();
    let [of_docker, of_oci, more] = ["docker", "oci", "more"].map(|tag| format!("team/app:{tag}"));
    let [of_docker, of_oci, more] = [of_docker, of_oci, more].map(|it| registry.reference(&it));
    let layout = format!("oci:{}/layout:v1", folder.path().display());
    let zstd = format!("oci:{}/zstd:v1", folder.path().display());
    copy(login, &["--format", "v2s2"], &layout, &format!("docker://{of_docker}"));
    copy(login, &["--dest-compress-format", "zstd"], &layout, &zstd);
    copy(login, &[], &zstd, &format!("docker://{of_oci}"));
    let of_umoci = listed(&folder.path().join("tree/rootfs"));
    let of_buildah = add_with_buildah(folder.path(), login, &of_oci, &more);

    // The password is for the mirror's host; the registry itself is nowhere.
    let mirrors = folder.path().join("registries.conf");
    let mirror = format!("mirror = [{{ location = '{}' }}]", registry.host);
    fs::write(&mirrors, format!("[[registry]]\nlocation = 'registry.invalid'\n{mirror}")).unwrap();
    let mirrors: &'static str = mirrors.display().to_string().leak();
    let variables = [("DOCKER_CONFIG", login), ("CONTAINERS_REGISTRIES_CONF", mirrors)];
    let forkd = Forkd::with_variables(&variables);
    let by_mirror = "registry.invalid/team/app:more".to_owned();
    for (reference, expected) in [(of_docker, of_umoci), (by_mirror, of_buildah)] {
        let template = ["template", "build", "--from", &reference, "--tag", "t"];
        forkd.ok(&[&template[..], &["--mem-size-mib", "128"]].concat());
        let found = forkd.ok(&["run", "t", "--", "sh", "-c", LIST, "/data"]);
        assert!(found.contains("/new") && !found.contains("/old"), "{found}");
        assert_eq!(found, expected, "{reference}");
        forkd.ok(&["snapshot", "rm", "t"]);
    }
    let stranger = Forkd::with_variables(&[("DOCKER_CONFIG", "/nonexistent")]);
    let (errors, _) = stranger.refused(&["template", "build", "--from", &more, "--tag", "t"]);
    assert!(errors.contains("docker login"), "{errors}");
}
