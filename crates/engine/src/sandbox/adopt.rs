//! Taking over the sandboxes of a daemon that has ended, in order or not.
//!
//! A sandbox whose VMM runs goes on as if nothing had happened: its guest keeps its memory, its
//! programs and its disk, and takes requests and branches again. Requests that the earlier daemon
//! had under way are lost, and what they had started is ended by the guest agent. A branch that was
//! under way is failed; the source's pages are captured anew by the next one.
//!
//! A sandbox whose VMM is gone, or cannot be taken over, is `dead` with the reason, until somebody
//! removes it. One that had not been handed out is removed.

use std::path::PathBuf;
use std::sync::Arc;

use forkd_store::SandboxRow;
use forkd_types::{ByteCount, OverlayId, SandboxState, limit};
use forkd_vmm::{
    Confinement, Disk, MemoryLimit, RamBacking, RunState, Start, Vm, VmSpec, VmmError,
};
use rustix::process::Pid;
use tokio::net::UnixStream;

use super::record::MachineRecord;
use super::task::SandboxTask;
use super::{Machine, SandboxHandle, blocking};
use crate::engine::Inner;
use crate::guest::GuestAgent;
use crate::{EngineError, Sandbox, branch};

/// Takes over the VM of process `pid`. Its sandbox runs, and is known, when this returns.
///
/// # Errors
/// When the VMM does not answer or cannot be understood. It is left alone then.
pub(crate) async fn adopt(
    inner: &Arc<Inner>,
    row: &SandboxRow,
    pid: Pid,
) -> Result<(), EngineError> {
    let unreadable = |error: serde_json::Error| EngineError::Internal(error.to_string());
    let text = row.machine.as_deref().unwrap_or_default();
    let record: MachineRecord = serde_json::from_str(text).map_err(unreadable)?;
    let number = u32::try_from(pid.as_raw_nonzero().get()).ok();
    let state = match row.state {
        SandboxState::Paused => SandboxState::Paused,
        _ => SandboxState::Running,
    };
    let sandbox = Sandbox {
        pid: number,
        state,
        branch_count: record.branch_count,
        hostname: record.hostname.clone(),
        ..described(row)
    };
    let place = inner.admission.occupied(record.origin.memory);
    let (handle, orders) = SandboxHandle::new(sandbox, place, Arc::clone(&inner.events));
    let handle = Arc::new(handle);
    let machine = {
        let (inner, row) = (Arc::clone(inner), row.clone());
        blocking(move || take_over(&inner, &row, state, record, pid)).await??
    };
    handle.set_files(machine.origin.layers.clone(), machine.overlays.clone());
    handle.set_origin(machine.origin.clone());
    let stream = UnixStream::connect(machine.vm.spec().agent_socket()).await;
    let agent = match stream {
        Ok(stream) => GuestAgent::connect(stream)?,
        Err(error) => {
            machine.vm.release();
            return Err(EngineError::Internal(format!("connect to the agent's port: {error}")));
        }
    };
    if state == SandboxState::Paused {
        // It hears of us when it runs again.
        greet_in_background(inner, &handle, &agent);
    } else {
        greet(inner, &handle, &agent).await;
    }
    handle.set_agent(agent);
    inner.record(&handle, &machine)?;
    inner.add_sandbox(Arc::clone(&handle));
    SandboxTask::spawn(Arc::clone(inner), handle, machine, orders)
}

/// Shows a sandbox whose VM is lost, until somebody removes it.
pub(crate) fn mourn(inner: &Arc<Inner>, row: &SandboxRow, reason: &str) {
    tracing::warn!(sandbox = %row.id, %reason, "a sandbox was lost");
    let error = Some(reason.to_owned());
    let memory_limit_reached = limit_reached(row).is_some();
    let sandbox =
        Sandbox { state: SandboxState::Dead, error, memory_limit_reached, ..described(row) };
    let place = inner.admission.occupied(ByteCount::ZERO);
    let (handle, orders) = SandboxHandle::new(sandbox, place, Arc::clone(&inner.events));
    let handle = Arc::new(handle);
    inner.add_sandbox(Arc::clone(&handle));
    inner.files.remove_vm_directory(&row.id);
    SandboxTask::spawn_dead(Arc::clone(inner), handle, orders);
}

