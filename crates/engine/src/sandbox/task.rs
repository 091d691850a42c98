//! The task that owns a VM: orders one after the other, and the watch over the VMM's process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forkd_types::SandboxState;
use forkd_vmm::VmmError;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{Machine, Order, SandboxHandle, blocking};
use crate::EngineError;
use crate::branch;
use crate::engine::Inner;
use crate::hot;

pub(crate) struct SandboxTask {
    pub(super) inner: Arc<Inner>,
    pub(super) handle: Arc<SandboxHandle>,
    orders: mpsc::Receiver<Order>,
    /// `None` once the VMM has ended.
    pub(super) machine: Option<Machine>,
    /// Tells of the VMM's end.
    pub(super) exit: Option<AsyncFd<OwnedFd>>,
    /// When a VMM that was silent is looked at again.
    look_again: Option<Instant>,
}

/// Between two looks at a silent VMM.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

impl SandboxTask {
    /// Starts the task.
    pub(crate) fn spawn(
        inner: Arc<Inner>,
        handle: Arc<SandboxHandle>,
        machine: Machine,
        orders: mpsc::Receiver<Order>,
    ) -> Result<(), EngineError> {
        let exit = Some(machine.exit_watch()?);
        let tasks = inner.tasks.clone();
        let span = tracing::info_span!(parent: None, "sandbox", sandbox = %handle.id());
        let task = Self { inner, handle, orders, machine: Some(machine), exit, look_again: None };
        tasks.spawn(task.run().instrument(span));
        Ok(())
    }

    /// Starts the task of a sandbox whose VM is lost: it waits to be removed.
    pub(crate) fn spawn_dead(
        inner: Arc<Inner>,
        handle: Arc<SandboxHandle>,
        orders: mpsc::Receiver<Order>,
    ) {
        let tasks = inner.tasks.clone();
        let task = Self { inner, handle, orders, machine: None, exit: None, look_again: None };
        tasks.spawn(task.run());
    }

    async fn run(mut self) {
        loop {
            let lease_end = self.handle.lease_end().map(Instant::from_std);
            tokio::select! {
                biased;
                () = sleep_until(lease_end), if lease_end.is_some() => {
                    // It may have been used meanwhile.
                    if self.handle.has_expired() {
                        tracing::info!("its time is over");
                        self.remove().await;
                        return;
                    }
                }
                () = ended(self.exit.as_ref()), if self.machine.is_some() => self.vmm_ended().await,
                () = sleep_until(self.look_again), if self.look_again.is_some() => {
                    self.settle().await;
                }
                order = self.orders.recv() => match order {
                    Some(Order::Branch(order)) => self.branch(*order).await,
                    Some(Order::Remove(done)) => {
                        self.remove().await;
                        // Whoever asked may have gone away; the sandbox is removed all the same.
                        done.send(()).ok();
                        return;
                    }
                    Some(Order::Release(done)) => {
                        self.release().await;
                        done.send(()).ok();
                        return;
                    }
                    // Whoever asked for these may have gone away; they are done all the same.
                    Some(Order::Pause(done)) => drop(done.send(self.pause().await)),
                    Some(Order::Resume(done)) => drop(done.send(self.resume().await)),
                    Some(Order::RollBack(row, done)) => drop(done.send(self.roll_back(*row).await)),
                    // The engine is gone and with it the last handle.
                    None => return,
                },
            }
        }
    }

    async fn vmm_ended(&mut self) {
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
        self.handle.update(|sandbox| {
            sandbox.state = SandboxState::Dead;
            sandbox.pid = None;
            sandbox.error = Some(reason);
            sandbox.memory_limit_reached = limit.is_some();
        });
        // Requests that this breaks off are told why.
        self.handle.forget_agent();
        self.inner.files.remove_vm_directory(self.handle.id());
    }

