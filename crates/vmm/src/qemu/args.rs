//! From a specification to QEMU's command line. Pure: no file is touched.

use std::ffi::OsString;

use forkd_types::{Accelerator, CpuModel, network};
use qapi::qmp;
use serde_json::json;

use super::jail::Names;
use crate::{Abilities, Disk, DiskOverlay, Start, VmSpec};

/// Sockets that QEMU listens on, in the order in which their descriptors are passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listeners {
    /// The guest agent's port.
    pub(crate) agent: i32,
    /// The serial console.
    pub(crate) console: i32,
    /// The near end of the network link, if the VM has a network device.
    pub(crate) network: Option<i32>,
    /// Monitors; see [`super::monitor::Role`].
    pub(crate) monitors: [i32; super::monitor::Role::COUNT],
}

/// Translation cache of the emulator, MiB. Python's start and its work with a dozen modules fill
/// about 50 MiB. With 32 they are as fast, because little is translated anew; with 16 they take
/// twice as long.
const TCG_CACHE_MIB: u32 = 32;

/// QEMU's own filter of system calls, with all that it can deny.
pub(super) const SANDBOX: &str =
    "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// The machine that every VMM has: no PCI, no legacy devices that a Linux guest does not need.
pub const MACHINE: &str = "microvm,memory-backend=ram,suppress-vmdesc=on";

/// The block node of the base image.
pub(crate) const BASE_NODE: &str = "base";

/// The levels of x86-64 as its psABI (section 3.1.1) defines them, over the model that has no more
/// than x86-64 itself. A host that lacks any of it starts no VMM.
/// XSAVEOPT is not in level 3, but all processors of that level have it, and without it an emulated
/// guest with XSAVE stands still when it boots (QEMU 7.2, Linux 6.1).
const LEVEL_2: &str = "qemu64,enforce,+lahf-lm,+popcnt,+sse4.1,+sse4.2,+ssse3";
const LEVEL_3: &str = "qemu64,enforce,+lahf-lm,+popcnt,+sse4.1,+sse4.2,+ssse3,\
                       +abm,+avx,+avx2,+bmi1,+bmi2,+f16c,+fma,+movbe,+xsave,+xsaveopt";

/// The CPU model under `accelerator`, in QEMU's words. Device state is bound to it. Five-level
/// paging is off because emulating it makes every page walk longer and no guest here needs 57-bit
/// addresses.
#[must_use]
pub const fn cpu_model(accelerator: Accelerator, model: CpuModel) -> &'static str {
    match (model, accelerator) {
        (CpuModel::Host, Accelerator::Kvm) => "host,migratable=on",
        (CpuModel::Host, Accelerator::Tcg) => "max,la57=off",
        (CpuModel::V2, _) => LEVEL_2,
        (CpuModel::V3, _) => LEVEL_3,
    }
}

/// The CPU model that these words of QEMU's mean, whatever the host is.
#[must_use]
pub fn cpu_model_of(words: &str) -> CpuModel {
    match words {
        LEVEL_2 => CpuModel::V2,
        LEVEL_3 => CpuModel::V3,
        _ => CpuModel::Host,
    }
}