fn described(row: &SandboxRow) -> Sandbox {
    Sandbox {
        id: row.id.clone(),
        snapshot_tag: row.snapshot_tag.clone(),
        created_at: row.created_at,
        pid: None,
        state: row.state,
        branch_count: 0,
        hostname: row.id.to_string(),
        started_in: None,
        error: None,
        memory_limit_reached: false,
        options: row.options.clone().into(),
        expires_at: None,
    }
}

fn take_over(
    inner: &Inner,
    row: &SandboxRow,
    state: SandboxState,
    record: MachineRecord,
    pid: Pid,
) -> Result<Machine, EngineError> {
    let id = &row.id;
    let spec = VmSpec {
        accelerator: record.accelerator,
        memory: record.origin.memory,
        vcpus: record.origin.vcpus,
        boot: record.boot,
        ram: RamBacking::Layers { placeholder: inner.files.vm_directory(id).join("ram") },
        disk: record.disk.as_ref().map(|(base, _)| Disk::new(base.clone(), [])),
        directory: inner.run_directory(id),
        start: Start::Load,
        deadlines: inner.config.deadlines,
        confinement: Confinement {
            memory: memory_limit(row, &record.memory_group),
            own_network: row.options.own_network,
        },
    };
    let run_state = match state {
        SandboxState::Paused => RunState::Paused,
        _ => RunState::Running,
    };
    let vm = inner.driver.adopt(spec, pid, record.ram_address, run_state)?;
    // Of a branch that was under way.
    branch::remove_device_state(inner, id);
    let overlays = overlays_of(inner, vm.as_ref());
    match overlays {
        Ok(overlays) => {
            let bytes = record.disk.map(|(_, bytes)| bytes);
            Ok(Machine::new(vm, record.origin, overlays, bytes))
        }
        Err(error) => {
            vm.release();
            Err(error)
        }
    }
}

/// The limit that the VMM of a sandbox runs with.
fn memory_limit(row: &SandboxRow, group: &Option<PathBuf>) -> Option<MemoryLimit> {
    let (bytes, group) = row.options.memory_limit.zip(group.clone())?;
    Some(MemoryLimit { bytes, cgroup: group })
}

/// The limit that is written down of a sandbox's VMM.
pub(crate) fn recorded_limit(row: &SandboxRow) -> Option<MemoryLimit> {
    let record: MachineRecord = serde_json::from_str(row.machine.as_deref()?).ok()?;
    memory_limit(row, &record.memory_group)
}

/// Whether the VMM that a sandbox had has been ended for its memory limit, while no daemon ran.
pub(crate) fn limit_reached(row: &SandboxRow) -> Option<VmmError> {
    let limit = recorded_limit(row)?;
    let reached = forkd_vmm::limit_was_reached(&limit.cgroup);
    reached.then_some(VmmError::MemoryLimitReached { limit: limit.bytes })
}

/// The overlays that a VM has open, by their ids.
fn overlays_of(inner: &Inner, vm: &dyn Vm) -> Result<Vec<OverlayId>, EngineError> {
    let Some(disk) = &vm.spec().disk else { return Ok(Vec::new()) };
    let id_of = |path: &std::path::PathBuf| {
        let id = path.file_stem()?.to_str()?.parse::<OverlayId>().ok()?;
        (inner.files.overlay(&id) == *path).then_some(id)
    };
    let named = disk.overlays.iter().map(|overlay| {
        id_of(&overlay.path).ok_or_else(|| {
            let path = overlay.path.display();
            EngineError::Internal(format!("its disk has an overlay of another store: {path}"))
        })
    });
    named.collect()
}

/// Greets the guest agent. One that does not answer now is greeted again in the background for as
/// long as the sandbox runs: until then requests to it run out of time.
async fn greet(inner: &Arc<Inner>, handle: &Arc<SandboxHandle>, agent: &GuestAgent) {
    let Err(error) = agent.hello(limit::RENEW_DEADLINE).await else { return };
    tracing::warn!(sandbox = %handle.id(), %error, "a guest agent does not answer");
    greet_in_background(inner, handle, agent);
}

fn greet_in_background(inner: &Arc<Inner>, handle: &Arc<SandboxHandle>, agent: &GuestAgent) {
    let (agent, handle, inner_too) = (agent.clone(), Arc::clone(handle), Arc::clone(inner));
    inner.tasks.spawn(async move {
        while handle.is_there() && !inner_too.ending.is_cancelled() {
            if agent.hello(limit::RENEW_DEADLINE).await.is_ok() {
                tracing::info!(sandbox = %handle.id(), "a silent guest agent answers again");
                return;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    });
}
