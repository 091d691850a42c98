//! Which VMMs are worth starting ahead of need: those of shapes that sandboxes were started in a
//! short time ago. And which of them are worth fitting with the state of a snapshot: those for
//! snapshots that were asked for again and again. Pure: no process, no clock of its own.
//!
//! ```text
//! latest requests of a shape       of four VMMs
//! a                                four that fit any snapshot
//! a a, a a a a                     four fitted with a
//! a x a y (x, y: of branches)      two fitted with a, two that fit any
//! x y z                            four that fit any
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use forkd_store::{FileSet, SnapshotRow};
use forkd_types::{ByteCount, CpuModel, SnapshotTag};
use forkd_vmm::{BootSource, CgroupLimits};

/// For how long after a start another one like it is reckoned with.
const EXPECTED_FOR: Duration = Duration::from_secs(600);
/// So many of the latest requests of a shape tell what the next ones want.
const REQUESTS_REMEMBERED: usize = 4;

/// What a VMM is started with before it is known whose state it will have. State of a snapshot fits
/// each VMM of its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) cpu: CpuModel,
    pub(crate) memory: ByteCount,
    pub(crate) vcpus: u32,
    pub(crate) image: String,
    /// The hash of its image, whose files it has open whatever becomes of their names.
    pub(crate) image_hash: String,
    pub(crate) boot: BootSource,
    /// The root disk's base image and size, if there is one.
    pub(crate) disk: Option<(PathBuf, ByteCount)>,
    pub(crate) network_device: bool,
    pub(crate) limits: CgroupLimits,
    pub(crate) own_network: bool,
}

/// A snapshot, as it was at some time: one that was made later is another of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) tag: SnapshotTag,
    created_at: SystemTime,
    files: FileSet,
}

impl From<&SnapshotRow> for Origin {
    fn from(row: &SnapshotRow) -> Self {
        let files = FileSet::from(&row.manifest);
        Self { tag: row.tag.clone(), created_at: row.created_at, files }
    }
}

/// What a VMM stands by for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) shape: Shape,
    /// The snapshot whose state it has. Without, it fits any of its shape.
    pub(crate) origin: Option<Origin>,
}

impl Waiting {
    fn has(&self, origin: &Origin) -> bool {
        self.origin.as_ref() == Some(origin)
    }
}

/// What is to be done next for VMMs that stand by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// To start one.
    Start(Shape),
    /// To give the one with this index the state of a snapshot.
    Fit(usize, Origin),
    /// To end the one with this index.
    End(usize),
    /// Nothing, until a sandbox is started, or until then.
    Wait(Option<Instant>),
}

/// A shape that late starts had.
#[derive(Debug)]
struct Late {
    shape: Shape,
    /// When the latest one was.
    noted: Instant,
    /// What the latest requests asked for, the last one last. Nothing of a branch whose children
    /// may follow.
    requests: Vec<Option<Origin>>,
}

impl Late {
    /// Of so many VMMs, the ones to be fitted with each snapshot: its part of the latest requests,
    /// if it was asked for more than once.
    fn fitted(&self, of: usize) -> Vec<(&Origin, usize)> {
        let mut parts: Vec<(&Origin, usize)> = Vec::new();
        for origin in self.requests.iter().flatten() {
            match parts.iter_mut().find(|(known, _)| *known == origin) {
                Some((_, requests)) => *requests += 1,
                None => parts.push((origin, 1)),
            }
        }
        parts.retain(|(_, requests)| *requests > 1);
        let share = |(origin, requests)| (origin, of * requests / self.requests.len());
        parts.into_iter().map(share).collect()
    }
}

/// The shapes of late starts.
#[derive(Debug)]
pub(crate) struct Demand {
    /// How many VMMs may stand by.
    places: usize,
    /// The last one is the latest of all.
    shapes: Vec<Late>,
}