    async fn branch(&mut self, order: branch::BranchOrder) {
        if self.look_again.is_some()
            && let Some(error) = self.settle().await
        {
            order.refuse(error);
            return;
        }
        let agent = self.handle.agent();
        let (Some(mut machine), Ok(agent)) = (self.machine.take_if(|_| agent.is_ok()), agent)
        else {
            order.refuse(self.handle.not_running());
            return;
        };
        self.handle.update(|sandbox| sandbox.state = SandboxState::Branching);
        let (inner, handle) = (Arc::clone(&self.inner), Arc::clone(&self.handle));
        let runtime = tokio::runtime::Handle::current();
        let back = blocking(move || {
            branch::flatten_inherited_disk(&inner, &handle, &mut machine);
            let mut machine = branch::run(&inner, &handle, machine, &agent, &runtime, order);
            handle.update(|sandbox| sandbox.branch_count += 1);
            if let Err(error) = inner.record(&handle, &machine) {
                tracing::warn!(sandbox = %handle.id(), %error, "a branch is not written down");
            }
            branch::merge_deltas(&inner, &handle, &mut machine);
            branch::flatten_disk(&inner, &handle, &mut machine);
            branch::stand_by(&inner, &handle, &mut machine);
            machine
        });
        match back.await {
            Ok(machine) => {
                self.machine = Some(machine);
                self.settle().await;
            }
            Err(error) => self.lost(&error),
        }
    }

    /// Makes sure that the source of a branch runs. While its VMM is silent it stays `branching`
    /// and is looked at from time to time.
    pub(super) async fn settle(&mut self) -> Option<EngineError> {
        let mut machine = self.machine.take()?;
        self.look_again = None;
        let (inner, handle) = (Arc::clone(&self.inner), Arc::clone(&self.handle));
        let back = blocking(move || {
            let settled = branch::settle(&inner, &handle, &mut machine);
            (machine, settled)
        });
        let (machine, settled) = match back.await {
            Ok(back) => back,
            Err(error) => {
                self.lost(&error);
                return Some(error);
            }
        };
        self.machine = Some(machine);
        let known = self.handle.sandbox().error;
        match settled {
            Ok(()) => {
                if known.is_some() {
                    tracing::info!(sandbox = %self.handle.id(), "a silent VMM answers again");
                }
                self.handle.update(|sandbox| {
                    sandbox.state = SandboxState::Running;
                    sandbox.error = None;
                });
                None
            }
            Err(error) => {
                self.look_again = Some(Instant::now() + LOOK_INTERVAL);
                if known.is_none() {
                    tracing::warn!(sandbox = %self.handle.id(), %error, "a VMM is silent");
                }
                let words = format!("its VMM has not confirmed that it runs: {error}");
                self.handle.update(|sandbox| sandbox.error = Some(words));
                Some(error.into())
            }
        }
    }

    /// Only a defect gets here. The VM went with the thread.
    fn lost(&self, error: &EngineError) {
        tracing::error!(sandbox = %self.handle.id(), %error, "a branch died");
        self.handle.forget_agent();
        self.handle.update(|sandbox| {
            sandbox.state = SandboxState::Dead;
            sandbox.error = Some(error.to_string());
        });
    }

    /// The VM runs on without us. Its protected pages are released with the descriptor.
    async fn release(&mut self) {
        self.handle.forget_agent();
        let Some(machine) = self.machine.take() else { return };
        if let Err(error) = self.inner.record(&self.handle, &machine) {
            tracing::error!(sandbox = %self.handle.id(), %error, "a sandbox is not written down");
        }
        if let Err(error) = blocking(move || machine.release()).await {
            tracing::error!(sandbox = %self.handle.id(), %error, "a VM was not let go in order");
        }
    }

    async fn remove(&mut self) {
        self.handle.update(|sandbox| sandbox.state = SandboxState::Stopping);
        self.handle.forget_agent();
        if let Some(machine) = self.machine.take()
            && let Err(error) = blocking(move || machine.vm.kill()).await
        {
            tracing::error!(sandbox = %self.handle.id(), %error, "a VM was not ended in order");
        }
        self.handle.update(|sandbox| sandbox.state = SandboxState::Gone);
        self.inner.discard_sandbox(&self.handle);
        hot::keep_budget_in_background(&self.inner);
    }
}

/// Waits for the end of the VMM that `exit` tells of.
async fn ended(exit: Option<&AsyncFd<OwnedFd>>) {
    match exit {
        // An error of the descriptor is looked at like an end.
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
