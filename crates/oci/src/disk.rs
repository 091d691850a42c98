//! From a pulled image to a root disk.
//!
//! The disk is an ext4 file system in a sparse file, with the files of the image and what the guest
//! agent needs beside them: mount points, and what the image says about its programs.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use crate::archive::FileSize;
use crate::ext4::{Plan, Writer};
use crate::layer::{Totals, contents, merge};
use crate::limit::DISK_FREE_BYTES;
use crate::manifest::ProgramConfig;
use crate::source::Watch;
use crate::tree::{Content, Facts, Node, NodeId, Origin, Tree};
use crate::{OciError, Pulled};

/// What programs of the image get: for people and programs, in the words of the specification.
const PROGRAM_FILE: &str = "/etc/forkd/image.json";
/// The same for the guest agent, in fields that end in a zero byte.
const DEFAULTS_FILE: &str = "/etc/forkd/image-defaults";

/// Directories that the guest agent mounts something on or looks into.
const DIRECTORIES: [(&str, u16); 8] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/etc/forkd", 0o755),
    ("/etc/forkd/on-fork.d", 0o755),
    ("/proc", 0o555),
    ("/run", 0o755),
    ("/sys", 0o555),
    ("/tmp", 0o1777),
];

/// A disk that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    /// Its size for the guest.
    pub bytes: u64,
}

/// Makes the disk of an image at `path`, where nothing may be. Blocks: call it where that is
/// allowed. Equal images give equal disks.
///
/// # Errors
/// See [`OciError`]. What is at `path` then is no disk.
pub fn build(image: &Pulled, path: &Path, watch: &dyn Watch) -> Result<Disk, OciError> {
    let (mut tree, mut totals) = (Tree::new(), Totals::default());
    for (number, (layer, digest)) in image.layers.iter().zip(&image.config.layers).enumerate() {
        merge(layer, number, digest, &mut tree, &mut totals, watch)?;
    }
    complete(&mut tree, &image.config.program, image.layers.len())
        .map_err(|problem| OciError::damaged(&image.name, problem))?;
    let file = File::options().read(true).write(true).create_new(true).open(path);
    let file = file.map_err(OciError::file(path))?;
    let failed = |error| OciError::file(path)(error);
    let plan = Plan::new(&tree, DISK_FREE_BYTES, &image.id.hex())
        .map_err(|problem| OciError::damaged(&image.name, problem))?;
    let bytes = plan.bytes();
    let mut writer = Writer::new(&tree, plan, file).map_err(failed)?;
    for (number, layer) in image.layers.iter().enumerate() {
        let wanted = wanted(&tree, writer.nodes(), number);
        contents(layer, number, watch, |entry, content| match wanted.get(&entry) {
            Some((node, size)) => writer.file(*node, size, content).map_err(failed),
            None => Ok(()),
        })?;
    }
    for node in writer.nodes().to_vec() {
        if let Content::File(size, Origin::Here(content)) = &tree.node(node).content {
            writer.file(node, size, &mut content.as_slice()).map_err(failed)?;
        }
    }
    writer.finish().map_err(failed)?;
    Ok(Disk { bytes })
}

/// The files whose content a layer has, by its entries.
fn wanted<'a>(
    tree: &'a Tree,
    nodes: &[NodeId],
    number: usize,
) -> HashMap<u64, (NodeId, &'a FileSize)> {
    let of_layer = |id: &NodeId| match &tree.node(*id).content {
        Content::File(size, Origin::Layer(layer, entry)) if *layer == number => {
            Some((*entry, (*id, size)))
        }
        _ => None,
    };
    nodes.iter().filter_map(of_layer).collect()
}

/// Adds what the guest agent needs, as a layer above all others.
fn complete(tree: &mut Tree, program: &ProgramConfig, layer: usize) -> Result<(), String> {
    tree.begin_layer(layer);
    for (path, mode) in DIRECTORIES {
        // What is there is left as it is, a link too: the agent's mounts follow it.
        if !tree.has(path.as_bytes())? {
            let content = Content::Directory(Default::default());
            tree.put(path.as_bytes(), Node { content, facts: Facts::of_root(mode) })?;
        }
    }
    // Docker makes it too.
    let directory = program.working_dir.as_bytes();
    if !tree.has(directory)? {
        let content = Content::Directory(Default::default());
        tree.put(directory, Node { content, facts: Facts::of_root(0o755) })?;
    }
    let text = serde_json::to_vec_pretty(program).map_err(|error| error.to_string())?;
    for (path, content) in [(PROGRAM_FILE, text), (DEFAULTS_FILE, defaults(program))] {
        let bytes = content.len() as u64;
        let size = FileSize { bytes, parts: vec![(0, bytes)] };
        let content = Content::File(size, Origin::Here(content));
        tree.put(path.as_bytes(), Node { content, facts: Facts::of_root(0o644) })?;
    }
    Ok(())
}

/// `env NAME=VALUE`, `cwd DIRECTORY` and `user USER`, each with a zero byte at its end.
fn defaults(program: &ProgramConfig) -> Vec<u8> {
    let named = |name: &'static str, text: &String| (name, text.clone());
    let variables = program.env.iter().map(|variable| named("env", variable));
    let others = [("cwd", &program.working_dir), ("user", &program.user)];
    let others = others.into_iter().filter(|(_, text)| !text.is_empty());
    let all = variables.chain(others.map(|(name, text)| named(name, text)));
    all.flat_map(|(name, text)| format!("{name} {text}\0").into_bytes()).collect()
}
