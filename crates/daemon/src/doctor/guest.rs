//! The whole of it with one small guest: boot, fork, branch while it runs, a child of the branch,
//! and what was in memory.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_engine::guest::ExecRequest;
use forkd_engine::{
    Accelerator, AcceleratorChoice, AtShutDown, BranchRequest, DeletePolicy, Engine, EngineConfig,
    EngineError, NoProgress, TemplateImage, TemplateRequest, Wait, host,
};
use forkd_types::{BranchMode, ByteCount, MachineSize, SandboxId, SnapshotTag};

use super::check::Check;
use crate::{ServeConfig, socket};

pub(super) const NAME: &str = "guest";

/// For all of it; emulation on a busy host is slow.
const DEADLINE: Duration = Duration::from_secs(240);
/// Enough for every image to boot.
const MEMORY: ByteCount = ByteCount::from_mib(256);
/// Boots fastest, if it is there.
const SMALLEST: &str = "tiny";

/// Runs a guest in directories of its own below the daemon's. `protects` says whether it can be
/// branched live.
pub(super) async fn try_out(
    config: &ServeConfig,
    accelerator: Accelerator,
    protects: bool,
) -> Check {
    let scratch = match Scratch::new(config, accelerator) {
        Ok(scratch) => scratch,
        Err(error) => return failed("create its directories", &error.to_string()),
    };
    let tried = tokio::select! {
        tried = tokio::time::timeout(DEADLINE, scratch.play(protects)) => tried,
        _ = tokio::signal::ctrl_c() => {
            return Check::warn(NAME, "interrupted", "run it again and let it finish");
        }
    };
    match tried {
        Ok(Ok(story)) => Check::ok(NAME, story),
        Ok(Err((step, error))) => failed(step, &with_causes(&error)),
        Err(_) => failed("finish in time", &format!("it took more than {} s", DEADLINE.as_secs())),
    }
}

fn failed(step: &str, problem: &str) -> Check {
    let remedy = "fix the other findings first; if there are none, look at this error, and at the \
                  log with FORKD_LOG=debug";
    Check::fail(NAME, format!("could not {step}: {problem}"), remedy)
}

fn with_causes(error: &EngineError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Directories that are removed at the end.
struct Scratch {
    config: EngineConfig,
}

impl Scratch {
    fn new(config: &ServeConfig, accelerator: Accelerator) -> std::io::Result<Self> {
        let mut config = config.engine();
        config.accelerator = AcceleratorChoice::Forced(accelerator);
        // Short: sockets have short paths.
        let name = format!("d{:x}", std::process::id());
        for path in [&mut config.state_dir, &mut config.hot_dir, &mut config.run_dir] {
            path.push(&name);
            socket::create_private(path)?;
        }
        Ok(Self { config })
    }

    fn paths(&self) -> [&PathBuf; 3] {
        [&self.config.state_dir, &self.config.hot_dir, &self.config.run_dir]
    }

    async fn play(&self, protects: bool) -> Result<String, (&'static str, EngineError)> {
        let engine = Engine::open(self.config.clone()).await.map_err(|e| ("start", e))?;
        let mode = if protects { BranchMode::Live } else { BranchMode::Diff };
        let told = story(&engine, &self.config, mode).await;
        engine.shut_down(AtShutDown::Remove).await;
        told
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in self.paths() {
            fs::remove_dir_all(path).ok();
        }
    }
}

/// What happened, in words; or the step that failed.
async fn story(
    engine: &Engine,
    config: &EngineConfig,
    mode: BranchMode,
) -> Result<String, (&'static str, EngineError)> {
    let mut images = host::images(&config.image_dir);
    images.retain(|(_, problem)| problem.is_none());
    images.sort_by_key(|(name, _)| name != SMALLEST);
    let image = images.into_iter().next().map(|(name, _)| name).unwrap_or_default();
    let tag: SnapshotTag =
        "doctor".parse().map_err(|_| ("name it", EngineError::Internal("tag".to_owned())))?;
    let size = MachineSize::new(MEMORY, 1)
        .map_err(|error| ("size it", EngineError::Internal(error.to_string())))?;
    let request = TemplateRequest {
        tag: tag.clone(),
        image: TemplateImage::Named(image),
        size,
        cpu: forkd_types::CpuModel::Host,
        warm: Vec::new(),
        shared: false,
        private: false,
    };
    let begun = Instant::now();
    let built = engine.build_template(request, Arc::new(NoProgress)).await;
    built.map_err(|e| ("boot a guest", e))?;
    let booted = begun.elapsed();
    let begun = Instant::now();
    let mut source = engine.fork(&tag, 1).await.map_err(|e| ("start a child", e))?;
    let (source, forked) = (source.remove(0).id, begun.elapsed());
    say(engine, &source, "echo kept > /tmp/doctor").await.map_err(|e| ("run a program", e))?;
    let request = BranchRequest {
        tag: None,
        mode,
        children: 1,
        network: None,
        join: None,
        private: false,
        wait: Wait::UntilReady,
    };
    let branch = engine.branch(&source, request).await.map_err(|e| ("branch the guest", e))?;
    let pause = branch.snapshot.branch.as_ref().map(|report| report.pause).unwrap_or_default();
    let child = branch.children.into_iter().next();
    let child = child.unwrap_or_else(|| Err(EngineError::Internal("no child".to_owned())));
    let child = child.map_err(|e| ("start a child of the branch", e))?.id;
    say(engine, &source, "echo later > /tmp/doctor")
        .await
        .map_err(|e| ("continue the source", e))?;
    let kept = say(engine, &child, "cat /tmp/doctor").await.map_err(|e| ("ask the child", e))?;
    if kept != "kept" {
        let problem = format!("the child has `{kept}` and not what was there at the branch point");
        return Err(("restore the branch point", EngineError::Internal(problem)));
    }
    let removed = engine.delete_snapshot(&tag, DeletePolicy::Cascade).await;
    removed.map_err(|e| ("remove everything", e))?;
    let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
    Ok(format!(
        "booted on {} in {}, forked in {}, branched ({mode}) with a pause of {:.1} ms; the child \
         has the state of the branch point",
        engine.accelerator().name(),
        seconds(booted),
        seconds(forked),
        pause.as_secs_f64() * 1e3,
    ))
}

async fn say(engine: &Engine, id: &SandboxId, command: &str) -> Result<String, EngineError> {
    let output = engine.exec(id, ExecRequest::new(["/bin/sh", "-c", command])).await?;
    if output.exit_code != 0 {
        let problem = format!("`{command}` ended with exit code {}", output.exit_code);
        return Err(EngineError::Internal(problem));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