impl Demand {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, shapes: Vec::new() }
    }

    /// How many VMMs may stand by.
    pub(crate) const fn places(&self) -> usize {
        self.places
    }

    /// Sandboxes of this shape are asked for, of the snapshot `origin` if that is known yet.
    pub(crate) fn note(&mut self, shape: &Shape, origin: Option<&Origin>, now: Instant) {
        let Some(late) = self.latest(shape, now) else { return };
        late.requests.push(origin.cloned());
        let surplus = late.requests.len().saturating_sub(REQUESTS_REMEMBERED);
        late.requests.drain(..surplus);
    }

    /// One more sandbox of a request that was noted is started.
    pub(crate) fn note_again(&mut self, shape: &Shape, now: Instant) {
        self.latest(shape, now);
    }

    /// The shape as the latest of all, if VMMs may stand by.
    fn latest(&mut self, shape: &Shape, now: Instant) -> Option<&mut Late> {
        if self.places == 0 {
            return None;
        }
        let known = self.shapes.iter().position(|late| late.shape == *shape);
        let late = known.map(|index| self.shapes.remove(index));
        let requests = late.map(|late| late.requests).unwrap_or_default();
        self.shapes.push(Late { shape: shape.clone(), noted: now, requests });
        // One more shape than places would have none.
        let surplus = self.shapes.len().saturating_sub(self.places);
        self.shapes.drain(..surplus);
        self.shapes.last_mut()
    }

    /// No VMM of this shape is worth starting.
    pub(crate) fn forget(&mut self, shape: &Shape) {
        self.shapes.retain(|late| late.shape != *shape);
    }

    /// No VMM is worth fitting with a snapshot that `keep` does not know.
    pub(crate) fn retain_origins(&mut self, keep: impl Fn(&Origin) -> bool) {
        for late in &mut self.shapes {
            late.requests.retain(|request| request.as_ref().is_none_or(&keep));
        }
    }

    /// What to do where the VMMs `ready` stand by.
    pub(crate) fn step(&mut self, ready: &[Waiting], now: Instant) -> Step {
        let expires = |noted: Instant| noted + EXPECTED_FOR;
        self.shapes.retain(|late| expires(late.noted) > now);
        let count = |shape: &Shape| ready.iter().filter(|vmm| vmm.shape == *shape).count();
        // First room is made.
        let is_surplus = |vmm: &Waiting| {
            let (have, places) = (count(&vmm.shape), self.places_of(&vmm.shape));
            have > places || have == places && self.is_fitted_in_vain(vmm, ready)
        };
        // Of those that are too many, one that is fitted in vain goes first.
        let of_surplus = || ready.iter().enumerate().filter(|(_, vmm)| is_surplus(vmm));
        let in_vain = of_surplus().find(|(_, vmm)| self.is_fitted_in_vain(vmm, ready));
        if let Some((index, _)) = in_vain.or_else(|| of_surplus().next()) {
            return Step::End(index);
        }
        let mut wanted = self.shapes.iter().rev().map(|late| &late.shape);
        if let Some(shape) = wanted.find(|shape| count(shape) < self.places_of(shape)) {
            return Step::Start(shape.clone());
        }
        match self.to_fit(ready) {
            Some((index, origin)) => Step::Fit(index, origin),
            None => Step::Wait(self.shapes.iter().map(|late| expires(late.noted)).min()),
        }
    }

    /// Whether more VMMs than should be have the snapshot that this one has.
    fn is_fitted_in_vain(&self, vmm: &Waiting, ready: &[Waiting]) -> bool {
        let Some(origin) = &vmm.origin else { return false };
        let late = self.shapes.iter().find(|late| late.shape == vmm.shape);
        let wanted = late.and_then(|late| {
            let fitted = late.fitted(self.places_of(&late.shape));
            fitted.into_iter().find(|(wanted, _)| *wanted == origin)
        });
        count_of(&vmm.shape, origin, ready) > wanted.map_or(0, |(_, count)| count)
    }

    /// The VMM that is to be fitted next, and with what.
    fn to_fit(&self, ready: &[Waiting]) -> Option<(usize, Origin)> {
        self.shapes.iter().rev().find_map(|late| {
            let fits_any = |vmm: &Waiting| vmm.shape == late.shape && vmm.origin.is_none();
            let index = ready.iter().position(fits_any)?;
            let mut fitted = late.fitted(self.places_of(&late.shape)).into_iter();
            let lacking = |origin, wanted| count_of(&late.shape, origin, ready) < wanted;
            let (origin, _) = fitted.find(|(origin, wanted)| lacking(origin, *wanted))?;
            Some((index, origin.clone()))
        })
    }

    /// All have the same, and the latest what is left over.
    fn places_of(&self, shape: &Shape) -> usize {
        let kinds = self.shapes.len();
        let Some(place) = self.shapes.iter().rev().position(|late| late.shape == *shape) else {
            return 0;
        };
        self.places / kinds + usize::from(place < self.places % kinds)
    }
}

