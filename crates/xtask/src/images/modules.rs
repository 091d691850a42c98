//! Which kernel modules to load, and in which order. Pure functions over what `depmod` wrote.

use anyhow::{Context, bail};

/// The module files (paths as in `modules.dep`) that make the wanted drivers work, in load order.
/// Drivers that are part of the kernel itself need no file.
///
/// Fails for a driver that the kernel does not have.
pub(super) fn load_order(
    wanted: &[String],
    modules_dep: &str,
    modules_builtin: &str,
) -> anyhow::Result<Vec<String>> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = modules_dep.lines().find_map(|line| {
            let (path, dependencies) = line.split_once(':')?;
            (module_name(path) == normal(name)).then_some((path, dependencies))
        });
        let Some((path, dependencies)) = line else {
            if modules_builtin.lines().any(|path| module_name(path) == normal(name)) {
                continue;
            }
            bail!("the kernel has no module {name}");
        };
        // depmod lists the module needed first at the end.
        for file in dependencies.split_whitespace().rev().chain([path]) {
            if !order.iter().any(|known| known == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// The file's name in the initramfs: position first, so that a listing shows the load order.
pub(super) fn file_name(position: usize, path: &str) -> String {
    format!("{position:02}-{}.ko", module_name(path))
}

/// How a module file is compressed.
#[derive(Debug, PartialEq)]
pub(super) enum Compression {
    /// Not at all.
    None,
    /// To be unpacked by this program, given `-dc`.
    Program(&'static str),
}

/// Tells it by the end of the path.
pub(super) fn compression(path: &str) -> anyhow::Result<Compression> {
    match path.rsplit_once(".ko").context("module paths end in .ko")?.1 {
        "" => Ok(Compression::None),
        ".xz" => Ok(Compression::Program("xz")),
        ".zst" => Ok(Compression::Program("zstd")),
        other => bail!("unknown module compression {other} of {path}"),
    }
}

/// The module's name as the kernel prints it.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    normal(file.split(".ko").next().unwrap_or(file))
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
k/virtio_ring.ko:
k/virtio.ko: k/virtio_ring.ko
k/virtio_mmio.ko: k/virtio.ko k/virtio_ring.ko
k/failover.ko.xz:
k/net_failover.ko: k/failover.ko.xz
k/virtio-net.ko: k/net_failover.ko k/failover.ko.xz k/virtio.ko k/virtio_ring.ko
";

    fn order(wanted: &[&str], builtin: &str) -> anyhow::Result<Vec<String>> {
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        Ok(load_order(&wanted, DEP, builtin)?.iter().map(|path| module_name(path)).collect())
    }

    #[test]
    fn dependencies_come_first_and_once() {
        assert_eq!(
            order(&["virtio_mmio", "virtio_net"], "").unwrap(),
            ["virtio_ring", "virtio", "virtio_mmio", "failover", "net_failover", "virtio_net"]
        );
    }

    #[test]
    fn a_builtin_driver_needs_no_file_and_an_unknown_one_is_refused_by_name() {
        let builtin = "kernel/drivers/block/virtio_blk.ko\n";
        assert_eq!(order(&["virtio-blk", "virtio_ring"], builtin).unwrap(), ["virtio_ring"]);
        assert!(order(&["virtio_gpu"], builtin).unwrap_err().to_string().contains("virtio_gpu"));
    }

    #[test]
    fn compression_is_told_by_the_ending() {
        assert_eq!(compression("a/b.ko").unwrap(), Compression::None);
        assert_eq!(compression("a/b.ko.xz").unwrap(), Compression::Program("xz"));
        assert!(compression("a/b.ko.lzma").is_err());
        assert!(compression("a/b").is_err());
    }

    #[test]
    fn file_names_sort_in_load_order() {
        assert_eq!(file_name(3, "kernel/drivers/net/virtio-net.ko.xz"), "03-virtio_net.ko");
    }
}
