//! Which requests may wait for one sandbox, and which is next. No clock, no channel, no VM.
//!
//! A request is judged when it arrives, by the state that the sandbox will be in when its turn
//! comes: that is known from its present state and from what waits before it. Whoever does the
//! work judges again, because what waits before it may fail.
//!
//! Guarantees: requests come out in the order in which their places were taken; at most
//! [`WAITING_MAX`] of them wait, removals aside; behind a removal or a release nothing else is
//! done.

use std::collections::VecDeque;

use forkd_types::SandboxState;

/// Requests that may wait for one sandbox; more are refused as `busy`.
pub(crate) const WAITING_MAX: usize = 64;

/// What a request does, as far as the queue cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Takes a branch. Needs running vCPUs.
    Branch,
    /// Stops the vCPUs.
    Pause,
    /// Lets them run.
    Resume,
    /// Replaces the VM; it runs afterwards.
    RollBack,
    /// Ends the VM and removes what belongs to it.
    Remove,
    /// Lets go of the VM, which runs on.
    Release,
}

/// Why a request may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many wait already.
    Busy,
    /// The sandbox will not be in a state that permits it.
    NotRunning,
}

/// A place in the queue, taken before its request is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The requests that wait for one sandbox.
#[derive(Debug)]
pub(crate) struct RequestQueue<T> {
    waiting: VecDeque<Waiting<T>>,
    tickets: u64,
    /// A removal or a release has come out.
    closed: bool,
    /// Nobody takes requests any more.
    over: bool,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    kind: RequestKind,
    /// Not there between the taking of the place and the completion of the request.
    request: Option<T>,
}

impl<T> Default for RequestQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), tickets: 0, closed: false, over: false }
    }
}

impl<T> RequestQueue<T> {
    /// Takes a place for a request of this kind to a sandbox that is in `state`.
    pub(crate) fn take_place(
        &mut self,
        state: SandboxState,
        kind: RequestKind,
    ) -> Result<Ticket, Refusal> {
        if let Some(refusal) = self.refusal(state, kind) {
            return Err(refusal);
        }
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.waiting.push_back(Waiting { ticket, kind, request: None });
        Ok(ticket)
    }

    fn refusal(&self, state: SandboxState, kind: RequestKind) -> Option<Refusal> {
        use RequestKind::{Branch, Pause, Release, Remove, Resume, RollBack};
        let expected = self.expected(state);
        match (kind, expected) {
            _ if self.over => Some(Refusal::NotRunning),
            (Remove | Release, _) => None,
            (_, Expected::Gone) | (Branch, Expected::Paused) => Some(Refusal::NotRunning),
            (Branch | Pause | Resume | RollBack, Expected::Running | Expected::Paused) => {
                (self.waiting.len() >= WAITING_MAX).then_some(Refusal::Busy)
            }
        }
    }

    /// How the sandbox will be when all that waits is done, if nothing of it fails.
    fn expected(&self, state: SandboxState) -> Expected {
        use SandboxState::{
            Branching, Dead, Gone, Paused, RollingBack, Running, Starting, Stopping,
        };
        let now = match state {
            Starting | Running | Branching | RollingBack => Expected::Running,
            Paused => Expected::Paused,
            Stopping | Dead | Gone => Expected::Gone,
        };
        if self.closed {
            return Expected::Gone;
        }
        self.waiting.iter().fold(now, |expected, waiting| match (expected, waiting.kind) {
            (Expected::Gone, _) | (_, RequestKind::Remove | RequestKind::Release) => Expected::Gone,
            (_, RequestKind::Pause) => Expected::Paused,
            (_, RequestKind::Resume | RequestKind::RollBack) => Expected::Running,
            (same, RequestKind::Branch) => same,
        })
    }

    /// Completes the request whose place was taken.
    pub(crate) fn complete(&mut self, ticket: Ticket, request: T) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.ticket == ticket) {
            waiting.request = Some(request);
        }
    }

    /// Gives up a place whose request was not completed.
    pub(crate) fn give_up(&mut self, ticket: Ticket) {
        self.waiting.retain(|waiting| waiting.ticket != ticket || waiting.request.is_some());
    }

    /// The next request, if the first in the queue is complete.
    pub(crate) fn next(&mut self) -> Option<T> {
        let request = self.waiting.front_mut()?.request.take()?;
        let first = self.waiting.pop_front();
        let kind = first.map(|waiting| waiting.kind);
        self.closed |= matches!(kind, Some(RequestKind::Remove | RequestKind::Release));
        Some(request)
    }

    /// Nobody takes requests from now on. Gives those that waited, to be refused.
    pub(crate) fn end(&mut self) -> Vec<T> {
        self.over = true;
        self.waiting.drain(..).filter_map(|waiting| waiting.request).collect()
    }
}

