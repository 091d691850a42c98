//! From the engine's values to the wire's.

use std::time::{Duration, SystemTime};

use forkd_api::{
    EvalAnswer, EvalDisplay, EvalPart, ExecAnswer, FileChange, FileEntry, Image, Membership,
    Network, NetworkLogEntry, NetworkPolicy, Operation, OutputData, OutputText, Pong, Port,
    Process, ProcessExit, Sandbox, Snapshot,
};
use forkd_engine::guest::{
    self, EvalOutput, ExecOutput, GuestError, ListeningPort, ProcessEnd, ProcessView, Pulse, Stream,
};
use forkd_engine::{BranchReport, FlowRecord, ImageInfo};
use forkd_types::{BranchMode, FileKind, Owner, ProcessState, SandboxState, SnapshotStatus};

use crate::failure::Failure;

/// One division of whole nanoseconds: 2.136 stays 2.136 in JSON.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

/// As the interface says times.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(crate) fn image(image: ImageInfo) -> Image {
    Image { name: image.name, description: image.description }
}

/// A line of the gateway's log.
pub(crate) fn flow(record: FlowRecord) -> NetworkLogEntry {
    NetworkLogEntry {
        number: record.number,
        unix_ms: record.unix_ms,
        outcome: record.outcome.into(),
        protocol: record.protocol.to_string(),
        address: record.address.map(|address| address.to_string()),
        port: record.port,
        name: record.name,
        reason: record.reason,
        bytes_out: record.traffic.map(|traffic| traffic.bytes_out),
        bytes_in: record.traffic.map(|traffic| traffic.bytes_in),
        ms: record.traffic.map(|traffic| traffic.ms),
        repeated: record.repeated,
    }
}

/// A private network.
pub(crate) fn network(network: forkd_engine::Network) -> Network {
    let name = network.name.as_str();
    let members = network.members.iter().flat_map(memberships);
    Network {
        members: members.filter(|member| member.network == name).collect(),
        name: network.name.to_string(),
        created_at_unix: network.created_at_unix,
    }
}

fn memberships(sandbox: &forkd_engine::Sandbox) -> impl Iterator<Item = Membership> {
    // Without a VM nobody reaches it.
    let is_there = !matches!(sandbox.state, SandboxState::Dead | SandboxState::Gone);
    let own = sandbox.options.memberships.iter().filter(move |_| is_there);
    own.map(|(network, alias)| Membership {
        network: network.to_string(),
        sandbox: sandbox.id.to_string(),
        host_name: network.host_name(sandbox.id.as_str()),
        ipv4: alias.ipv4().to_string(),
        ipv6: alias.ipv6().to_string(),
    })
}

/// A sandbox, as `reader` knows it.
pub(crate) fn sandbox(sandbox: forkd_engine::Sandbox, reader: &Owner) -> Sandbox {
    let networks: Vec<Membership> = memberships(&sandbox).collect();
    let join = networks.iter().map(|membership| membership.network.clone()).collect();
    let join = (!networks.is_empty()).then_some(join);
    let network = NetworkPolicy { join, ..sandbox.options.policy().into() };
    Sandbox {
        id: sandbox.id.into(),
        owner: sandbox.options.owner.into(),
        snapshot_tag: sandbox.snapshot_tag.shown_to(reader),
        created_at_unix: unix_seconds(sandbox.created_at),
        pid: sandbox.pid,
        memory_limit_mib: sandbox.limits.memory.map(|limit| limit.get() >> 20),
        cpu_limit: sandbox.limits.millicpus.map(|limit| f64::from(limit) / 1000.0),
        netns: sandbox
            .pid
            .filter(|_| sandbox.options.own_network)
            .map(|pid| format!("/proc/{pid}/ns/net")),
        isolation: sandbox.isolation.into(),
        guest_addr: sandbox.guest_address.map(|address| address.to_string()),
        network,
        networks,
        preview_url: None,
        state: sandbox.state.into(),
        branch_count: sandbox.branch_count,
        network_refusals: sandbox.network_refusals,
        hostname: sandbox.hostname,
        start_ms: sandbox.started_in.map(milliseconds),
        start_phases_ms: sandbox.start_phases.as_milliseconds(),
        error: sandbox.error,
        metadata: (*sandbox.options.metadata).clone(),
        ttl_secs: sandbox.options.ttl.map(|ttl| ttl.as_secs()),
        idle_timeout_secs: sandbox.options.idle_timeout.map(|timeout| timeout.as_secs()),
        expires_at_unix: sandbox.expires_at.map(unix_seconds),
    }
}

