//! The task that owns a VM: requests one after the other, and the watch over the VMM's process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forkd_types::SandboxState;
use forkd_vmm::VmmError;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::Lifecycle;
use crate::background::blocking;
use crate::sandboxes::{BranchOrder, Machine, Request, SandboxHandle};
use crate::{EngineError, describe};

pub(super) struct SandboxTask {
    pub(super) lifecycle: Arc<Lifecycle>,
    pub(super) handle: Arc<SandboxHandle>,
    /// `None` once the VMM has exited.
    pub(super) machine: Option<Machine>,
    /// Tells of the VMM's exit.
    pub(super) exit: Option<AsyncFd<OwnedFd>>,
    /// When a VMM that was silent is looked at again.
    look_again: Option<Instant>,
}

/// Between two looks at a silent VMM.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the task goes on after a request.
enum After {
    GoOn,
    Stop,
}

impl SandboxTask {
    /// Starts the task of a sandbox whose VMM's exit `exit` tells of.
    pub(super) fn spawn(
        lifecycle: &Arc<Lifecycle>,
        handle: Arc<SandboxHandle>,
        machine: Machine,
        exit: AsyncFd<OwnedFd>,
    ) {
        Self::spawn_with(lifecycle, handle, Some(machine), Some(exit));
    }

    /// Starts the task of a sandbox whose VM is lost: it waits to be removed.
    pub(super) fn spawn_dead(lifecycle: &Arc<Lifecycle>, handle: Arc<SandboxHandle>) {
        Self::spawn_with(lifecycle, handle, None, None);
    }

    fn spawn_with(
        lifecycle: &Arc<Lifecycle>,
        handle: Arc<SandboxHandle>,
        machine: Option<Machine>,
        exit: Option<AsyncFd<OwnedFd>>,
    ) {
        let span = tracing::info_span!(parent: None, "sandbox", sandbox = %handle.id());
        let background = lifecycle.background.clone();
        let lifecycle = Arc::clone(lifecycle);
        let task = Self { lifecycle, handle, machine, exit, look_again: None };
        background.spawn(task.run().instrument(span));
    }

    async fn run(mut self) {
        self.serve_all().await;
        // Dropping any other request closes its channel, which answers it.
        for request in self.handle.end_requests() {
            if let Request::Branch(order) = request {
                self.refuse(*order, self.handle.not_running());
            }
        }
    }

    async fn serve_all(&mut self) {
        loop {
            let lease_end = self.handle.lease_end().map(Instant::from_std);
            tokio::select! {
                biased;
                () = sleep_until(lease_end), if lease_end.is_some() => {
                    // It may have been used meanwhile.
                    if self.handle.has_expired()
                        && let After::Stop = self.time_is_over().await
                    {
                        return;
                    }
                }
                () = self.handle.lease_changed() => {}
                () = exited(self.exit.as_ref()), if self.machine.is_some() => {
                    self.vmm_exited().await;
                }
                () = sleep_until(self.look_again), if self.look_again.is_some() => {
                    self.resync().await;
                }
                request = self.handle.next_request() => {
                    if let After::Stop = self.serve(request).await {
                        return;
                    }
                }
            }
        }
    }

    /// Does what is asked for. Whoever asked may have gone away; it is done all the same.
    async fn serve(&mut self, request: Request) -> After {
        match request {
            Request::Branch(order) => self.branch(*order).await,
            Request::Pause(done) => drop(done.send(self.pause().await)),
            Request::Resume(done) => drop(done.send(self.resume().await)),
            Request::RollBack(row, done) => drop(done.send(self.roll_back(*row).await)),
            Request::Remove(done) => {
                self.remove().await;
                done.send(()).ok();
                return After::Stop;
            }
            Request::Release(done) => {
                self.release().await;
                done.send(()).ok();
                return After::Stop;
            }
        }
        After::GoOn
    }

    /// Pauses the sandbox if that is what its creator wanted, and removes it otherwise. What cannot
    /// be paused would use the host for ever.
    async fn time_is_over(&mut self) -> After {
        if self.handle.pauses_now() {
            match self.pause().await {
                Ok(()) => {
                    tracing::info!("its time is over: it is paused");
                    self.handle.live_for(None);
                    if let Err(error) = self.lifecycle.sandboxes.record_options(&self.handle) {
                        tracing::warn!(%error, "that it has no end is not written down");
                    }
                    return After::GoOn;
                }
                Err(error) => tracing::warn!(%error, "it cannot be paused"),
            }
        }
        tracing::info!("its time is over");
        self.remove().await;
        After::Stop
    }

    async fn vmm_exited(&mut self) {
        let Some(mut machine) = self.machine.take() else { return };
        self.look_again = None;
        let end = blocking(move || (machine.vm.memory_limit_reached(), machine.vm.last_words()));
        let (limit, words) = end.await.unwrap_or_default();
        let reason = match limit {
            Some(limit) => {
                tracing::info!(sandbox = %self.handle.id(), %limit, "a memory limit was reached");
                VmmError::MemoryLimitReached { limit }.to_string()
            }
            None => {
                tracing::warn!(sandbox = %self.handle.id(), %words, "a VMM ended by itself");
                format!("its VMM ended: {words}")
            }
        };
        self.died(&reason, limit.is_some());
    }

