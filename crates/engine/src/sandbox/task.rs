//! The task that owns a VM: orders one after the other, and the watch over the VMM's process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forkd_types::SandboxState;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use super::{Machine, Order, SandboxHandle, blocking};
use crate::EngineError;
use crate::branch;
use crate::engine::Inner;

pub(crate) struct SandboxTask {
    inner: Arc<Inner>,
    handle: Arc<SandboxHandle>,
    orders: mpsc::Receiver<Order>,
    /// `None` once the VMM has ended.
    machine: Option<Machine>,
}

impl SandboxTask {
    /// Starts the task.
    pub(crate) fn spawn(
        inner: Arc<Inner>,
        handle: Arc<SandboxHandle>,
        machine: Machine,
        orders: mpsc::Receiver<Order>,
    ) -> Result<(), EngineError> {
        let exit = machine.exit_watch()?;
        let tasks = inner.tasks.clone();
        let task = Self { inner, handle, orders, machine: Some(machine) };
        tasks.spawn(task.run(exit));
        Ok(())
    }

    async fn run(mut self, exit: AsyncFd<OwnedFd>) {
        loop {
            tokio::select! {
                biased;
                _ = exit.readable(), if self.machine.is_some() => self.vmm_ended().await,
                order = self.orders.recv() => match order {
                    Some(Order::Branch(order)) => self.branch(*order).await,
                    Some(Order::Remove(done)) => {
                        self.remove().await;
                        // Whoever asked may have gone away; the sandbox is removed all the same.
                        done.send(()).ok();
                        return;
                    }
                    // The engine is gone and with it the last handle.
                    None => return,
                },
            }
        }
    }

    async fn vmm_ended(&mut self) {
        let Some(mut machine) = self.machine.take() else { return };
        let words = blocking(move || machine.vm.last_words()).await.unwrap_or_default();
        tracing::warn!(sandbox = %self.handle.id(), %words, "a VMM ended by itself");
        self.handle.forget_agent();
        self.handle.update(|sandbox| {
            sandbox.state = SandboxState::Dead;
            sandbox.pid = None;
            sandbox.error = Some(format!("its VMM ended: {words}"));
        });
        self.inner.files.remove_vm_directory(self.handle.id());
    }

    async fn branch(&mut self, order: branch::BranchOrder) {
        let (Some(machine), Ok(agent)) = (self.machine.take(), self.handle.agent()) else {
            order.refuse(self.handle.not_running());
            return;
        };
        self.handle.update(|sandbox| sandbox.state = SandboxState::Branching);
        let (inner, handle) = (Arc::clone(&self.inner), Arc::clone(&self.handle));
        let runtime = tokio::runtime::Handle::current();
        let back = blocking(move || {
            let mut machine = branch::run(&inner, &handle, machine, &agent, &runtime, order);
            branch::merge_deltas(&inner, &handle, &mut machine);
            branch::flatten_disk(&inner, &handle, &mut machine);
            machine
        });
        match back.await {
            Ok(machine) => {
                self.machine = Some(machine);
                self.handle.update(|sandbox| {
                    sandbox.state = SandboxState::Running;
                    sandbox.branch_count += 1;
                });
            }
            Err(error) => {
                // Only a defect gets here. The VM went with the thread.
                tracing::error!(sandbox = %self.handle.id(), %error, "a branch died");
                self.handle.forget_agent();
                self.handle.update(|sandbox| {
                    sandbox.state = SandboxState::Dead;
                    sandbox.error = Some(error.to_string());
                });
            }
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
    }
}
