//! Which VMMs are worth starting ahead of need: those of shapes that sandboxes were started in a
//! short time ago. Pure: no process, no clock of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkd_types::ByteCount;
use forkd_vmm::{BootSource, CgroupLimits};

/// For how long after a start another one like it is reckoned with.
const EXPECTED_FOR: Duration = Duration::from_secs(600);

/// What a VMM is started with before it is known whose state it will have. State of a snapshot fits
/// each VMM of its shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
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

/// What is to be done next for VMMs that stand by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// To start one.
    Start(Shape),
    /// To end the one with this index.
    End(usize),
    /// Nothing, until a sandbox is started, or until then.
    Wait(Option<Instant>),
}

/// The shapes of late starts.
#[derive(Debug)]
pub(crate) struct Demand {
    /// How many VMMs may stand by.
    places: usize,
    /// The latest start of each shape; the last one is the latest of all.
    shapes: Vec<(Shape, Instant)>,
}

impl Demand {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, shapes: Vec::new() }
    }

    /// How many VMMs may stand by.
    pub(crate) const fn places(&self) -> usize {
        self.places
    }

    /// A sandbox of this shape is started.
    pub(crate) fn note(&mut self, shape: &Shape, now: Instant) {
        if self.places == 0 {
            return;
        }
        self.forget(shape);
        self.shapes.push((shape.clone(), now));
        // One more shape than places would have none.
        let surplus = self.shapes.len().saturating_sub(self.places);
        self.shapes.drain(..surplus);
    }

    /// No VMM of this shape is worth starting.
    pub(crate) fn forget(&mut self, shape: &Shape) {
        self.shapes.retain(|(known, _)| known != shape);
    }

    /// What to do where VMMs of the shapes `ready` stand by.
    pub(crate) fn step(&mut self, ready: &[Shape], now: Instant) -> Step {
        let expires = |noted: Instant| noted + EXPECTED_FOR;
        self.shapes.retain(|(_, noted)| expires(*noted) > now);
        let count = |shape: &Shape| ready.iter().filter(|other| *other == shape).count();
        let is_surplus = |shape: &Shape| count(shape) > self.places_of(shape);
        // First room is made.
        if let Some(index) = ready.iter().position(is_surplus) {
            return Step::End(index);
        }
        let wanted = self.shapes.iter().rev().map(|(shape, _)| shape);
        match wanted.into_iter().find(|shape| count(shape) < self.places_of(shape)) {
            Some(shape) => Step::Start(shape.clone()),
            None => Step::Wait(self.shapes.iter().map(|(_, noted)| expires(*noted)).min()),
        }
    }

    /// All have the same, and the latest what is left over.
    fn places_of(&self, shape: &Shape) -> usize {
        let kinds = self.shapes.len();
        let Some(place) = self.shapes.iter().rev().position(|(known, _)| known == shape) else {
            return 0;
        };
        self.places / kinds + usize::from(place < self.places % kinds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(vcpus: u32) -> Shape {
        let boot =
            BootSource { kernel: "k".into(), initramfs: "i".into(), command_line: String::new() };
        Shape {
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

    /// The shapes that stand by when there is nothing more to do.
    fn settled(demand: &mut Demand, mut ready: Vec<Shape>, now: Instant) -> Vec<u32> {
        for _ in 0..100 {
            match demand.step(&ready, now) {
                Step::Start(shape) => ready.push(shape),
                Step::End(index) => drop(ready.remove(index)),
                Step::Wait(_) => {
                    let mut vcpus: Vec<u32> = ready.iter().map(|shape| shape.vcpus).collect();
                    vcpus.sort_unstable();
                    return vcpus;
                }
            }
        }
        panic!("it never ends: {ready:?}");
    }

    #[test]
    fn nobody_stands_by_before_the_first_start_or_without_places() {
        let now = Instant::now();
        assert_eq!(Demand::new(3).step(&[], now), Step::Wait(None));
        let mut none = Demand::new(0);
        none.note(&shape(1), now);
        assert_eq!(none.step(&[], now), Step::Wait(None));
    }

    #[test]
    fn places_are_shared_by_the_latest_shapes_and_the_latest_has_what_is_left_over() {
        let now = Instant::now();
        let mut demand = Demand::new(3);
        demand.note(&shape(1), now);
        let ready = settled(&mut demand, Vec::new(), now);
        assert_eq!(ready, [1, 1, 1]);
        demand.note(&shape(2), now);
        let all_of_one = vec![shape(1), shape(1), shape(1)];
        assert_eq!(demand.step(&all_of_one, now), Step::End(0), "room is made first");
        assert_eq!(settled(&mut demand, all_of_one, now), [1, 2, 2]);
        demand.note(&shape(1), now);
        assert_eq!(settled(&mut demand, Vec::new(), now), [1, 1, 2]);
        for vcpus in [3, 4, 5] {
            demand.note(&shape(vcpus), now);
        }
        assert_eq!(settled(&mut demand, vec![shape(1), shape(2)], now), [3, 4, 5]);
    }

    #[test]
    fn what_was_not_asked_for_in_a_while_is_ended_when_its_time_comes() {
        let begun = Instant::now();
        let mut demand = Demand::new(2);
        demand.note(&shape(1), begun);
        let ready = vec![shape(1), shape(1)];
        let Step::Wait(Some(until)) = demand.step(&ready, begun) else { panic!("it would wait") };
        assert_eq!(until, begun + EXPECTED_FOR);
        assert_eq!(settled(&mut demand, ready, until), [0; 0]);
        assert_eq!(demand.step(&[], until), Step::Wait(None));
    }

    #[test]
    fn a_shape_that_cannot_be_started_is_not_tried_for_ever() {
        let now = Instant::now();
        let mut demand = Demand::new(2);
        demand.note(&shape(1), now);
        demand.forget(&shape(1));
        assert_eq!(demand.step(&[], now), Step::Wait(None));
    }
}