    /// The VM is gone. Requests that this breaks off are told why.
    pub(super) fn died(&self, reason: &str, memory_limit_reached: bool) {
        self.handle.enter(SandboxState::Dead, |sandbox| {
            sandbox.pid = None;
            sandbox.error = Some(reason.to_owned());
            sandbox.memory_limit_reached = memory_limit_reached;
        });
        self.handle.disconnect();
        self.lifecycle.snapshots.files.remove_vm_directory(self.handle.id());
    }

    /// Answers a branch without doing anything. Whoever asked may have gone away, so the snapshot
    /// is marked here.
    fn refuse(&self, order: BranchOrder, error: EngineError) {
        self.lifecycle.snapshots.catalog.fail(&order.tag, &describe(&error));
        order.refuse(error);
    }

    async fn branch(&mut self, order: BranchOrder) {
        if self.look_again.is_some()
            && let Some(error) = self.resync().await
        {
            self.refuse(order, error);
            return;
        }
        let agent = self.handle.agent();
        let (Some(mut machine), Ok(agent)) = (self.machine.take_if(|_| agent.is_ok()), agent)
        else {
            self.refuse(order, self.handle.not_running());
            return;
        };
        self.handle.enter(SandboxState::Branching, |_| {});
        let (lifecycle, handle) = (Arc::clone(&self.lifecycle), Arc::clone(&self.handle));
        let back = blocking(move || {
            let branches = &lifecycle.branches;
            branches.flatten_inherited_disk(&handle, &mut machine);
            let mut machine = branches.run(&handle, machine, &agent, order);
            handle.update(|sandbox| sandbox.branch_count += 1);
            if let Err(error) = lifecycle.sandboxes.record(&handle, &machine) {
                tracing::warn!(sandbox = %handle.id(), %error, "a branch is not written down");
            }
            branches.merge_deltas(&handle, &mut machine);
            branches.flatten_disk(&handle, &mut machine);
            branches.limit_disk(&handle, &mut machine);
            branches.stand_by(&handle, &mut machine);
            machine
        });
        match back.await {
            Ok(machine) => {
                self.machine = Some(machine);
                self.resync().await;
            }
            Err(error) => self.lost(&error),
        }
    }

    /// Makes sure that the source of a branch runs. While its VMM is silent it stays `branching`
    /// and is looked at from time to time.
    pub(super) async fn resync(&mut self) -> Option<EngineError> {
        let mut machine = self.machine.take()?;
        self.look_again = None;
        let (lifecycle, handle) = (Arc::clone(&self.lifecycle), Arc::clone(&self.handle));
        let back = blocking(move || {
            let synced = lifecycle.branches.resync(&handle, &mut machine);
            (machine, synced)
        });
        let (machine, synced) = match back.await {
            Ok(back) => back,
            Err(error) => {
                self.lost(&error);
                return Some(error);
            }
        };
        self.machine = Some(machine);
        let Err(error) = synced else {
            self.confirmed_running();
            return None;
        };
        self.look_again = Some(Instant::now() + LOOK_INTERVAL);
        let words = format!("its VMM has not confirmed that it runs: {error}");
        if self.handle.sandbox().error.is_none() {
            tracing::warn!(sandbox = %self.handle.id(), %error, "a VMM is silent");
        }
        self.handle.update(|sandbox| sandbox.error = Some(words));
        Some(error.into())
    }

    /// The VMM has answered everything.
    fn confirmed_running(&self) {
        let sandbox = self.handle.sandbox();
        if sandbox.error.is_some() {
            tracing::info!(sandbox = %self.handle.id(), "a silent VMM answers again");
        }
        match sandbox.state {
            SandboxState::Branching => {
                self.handle.enter(SandboxState::Running, |sandbox| sandbox.error = None);
            }
            _ => self.handle.update(|sandbox| sandbox.error = None),
        }
    }

    /// Only a defect gets here. The VM went with the thread.
    fn lost(&self, error: &EngineError) {
        tracing::error!(sandbox = %self.handle.id(), %error, "a branch died");
        self.died(&error.to_string(), false);
    }

    /// The VM runs on without us. Its protected pages are released with the descriptor.
    async fn release(&mut self) {
        self.handle.disconnect();
        let Some(machine) = self.machine.take() else { return };
        if let Err(error) = self.lifecycle.sandboxes.record(&self.handle, &machine) {
            tracing::error!(sandbox = %self.handle.id(), %error, "a sandbox is not written down");
        }
        if let Err(error) = blocking(move || machine.release()).await {
            tracing::error!(sandbox = %self.handle.id(), %error, "a VM was not let go in order");
        }
    }

    async fn remove(&mut self) {
        self.handle.enter(SandboxState::Stopping, |_| {});
        self.handle.disconnect();
        if let Some(machine) = self.machine.take()
            && let Err(error) = blocking(move || machine.vm.kill()).await
        {
            tracing::error!(sandbox = %self.handle.id(), %error, "a VM was not ended in order");
        }
        self.handle.enter(SandboxState::Gone, |_| {});
        self.lifecycle.sandboxes.discard(&self.handle);
        self.lifecycle.snapshots.keep_budget_in_background();
    }
}

/// Waits for the exit of the VMM that `exit` tells of.
async fn exited(exit: Option<&AsyncFd<OwnedFd>>) {
    match exit {
        // An error of the descriptor is looked at like an exit.
        Some(exit) => drop(exit.readable().await),
        None => std::future::pending().await,
    }
}

/// Waits for the moment `at`.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
