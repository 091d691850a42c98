//! A chain: what the next delta of a running guest builds on.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use forkd_types::{LayerId, PAGE_BYTES, PageIndex, PageRun};

use crate::flatten::{flatten, merge};
use crate::resolve::{ResolvedRun, overlay, resolve, union, within};
use crate::{Layer, LayerIndex, LayerWriter, StoreError, StoreFiles};

const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);

/// Layers, base first, and which of them has each page. Holds no file open. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chain {
    files: StoreFiles,
    layers: Vec<Arc<LayerIndex>>,
    resolved: Arc<Vec<ResolvedRun>>,
}

impl Chain {
    /// The chain of `layers`, base first.
    ///
    /// # Errors
    /// [`StoreError::LayerDamaged`] when they do not fit together.
    pub fn new(files: &StoreFiles, layers: Vec<Layer>) -> Result<Self, StoreError> {
        let layers = layers.into_iter().map(|layer| Arc::new(layer.index)).collect();
        Self::of_indexes(files, layers)
    }

    fn of_indexes(files: &StoreFiles, layers: Vec<Arc<LayerIndex>>) -> Result<Self, StoreError> {
        let indexes: Vec<_> = layers.iter().map(AsRef::as_ref).collect();
        let resolved = Arc::new(resolve(&indexes)?);
        Ok(Self { files: files.clone(), layers, resolved })
    }

    /// The chain with a delta on top, which is sealed here, because a layer names the one below it.
    /// Layers right below of which no page shows any more are left out.
    ///
    /// # Errors
    /// When the delta cannot be sealed.
    pub fn extended(
        &self,
        delta: LayerWriter,
        stored: Vec<PageRun>,
        zero: Vec<PageRun>,
    ) -> Result<Self, StoreError> {
        let top = self.layers.len();
        let mut above: Vec<PageRun> = stored.iter().chain(&zero).copied().collect();
        above.sort_unstable_by_key(|run| run.start);
        let mut resolved = overlay(&self.resolved, &above, top);
        let shows = |layer: usize| resolved.iter().any(|part| part.layer == layer);
        let mut kept = top;
        while kept > 1 && !shows(kept - 1) {
            kept -= 1;
        }
        for part in resolved.iter_mut().filter(|part| part.layer == top) {
            part.layer = kept;
        }
        let mut layers = self.layers[..kept].to_vec();
        let below = &self.layers[kept - 1].id;
        layers.push(Arc::new(delta.seal_delta(below, stored, zero)?.index));
        Ok(Self { files: self.files.clone(), layers, resolved: Arc::new(resolved) })
    }

    /// The chain with its layers from the `from`-th on merged into one, which is written here.
    ///
    /// # Errors
    /// When a layer is damaged or the hot directory is full.
    pub fn merged(&self, from: usize) -> Result<Self, StoreError> {
        let (kept, deltas) = self.layers.split_at(from);
        let Some(below) = kept.last() else { return Ok(self.clone()) };
        let deltas = self.open(deltas)?;
        let merged = merge(&self.files, &below.id, &deltas.iter().collect::<Vec<_>>())?;
        let mut layers = kept.to_vec();
        layers.push(Arc::new(merged.index));
        Self::of_indexes(&self.files, layers)
    }

    /// The chain as one base layer, which is written here.
    ///
    /// # Errors
    /// As [`Self::merged`].
    pub fn flattened(&self) -> Result<Self, StoreError> {
        let layers = self.open(&self.layers)?;
        let flat = flatten(&self.files, &layers.iter().collect::<Vec<_>>())?;
        Self::new(&self.files, vec![flat])
    }

    fn open(&self, layers: &[Arc<LayerIndex>]) -> Result<Vec<Layer>, StoreError> {
        layers.iter().map(|index| self.files.open_layer(&index.id)).collect()
    }

    /// The layers' ids, base first.
    #[must_use]
    pub fn ids(&self) -> Vec<LayerId> {
        self.layers.iter().map(|index| index.id.clone()).collect()
    }

    /// How many layers there are.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The pages that any layer stores, ascending and merged.
    #[must_use]
    pub fn stored(&self) -> Vec<PageRun> {
        union(self.layers.iter().flat_map(|index| index.stored.iter().copied()).collect())
    }