/// A snapshot, as `reader` knows it.
pub(crate) fn snapshot(snapshot: forkd_engine::Snapshot, reader: &Owner) -> Snapshot {
    let mut wire = Snapshot {
        tag: snapshot.tag.shown_to(reader),
        owner: snapshot.tag.owner().clone().into(),
        shared: snapshot.shared,
        private: snapshot.private,
        dir: snapshot.directory.to_string_lossy().into_owned(),
        created_at_unix: unix_seconds(snapshot.created_at),
        branched_from: snapshot.branched_from.map(String::from),
        parent_tag: snapshot.parent_tag.map(|tag| tag.shown_to(reader)),
        status: snapshot.status.into(),
        durable: snapshot.durable,
        bootable: snapshot.status == SnapshotStatus::Ready,
        operation_id: snapshot.operation.map(String::from),
        image: snapshot.image,
        mem_size_mib: snapshot.memory.get() >> 20,
        vcpus: snapshot.vcpus,
        cpu: Some(snapshot.cpu.into()),
        error: snapshot.error,
        ..Snapshot::default()
    };
    if let Some(report) = &snapshot.branch {
        add_report(&mut wire, report);
    }
    wire
}

/// An operation, as `reader` knows it.
pub(crate) fn operation(operation: forkd_engine::Operation, reader: &Owner) -> Operation {
    Operation {
        id: operation.id.into(),
        owner: operation.owner.into(),
        kind: operation.kind.into(),
        state: operation.state.into(),
        step: operation.step.to_owned(),
        done: operation.progress.map(|progress| progress.done),
        total: operation.progress.map(|progress| progress.total),
        snapshot_tag: operation.snapshot_tag.map(|tag| tag.shown_to(reader)),
        sandbox_id: operation.sandbox_id.map(String::from),
        created_at_unix: unix_seconds(operation.created_at),
        ended_at_unix: operation.ended_at.map(unix_seconds),
        error: operation.error.map(|error| Failure::from(error).body()),
    }
}

fn add_report(wire: &mut Snapshot, report: &BranchReport) {
    wire.mode = Some(report.mode.into());
    wire.pause_ms = Some(milliseconds(report.pause));
    wire.held_by_vmm_ms = report.held_by_vmm.map(milliseconds);
    // Not known before the snapshot is usable.
    wire.ready_ms = Some(milliseconds(report.ready)).filter(|ms| *ms > 0.0);
    wire.phases_ms = report.phases.as_milliseconds();
    wire.captured_bytes = Some(report.captured.get());
    wire.dirty_bytes = Some(report.dirty.get());
    wire.stored_bytes = Some(report.stored.get());
    wire.faults = Some(report.faults);
    wire.fault_service_p50_ms = report.fault_service_median.map(milliseconds);
    wire.fault_service_max_ms = report.fault_service_max.map(milliseconds);
    if report.mode != BranchMode::Live {
        add_diff_figures(wire, report);
    }
}

/// What a diff costs. Nothing of it is known before the snapshot is usable.
pub(crate) fn add_diff_figures(wire: &mut Snapshot, report: &BranchReport) {
    if report.ready.is_zero() {
        return;
    }
    wire.diff_ms = report.diff_pause.map(milliseconds);
    wire.diff_physical_bytes = Some(report.dirty_stored.get());
    wire.diff_logical_bytes = Some(report.dirty.get());
    if report.mode == BranchMode::Live {
        let warning = "measure_diff: a live branch copies after the pause, so there is no diff_ms";
        wire.warning = Some(warning.to_owned());
    }
}

