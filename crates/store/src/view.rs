//! What a child maps, bounded at any depth of its chain.
//!
//! A chain that was dirtied here and there resolves to many short runs, and each costs the child a
//! mapping: 2.5 us up to a thousand of them, 6 us from four thousand on. So beside the layers there
//! may be a *mapping view* of a chain:
//!
//! * the resolved runs, so that no index is read when a child starts;
//! * where those would be more than [`limit::RUNS_PER_VIEW_MAX`], a sparse file that holds all
//!   pages of the raggedest 2 MiB regions, each of which is then one run.
//!
//! ```text
//! layers   | a | b |a|c|b|a|b| a        |     a, b, c: who has the page
//! child    | a | b | the view | a       |
//! ```
//!
//! A view goes by the name of the chain's top layer: each layer names the one below, so the top
//! names the chain. It lies in the hot directory only and can be made anew from the layers at any
//! time: it is no part of the snapshot, a damaged one is ignored, and the durable layers stay as
//! small as they are.
//!
//! Does not do: decide when a view is made, or when it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::PoisonError;

use forkd_types::{ByteCount, LayerId, PageRun, limit};
use serde::{Deserialize, Serialize};

use crate::disk::{copy_runs, fresh, put, reserve};
use crate::layer::open_pages;
use crate::resolve::{ResolvedRun, resolve, within};
use crate::{Layer, StoreError, StoreFiles, space};

/// Pages of one region: what one entry of an upper page table covers.
const REGION_PAGES: u64 = 512;

/// What a child maps: runs that cover all of guest RAM, ascending.
#[derive(Debug)]
pub struct MappingPlan {
    /// The files mapped, each laid out like guest RAM.
    pub files: Vec<File>,
    /// The runs.
    pub runs: Vec<PlannedRun>,
    /// Whether a view would make it cheaper.
    pub wants_view: bool,
}

/// Consecutive pages that come from one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    /// Which pages.
    pub run: PageRun,
    /// Position of the file in [`MappingPlan::files`]: the chain's layers, base first, and then the
    /// view.
    pub file: usize,
}

/// The file beside the pages of a view.
#[derive(Debug, Serialize, Deserialize)]
struct ViewIndex {
    memory: ByteCount,
    layers: Vec<LayerId>,
    has_pages: bool,
    /// Start, count, file.
    runs: Vec<(u64, u64, usize)>,
}