    /// A reader of what the chain shows.
    #[must_use]
    pub fn pages(&self) -> ChainPages {
        let open = self.layers.iter().map(|_| None).collect();
        ChainPages { chain: self.clone(), open, buffer: Vec::new() }
    }
}

/// Reads what a chain shows. Opens each layer when it is needed first, and keeps it open.
#[derive(Debug)]
pub struct ChainPages {
    chain: Chain,
    open: Vec<Option<File>>,
    buffer: Vec<u8>,
}

impl ChainPages {
    /// Compares consecutive pages with what the chain shows: one entry in `same` for each.
    ///
    /// # Errors
    /// When a layer cannot be read, or `data` reaches beyond the guest's memory.
    pub fn compare(
        &mut self,
        start: PageIndex,
        data: &[u8],
        same: &mut Vec<bool>,
    ) -> io::Result<()> {
        same.clear();
        let resolved = Arc::clone(&self.chain.resolved);
        let (first, end) = (start.get(), start.get() + (data.len() / PAGE) as u64);
        let mut at = first;
        let begin = resolved.partition_point(|part| part.run.end().get() <= first);
        for part in &resolved[begin..] {
            if at >= end {
                break;
            }
            let stop = part.run.end().get().min(end);
            let index = Arc::clone(&self.chain.layers[part.layer]);
            for run in within(&index.stored, PageRun::new(at, stop - at)) {
                push_zeros(data, first, at..run.start.get(), same);
                let bytes = offset(first, run.start.get())..offset(first, run.end().get());
                self.read(part.layer, run)?;
                let pairs = data[bytes].chunks_exact(PAGE).zip(self.buffer.chunks_exact(PAGE));
                same.extend(pairs.map(|(now, before)| now == before));
                at = run.end().get();
            }
            push_zeros(data, first, at..stop, same);
            at = stop;
        }
        if at == end { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Fills the buffer with pages that a layer stores.
    fn read(&mut self, layer: usize, run: PageRun) -> io::Result<()> {
        let file = match &mut self.open[layer] {
            Some(file) => file,
            closed => {
                let path = self.chain.files.hot_pages(&self.chain.layers[layer].id);
                closed.insert(File::open(path)?)
            }
        };
        self.buffer.resize(run.bytes().as_usize(), 0);
        file.read_exact_at(&mut self.buffer, run.start.byte_offset())
    }
}

/// Where page `page` is in data that begins at page `first`.
fn offset(first: u64, page: u64) -> usize {
    usize::try_from(page - first).unwrap_or(usize::MAX) * PAGE
}

/// Pages that no layer stores are zero.
fn push_zeros(data: &[u8], first: u64, pages: std::ops::Range<u64>, same: &mut Vec<bool>) {
    let zero = [0u8; PAGE];
    let data = &data[offset(first, pages.start)..offset(first, pages.end)];
    same.extend(data.chunks_exact(PAGE).map(|page| page == zero));
}

#[cfg(test)]
mod tests {
    use forkd_types::ByteCount;

    use super::*;
    use crate::files::temporary_store;
    use crate::{LayerWriter, StoreFiles};

    struct Store {
        _directories: [tempfile::TempDir; 2],
        files: StoreFiles,
    }

    impl Store {
        fn new() -> Self {
            let (files, directories) = temporary_store();
            Self { _directories: directories, files }
        }

        fn writer(&self, stored: &[(u64, u64)], fill: u8) -> (LayerWriter, Vec<PageRun>) {
            let size = ByteCount::from_mib(1);
            let writer = LayerWriter::create(&self.files, size, ByteCount::ZERO).unwrap();
            let file = writer.file().unwrap();
            let runs: Vec<_> = stored.iter().map(|(s, c)| PageRun::new(*s, *c)).collect();
            for run in &runs {
                let data = vec![fill; run.bytes().as_usize()];
                LayerWriter::write_pages(&file, run.start, &data).unwrap();
            }
            (writer, runs)
        }

        fn base(&self, stored: &[(u64, u64)], fill: u8) -> Layer {
            self.writer(stored, fill).0.seal_base().unwrap()
        }

        /// `chain` with a delta of these pages on top.
        fn extend(&self, chain: &Chain, stored: &[(u64, u64)], fill: u8, zero: &[u64]) -> Chain {
            let (writer, runs) = self.writer(stored, fill);
            let zero = zero.iter().map(|page| PageRun::new(*page, 1)).collect();
            chain.extended(writer, runs, zero).unwrap()
        }
    }

    /// What each page shows, found by asking for every value.
    fn shown(chain: &Chain) -> Vec<u8> {
        let mut pages = chain.pages();
        let mut shown = vec![u8::MAX; 256];
        for value in 0..5 {
            let mut same = Vec::new();
            pages.compare(PageIndex::new(0), &vec![value; 256 * PAGE], &mut same).unwrap();
            (0..256).filter(|page| same[*page]).for_each(|page| shown[page] = value);
        }
        shown
    }

    #[test]
    fn a_comparison_finds_for_each_page_what_the_topmost_layer_has() {
        let store = Store::new();
        let chain = Chain::new(&store.files, vec![store.base(&[(0, 10), (50, 10)], 1)]).unwrap();
        let chain = store.extend(&chain, &[(5, 10)], 2, &[0, 55]);
        let chain = store.extend(&chain, &[(8, 1), (100, 2)], 3, &[]);
        let mut want = [0u8; 256];
        want[0..10].fill(1);
        want[50..60].fill(1);
        want[5..15].fill(2);
        (want[0], want[55]) = (0, 0);
        want[8] = 3;
        want[100..102].fill(3);
        assert_eq!(shown(&chain), want);
        let mut same = Vec::new();
        let mut pages = chain.pages();
        pages.compare(PageIndex::new(99), &[3; 4 * PAGE], &mut same).unwrap();
        assert_eq!(same, [false, true, true, false]);
        pages.compare(PageIndex::new(255), &[0; 2 * PAGE], &mut same).unwrap_err();
    }

    #[test]
    fn layers_of_which_nothing_shows_are_left_out_and_nothing_changes() {
        let store = Store::new();
        let chain = Chain::new(&store.files, vec![store.base(&[(0, 256)], 1)]).unwrap();
        let chain = store.extend(&chain, &[(100, 1)], 3, &[]);
        let chain = store.extend(&chain, &[(10, 20)], 2, &[40]);
        assert_eq!(chain.depth(), 3);
        let covering = store.extend(&chain, &[(10, 20), (40, 1)], 4, &[]);
        assert_eq!(covering.depth(), 3, "the second delta is hidden by the last");
        let mut want = [1u8; 256];
        want[10..30].fill(4);
        want[40] = 4;
        want[100] = 3;
        assert_eq!(shown(&covering), want);
        let empty = store.extend(&covering, &[], 0, &[]);
        assert_eq!(empty.depth(), 4, "the top is kept: the device state is its");
        let empty = store.extend(&empty, &[], 0, &[]);
        assert_eq!((empty.depth(), shown(&empty)), (4, want.to_vec()));
        let again = Chain::new(&store.files, reopened(&store, &empty)).unwrap();
        assert_eq!(shown(&again), want, "each layer names the one that is below it now");
    }

    #[test]
    fn a_merged_chain_shows_the_same_and_goes_on() {
        let store = Store::new();
        let mut chain = Chain::new(&store.files, vec![store.base(&[(0, 256)], 1)]).unwrap();
        for page in 0..6u8 {
            chain = store.extend(&chain, &[(u64::from(page) * 2, 3)], page % 3 + 2, &[100]);
        }
        let merged = chain.merged(1).unwrap();
        assert_eq!((merged.depth(), shown(&merged)), (2, shown(&chain)));
        let longer = store.extend(&merged, &[(1, 1)], 4, &[]);
        let again = Chain::new(&store.files, reopened(&store, &longer)).unwrap();
        assert_eq!((again.depth(), shown(&again)[1]), (3, 4));
    }

    fn reopened(store: &Store, chain: &Chain) -> Vec<Layer> {
        chain.ids().iter().map(|id| Layer::open_hot(&store.files, id).unwrap()).collect()
    }
}
