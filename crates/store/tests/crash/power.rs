//! A loss of power, as far as a program can tell afterwards: tmpfs is empty; what was not flushed
//! is there, or in part, or not; names that were given or removed since their directory was flushed
//! are as they were at some moment since.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::log::Line;
use crate::model::Dice;

/// What the disk may not have yet.
#[derive(Debug, Default)]
struct Unflushed {
    /// By directory, in their order.
    names: BTreeMap<PathBuf, Vec<Line>>,
    content: BTreeSet<PathBuf>,
    /// Rows were changed since the last flush of the registry, which is not under way.
    rows: bool,
}

impl Unflushed {
    fn after(log: &[Line]) -> Self {
        let mut all = Self::default();
        let mut flushing = false;
        for line in log {
            match line {
                Line::Making(path) | Line::Removing(path, _) => all.name(path, line),
                Line::Renaming(from, to, _) => {
                    all.name(to, line);
                    if all.content.remove(from) {
                        all.content.insert(to.clone());
                    }
                }
                Line::Written(path) => drop(all.content.insert(path.clone())),
                Line::Synced(path) => drop(all.content.remove(path)),
                Line::Named(directory) => drop(all.names.remove(directory)),
                Line::Changed => all.rows = true,
                Line::Flushing => flushing = true,
                Line::Flushed => (flushing, all.rows) = (false, false),
                _ => {}
            }
        }
        // In the middle of a checkpoint the log is complete, by SQLite's own order of things.
        all.rows &= !flushing;
        all
    }

    fn name(&mut self, path: &Path, line: &Line) {
        let directory = path.parent().unwrap().to_owned();
        self.names.entry(directory).or_default().push(line.clone());
    }
}

/// Makes the directories what they may be after the power was lost at the end of `log`.
pub(crate) fn lose(state: &Path, hot: &Path, log: &[Line], dice: &mut Dice) {
    // The process may have died before it made it.
    fs::remove_dir_all(hot).ok();
    let unflushed = Unflushed::after(log);
    for path in &unflushed.content {
        spoil(path, dice);
    }
    for (directory, lines) in &unflushed.names {
        if directory.starts_with(hot) {
            continue;
        }
        let kept = dice.below(lines.len() + 1);
        lines[kept..].iter().rev().for_each(undo);
    }
    let log = state.join("registry.sqlite-wal");
    fs::remove_file(state.join("registry.sqlite-shm")).ok();
    if unflushed.rows && !dice.one_in(4) {
        let length = fs::metadata(&log).map_or(0, |file| file.len());
        let kept = dice.roll() % (length + 1);
        let file = OpenOptions::new().write(true).open(&log).unwrap();
        file.set_len(kept).unwrap();
    }
}

/// The file may have been renamed since; then its own name is not there.
fn spoil(path: &Path, dice: &mut Dice) {
    let Ok(metadata) = fs::metadata(path) else { return };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let at = dice.roll() % metadata.len().max(1);
    match dice.below(4) {
        0 => {}
        1 => file.set_len(0).unwrap(),
        2 => file.set_len(at).unwrap(),
        _ => {
            let length = (metadata.len() - at).min(4096);
            file.write_all_at(&vec![0; usize::try_from(length).unwrap()], at).unwrap();
        }
    }
}

/// The process may have died before it was done: then there is nothing to undo.
fn undo(line: &Line) {
    match line {
        Line::Making(path) => drop(fs::remove_file(path)),
        Line::Removing(path, Some(kept)) if !path.exists() => fs::hard_link(kept, path).unwrap(),
        Line::Renaming(from, to, kept) if !from.exists() && to.exists() => {
            fs::rename(to, from).unwrap();
            if let Some(kept) = kept {
                fs::hard_link(kept, to).unwrap();
            }
        }
        _ => {}
    }
}
