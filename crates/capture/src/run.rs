//! Cutting and joining runs of pages.

use forkd_types::{PageIndex, PageRun};

/// Protecting what is protected costs less than another call.
const GAP_PAGES: u64 = 64;

/// `run` in pieces of at most `pages`.
pub(crate) fn pieces(run: PageRun, pages: u64) -> impl Iterator<Item = PageRun> {
    let (mut at, end) = (run.start.get(), run.end().get());
    std::iter::from_fn(move || {
        let piece = PageRun::new(at, pages.min(end - at));
        at = piece.end().get();
        (piece.count.get() > 0).then_some(piece)
    })
}

/// The longest runs within `run` whose pages are all `chosen`.
pub(crate) fn runs_within(
    run: PageRun,
    chosen: impl Fn(PageIndex) -> bool,
) -> impl Iterator<Item = PageRun> {
    let (mut at, end) = (run.start.get(), run.end().get());
    std::iter::from_fn(move || {
        let is_chosen = |page: &u64| chosen(PageIndex::new(*page));
        let first = (at..end).find(is_chosen)?;
        at = (first..end).find(|page| !is_chosen(page)).unwrap_or(end);
        Some(PageRun::new(first, at - first))
    })
}

/// Runs in the order of their starts, with the short gaps between them filled.
pub(crate) fn joined(runs: &[PageRun]) -> Vec<PageRun> {
    let mut joined: Vec<PageRun> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start.get() <= last.end().get() + GAP_PAGES => {
                let end = run.end().max(last.end());
                *last = PageRun::new(last.start.get(), end.get() - last.start.get());
            }
            _ => joined.push(*run),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_overlap_or_lie_close_together_become_one() {
        let runs = [(0, 1), (0, 8), (4, 2), (8 + GAP_PAGES, 1), (1000, 5), (1002, 1)];
        let runs = runs.map(|(start, count)| PageRun::new(start, count));
        assert_eq!(joined(&runs), [PageRun::new(0, 9 + GAP_PAGES), PageRun::new(1000, 5)]);
        assert_eq!(joined(&[]), []);
    }

    #[test]
    fn pieces_cover_a_run_once_and_only_the_last_is_shorter() {
        let cut = |run| pieces(run, 32).collect::<Vec<_>>();
        assert_eq!(cut(PageRun::new(5, 0)), []);
        assert_eq!(cut(PageRun::new(5, 32)), [PageRun::new(5, 32)]);
        assert_eq!(cut(PageRun::new(5, 40)), [PageRun::new(5, 32), PageRun::new(37, 8)]);
    }

    #[test]
    fn chosen_pages_of_a_run_come_as_the_longest_runs_there_are() {
        let of = |chosen: fn(u64) -> bool| {
            runs_within(PageRun::new(2, 6), |page| chosen(page.get())).collect::<Vec<_>>()
        };
        assert_eq!(of(|_| true), [PageRun::new(2, 6)]);
        assert_eq!(of(|_| false), []);
        assert_eq!(of(|page| page != 4), [PageRun::new(2, 2), PageRun::new(5, 3)]);
        assert_eq!(of(|page| page % 4 == 3), [PageRun::new(3, 1), PageRun::new(7, 1)]);
    }
}
