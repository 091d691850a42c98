//! Several layers as one.

use forkd_types::{ByteCount, LayerId, PageRun};

use crate::disk::{copy_runs, reserve};
use crate::resolve::{ResolvedRun, overlay, resolve, runs_of, union, within};
use crate::{Layer, LayerIndex, LayerWriter, StoreError, StoreFiles};

/// Writes the pages of `chain`, base first, into one base layer that depends on no other.
///
/// # Errors
/// When the chain does not fit together or the hot directory is full.
pub fn flatten(files: &StoreFiles, chain: &[&Layer]) -> Result<Layer, StoreError> {
    let indexes: Vec<_> = chain.iter().map(|layer| &layer.index).collect();
    let resolved = resolve(&indexes)?;
    let expected: ByteCount = stored_union(chain).iter().map(|run| run.bytes()).sum();
    let memory = indexes.first().map_or(ByteCount::ZERO, |index| index.memory);
    let writer = LayerWriter::create(files, memory, expected)?;
    let failed = |source| StoreError::file("flatten into", writer.path(), source);
    let target = writer.file().map_err(failed)?;
    for part in resolved {
        let layer = chain[part.layer];
        let pages = within(&layer.index.stored, part.run);
        reserve(&target, &pages).map_err(failed)?;
        copy_runs(&layer.pages, &target, &pages).map_err(failed)?;
    }
    writer.seal_base()
}

/// Writes the pages of consecutive deltas, lowest first, into one delta that may take their place
/// over the layer `below`.
///
/// # Errors
/// When the layers are of different guests or the hot directory is full.
pub(crate) fn merge(
    files: &StoreFiles,
    below: &LayerId,
    deltas: &[&Layer],
) -> Result<Layer, StoreError> {
    let memory = deltas.first().map_or(ByteCount::ZERO, |layer| layer.index.memory);
    let whole = PageRun::new(0, memory.get() / forkd_types::PAGE_BYTES);
    let mut resolved = vec![ResolvedRun { run: whole, layer: NO_LAYER }];
    for (number, delta) in deltas.iter().enumerate() {
        if delta.index.memory != memory {
            let how = "it belongs to a guest of another memory size".to_owned();
            return Err(StoreError::LayerDamaged { id: delta.index.id.clone(), how });
        }
        resolved = overlay(&resolved, &runs_of(&delta.index), number);
    }
    let parts = || resolved.iter().filter(|part| part.layer != NO_LAYER);
    let runs = |of: fn(&LayerIndex) -> &[PageRun]| -> Vec<PageRun> {
        parts().flat_map(|part| within(of(&deltas[part.layer].index), part.run)).collect()
    };
    let (stored, zero) = (runs(|index| &index.stored), runs(|index| &index.zero));
    let writer = LayerWriter::create(files, memory, stored.iter().map(|run| run.bytes()).sum())?;
    let failed = |source| StoreError::file("merge into", writer.path(), source);
    let target = writer.file().map_err(failed)?;
    reserve(&target, &stored).map_err(failed)?;
    for part in parts() {
        let layer = deltas[part.layer];
        copy_runs(&layer.pages, &target, &within(&layer.index.stored, part.run)).map_err(failed)?;
    }
    writer.seal_delta(below, stored, zero)
}

/// In [`merge`]: what is below all deltas.
const NO_LAYER: usize = usize::MAX;

/// The pages that any layer of the chain stores, ascending and merged.
#[must_use]
pub fn stored_union(chain: &[&Layer]) -> Vec<PageRun> {
    union(chain.iter().flat_map(|layer| layer.index.stored.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::files::temporary_store;

    fn layer(
        files: &StoreFiles,
        stored: &[(u64, u64)],
        fill: u8,
        below: Option<&LayerId>,
        zero: &[u64],
    ) -> Layer {
        let writer = LayerWriter::create(files, ByteCount::from_mib(1), ByteCount::ZERO).unwrap();
        let file = writer.file().unwrap();
        let runs: Vec<_> = stored.iter().map(|(s, c)| PageRun::new(*s, *c)).collect();
        for run in &runs {
            let data = vec![fill; run.bytes().as_usize()];
            LayerWriter::write_pages(&file, run.start, &data).unwrap();
        }
        let zero = zero.iter().map(|page| PageRun::new(*page, 1)).collect();
        match below {
            None => writer.seal_base(),
            Some(below) => writer.seal_delta(below, runs, zero),
        }
        .unwrap()
    }

    #[test]
    fn a_flattened_chain_holds_what_the_chain_shows() {
        let (files, _directories) = temporary_store();
        let base = layer(&files, &[(0, 10), (50, 10)], 1, None, &[]);
        let middle = layer(&files, &[(5, 10)], 2, Some(&base.index.id), &[0, 55]);
        let top = layer(&files, &[(8, 1), (100, 2)], 3, Some(&middle.index.id), &[]);
        let flat = flatten(&files, &[&base, &middle, &top]).unwrap();
        let mut want = [0u8; 256];
        want[0..10].fill(1);
        want[50..60].fill(1);
        want[5..15].fill(2);
        (want[0], want[55]) = (0, 0);
        want[8] = 3;
        want[100..102].fill(3);
        for (page, want) in want.into_iter().enumerate() {
            let mut got = [9u8; 4096];
            flat.pages.read_exact_at(&mut got, page as u64 * 4096).unwrap();
            assert!(got.iter().all(|byte| *byte == want), "page {page}");
        }
        let stored: u64 = flat.index.stored.iter().map(|run| run.count.get()).sum();
        assert_eq!(stored, 15 + 10 + 2 - 1, "zero pages are holes, but for a small hole");
    }
}