/// What can be said of a sandbox at a later time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Running,
    Paused,
    Gone,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [RequestKind; 6] = [
        RequestKind::Branch,
        RequestKind::Pause,
        RequestKind::Resume,
        RequestKind::RollBack,
        RequestKind::Remove,
        RequestKind::Release,
    ];

    fn put(
        queue: &mut RequestQueue<usize>,
        state: SandboxState,
        kind: RequestKind,
        n: usize,
    ) -> bool {
        queue.take_place(state, kind).map(|ticket| queue.complete(ticket, n)).is_ok()
    }

    #[test]
    fn a_branch_behind_a_pause_is_refused_and_behind_the_resume_it_waits() {
        let mut queue = RequestQueue::default();
        assert!(put(&mut queue, SandboxState::Branching, RequestKind::Pause, 0));
        let refusal = queue.take_place(SandboxState::Branching, RequestKind::Branch);
        assert_eq!(refusal, Err(Refusal::NotRunning));
        assert!(put(&mut queue, SandboxState::Branching, RequestKind::Resume, 1));
        assert!(put(&mut queue, SandboxState::Branching, RequestKind::Branch, 2));
        assert_eq!([(); 4].map(|()| queue.next()), [Some(0), Some(1), Some(2), None]);
    }

    #[test]
    fn an_incomplete_request_holds_up_those_behind_it_until_its_place_is_given_up() {
        let mut queue = RequestQueue::default();
        let place = queue.take_place(SandboxState::Running, RequestKind::Branch).unwrap();
        assert!(put(&mut queue, SandboxState::Running, RequestKind::Branch, 1));
        assert_eq!(queue.next(), None);
        queue.give_up(place);
        assert_eq!(queue.next(), Some(1));
    }

    #[test]
    fn a_full_queue_is_busy_and_takes_a_removal_all_the_same() {
        let mut queue = RequestQueue::default();
        for n in 0..WAITING_MAX {
            assert!(put(&mut queue, SandboxState::Running, RequestKind::Branch, n));
        }
        let refusal = queue.take_place(SandboxState::Running, RequestKind::Branch);
        assert_eq!(refusal, Err(Refusal::Busy));
        assert!(put(&mut queue, SandboxState::Running, RequestKind::Remove, WAITING_MAX));
    }

    #[test]
    fn what_waits_at_the_end_comes_out_to_be_refused_and_nothing_is_taken_afterwards() {
        let mut queue = RequestQueue::default();
        assert!(put(&mut queue, SandboxState::Running, RequestKind::Branch, 0));
        let incomplete = queue.take_place(SandboxState::Running, RequestKind::Pause).unwrap();
        assert!(put(&mut queue, SandboxState::Running, RequestKind::Remove, 1));
        assert_eq!(queue.end(), [0, 1]);
        queue.complete(incomplete, 2);
        for kind in KINDS {
            let refusal = queue.take_place(SandboxState::Running, kind);
            assert_eq!(refusal, Err(Refusal::NotRunning), "{kind:?}");
        }
        assert_eq!(queue.next(), None);
    }

    /// What a caller or the task does to the queue.
    #[derive(Debug, Clone)]
    enum Step {
        Put(SandboxState, RequestKind),
        TakeAndGiveUp(SandboxState, RequestKind),
        Next,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let state = prop::sample::select(SandboxState::ALL.to_vec());
        let kind = prop::sample::select(KINDS.to_vec());
        let step = prop_oneof![
            4 => (state.clone(), kind.clone()).prop_map(|(state, kind)| Step::Put(state, kind)),
            1 => (state, kind).prop_map(|(state, kind)| Step::TakeAndGiveUp(state, kind)),
            2 => Just(Step::Next),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// The rules once more, as a list that is looked through from its end.
    fn model_permits(
        done: bool,
        model: &[(usize, RequestKind)],
        state: SandboxState,
        kind: RequestKind,
    ) -> bool {
        use RequestKind::{Branch, Pause, Release, Remove, Resume, RollBack};
        if matches!(kind, Remove | Release) {
            return true;
        }
        let over =
            matches!(state, SandboxState::Stopping | SandboxState::Dead | SandboxState::Gone);
        if over || done || model.iter().any(|(_, kind)| matches!(kind, Remove | Release)) {
            return false;
        }
        let last = model.iter().rev().find(|(_, kind)| matches!(kind, Pause | Resume | RollBack));
        let paused = match last {
            Some((_, kind)) => *kind == Pause,
            None => state == SandboxState::Paused,
        };
        model.len() < WAITING_MAX && !(paused && kind == Branch)
    }

    proptest! {
        #[test]
        fn the_queue_does_what_a_plain_list_does(steps in steps()) {
            let mut queue = RequestQueue::default();
            let (mut model, mut done) = (Vec::new(), false);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Put(state, kind) => {
                        let permitted = model_permits(done, &model, state, kind);
                        prop_assert_eq!(put(&mut queue, state, kind, number), permitted);
                        if permitted {
                            model.push((number, kind));
                        }
                    }
                    Step::TakeAndGiveUp(state, kind) => {
                        if let Ok(place) = queue.take_place(state, kind) {
                            queue.give_up(place);
                        }
                    }
                    Step::Next => {
                        let first = (!model.is_empty()).then(|| model.remove(0));
                        let last = [RequestKind::Remove, RequestKind::Release];
                        done |= first.is_some_and(|(_, kind)| last.contains(&kind));
                        prop_assert_eq!(queue.next(), first.map(|(number, _)| number));
                    }
                }
            }
        }
    }
}
