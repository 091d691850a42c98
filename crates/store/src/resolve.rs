//! From a chain of layers to what a child maps.

use forkd_types::{PageCount, PageRun};

use crate::{LayerIndex, LayerKind, StoreError};

/// Pages of guest RAM and the layer of the chain that has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResolvedRun {
    /// Which pages.
    pub run: PageRun,
    /// Position of the layer in the chain, from the base.
    pub layer: usize,
}

/// Resolves a chain, base first: ascending runs that cover all of guest RAM, each page from the
/// topmost layer that has it.
///
/// # Errors
/// [`StoreError::LayerDamaged`] when the lowest layer is not a base, another one is, one was made
/// over another layer than that below it, or sizes differ.
pub fn resolve(chain: &[&LayerIndex]) -> Result<Vec<ResolvedRun>, StoreError> {
    let mut resolved: Vec<ResolvedRun> = Vec::new();
    for (layer, index) in chain.iter().enumerate() {
        let damaged = |how: String| Err(StoreError::LayerDamaged { id: index.id.clone(), how });
        if index.memory != chain[0].memory {
            return damaged("it belongs to a guest of another memory size".to_owned());
        }
        if let (Some(made_over), Some(under)) = (&index.below, layer.checked_sub(1))
            && *made_over != chain[under].id
        {
            let under = &chain[under].id;
            return damaged(format!("it belongs above layer {made_over}, not above {under}"));
        }
        match (layer, index.kind) {
            (0, LayerKind::Base) => {
                let pages = index.memory.get() / forkd_types::PAGE_BYTES;
                resolved.push(ResolvedRun { run: PageRun::new(0, pages), layer });
            }
            (0, LayerKind::Delta) => {
                return damaged("it is at the bottom of a chain, but no base".to_owned());
            }
            (_, LayerKind::Base) => {
                return damaged("it is a base in the middle of a chain".to_owned());
            }
            (_, LayerKind::Delta) => resolved = overlay(&resolved, &runs_of(index), layer),
        }
    }
    Ok(resolved)
}

/// All runs of a delta, ascending: what it stores, and its zeros, which are holes of its file.
pub(crate) fn runs_of(index: &LayerIndex) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = index.stored.iter().chain(&index.zero).copied().collect();
    runs.sort_unstable_by_key(|run| run.start);
    runs
}

/// `below` with the pages of `above` replaced. Both ascending; `below` has no gaps.
pub(crate) fn overlay(below: &[ResolvedRun], above: &[PageRun], layer: usize) -> Vec<ResolvedRun> {
    let mut result = Vec::with_capacity(below.len() + 2 * above.len());
    let mut uppers = above.iter().peekable();
    for lower in below {
        let (mut at, end) = (lower.run.start.get(), lower.run.end().get());
        while at < end {
            let next = uppers.peek().map(|upper| (upper.start.get(), upper.end().get()));
            match next {
                Some((start, stop)) if start <= at => {
                    let stop_here = stop.min(end);
                    push(&mut result, at, stop_here, layer);
                    at = stop_here;
                    if stop_here == stop {
                        uppers.next();
                    }
                }
                Some((start, _)) if start < end => {
                    push(&mut result, at, start, lower.layer);
                    at = start;
                }
                _ => {
                    push(&mut result, at, end, lower.layer);
                    at = end;
                }
            }
        }
    }
    result
}

fn push(result: &mut Vec<ResolvedRun>, start: u64, end: u64, layer: usize) {
    match result.last_mut() {
        Some(last) if last.layer == layer && last.run.end().get() == start => {
            last.run = PageRun::new(last.run.start.get(), end - last.run.start.get());
        }
        _ => result.push(ResolvedRun { run: PageRun::new(start, end - start), layer }),
    }
}