/// The arguments after the program's name. One that is confined filters its own system calls.
pub(crate) fn arguments(
    spec: &VmSpec,
    listeners: Listeners,
    abilities: Abilities,
) -> Vec<OsString> {
    let mut args = Args::default();
    // Tells whose process this is; see `process::processes_in`. Commas in values are doubled.
    // Its threads have names, so that a vCPU's time can be told from the rest.
    let directory = spec.directory.to_string_lossy().replace(',', ",,");
    args.pair("-name", &format!("{directory},debug-threads=on"));
    args.pair("-machine", MACHINE);
    args.pair("-accel", &accelerator(spec, abilities));
    args.pair("-cpu", cpu_model(spec.accelerator, spec.cpu));
    args.pair("-smp", &spec.vcpus.to_string());
    memory(&mut args, spec);
    args.flag("-nodefaults").flag("-no-user-config").flag("-no-reboot");
    args.pair("-display", "none");
    // The configuration section repeats the command line; without it the device state is smaller.
    args.pair("-global", "migration.send-configuration=off");
    let names = Names::of(spec);
    match spec.start {
        Start::Boot => {
            args.path("-kernel", names.kernel().as_os_str());
            args.path("-initrd", names.initramfs().as_os_str());
            args.pair("-append", &command_line(spec));
        }
        // The guest has left the firmware behind: QEMU would hold a copy of the kernel for nobody.
        Start::Load => {
            args.flag("-S");
            args.pair("-incoming", "defer");
        }
    }
    console(&mut args, listeners.console);
    agent_port(&mut args, listeners.agent);
    if let Some(disk) = &spec.disk {
        root_disk(&mut args, disk, names);
    }
    if let Some(fd) = listeners.network {
        network_device(&mut args, fd);
    }
    for (number, fd) in listeners.monitors.iter().enumerate() {
        args.pair("-chardev", &format!("socket,id=monitor{number},fd={fd},server=on,wait=off"));
        args.pair("-mon", &format!("chardev=monitor{number},mode=control"));
    }
    if spec.confinement.jail.is_some() && abilities.own_filter {
        args.pair("-sandbox", SANDBOX);
    }
    args.0
}

fn accelerator(spec: &VmSpec, abilities: Abilities) -> String {
    let at_once = spec.vcpus == 1 || abilities.emulates_in_parallel;
    match spec.accelerator {
        Accelerator::Kvm => "kvm".to_owned(),
        Accelerator::Tcg => {
            let threads = if at_once { "multi" } else { "single" };
            format!("tcg,thread={threads},tb-size={TCG_CACHE_MIB}")
        }
    }
}

/// The kernel's command line. An emulated guest is told the frequency of its time stamp counter and
/// to trust it and its timer: on a loaded host one boot in six hung while it calibrated them.
fn command_line(spec: &VmSpec) -> String {
    let given = &spec.boot.command_line;
    match spec.accelerator {
        Accelerator::Kvm => given.clone(),
        Accelerator::Tcg => {
            let kilohertz = forkd_sys::tsc::kilohertz();
            format!("{given} tsc_early_khz={kilohertz} tsc=reliable no_timer_check")
        }
    }
}

#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    fn flag(&mut self, name: &str) -> &mut Self {
        self.0.push(name.into());
        self
    }

    fn pair(&mut self, name: &str, value: &str) {
        self.0.push(name.into());
        self.0.push(value.into());
    }

    fn path(&mut self, name: &str, value: &std::ffi::OsStr) {
        self.0.push(name.into());
        self.0.push(value.to_owned());
    }

    fn blockdev(&mut self, options: &serde_json::Value) {
        self.pair("-blockdev", &options.to_string());
    }
}

fn memory(args: &mut Args, spec: &VmSpec) {
    let share = matches!(spec.ram, crate::RamBacking::File(_));
    let backend = json!({
        "qom-type": "memory-backend-file",
        "id": "ram",
        "size": spec.memory.get(),
        "mem-path": Names::of(spec).ram(),
        "share": share,
    });
    args.pair("-object", &backend.to_string());
    args.pair("-m", &format!("{}B", spec.memory.get()));
}

fn console(args: &mut Args, fd: i32) {
    args.pair("-chardev", &format!("socket,id=console,fd={fd},server=on,wait=off"));
    args.pair("-serial", "chardev:console");
}

fn agent_port(args: &mut Args, fd: i32) {
    args.pair("-chardev", &format!("socket,id=agent,fd={fd},server=on,wait=off"));
    args.pair("-device", "virtio-serial-device,max_ports=2");
    args.pair("-device", "virtserialport,chardev=agent,name=forkd.agent");
}

