//! Taking over the sandboxes of a daemon that has ended, in order or not.
//!
//! A sandbox whose VMM runs goes on as if nothing had happened: its guest keeps its memory, its
//! programs and its disk, and takes requests and branches again. Requests that the earlier daemon
//! had under way are lost; programs that they had started run on in the guest. A branch that was
//! under way is failed; the source's pages are captured anew by the next one.
//!
//! A sandbox whose VMM is gone, or cannot be taken over, is `dead` with the reason, until somebody
//! removes it. One that had not been handed out is removed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_store::SandboxRow;
use forkd_types::network::GUEST_IPV4;
use forkd_types::{ByteCount, Isolation, OverlayId, PhaseTimes, SandboxState, limit};
use forkd_vmm::{
    CgroupLimits, Confinement, Disk, Jail, RamBacking, RunState, Start, Vm, VmSpec, VmmError, qemu,
};
use rustix::process::Pid;

use super::Lifecycle;
use super::task::SandboxTask;
use crate::background::blocking;
use crate::branch::remove_device_state;
use crate::guest::GuestAgent;
use crate::host::{connect_agent, process_number};
use crate::sandboxes::{
    DiskRecord, Machine, MachineRecord, SandboxHandle, listed, recorded_cgroup,
};
use crate::{EngineError, Sandbox, SandboxOptions};

/// Between two greetings of a guest agent that does not answer.
const GREETING_INTERVAL: Duration = Duration::from_secs(1);