/// Runs in any order as ascending runs without overlap.
pub(crate) fn union(mut runs: Vec<PageRun>) -> Vec<PageRun> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<PageRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if run.start <= last.end() => {
                let end = last.end().max(run.end());
                *last = PageRun::new(last.start.get(), end.get() - last.start.get());
            }
            _ => merged.push(run),
        }
    }
    merged
}

/// The parts of `runs`, which are ascending, that lie in `window`.
pub(crate) fn within(runs: &[PageRun], window: PageRun) -> Vec<PageRun> {
    let first = runs.partition_point(|run| run.end() <= window.start);
    let clip = |run: &PageRun| {
        let start = run.start.max(window.start);
        let end = run.end().min(window.end());
        PageRun { start, count: PageCount::new(end.get() - start.get()) }
    };
    runs[first..].iter().take_while(|run| run.start < window.end()).map(clip).collect()
}

#[cfg(test)]
mod tests {
    use forkd_types::{ByteCount, LayerId};

    use super::*;

    fn layer(kind: LayerKind, stored: &[(u64, u64)], zero: &[(u64, u64)]) -> LayerIndex {
        let runs = |list: &[(u64, u64)]| list.iter().map(|(s, c)| PageRun::new(*s, *c)).collect();
        LayerIndex {
            id: LayerId::random(),
            kind,
            below: None,
            memory: ByteCount::from_mib(1),
            stored: runs(stored),
            zero: runs(zero),
            pages_crc32: None,
        }
    }

    #[test]
    fn each_page_comes_from_the_topmost_layer_that_has_it() {
        // Against the obvious model: one owner a page, painted over layer by layer.
        let mut random = 12345u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let mut chain = vec![layer(LayerKind::Base, &[], &[])];
            let mut owner = [0usize; 256];
            for depth in 1..=next(5) {
                let (mut stored, mut zero, mut at) = (Vec::new(), Vec::new(), next(20));
                while at < 250 {
                    let count = 1 + next(5);
                    if next(3) == 0 { &mut zero } else { &mut stored }.push((at, count));
                    (at..at + count).for_each(|page| {
                        owner[usize::try_from(page).unwrap()] = usize::try_from(depth).unwrap();
                    });
                    at += count + next(30);
                }
                chain.push(layer(LayerKind::Delta, &stored, &zero));
            }
            let chain: Vec<&LayerIndex> = chain.iter().collect();
            let resolved = resolve(&chain).unwrap();
            let mut page = 0;
            for (number, part) in resolved.iter().enumerate() {
                assert_eq!(part.run.start.get(), page, "no gap, no overlap");
                for _ in 0..part.run.count.get() {
                    assert_eq!(part.layer, owner[usize::try_from(page).unwrap()], "page {page}");
                    page += 1;
                }
                assert!(number == 0 || resolved[number - 1].layer != part.layer, "maximal");
            }
            assert_eq!(page, 256);
        }
    }

    #[test]
    fn a_chain_that_does_not_fit_together_is_refused_by_name() {
        let delta = layer(LayerKind::Delta, &[(0, 1)], &[]);
        let base = layer(LayerKind::Base, &[], &[]);
        let over = |below: &LayerIndex| LayerIndex {
            below: Some(below.id.clone()),
            ..layer(LayerKind::Delta, &[(0, 1)], &[])
        };
        let lower = over(&base);
        let upper = over(&lower);
        let larger = LayerIndex { memory: ByteCount::from_mib(2), ..lower.clone() };
        let other_base = layer(LayerKind::Base, &[], &[]);
        assert!(resolve(&[&base, &lower, &upper]).is_ok());
        for (chain, culprit) in [
            (vec![&delta], &delta),
            (vec![&base, &base], &base),
            (vec![&base, &larger], &larger),
            (vec![&base, &upper], &upper),
            (vec![&base, &upper, &lower], &upper),
            (vec![&other_base, &lower], &lower),
        ] {
            let error = resolve(&chain).unwrap_err();
            assert!(error.to_string().contains(culprit.id.as_str()), "{error}");
        }
    }
}
