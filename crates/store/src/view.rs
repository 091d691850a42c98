//! What a child maps, bounded at any depth of its chain.
//!
//! A chain that was dirtied here and there resolves to many short runs, and each costs the child a
//! mapping: 2.5 us up to a thousand of them, 6 us from four thousand on. So beside the layers there
//! may be a *mapping view* of a chain:
//!
//! * the runs, so that no index is read when a child starts;
//! * where those would be more than [`limit::RUNS_PER_VIEW_MAX`], a sparse file that holds all
//!   pages of the raggedest 2 MiB regions, each of which is then one run.
//!
//! ```text
//! layers   | a | b |a|c|b|a|b| a        |     a, b, c: who has the page
//! child    | a | b | the view | a       |
//! ```
//!
//! Pages that no layer stores are zeros of the child's own, never a hole of a file: for a page of a
//! hole that a child touches, even to write it, the kernel takes a page of the hot directory, and
//! the child dies if there is none.
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
use crate::resolve::{resolve, within};
use crate::{Layer, StoreError, StoreFiles, space};

/// Pages of one region: what one entry of an upper page table covers.
const REGION_PAGES: u64 = 512;

/// What a child maps: runs that cover all of guest RAM, ascending.
#[derive(Debug)]
pub struct MappingPlan {
    /// The files mapped, each laid out like guest RAM: the chain's layers, base first, and then the
    /// view.
    pub files: Vec<File>,
    /// The runs.
    pub runs: Vec<PlannedRun>,
    /// Whether a view would make it cheaper.
    pub wants_view: bool,
}

/// Consecutive pages that come from one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedRun {
    /// Which pages.
    pub run: PageRun,
    /// Where they come from.
    pub source: PageSource,
}

/// Where pages of a child come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSource {
    /// The file at this position of [`MappingPlan::files`], which has every one of them.
    File(usize),
    /// Nowhere: they are zero.
    Zeros,
}

impl MappingPlan {
    /// The file that has the pages of `part`, unless they are zero.
    #[must_use]
    pub fn file(&self, part: &PlannedRun) -> Option<&File> {
        match part.source {
            PageSource::File(number) => self.files.get(number),
            PageSource::Zeros => None,
        }
    }
}