pub(crate) fn exec(output: ExecOutput) -> ExecAnswer {
    let (stdout, stderr) = (OutputText::of(output.stdout), OutputText::of(output.stderr));
    ExecAnswer {
        stdout: stdout.text,
        stderr: stderr.text,
        exit_code: output.exit_code,
        timed_out: output.timed_out,
        stdout_base64: stdout.base64,
        stderr_base64: stderr.base64,
        signal: output.signal,
    }
}

fn forms(parts: Vec<guest::EvalPart>) -> Vec<EvalPart> {
    parts.into_iter().map(|part| EvalPart::of(part.mime, part.data)).collect()
}

pub(crate) fn eval(output: EvalOutput) -> EvalAnswer {
    let (stdout, stderr) = (OutputText::of(output.stdout), OutputText::of(output.stderr));
    let failed = output.error.is_some() || output.timed_out || output.state_lost;
    EvalAnswer {
        result: output.result,
        parts: forms(output.parts),
        displays: output.displays.into_iter().map(|it| EvalDisplay { parts: forms(it) }).collect(),
        displays_left_out: output.displays_left_out,
        error: output.error,
        exit_code: i32::from(failed),
        stdout: stdout.text,
        stderr: stderr.text,
        timed_out: output.timed_out,
        state_lost: output.state_lost,
        stdout_base64: stdout.base64,
        stderr_base64: stderr.base64,
    }
}

pub(crate) fn pong(pulse: Pulse) -> Pong {
    Pong {
        pong: true,
        uptime_ms: milliseconds(pulse.uptime),
        epoch: pulse.epoch,
        requests_running: pulse.requests_running,
        frames_rejected: pulse.frames_rejected,
    }
}

pub(crate) fn process(view: ProcessView) -> Process {
    let (state, exit, error) = match view.end {
        None => (ProcessState::Running, None, None),
        Some(ProcessEnd::Exited(exit)) => (ProcessState::Exited, Some(exit), None),
        Some(ProcessEnd::Lost { reason }) => (ProcessState::Lost, None, Some(reason)),
    };
    Process {
        id: view.id.into(),
        pid: view.pid,
        args: view.args,
        state: state.into(),
        exit_code: exit.map(|exit| exit.exit_code),
        signal: exit.and_then(|exit| exit.signal),
        timed_out: exit.is_some_and(|exit| exit.timed_out),
        error,
        created_at_unix: unix_seconds(view.created_at),
        inherited: view.inherited,
        output_from: view.output_from,
        output_to: view.output_to,
    }
}

pub(crate) fn output_event(event: guest::OutputEvent) -> forkd_api::OutputEvent {
    match event {
        guest::OutputEvent::Data { stream: Stream::Stdout, data, .. } => {
            forkd_api::OutputEvent::Stdout(OutputData::of(data))
        }
        guest::OutputEvent::Data { stream: Stream::Stderr, data, .. } => {
            forkd_api::OutputEvent::Stderr(OutputData::of(data))
        }
        guest::OutputEvent::Lost { bytes, .. } => forkd_api::OutputEvent::Lost { bytes },
        guest::OutputEvent::Ended(ProcessEnd::Exited(exit)) => {
            forkd_api::OutputEvent::Exit(ProcessExit {
                exit_code: exit.exit_code,
                signal: exit.signal,
                timed_out: exit.timed_out,
            })
        }
        guest::OutputEvent::Ended(ProcessEnd::Lost { reason }) => {
            forkd_api::OutputEvent::Gone { reason }
        }
    }
}

pub(crate) fn file_entry(entry: guest::FileEntry) -> FileEntry {
    let kind = match entry.kind {
        guest::FileKind::File => FileKind::File,
        guest::FileKind::Directory => FileKind::Directory,
        guest::FileKind::Symlink => FileKind::Symlink,
        guest::FileKind::Other => FileKind::Other,
    };
    FileEntry {
        name: entry.name,
        path: entry.path,
        kind: kind.into(),
        size_bytes: entry.bytes,
        mode: format!("{:04o}", entry.mode),
        modified_at_unix: unix_seconds(entry.modified_at),
        owner: entry.owner,
        group: entry.group,
    }
}

