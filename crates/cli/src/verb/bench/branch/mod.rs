//! `forkd bench branch`: what a branch costs, as seen from host and guest.

mod columns;
mod guest;
mod measure;
mod options;

use self::measure::Measurement;
pub(super) use self::options::Options;
use super::daemon::OwnDaemon;
use super::host::Progress;
use super::result::{self, Measured, Presentation};
use crate::console::report::Hinted;
use crate::daemon::paths::Surroundings;
use crate::options::Global;

pub(super) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    options.check(global)?;
    let presentation = Presentation {
        sheet: &columns::SHEET,
        heads: &["MODE", "WAITS FOR"],
        settings: options.as_json(),
        csv: options.csv,
        chain: options.chain,
    };
    result::run(global, presentation, async |measured| measure(&options, measured).await).await
}

/// The daemon and its files end with this future, however it ends.
async fn measure(options: &Options, measured: &mut Measured) -> anyhow::Result<()> {
    let meter = match &options.meter {
        Some(path) => path.clone(),
        None => Surroundings::of_process()?.meter(|path| path.is_file()),
    };
    if !meter.is_file() {
        return Err(Hinted::new(
            format!("the program that measures in the guest is missing: `{}`", meter.display()),
            "build it with `make build`, or name it with --meter",
        )
        .into());
    }
    let progress = Progress::new(options.iterations);
    let daemon = OwnDaemon::start(options.store.as_deref(), options.hot.as_deref()).await?;
    measured.accelerator = daemon.client().version().await?.accelerator.to_string();
    let mut measurement = Measurement::prepare(daemon.client(), options, &meter).await?;
    for iteration in 1..=options.iterations {
        for mode in &options.mode {
            for wait in &options.wait {
                measured.rows.push(measurement.branch(iteration, *mode, *wait).await?);
            }
        }
        measured.rows.extend(measurement.floor(iteration).await?);
        progress.advance();
    }
    drop(progress);
    drop(measurement);
    daemon.end()?;
    measured.complete = true;
    Ok(())
}