fn root_disk(args: &mut Args, disk: &Disk, names: Names<'_>) {
    args.blockdev(&json!({
        "driver": "file", "node-name": "base-file", "filename": names.base(disk),
        "read-only": true, "locking": "off",
    }));
    args.blockdev(&json!({
        "driver": "raw", "node-name": BASE_NODE, "file": "base-file", "read-only": true,
    }));
    let mut below = BASE_NODE.to_owned();
    for (number, overlay) in disk.overlays.iter().enumerate() {
        let frozen = number + 1 < disk.overlays.len();
        args.blockdev(&overlay_file(&names.overlay(overlay), frozen));
        args.blockdev(&overlay_format(overlay, frozen, Some(&below)));
        below.clone_from(&overlay.node);
    }
    // An error of the host's disk is the guest's to deal with: by default QEMU would stop the vCPUs
    // when there is no space, and nobody would start them again.
    let errors = "werror=report,rerror=report";
    args.pair("-device", &format!("virtio-blk-device,drive={below},{errors}"));
}

/// The device never announces itself: every child has the addresses of its template, on a link of
/// its own. Its properties are part of the device state of every snapshot that has it.
fn network_device(args: &mut Args, fd: i32) {
    args.pair("-netdev", &format!("dgram,id=network,local.type=fd,local.str={fd}"));
    let mac = network::GUEST_MAC.map(|byte| format!("{byte:02x}")).join(":");
    let mtu = network::LINK_MTU;
    // Without a status the link is up from the beginning. With one, Linux takes up to a second
    // until it believes so, and a template that is frozen meanwhile has children that find it out
    // anew.
    let device = format!("mac={mac},host_mtu={mtu},guest_announce=off,mq=off,status=off");
    args.pair("-device", &format!("virtio-net-device,netdev=network,{device}"));
    args.pair("-global", "migration.announce-rounds=0");
}

/// The block node of the overlay with the given number.
pub(crate) fn overlay_node(number: usize) -> String {
    format!("overlay{number}")
}

/// The block nodes of an overlay, in the order in which they can be removed.
pub(super) fn nodes_of(overlay: &DiskOverlay) -> [String; 2] {
    [overlay.node.clone(), format!("{}-file", overlay.node)]
}

/// The number of the overlay that the block node `name` belongs to, if it is one of ours. Each has
/// a node for its format and one for its file.
pub(crate) fn overlay_number(name: &str) -> Option<usize> {
    let name = name.strip_suffix("-file").unwrap_or(name);
    name.strip_prefix("overlay")?.parse().ok()
}

/// The node of an overlay's file. Locking is off because the store guarantees that an overlay has
/// one writer, and frozen ones none. QEMU reads commands byte by byte, at 5 us or more for each, so
/// no option is given that changes nothing.
fn overlay_file(overlay: &crate::DiskOverlay, read_only: bool) -> serde_json::Value {
    let options = json!({
        "driver": "file", "node-name": format!("{}-file", overlay.node),
        "filename": overlay.path, "locking": "off",
    });
    with_access(options, read_only)
}

/// The qcow2 node on top of it.
fn overlay_format(
    overlay: &crate::DiskOverlay,
    read_only: bool,
    backing: Option<&str>,
) -> serde_json::Value {
    let options = json!({
        "driver": "qcow2", "node-name": overlay.node,
        "file": format!("{}-file", overlay.node),
    });
    let mut options = with_access(options, read_only);
    if !read_only {
        options["discard"] = json!("unmap");
    }
    if let Some(below) = backing {
        options["backing"] = json!(below);
    }
    options
}

/// Flushes stop at a node that is written: durability is the store's business.
fn with_access(mut options: serde_json::Value, read_only: bool) -> serde_json::Value {
    match read_only {
        true => options["read-only"] = json!(true),
        false => options["cache"] = json!({ "no-flush": true }),
    }
    options
}

/// The commands that make `overlay` known to a running VM: above `below`, or not yet above
/// anything.
///
/// # Errors
/// Never for a valid overlay; the typed command refuses what QEMU's schema does not have.
pub(crate) fn add_overlay(
    overlay: &crate::DiskOverlay,
    below: Option<&str>,
) -> Result<[qmp::blockdev_add; 2], serde_json::Error> {
    Ok([
        serde_json::from_value(overlay_file(overlay, false))?,
        serde_json::from_value(overlay_format(overlay, false, below))?,
    ])
}