/// A change, or why none follows.
pub(crate) fn file_change(change: Result<Option<guest::FileChange>, GuestError>) -> FileChange {
    match change {
        Ok(Some(guest::FileChange::Created(path))) => FileChange::Created { path },
        Ok(Some(guest::FileChange::Modified(path))) => FileChange::Modified { path },
        Ok(Some(guest::FileChange::Removed(path))) => FileChange::Removed { path },
        Ok(Some(guest::FileChange::Renamed { from, path })) => FileChange::Renamed { path, from },
        Ok(Some(guest::FileChange::Lost)) => FileChange::Lost {},
        Ok(None) => FileChange::Gone { reason: "the watched path was removed".to_owned() },
        Err(error) => FileChange::Gone { reason: error.to_string() },
    }
}

/// A listening port as clients see it.
pub(crate) fn port(port: ListeningPort) -> Port {
    let ListeningPort { port, address, pid, program } = port;
    Port { port, address: address.to_string(), pid, program }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(snapshot: forkd_engine::Snapshot) -> Snapshot {
        super::snapshot(snapshot, &Owner::default())
    }
    use forkd_types::{BranchPhase, ByteCount, PhaseTimes};

    fn branched(mode: BranchMode) -> forkd_engine::Snapshot {
        let mut phases = PhaseTimes::default();
        phases.record(BranchPhase::Protect, Duration::from_micros(1500));
        forkd_engine::Snapshot {
            shared: false,
            private: false,
            tag: "t".parse().unwrap(),
            directory: "/d".into(),
            created_at: SystemTime::UNIX_EPOCH + Duration::from_secs(7),
            branched_from: None,
            parent_tag: None,
            status: SnapshotStatus::Writing,
            durable: false,
            operation: None,
            image: "python".to_owned(),
            memory: ByteCount::from_mib(256),
            cpu: forkd_types::CpuModel::V2,
            vcpus: 1,
            branch: Some(BranchReport {
                mode,
                phases,
                pause: Duration::from_millis(2),
                dirty: ByteCount::new(8192),
                stored: ByteCount::new(4096),
                ..BranchReport::default()
            }),
            error: None,
            chain_depth: 2,
            memory_layer: ByteCount::new(4096),
        }
    }

    #[test]
    fn a_branch_shows_its_figures_in_milliseconds_and_bytes() {
        let wire = shown(branched(BranchMode::Live));
        assert_eq!((wire.pause_ms, wire.dirty_bytes), (Some(2.0), Some(8192)));
        assert_eq!(wire.phases_ms["protect"], 1.5);
        assert_eq!((wire.mem_size_mib, wire.created_at_unix), (256, 7));
        assert_eq!((wire.ready_ms, wire.diff_ms), (None, None), "unknown is absent, not zero");
        assert!(!wire.bootable, "nothing starts from a snapshot that is being written");
    }

    #[test]
    fn figures_of_a_diff_are_shown_once_known_and_a_live_branch_has_no_time_of_one() {
        let ready = |mode| {
            let mut snapshot = branched(mode);
            let report = snapshot.branch.as_mut().unwrap();
            report.ready = Duration::from_millis(9);
            report.dirty_stored = ByteCount::new(4096);
            report.diff_pause = Some(Duration::from_millis(1)).filter(|_| mode != BranchMode::Live);
            snapshot
        };
        for mode in [BranchMode::Diff, BranchMode::Full] {
            let wire = shown(ready(mode));
            assert_eq!((wire.diff_ms, wire.warning), (Some(1.0), None));
            assert_eq!(wire.diff_physical_bytes.zip(wire.diff_logical_bytes), Some((4096, 8192)));
            let writing = shown(branched(mode));
            assert_eq!((writing.diff_ms, writing.diff_logical_bytes), (None, None));
        }
        let mut live = shown(ready(BranchMode::Live));
        assert_eq!(live.diff_logical_bytes, None, "only for who asks");
        add_diff_figures(&mut live, ready(BranchMode::Live).branch.as_ref().unwrap());
        assert_eq!((live.diff_ms, live.diff_logical_bytes), (None, Some(8192)));
        assert!(live.warning.is_some());
    }

    #[test]
    fn python_code_that_ran_out_of_time_does_not_look_like_success() {
        let output = EvalOutput { timed_out: true, ..EvalOutput::default() };
        assert_eq!(eval(output).exit_code, 1);
    }
}