impl ViewIndex {
    /// JSON, and before it the checksum of the JSON in a line of its own.
    fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let mut bytes = format!("{:08x}\n", crc32fast::hash(&json)).into_bytes();
        bytes.extend(json);
        Ok(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (checksum, json) = bytes.split_at_checked(9)?;
        let wanted = format!("{:08x}\n", crc32fast::hash(json));
        if checksum != wanted.as_bytes() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

impl StoreFiles {
    /// What a child of `chain`, base first, maps. Hot copies that are gone are made anew.
    ///
    /// # Errors
    /// When a layer is missing or damaged, or the chain does not fit together.
    pub fn mapping_plan(&self, chain: &[LayerId]) -> Result<MappingPlan, StoreError> {
        if let Some(plan) = self.planned_by_view(chain) {
            return Ok(plan);
        }
        let layers = self.open_layers(chain)?;
        let resolved = resolve_layers(&layers)?;
        let planned = |part: &ResolvedRun| PlannedRun { run: part.run, file: part.layer };
        Ok(MappingPlan {
            wants_view: wants_view(chain, &resolved),
            runs: resolved.iter().map(planned).collect(),
            files: layers.into_iter().map(|layer| layer.pages).collect(),
        })
    }

    /// The plan that the view of `chain` holds. None when there is none, when it is damaged, or
    /// when a layer is not as it should be, or not yet checked: whoever opens the layers then finds
    /// out.
    fn planned_by_view(&self, chain: &[LayerId]) -> Option<MappingPlan> {
        let top = chain.last()?;
        let index = ViewIndex::decode(&fs::read(self.view_index(top)).ok()?)?;
        if index.layers != chain {
            return None;
        }
        let whole = |file: &File| file.metadata().is_ok_and(|m| m.len() == index.memory.get());
        let open = |path: &Path| open_pages(path).ok().filter(whole);
        let open_good = |id: &LayerId| {
            let turn = self.known().turn(id);
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.known().note_use(id);
            self.known().is_good(id).then(|| open(&self.hot_pages(id)))?
        };
        let mut files = chain.iter().map(open_good).collect::<Option<Vec<_>>>()?;
        if index.has_pages {
            files.push(open(&self.view_pages(top))?);
        }
        let planned = |(start, count, file): &(u64, u64, usize)| {
            (*file < files.len())
                .then(|| PlannedRun { run: PageRun::new(*start, *count), file: *file })
        };
        let runs = index.runs.iter().map(planned).collect::<Option<Vec<_>>>()?;
        Some(MappingPlan { files, runs, wants_view: false })
    }

    /// Makes the view of `chain`, unless there is one or none is wanted.
    ///
    /// # Errors
    /// As [`Self::mapping_plan`], and [`StoreError::NoSpace`].
    pub fn make_view(&self, chain: &[LayerId]) -> Result<(), StoreError> {
        let Some(top) = chain.last() else { return Ok(()) };
        if self.planned_by_view(chain).is_some() {
            return Ok(());
        }
        let layers = self.open_layers(chain)?;
        let resolved = resolve_layers(&layers)?;
        if !wants_view(chain, &resolved) {
            return Ok(());
        }
        let regions = regions_to_copy(&resolved, limit::RUNS_PER_VIEW_MAX);
        if !regions.is_empty() {
            self.write_view_pages(top, &layers, &resolved, &regions)?;
        }
        let runs = consolidated(&resolved, &regions);
        let index = ViewIndex {
            memory: layers[0].index.memory,
            layers: chain.to_vec(),
            has_pages: !regions.is_empty(),
            runs: runs
                .iter()
                .map(|(run, layer)| {
                    (run.start.get(), run.count.get(), layer.unwrap_or(layers.len()))
                })
                .collect(),
        };
        let path = self.view_index(top);
        put(&path, |path| fs::write(path, index.encode()?))
            .map_err(|source| StoreError::file("write", &path, source))
    }

    fn write_view_pages(
        &self,
        top: &LayerId,
        layers: &[Layer],
        resolved: &[ResolvedRun],
        regions: &BTreeSet<u64>,
    ) -> Result<(), StoreError> {
        let mut parts: Vec<(usize, Vec<PageRun>)> = Vec::new();
        for part in resolved {
            for (piece, _) in pieces(part.run).filter(|(_, region)| regions.contains(region)) {
                parts.push((part.layer, within(&layers[part.layer].index.stored, piece)));
            }
        }
        let expected = parts.iter().flat_map(|(_, runs)| runs).map(|run| run.bytes()).sum();
        space::require(self.hot(), expected)?;
        let path = self.view_pages(top);
        let write = |path: &Path| {
            let file = fresh(path)?;
            file.set_len(layers[0].index.memory.get())?;
            for (layer, runs) in &parts {
                reserve(&file, runs)?;
                copy_runs(&layers[*layer].pages, &file, runs)?;
            }
            fs::set_permissions(path, fs::Permissions::from_mode(0o400))
        };
        put(&path, write).map_err(|source| StoreError::file("write", &path, source))
    }

    fn open_layers(&self, chain: &[LayerId]) -> Result<Vec<Layer>, StoreError> {
        chain.iter().map(|id| self.open_layer(id)).collect()
    }
}

fn resolve_layers(layers: &[Layer]) -> Result<Vec<ResolvedRun>, StoreError> {
    resolve(&layers.iter().map(|layer| &layer.index).collect::<Vec<_>>())
}

fn wants_view(chain: &[LayerId], resolved: &[ResolvedRun]) -> bool {
    chain.len() > limit::LAYERS_READ_AT_START_MAX || resolved.len() > limit::RUNS_PER_VIEW_MAX
}

/// `run` cut at the borders of regions, each piece with its region.
fn pieces(run: PageRun) -> impl Iterator<Item = (PageRun, u64)> {
    let (mut at, end) = (run.start.get(), run.end().get());
    std::iter::from_fn(move || {
        let region = at / REGION_PAGES;
        let stop = ((region + 1) * REGION_PAGES).min(end);
        let piece = (at < end).then(|| (PageRun::new(at, stop - at), region));
        at = stop;
        piece
    })
}

/// As few regions as give at most `most` runs, the raggedest first.
fn regions_to_copy(resolved: &[ResolvedRun], most: usize) -> BTreeSet<u64> {
    // A run that begins inside a region is one that copying the region saves.
    let mut saved: BTreeMap<u64, usize> = BTreeMap::new();
    for part in resolved {
        let start = part.run.start.get();
        if !start.is_multiple_of(REGION_PAGES) {
            *saved.entry(start / REGION_PAGES).or_default() += 1;
        }
    }
    let mut order: Vec<(usize, u64)> = saved.into_iter().map(|(region, n)| (n, region)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let first = |count: usize| order[..count].iter().map(|(_, region)| *region).collect();
    let enough = |count: usize| consolidated(resolved, &first(count)).len() <= most;
    let (mut low, mut high) = (0, order.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if enough(middle) { high = middle } else { low = middle + 1 }
    }
    if enough(low) {
        return first(low);
    }
    // Even with every region that a run begins in, the borders of regions are too many.
    let pages = resolved.last().map_or(0, |part| part.run.end().get());
    (0..pages.div_ceil(REGION_PAGES)).collect()
}

/// `resolved` with `regions` taken from the view (none) instead of a layer.
fn consolidated(
    resolved: &[ResolvedRun],
    regions: &BTreeSet<u64>,
) -> Vec<(PageRun, Option<usize>)> {
    let mut result: Vec<(PageRun, Option<usize>)> = Vec::new();
    let mut push = |piece: PageRun, file: Option<usize>| match result.last_mut() {
        Some((run, last)) if *last == file => run.count += piece.count,
        _ => result.push((piece, file)),
    };
    for part in resolved {
        let (start, end) = (part.run.start.get(), part.run.end().get());
        let mut at = start;
        let touched = start / REGION_PAGES..end.div_ceil(REGION_PAGES);
        for region in regions.range(touched) {
            let first = (region * REGION_PAGES).max(at);
            let stop = ((region + 1) * REGION_PAGES).min(end);
            if at < first {
                push(PageRun::new(at, first - at), Some(part.layer));
            }
            push(PageRun::new(first, stop - first), None);
            at = stop;
        }
        if at < end {
            push(PageRun::new(at, end - at), Some(part.layer));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::files::temporary_store;
    use crate::{LayerWriter, flatten};

    /// Pseudo-random numbers, the same at every run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    /// A chain's runs over `pages` pages, `runs` at most.
    fn ragged(dice: &mut Dice, pages: u64, runs: u64) -> Vec<ResolvedRun> {
        let mut cuts: BTreeSet<u64> = (0..runs - 1).map(|_| 1 + dice.below(pages - 1)).collect();
        cuts.insert(pages);
        let mut at = 0;
        let part = |(number, cut): (usize, u64)| {
            let run = PageRun::new(at, cut - at);
            at = cut;
            ResolvedRun { run, layer: number % 2 }
        };
        cuts.into_iter().enumerate().map(part).collect()
    }

    #[test]
    fn runs_are_bounded_however_ragged_the_chain_and_no_page_changes_its_layer() {
        let mut dice = Dice(7);
        for (pages, runs) in
            [(1, 2), (600, 2), (1 << 16, 1000), (1 << 16, 20_000), (1 << 18, 9_000)]
        {
            let resolved = ragged(&mut dice, pages.max(2), runs);
            for most in [1, 50, 1024] {
                let regions = regions_to_copy(&resolved, most);
                let planned = consolidated(&resolved, &regions);
                assert!(planned.len() <= most, "{} of {most}", planned.len());
                assert!(resolved.len() > most || regions.is_empty(), "copied for nothing");
                let (mut at, mut parts) = (0, resolved.iter().peekable());
                for (run, layer) in planned {
                    assert_eq!(run.start.get(), at, "no gap, no overlap");
                    at = run.end().get();
                    let Some(layer) = layer else { continue };
                    while parts.next_if(|part| part.run.end() <= run.start).is_some() {}
                    let part = parts.peek().unwrap();
                    assert!(part.layer == layer && run.end() <= part.run.end(), "{run:?}");
                }
                assert_eq!(at, pages.max(2));
            }
        }
    }

    #[test]
    fn only_the_ragged_regions_are_copied() {
        // Two regions of a hundred are full of short runs.
        let base = ResolvedRun { run: PageRun::new(0, 10 * REGION_PAGES), layer: 0 };
        let mut resolved = vec![base];
        for page in 10 * REGION_PAGES..12 * REGION_PAGES {
            let layer = usize::from(page.is_multiple_of(2));
            resolved.push(ResolvedRun { run: PageRun::new(page, 1), layer });
        }
        let rest = PageRun::new(12 * REGION_PAGES, 88 * REGION_PAGES);
        resolved.push(ResolvedRun { run: rest, layer: 0 });
        assert_eq!(regions_to_copy(&resolved, 100), BTreeSet::from([10, 11]));
    }

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
        chain: Vec<LayerId>,
    }

    /// 32 MiB, a base with holes and two deltas, of which the upper has every other page of 16 MiB.
    fn store() -> Store {
        let (files, directories) = temporary_store();
        let size = ByteCount::from_mib(32);
        let mut chain: Vec<LayerId> = Vec::new();
        let every_other = (0..2048).map(|n| PageRun::new(n * 2, 1)).collect();
        let deltas = [vec![PageRun::new(100, 900)], every_other];
        for stored in std::iter::once(vec![PageRun::new(0, 600)]).chain(deltas) {
            let writer = LayerWriter::create(&files, size, ByteCount::ZERO).unwrap();
            let file = writer.file().unwrap();
            let fill = u8::try_from(chain.len() + 1).unwrap();
            for run in &stored {
                let data = vec![fill; run.bytes().as_usize()];
                LayerWriter::write_pages(&file, run.start, &data).unwrap();
            }
            let layer = match chain.last() {
                None => writer.seal_base(),
                Some(below) => writer.seal_delta(below, stored, vec![PageRun::new(8001, 1)]),
            };
            chain.push(layer.unwrap().index.id);
        }
        Store { _directories: directories, files, chain }
    }

    impl Store {
        fn plan(&self) -> MappingPlan {
            self.files.mapping_plan(&self.chain).unwrap()
        }

        fn memory(plan: &MappingPlan) -> Vec<u8> {
            let mut memory = Vec::new();
            for planned in &plan.runs {
                let mut bytes = vec![0; planned.run.bytes().as_usize()];
                let file = &plan.files[planned.file];
                file.read_exact_at(&mut bytes, planned.run.start.byte_offset()).unwrap();
                memory.extend(bytes);
            }
            memory
        }
    }

    #[test]
    fn a_view_shows_the_same_memory_with_few_runs() {
        let store = store();
        let direct = store.plan();
        assert!(direct.wants_view && direct.runs.len() > 4000, "{}", direct.runs.len());
        store.files.make_view(&store.chain).unwrap();
        let viewed = store.plan();
        assert!(!viewed.wants_view && viewed.runs.len() <= limit::RUNS_PER_VIEW_MAX);
        let layers = store.files.open_layers(&store.chain).unwrap();
        let flat = flatten(&store.files, &layers.iter().collect::<Vec<_>>()).unwrap();
        let mut want = vec![0; 32 << 20];
        flat.pages.read_exact_at(&mut want, 0).unwrap();
        assert!(Store::memory(&direct) == want && Store::memory(&viewed) == want);
    }

    #[test]
    fn a_view_does_not_hide_that_a_layer_is_gone() {
        let store = store();
        store.files.make_view(&store.chain).unwrap();
        for id in store.chain.clone() {
            let path = store.files.hot_pages(&id);
            fs::rename(&path, path.with_extension("away")).unwrap();
            let error = store.files.mapping_plan(&store.chain).unwrap_err();
            assert!(error.to_string().contains(id.as_str()), "{error}");
            fs::rename(path.with_extension("away"), path).unwrap();
        }
        assert!(!store.plan().wants_view);
    }

    #[test]
    fn a_damaged_view_is_ignored_and_made_anew_and_goes_with_its_layer() {
        let store = store();
        let top = store.chain.last().unwrap();
        let (pages, index) = (store.files.view_pages(top), store.files.view_index(top));
        for path in [&pages, &index] {
            store.files.make_view(&store.chain).unwrap();
            let want = Store::memory(&store.plan());
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(2000).unwrap();
            let plan = store.plan();
            assert!(plan.wants_view && Store::memory(&plan) == want);
            store.files.make_view(&store.chain).unwrap();
            assert!(!store.plan().wants_view);
        }
        store.files.remove_layer(top);
        assert!(!pages.exists() && !index.exists());
    }
}