/// The commands that make a frozen `overlay` known to a VM, above `below`.
///
/// # Errors
/// As [`add_overlay`].
pub(crate) fn add_frozen_overlay(
    overlay: &crate::DiskOverlay,
    below: &str,
) -> Result<[qmp::blockdev_add; 2], serde_json::Error> {
    Ok([
        serde_json::from_value(overlay_file(overlay, true))?,
        serde_json::from_value(overlay_format(overlay, true, Some(below)))?,
    ])
}

/// All options of a frozen `overlay`, above `below`, for closing it for writing: of its format,
/// which then wants no more, and of its file.
///
/// # Errors
/// As [`add_overlay`].
pub(super) fn frozen_options(
    overlay: &crate::DiskOverlay,
    below: &str,
) -> Result<[qmp::BlockdevOptions; 2], serde_json::Error> {
    Ok([
        serde_json::from_value(overlay_format(overlay, true, Some(below)))?,
        serde_json::from_value(overlay_file(overlay, true))?,
    ])
}

/// All options of an overlay that takes writes, for putting something else below it.
///
/// # Errors
/// As [`add_overlay`].
pub(crate) fn overlay_options(
    overlay: &crate::DiskOverlay,
    below: &str,
) -> Result<qmp::BlockdevOptions, serde_json::Error> {
    serde_json::from_value(overlay_format(overlay, false, Some(below)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forkd_types::{ByteCount, limit::Deadlines};

    use super::*;
    use crate::{BootSource, Confinement, DiskOverlay, RamBacking};

    fn spec() -> VmSpec {
        VmSpec {
            accelerator: Accelerator::Tcg,
            cpu: CpuModel::Host,
            memory: ByteCount::from_mib(256),
            vcpus: 2,
            boot: BootSource {
                kernel: "/k".into(),
                initramfs: "/i".into(),
                command_line: "quiet a=b".into(),
            },
            ram: RamBacking::Layers { placeholder: "/hot/ram".into() },
            network_device: true,
            disk: Some(Disk::new("/base".into(), ["/o0", "/o1"].map(PathBuf::from))),
            directory: "/run/vm".into(),
            start: Start::Load,
            deadlines: Deadlines::default(),
            confinement: Confinement::default(),
        }
    }

    fn booting() -> VmSpec {
        VmSpec { start: Start::Boot, ram: RamBacking::File("/hot/ram".into()), ..spec() }
    }

    fn line(spec: &VmSpec) -> String {
        line_with(spec, Abilities::default())
    }

    fn line_with(spec: &VmSpec, abilities: Abilities) -> String {
        let network = spec.network_device.then_some(10);
        let monitors = [3, 4, 5, 6, 7];
        let listeners = Listeners { agent: 9, console: 8, network, monitors };
        let args = arguments(spec, listeners, abilities);
        args.iter().map(|a| a.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_child_waits_for_device_state_over_private_memory() {
        let line = line(&spec());
        assert!(line.contains("-S -incoming defer"), "{line}");
        assert!(line.contains(r#""share":false"#), "{line}");
        assert!(line.contains("-m 268435456B"), "{line}");
    }

    #[test]
    fn the_words_of_a_cpu_model_mean_that_model_on_every_host() {
        for accelerator in [Accelerator::Kvm, Accelerator::Tcg] {
            for cpu in CpuModel::ALL {
                let line = line(&VmSpec { accelerator, cpu, ..spec() });
                let words = line.split("-cpu ").nth(1).unwrap().split(' ').next().unwrap();
                assert_eq!(cpu_model_of(words), cpu, "{words}");
            }
        }
        assert_eq!(cpu_model_of("EPYC"), CpuModel::Host, "and is compared with the host's");
    }

    #[test]
    fn a_template_boots_on_shared_memory() {
        let line = line(&booting());
        assert!(!line.contains("-incoming") && line.contains(r#""share":true"#), "{line}");
    }

    #[test]
    fn only_what_boots_has_a_kernel_in_the_memory_of_its_vmm() {
        for option in ["-kernel", "-initrd", "-append"] {
            assert!(line(&booting()).contains(option), "{option}");
            assert!(!line(&spec()).contains(option), "{option}");
        }
    }

    #[test]
    fn vcpus_are_emulated_at_the_same_time_only_where_that_is_sound() {
        let threads = |vcpus, emulates_in_parallel| {
            let abilities = Abilities { emulates_in_parallel, ..Abilities::default() };
            let line = line_with(&VmSpec { vcpus, ..spec() }, abilities);
            line.split("thread=").nth(1).unwrap().split(',').next().unwrap().to_owned()
        };
        assert_eq!(threads(2, false), "single");
        assert_eq!(threads(2, true), "multi");
        // One vCPU has nobody to race with, and a thread of its own leaves the main loop free.
        assert_eq!(threads(1, false), "multi");
        let kvm = line(&VmSpec { accelerator: Accelerator::Kvm, ..spec() });
        assert!(kvm.contains("-accel kvm") && !kvm.contains("thread="), "{kvm}");
    }

    #[test]
    fn only_the_top_overlay_is_writable_and_each_names_the_one_below() {
        let line = line(&spec());
        assert!(line.contains(r#""backing":"base""#) && line.contains(r#""backing":"overlay0""#));
        let writable = line.matches(r#""driver":"qcow2""#).count()
            - line.matches(r#""node-name":"overlay0","read-only":true"#).count();
        assert_eq!(writable, 1, "{line}");
        assert!(line.contains("virtio-blk-device,drive=overlay1"));
    }

    #[test]
    fn the_guest_writes_to_no_file_of_the_host_but_its_disk() {
        let line = line(&spec());
        assert!(line.contains("socket,id=console,fd=8,server=on,wait=off"), "{line}");
        for device in ["file,id=", "path=", "stdio", "pipe,"] {
            assert!(!line.contains(device), "{device} in {line}");
        }
    }

    #[test]
    fn the_directory_tells_whose_process_it_is() {
        assert!(line(&spec()).contains("-name /run/vm,"));
    }

    #[test]
    fn a_network_device_comes_after_what_machines_without_one_have() {
        let with = line(&spec());
        let without = line(&VmSpec { network_device: false, ..spec() });
        assert!(!without.contains("net"), "{without}");
        assert!(with.contains("local.str=10 -device virtio-net-device,netdev=network"), "{with}");
        assert!(with.contains("mac=02:66:6f:72:6b:02,host_mtu=65520,guest_announce=off"), "{with}");
        // A device's place on the bus is its place on the command line.
        let devices = |line: &str| line.matches("-device ").count();
        assert_eq!(devices(&with), devices(&without) + 1);
        assert!(with.rfind("-device virtio-net").unwrap() > with.rfind("virtio-blk").unwrap());
    }

    #[test]
    fn a_disk_error_is_told_to_the_guest_and_does_not_stop_it() {
        let line = line(&spec());
        assert!(line.contains("werror=report") && line.contains("rerror=report"), "{line}");
    }

    #[test]
    fn both_nodes_of_an_overlay_have_its_number_and_other_nodes_none() {
        let overlay = DiskOverlay { path: "/o".into(), node: overlay_node(12) };
        for node in nodes_of(&overlay) {
            assert_eq!(overlay_number(&node), Some(12), "{node}");
        }
        for other in ["base", "base-file", "overlay", "overlay-file", "#block123"] {
            assert_eq!(overlay_number(other), None, "{other}");
        }
    }

    #[test]
    fn an_added_overlay_passes_the_typed_schema_and_has_nothing_below_yet() {
        let overlay = DiskOverlay { path: "/o2".into(), node: "overlay2".into() };
        let [file, format] = add_overlay(&overlay, None).unwrap();
        let file = serde_json::to_value(&file).unwrap();
        let format = serde_json::to_value(&format).unwrap();
        assert_eq!(file["filename"], "/o2");
        assert_eq!(format["driver"], "qcow2");
        // The blank file names no backing file either, so nothing is below until the snapshot.
        assert!(format.get("backing").is_none(), "{format}");
    }
}
