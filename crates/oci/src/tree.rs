//! What an image has: one tree of files, merged from its layers in memory.
//!
//! Paths are looked up in this tree only, so a link or a `..` leads nowhere else. An entry whose
//! way goes through a symbolic link of the image is put where the link leads, as containerd does.
//!
//! Does not do: hold contents. A file knows the layer and the entry that has its content.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use crate::archive::{FileSize, Time};
use crate::limit::{LINKS_FOLLOWED_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX};

/// Index of a node in its tree.
pub(crate) type NodeId = usize;

pub(crate) const ROOT: NodeId = 0;

/// What a file is. Several names may be names of one node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) content: Content,
    pub(crate) facts: Facts,
}

/// Who may do what with a node, and since when.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    pub(crate) mode: u16,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) modified: Time,
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Content {
    Directory(BTreeMap<Vec<u8>, Child>),
    File(FileSize, Origin),
    Symlink(Vec<u8>),
    Character(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// Where the content of a file is.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// Number of the layer, and of the entry in it.
    Layer(usize, u64),
    /// Not in the image.
    Here(Vec<u8>),
}

/// A name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) node: NodeId,
    /// The last layer that has named it or something below it.
    layer: usize,
}

/// All files of an image.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// The layer that is being added.
    layer: usize,
}

impl Tree {
    /// An empty root.
    pub(crate) fn new() -> Self {
        Self { nodes: vec![directory()], layer: 0 }
    }

    /// From now on entries belong to the layer `number`.
    pub(crate) const fn begin_layer(&mut self, number: usize) {
        self.layer = number;
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// Puts a node at `path`. A directory over a directory keeps what is in it.
    pub(crate) fn put(&mut self, path: &[u8], node: Node) -> Result<(), String> {
        let Some((parent, name)) = self.place(path)? else {
            // The root.
            if !matches!(node.content, Content::Directory(_)) {
                return Err("the root is not a directory".to_owned());
            }
            self.nodes[ROOT].facts = node.facts;
            return Ok(());
        };
        let layer = self.layer;
        let known = self.children(parent)?.get(&name).map(|child| child.node);
        if let (Some(id), Content::Directory(_)) = (known, &node.content)
            && matches!(self.nodes[id].content, Content::Directory(_))
        {
            self.nodes[id].facts = node.facts;
            self.enter(parent, name, Child { node: id, layer })
        } else {
            let id = self.nodes.len();
            self.nodes.push(node);
            self.enter(parent, name, Child { node: id, layer })
        }
    }

    /// Whether there is something at `path`.
    pub(crate) fn has(&mut self, path: &[u8]) -> Result<bool, String> {
        let Some((parent, name)) = self.place(path)? else { return Ok(true) };
        Ok(self.children(parent)?.contains_key(&name))
    }

    /// Gives what is at `target` another name.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), String> {
        let no_target = || format!("its target `{}` does not exist", shown(target));
        let (folder, name) = self.place(target)?.ok_or_else(no_target)?;
        let node = self.children(folder)?.get(&name).ok_or_else(no_target)?.node;
        if matches!(self.nodes[node].content, Content::Directory(_)) {
            return Err("it is a hard link to a directory".to_owned());
        }
        let (parent, name) = self.place(path)?.ok_or("the root cannot be a link")?;
        let layer = self.layer;
        self.enter(parent, name, Child { node, layer })
    }

    /// Removes what lower layers have at `path`.
    pub(crate) fn hide(&mut self, path: &[u8]) -> Result<(), String> {
        let Some((parent, name)) = self.place(path)? else { return Ok(()) };
        let Some(child) = self.children(parent)?.get(&name).copied() else { return Ok(()) };
        if child.layer < self.layer {
            self.children(parent)?.remove(&name);
            return Ok(());
        }
        self.hide_below(child.node);
        Ok(())
    }