/// How many of these VMMs have this shape and the state of this snapshot.
fn count_of(shape: &Shape, origin: &Origin, ready: &[Waiting]) -> usize {
    ready.iter().filter(|vmm| vmm.shape == *shape && vmm.has(origin)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(vcpus: u32) -> Shape {
        let boot =
            BootSource { kernel: "k".into(), initramfs: "i".into(), command_line: String::new() };
        Shape {
            cpu: CpuModel::Host,
            memory: ByteCount::from_mib(64),
            vcpus,
            image: "i".to_owned(),
            image_hash: String::new(),
            boot,
            disk: None,
            network_device: true,
            limits: CgroupLimits::default(),
            own_network: false,
        }
    }

    fn origin(name: &str) -> Origin {
        let created_at = SystemTime::UNIX_EPOCH;
        Origin { tag: name.parse().unwrap(), created_at, files: FileSet::default() }
    }

    fn any(vcpus: u32) -> Waiting {
        Waiting { shape: shape(vcpus), origin: None }
    }

    /// What stands by when there is nothing more to do.
    fn all_settled(demand: &mut Demand, mut ready: Vec<Waiting>, now: Instant) -> Vec<Waiting> {
        for _ in 0..100 {
            match demand.step(&ready, now) {
                Step::Start(shape) => ready.push(Waiting { shape, origin: None }),
                Step::Fit(index, origin) => {
                    assert_eq!(ready[index].origin, None, "what has a state takes no other");
                    ready[index].origin = Some(origin);
                }
                Step::End(index) => drop(ready.remove(index)),
                Step::Wait(_) => return ready,
            }
        }
        panic!("it never ends: {ready:?}");
    }

    /// The shapes that stand by when there is nothing more to do.
    fn settled(demand: &mut Demand, ready: Vec<Waiting>, now: Instant) -> Vec<u32> {
        let ready = all_settled(demand, ready, now);
        let mut vcpus: Vec<u32> = ready.iter().map(|vmm| vmm.shape.vcpus).collect();
        vcpus.sort_unstable();
        vcpus
    }

    /// What those that stand by in the end are fitted with, after requests of one shape for these
    /// snapshots; `-` is a branch.
    fn fitted(places: usize, requests: &str) -> String {
        let now = Instant::now();
        let mut demand = Demand::new(places);
        let mut ready = Vec::new();
        for name in requests.chars() {
            let asked = (name != '-').then(|| origin(&name.to_string()));
            demand.note(&shape(1), asked.as_ref(), now);
            demand.note_again(&shape(1), now);
            ready = all_settled(&mut demand, ready, now);
            assert_eq!(ready.len(), places);
        }
        let name = |vmm: &Waiting| {
            vmm.origin.as_ref().map_or("-".to_owned(), |origin| origin.tag.to_string())
        };
        let mut names: Vec<String> = ready.iter().map(name).collect();
        names.sort();
        names.concat()
    }

    #[test]
    fn those_are_fitted_that_are_likely_to_be_wanted_with_that_state() {
        assert_eq!(fitted(4, "a"), "----", "once is no habit");
        assert_eq!(fitted(4, "aa"), "aaaa");
        assert_eq!(fitted(4, "aaa-"), "-aaa");
        assert_eq!(fitted(4, "axay"), "--aa");
        assert_eq!(fitted(4, "x-y-z-"), "----", "branch after branch");
        assert_eq!(fitted(4, "abab"), "aabb");
        assert_eq!(fitted(4, "aaaabbbb"), "bbbb", "nothing is kept for ever");
        assert_eq!(fitted(1, "aa"), "a");
        assert_eq!(fitted(1, "aab"), "-");
        assert_eq!(fitted(2, "abab"), "ab");
        assert_eq!(fitted(3, "abab"), "-ab");
    }

    #[test]
    fn children_of_one_request_are_no_habit() {
        let now = Instant::now();
        let mut demand = Demand::new(2);
        demand.note(&shape(1), Some(&origin("a")), now);
        for _ in 0..9 {
            demand.note_again(&shape(1), now);
        }
        assert_eq!(all_settled(&mut demand, Vec::new(), now), [any(1), any(1)]);
    }

    #[test]
    fn a_snapshot_that_is_gone_is_nobodys_state() {
        let now = Instant::now();
        let mut demand = Demand::new(2);
        for name in ["a", "b", "b", "b"] {
            demand.note(&shape(1), Some(&origin(name)), now);
        }
        let ready = all_settled(&mut demand, Vec::new(), now);
        assert!(ready.iter().any(|vmm| vmm.has(&origin("b"))));
        demand.retain_origins(|known| *known != origin("b"));
        assert_eq!(all_settled(&mut demand, ready, now), [any(1), any(1)]);
    }

    #[test]
    fn nobody_stands_by_before_the_first_start_or_without_places() {
        let now = Instant::now();
        assert_eq!(Demand::new(3).step(&[], now), Step::Wait(None));
        let mut none = Demand::new(0);
        none.note(&shape(1), None, now);
        assert_eq!(none.step(&[], now), Step::Wait(None));
    }

    #[test]
    fn places_are_shared_by_the_latest_shapes_and_the_latest_has_what_is_left_over() {
        let now = Instant::now();
        let mut demand = Demand::new(3);
        demand.note(&shape(1), None, now);
        let ready = settled(&mut demand, Vec::new(), now);
        assert_eq!(ready, [1, 1, 1]);
        demand.note(&shape(2), None, now);
        let all_of_one = vec![any(1), any(1), any(1)];
        assert_eq!(demand.step(&all_of_one, now), Step::End(0), "room is made first");
        assert_eq!(settled(&mut demand, all_of_one, now), [1, 2, 2]);
        demand.note(&shape(1), None, now);
        assert_eq!(settled(&mut demand, Vec::new(), now), [1, 1, 2]);
        for vcpus in [3, 4, 5] {
            demand.note(&shape(vcpus), None, now);
        }
        assert_eq!(settled(&mut demand, vec![any(1), any(2)], now), [3, 4, 5]);
    }

    #[test]
    fn what_was_not_asked_for_in_a_while_is_ended_when_its_time_comes() {
        let begun = Instant::now();
        let mut demand = Demand::new(2);
        demand.note(&shape(1), None, begun);
        let ready = vec![any(1), any(1)];
        let Step::Wait(Some(until)) = demand.step(&ready, begun) else { panic!("it would wait") };
        assert_eq!(until, begun + EXPECTED_FOR);
        assert_eq!(settled(&mut demand, ready, until), [0; 0]);
        assert_eq!(demand.step(&[], until), Step::Wait(None));
    }

    #[test]
    fn a_shape_that_cannot_be_started_is_not_tried_for_ever() {
        let now = Instant::now();
        let mut demand = Demand::new(2);
        demand.note(&shape(1), None, now);
        demand.forget(&shape(1));
        assert_eq!(demand.step(&[], now), Step::Wait(None));
    }
}