/// The file beside the pages of a view.
#[derive(Debug, Serialize, Deserialize)]
struct ViewIndex {
    memory: ByteCount,
    layers: Vec<LayerId>,
    has_pages: bool,
    /// Start, count, file; no file for zeros.
    parts: Vec<(u64, u64, Option<usize>)>,
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
        let runs = plan_layers(&layers)?;
        Ok(MappingPlan {
            wants_view: wants_view(chain, &runs),
            runs,
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
        let planned = |&(start, count, file): &(u64, u64, Option<usize>)| {
            let source = file.map_or(PageSource::Zeros, PageSource::File);
            let known = file.is_none_or(|file| file < files.len());
            known.then(|| PlannedRun { run: PageRun::new(start, count), source })
        };
        let runs = index.parts.iter().map(planned).collect::<Option<Vec<_>>>()?;
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
        let direct = plan_layers(&layers)?;
        if !wants_view(chain, &direct) {
            return Ok(());
        }
        let view = PageSource::File(layers.len());
        let regions = regions_to_copy(&direct, view, limit::RUNS_PER_VIEW_MAX);
        if !regions.is_empty() {
            self.write_view_pages(top, &layers, &direct, &regions)?;
        }
        let entry = |part: &PlannedRun| {
            let file = match part.source {
                PageSource::File(number) => Some(number),
                PageSource::Zeros => None,
            };
            (part.run.start.get(), part.run.count.get(), file)
        };
        let index = ViewIndex {
            memory: layers[0].index.memory,
            layers: chain.to_vec(),
            has_pages: !regions.is_empty(),
            parts: consolidated(&direct, view, &regions).iter().map(entry).collect(),
        };
        let path = self.view_index(top);
        put(&path, |path| fs::write(path, index.encode()?))
            .map_err(|source| StoreError::file("write", &path, source))
    }

    fn write_view_pages(
        &self,
        top: &LayerId,
        layers: &[Layer],
        direct: &[PlannedRun],
        regions: &BTreeSet<u64>,
    ) -> Result<(), StoreError> {
        let mut copied: Vec<(PageSource, PageRun)> = Vec::new();
        for part in direct {
            let inside = pieces(part.run).filter(|(_, region)| regions.contains(region));
            copied.extend(inside.map(|(piece, _)| (part.source, piece)));
        }
        space::require(self.hot(), copied.iter().map(|(_, run)| run.bytes()).sum())?;
        let path = self.view_pages(top);
        let write = |path: &Path| {
            let file = fresh(path)?;
            file.set_len(layers[0].index.memory.get())?;
            for (source, run) in &copied {
                // Zeros too: a view has no holes where it is mapped.
                reserve(&file, &[*run])?;
                if let PageSource::File(layer) = source {
                    copy_runs(&layers[*layer].pages, &file, &[*run])?;
                }
            }
            fs::set_permissions(path, fs::Permissions::from_mode(0o400))
        };
        put(&path, write).map_err(|source| StoreError::file("write", &path, source))
    }

    fn open_layers(&self, chain: &[LayerId]) -> Result<Vec<Layer>, StoreError> {
        chain.iter().map(|id| self.open_layer(id)).collect()
    }
}

/// What a child maps without a view.
fn plan_layers(layers: &[Layer]) -> Result<Vec<PlannedRun>, StoreError> {
    let resolved = resolve(&layers.iter().map(|layer| &layer.index).collect::<Vec<_>>())?;
    let mut planned = Vec::with_capacity(resolved.len());
    for part in resolved {
        let (mut at, end) = (part.run.start.get(), part.run.end().get());
        for stored in within(&layers[part.layer].index.stored, part.run) {
            push(&mut planned, at, stored.start.get(), PageSource::Zeros);
            at = stored.end().get();
            push(&mut planned, stored.start.get(), at, PageSource::File(part.layer));
        }
        push(&mut planned, at, end, PageSource::Zeros);
    }
    Ok(planned)
}

/// Appends the pages from `start` to `end`, if there are any.
fn push(planned: &mut Vec<PlannedRun>, start: u64, end: u64, source: PageSource) {
    if start == end {
        return;
    }
    let run = PageRun::new(start, end - start);
    match planned.last_mut() {
        Some(last) if last.source == source => last.run.count += run.count,
        _ => planned.push(PlannedRun { run, source }),
    }
}

fn wants_view(chain: &[LayerId], direct: &[PlannedRun]) -> bool {
    chain.len() > limit::LAYERS_READ_AT_START_MAX || direct.len() > limit::RUNS_PER_VIEW_MAX
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

/// As few regions as give at most `most` runs, the raggedest first. Where even all of them do not,
/// stretches of zeros that are larger than a region come on top.
fn regions_to_copy(direct: &[PlannedRun], view: PageSource, most: usize) -> BTreeSet<u64> {
    // A run that begins inside a region is one that copying the region saves.
    let mut saved: BTreeMap<u64, usize> = BTreeMap::new();
    for part in direct {
        let start = part.run.start.get();
        if !start.is_multiple_of(REGION_PAGES) {
            *saved.entry(start / REGION_PAGES).or_default() += 1;
        }
    }
    let mut order: Vec<(usize, u64)> = saved.into_iter().map(|(region, n)| (n, region)).collect();
    order.sort_unstable_by(|a, b| b.cmp(a));
    let first = |count: usize| order[..count].iter().map(|(_, region)| *region).collect();
    let enough = |count: usize| consolidated(direct, view, &first(count)).len() <= most;
    let (mut low, mut high) = (0, order.len());
    while low < high {
        let middle = usize::midpoint(low, high);
        if enough(middle) { high = middle } else { low = middle + 1 }
    }
    if enough(low) {
        return first(low);
    }
    // Even with every region that a run begins in, the borders of regions are too many.
    let has_pages = |part: &&PlannedRun| part.source != PageSource::Zeros;
    let touched = |part: &PlannedRun| {
        part.run.start.get() / REGION_PAGES..part.run.end().get().div_ceil(REGION_PAGES)
    };
    direct.iter().filter(has_pages).flat_map(touched).collect()
}

/// `direct` with `regions` taken from the view.
fn consolidated(
    direct: &[PlannedRun],
    view: PageSource,
    regions: &BTreeSet<u64>,
) -> Vec<PlannedRun> {
    let mut result = Vec::new();
    for part in direct {
        let (start, end) = (part.run.start.get(), part.run.end().get());
        let mut at = start;
        let touched = start / REGION_PAGES..end.div_ceil(REGION_PAGES);
        for region in regions.range(touched) {
            let first = (region * REGION_PAGES).max(at);
            let stop = ((region + 1) * REGION_PAGES).min(end);
            push(&mut result, at, first, part.source);
            push(&mut result, first, stop, view);
            at = stop;
        }
        push(&mut result, at, end, part.source);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use forkd_sys::mapping::PrivateMapping;
    use forkd_types::PageIndex;

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
    fn ragged(dice: &mut Dice, pages: u64, runs: u64) -> Vec<PlannedRun> {
        let mut cuts: BTreeSet<u64> = (0..runs - 1).map(|_| 1 + dice.below(pages - 1)).collect();
        cuts.insert(pages);
        let mut at = 0;
        let part = |(number, cut): (usize, u64)| {
            let run = PageRun::new(at, cut - at);
            at = cut;
            let sources = [PageSource::File(0), PageSource::Zeros, PageSource::File(1)];
            PlannedRun { run, source: sources[number % 3] }
        };
        cuts.into_iter().enumerate().map(part).collect()
    }

    /// Runs of zeros that can hold a whole region.
    fn zero_stretches(direct: &[PlannedRun]) -> usize {
        let large = |part: &&PlannedRun| {
            part.source == PageSource::Zeros && part.run.count.get() >= REGION_PAGES
        };
        direct.iter().filter(large).count()
    }

    #[test]
    fn runs_are_bounded_however_ragged_the_chain_and_no_page_changes_its_layer() {
        let mut dice = Dice(7);
        for (pages, runs) in
            [(1, 2), (600, 2), (1 << 16, 1000), (1 << 16, 20_000), (1 << 18, 9_000)]
        {
            let direct = ragged(&mut dice, pages.max(2), runs);
            let view = PageSource::File(2);
            for most in [1, 50, 1024] {
                let regions = regions_to_copy(&direct, view, most);
                let planned = consolidated(&direct, view, &regions);
                let bound = most + 2 * zero_stretches(&direct);
                assert!(planned.len() <= bound, "{} of {bound}", planned.len());
                assert!(direct.len() > most || regions.is_empty(), "copied for nothing");
                let (mut at, mut parts) = (0, direct.iter().peekable());
                for PlannedRun { run, source } in planned {
                    assert_eq!(run.start.get(), at, "no gap, no overlap");
                    at = run.end().get();
                    if source == view {
                        continue;
                    }
                    while parts.next_if(|part| part.run.end() <= run.start).is_some() {}
                    let part = parts.peek().unwrap();
                    assert!(part.source == source && run.end() <= part.run.end(), "{run:?}");
                }
                assert_eq!(at, pages.max(2));
            }
        }
    }

    #[test]
    fn only_the_ragged_regions_are_copied() {
        // Two regions of a hundred are full of short runs.
        let of = |start, count, file| PlannedRun {
            run: PageRun::new(start, count),
            source: PageSource::File(file),
        };
        let mut direct = vec![of(0, 10 * REGION_PAGES, 0)];
        for page in 10 * REGION_PAGES..12 * REGION_PAGES {
            direct.push(of(page, 1, usize::from(page.is_multiple_of(2))));
        }
        direct.push(of(12 * REGION_PAGES, 88 * REGION_PAGES, 0));
        let regions = regions_to_copy(&direct, PageSource::File(2), 100);
        assert_eq!(regions, BTreeSet::from([10, 11]));
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
                if let Some(file) = plan.file(planned) {
                    file.read_exact_at(&mut bytes, planned.run.start.byte_offset()).unwrap();
                }
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
    fn no_page_that_a_child_touches_takes_room_in_the_hot_directory() {
        use std::os::unix::fs::MetadataExt;
        let store = store();
        let touched = |plan: &MappingPlan| {
            let blocks = || plan.files.iter().map(|file| file.metadata().unwrap().blocks()).sum();
            let before: u64 = blocks();
            for planned in &plan.runs {
                let Some(file) = plan.file(planned) else { continue };
                let mapping = PrivateMapping::of(file, ByteCount::from_mib(32)).unwrap();
                for page in planned.run.start.get()..planned.run.end().get() {
                    mapping.store(PageIndex::new(page), 0, 7);
                }
            }
            blocks() - before
        };
        assert_eq!(touched(&store.plan()), 0, "layers");
        assert!(store.plan().runs.iter().any(|part| part.source == PageSource::Zeros));
        store.files.make_view(&store.chain).unwrap();
        assert!(!store.plan().wants_view);
        assert_eq!(touched(&store.plan()), 0, "layers and a view");
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
