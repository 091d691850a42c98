//! How long the phases of something took that happens in phases.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::Named;

/// How long each phase took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseTimes<P>(BTreeMap<P, Duration>);

impl<P> Default for PhaseTimes<P> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<P: Named + Ord> PhaseTimes<P> {
    /// Records a phase; a second record of the same phase adds to the first.
    pub fn record(&mut self, phase: P, took: Duration) {
        *self.0.entry(phase).or_default() += took;
    }

    /// The time of `phase`, if it has been recorded.
    #[must_use]
    pub fn get(&self, phase: P) -> Option<Duration> {
        self.0.get(&phase).copied()
    }

    /// Recorded phases in order.
    pub fn iter(&self) -> impl Iterator<Item = (P, Duration)> + '_ {
        self.0.iter().map(|(phase, took)| (*phase, *took))
    }

    /// All of them together.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.0.values().sum()
    }

    /// Milliseconds by phase name, as in the API.
    #[must_use]
    pub fn as_milliseconds(&self) -> BTreeMap<String, f64> {
        self.iter().map(|(p, d)| (p.name().to_owned(), d.as_secs_f64() * 1e3)).collect()
    }
}

impl<P: Named + Ord> fmt::Display for PhaseTimes<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (phase, took)) in self.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(f, "{space}{}={took:.1?}", phase.name())?;
        }
        Ok(())
    }
}

/// Times phases that follow each other without a gap: together they take as long as the whole.
#[derive(Debug)]
pub struct PhaseClock<P> {
    times: PhaseTimes<P>,
    begun: Instant,
}

impl<P: Named + Ord> PhaseClock<P> {
    /// The first phase begins.
    #[must_use]
    pub fn start() -> Self {
        Self { times: PhaseTimes::default(), begun: Instant::now() }
    }

    /// `phase` is over, and the next one begins.
    pub fn end(&mut self, phase: P) {
        let now = Instant::now();
        self.times.record(phase, now - self.begun);
        self.begun = now;
    }

    /// The phases that are over.
    #[must_use]
    pub fn times(&self) -> &PhaseTimes<P> {
        &self.times
    }
}