impl Lifecycle {
    /// Takes over the VM of process `pid`. Its sandbox runs, and is known, when this returns.
    ///
    /// # Errors
    /// When the VMM does not answer or cannot be understood. It is left alone then.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        row: &SandboxRow,
        pid: Pid,
    ) -> Result<(), EngineError> {
        let record = MachineRecord::read(row)?;
        let (state, run_state) = match row.state {
            SandboxState::Paused => (SandboxState::Paused, RunState::Paused),
            _ => (SandboxState::Running, RunState::Running),
        };
        let mut options = SandboxOptions::from(row.options.clone());
        self.networks.private.retain(&row.options.owner, &mut options.memberships);
        let sandbox = Sandbox {
            options,
            isolation: record.jail.as_ref().map_or(Isolation::None, Jail::isolation),
            limits: record.cgroup.as_ref().map(|cgroup| cgroup.limits).unwrap_or_default(),
            guest_address: record.origin.network_device.then_some(GUEST_IPV4),
            pid: process_number(pid),
            state,
            branch_count: record.branch_count,
            network_refusals: 0,
            hostname: record.hostname.clone(),
            ..described(row)
        };
        let place = self.sandboxes.admission.occupied(&row.options.owner, record.origin.memory);
        let events = Arc::clone(&self.sandboxes.events);
        let handle = Arc::new(SandboxHandle::new(sandbox, place, events));
        let machine = {
            let (this, row, handle) = (Arc::clone(self), row.clone(), Arc::clone(&handle));
            let take_over = move || {
                let mut machine = this.take_over(&row, run_state, record, pid)?;
                // What it was left with may be that of a merge.
                this.branches.limit_disk(&handle, &mut machine);
                Ok::<_, EngineError>(machine)
            };
            blocking(take_over).await??
        };
        let machine = Self::find_link(&handle, machine).await?;
        let machine = self.introduce(&handle, machine, run_state).await?;
        let exit = machine.exit_watch()?;
        self.sandboxes.record(&handle, &machine)?;
        self.sandboxes.add(Arc::clone(&handle));
        SandboxTask::spawn(self, handle, machine, exit);
        Ok(())
    }

    /// Claims the files of a machine that was taken over, and greets its guest agent. The machine
    /// is left alone where nobody can be reached.
    async fn introduce(
        self: &Arc<Self>,
        handle: &Arc<SandboxHandle>,
        machine: Machine,
        run_state: RunState,
    ) -> Result<Machine, EngineError> {
        self.snapshots.files.claim(handle.id(), machine.files());
        handle.set_origin(machine.origin.clone());
        let agent = match connect_agent(&machine.vm.spec().agent_socket()).await {
            Ok(agent) => agent,
            Err(error) => {
                machine.vm.release();
                return Err(error);
            }
        };
        // A paused guest hears of us when it runs again.
        if run_state == RunState::Paused || !self.greet(handle, &agent).await {
            self.greet_in_background(handle, &agent);
        }
        handle.set_agent(agent);
        Ok(machine)
    }

    /// Shows a sandbox whose VM is lost, until somebody removes it.
    pub(super) fn show_dead(self: &Arc<Self>, row: &SandboxRow, reason: &str) {
        tracing::warn!(sandbox = %row.id, %reason, "a sandbox was lost");
        let error = Some(reason.to_owned());
        let memory_limit_reached = limit_reached(row).is_some();
        let sandbox =
            Sandbox { state: SandboxState::Dead, error, memory_limit_reached, ..described(row) };
        let place = self.sandboxes.admission.occupied(&row.options.owner, ByteCount::ZERO);
        let events = Arc::clone(&self.sandboxes.events);
        let handle = Arc::new(SandboxHandle::new(sandbox, place, events));
        self.sandboxes.add(Arc::clone(&handle));
        self.snapshots.files.abandon_claim(&row.id);
        self.snapshots.files.remove_vm_directory(&row.id);
        SandboxTask::spawn_dead(self, handle);
    }

    fn take_over(
        &self,
        row: &SandboxRow,
        state: RunState,
        record: MachineRecord,
        pid: Pid,
    ) -> Result<Machine, EngineError> {
        let id = &row.id;
        let files = &self.snapshots.files;
        let spec = VmSpec {
            accelerator: record.accelerator,
            cpu: qemu::cpu_model_of(&record.origin.machine.cpu_model),
            memory: record.origin.memory,
            vcpus: record.origin.vcpus,
            boot: record.boot,
            ram: RamBacking::Layers { placeholder: files.vm_directory(id).join("ram") },
            disk: record.disk.as_ref().map(|(base, _)| Disk::new(base.clone(), [])),
            network_device: record.origin.network_device,
            directory: self.sandboxes.run_directory(id),
            start: Start::Load,
            deadlines: self.host.deadlines,
            confinement: Confinement {
                cgroup: record.cgroup,
                file_max: Some(self.host.confiner.file_max(record.disk.as_ref().map(|it| it.1))),
                own_network: row.options.own_network,
                jail: record.jail,
            },
        };
        let vm = self.host.driver.adopt(spec, pid, record.ram_address, state)?;
        // Of a branch that was under way.
        remove_device_state(files, id);
        let given = record.overlays.as_ref();
        match self.overlays_of(vm.as_ref()).and_then(|named| only_given(named, given)) {
            Ok(overlays) => {
                let bytes = record.disk.map(|(_, bytes)| bytes);
                let inherited = given.map(|given| given.inherited).unwrap_or_default();
                let mut machine = Machine::new(vm, record.origin, overlays, bytes);
                machine.inherited = inherited;
                Ok(machine)
            }
            Err(error) => {
                vm.release();
                Err(error)
            }
        }
    }

    /// The overlays that a VM has open, by their ids.
    fn overlays_of(&self, vm: &dyn Vm) -> Result<Vec<OverlayId>, EngineError> {
        let Some(disk) = &vm.spec().disk else { return Ok(Vec::new()) };
        let id_of = |path: &PathBuf| {
            let id = path.file_stem()?.to_str()?.parse::<OverlayId>().ok()?;
            (self.snapshots.files.overlay(&id) == *path).then_some(id)
        };
        let named = disk.overlays.iter().map(|overlay| {
            id_of(&overlay.path).ok_or_else(|| {
                let path = overlay.path.display();
                EngineError::Internal(format!("its disk has an overlay of another store: {path}"))
            })
        });
        named.collect()
    }

    /// Greets the guest agent; tells whether it answered.
    async fn greet(&self, handle: &Arc<SandboxHandle>, agent: &GuestAgent) -> bool {
        match agent.hello(limit::RENEW_DEADLINE).await {
            Ok(_) => handle.follow_programs(agent),
            Err(error) => {
                tracing::warn!(sandbox = %handle.id(), %error, "a guest agent does not answer");
                return false;
            }
        }
        true
    }

    /// Greets a guest agent again and again for as long as its sandbox runs: until it answers,
    /// requests to it run out of time.
    fn greet_in_background(&self, handle: &Arc<SandboxHandle>, agent: &GuestAgent) {
        let (agent, handle) = (agent.clone(), Arc::clone(handle));
        let background = self.background.clone();
        self.background.spawn(async move {
            while handle.is_there() && !background.is_ending() {
                if agent.hello(limit::RENEW_DEADLINE).await.is_ok() {
                    tracing::info!(sandbox = %handle.id(), "a silent guest agent answers again");
                    handle.follow_programs(&agent);
                    return;
                }
                tokio::time::sleep(GREETING_INTERVAL).await;
            }
        });
    }
}

/// A VMM is not believed: it may have been taken over, and name the disk of another sandbox.
fn only_given(
    named: Vec<OverlayId>,
    given: Option<&DiskRecord>,
) -> Result<Vec<OverlayId>, EngineError> {
    match given.filter(|given| !given.fits(&named)) {
        Some(given) => {
            let (named, given) = (listed(&named), given.to_string());
            Err(VmmError::ForeignDisk { named, given }.into())
        }
        None => Ok(named),
    }
}

fn described(row: &SandboxRow) -> Sandbox {
    Sandbox {
        id: row.id.clone(),
        snapshot_tag: row.snapshot_tag.clone(),
        created_at: row.created_at,
        pid: None,
        state: row.state,
        branch_count: 0,
        network_refusals: 0,
        hostname: row.id.to_string(),
        started_in: None,
        start_phases: PhaseTimes::default(),
        error: None,
        memory_limit_reached: false,
        isolation: Isolation::None,
        limits: CgroupLimits::default(),
        guest_address: None,
        options: row.options.clone().into(),
        expires_at: None,
    }
}

/// Whether the VMM that a sandbox had was killed for its memory limit, while no daemon ran.
pub(super) fn limit_reached(row: &SandboxRow) -> Option<VmmError> {
    let limit = recorded_cgroup(row)?.memory_limit_reached()?;
    Some(VmmError::MemoryLimitReached { limit })
}