    /// Removes what lower layers have in the directory at `path`.
    pub(crate) fn hide_all(&mut self, path: &[u8]) -> Result<(), String> {
        let folder = match self.place(path)? {
            None => ROOT,
            Some((parent, name)) => match self.children(parent)?.get(&name) {
                Some(child) => child.node,
                None => return Ok(()),
            },
        };
        self.hide_below(folder);
        Ok(())
    }

    /// Keeps only what the layer that is being added has named.
    fn hide_below(&mut self, folder: NodeId) {
        let layer = self.layer;
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let Content::Directory(children) = &mut self.nodes[folder].content else { continue };
            children.retain(|_, child| child.layer >= layer);
            folders.extend(children.values().map(|child| child.node));
        }
    }

    /// The directory and the name in it that `path` means; none for the root. Missing directories
    /// are made, and links on the way are followed.
    fn place(&mut self, path: &[u8]) -> Result<Option<(NodeId, Vec<u8>)>, String> {
        if path.len() > PATH_BYTES_MAX || path.contains(&0) {
            return Err("its path is too long or has a zero byte".to_owned());
        }
        let mut ahead: VecDeque<Vec<u8>> = parts(path).collect();
        if ahead.iter().any(|part| part == b"..") {
            return Err("its path has `..` in it".to_owned());
        }
        let Some(name) = ahead.pop_back() else { return Ok(None) };
        check_name(&name)?;
        let (mut way, mut followed) = (vec![ROOT], 0);
        while let Some(part) = ahead.pop_front() {
            if part == b".." {
                // Of a link; above the root is the root.
                way.truncate(way.len().saturating_sub(1).max(1));
                continue;
            }
            check_name(&part)?;
            let here = way.last().copied().unwrap_or(ROOT);
            let next = self.step_into(here, &part)?;
            match &self.nodes[next].content {
                Content::Directory(_) => way.push(next),
                Content::Symlink(target) => {
                    followed += 1;
                    if followed > LINKS_FOLLOWED_MAX {
                        return Err("its path goes through too many symbolic links".to_owned());
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    for part in parts(target).collect::<Vec<_>>().into_iter().rev() {
                        ahead.push_front(part);
                    }
                }
                _ => return Err(format!("`{}` on its path is not a directory", shown(&part))),
            }
        }
        let parent = way.last().copied().unwrap_or(ROOT);
        Ok(Some((parent, name)))
    }

    /// What is called `part` in a directory, a new directory if there is nothing. It is named by
    /// this layer from now on.
    fn step_into(&mut self, folder: NodeId, part: &[u8]) -> Result<NodeId, String> {
        let (layer, fresh) = (self.layer, self.nodes.len());
        let children = self.children(folder)?;
        if let Some(child) = children.get_mut(part) {
            child.layer = layer;
            return Ok(child.node);
        }
        children.insert(part.to_vec(), Child { node: fresh, layer });
        self.nodes.push(directory());
        Ok(fresh)
    }

    fn children(&mut self, folder: NodeId) -> Result<&mut BTreeMap<Vec<u8>, Child>, String> {
        match &mut self.nodes[folder].content {
            Content::Directory(children) => Ok(children),
            _ => Err("what is above it is not a directory".to_owned()),
        }
    }

    fn enter(&mut self, folder: NodeId, name: Vec<u8>, child: Child) -> Result<(), String> {
        self.children(folder)?.insert(name, child);
        Ok(())
    }
}

impl Facts {
    /// Of root, with these permission bits.
    pub(crate) fn of_root(mode: u16) -> Self {
        Self { mode, ..Self::default() }
    }
}

fn directory() -> Node {
    Node { content: Content::Directory(BTreeMap::new()), facts: Facts::of_root(0o755) }
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/');
    parts.filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec)
}

fn check_name(name: &[u8]) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("a part of its path has more than {NAME_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// A path for people.
pub(crate) fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(&path[..path.len().min(200)]);
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
