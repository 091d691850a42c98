//! `forkd bench fork`: what children cost, from the request until they are idle.

mod columns;
mod measure;
mod options;
mod process;

use self::measure::Measurement;
pub(super) use self::options::Options;
use super::daemon::OwnDaemon;
use super::host::Progress;
use super::result::{self, Measured, Presentation};
use crate::options::Global;

pub(super) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let options = options.checked(global)?;
    let presentation = Presentation {
        sheet: &columns::SHEET,
        heads: &["KIND"],
        settings: options.as_json(),
        csv: options.csv,
        chain: false,
    };
    result::run(global, presentation, async |measured| measure(&options, measured).await).await
}

/// The daemon and its files end with this future, however it ends.
async fn measure(options: &Options, measured: &mut Measured) -> anyhow::Result<()> {
    let progress = Progress::new(options.iterations);
    let daemon = OwnDaemon::start(options.store.as_deref(), options.hot.as_deref()).await?;
    measured.accelerator = daemon.client().version().await?.accelerator.to_string();
    let measurement = Measurement::prepare(daemon.client(), daemon.pid(), options).await?;
    for iteration in 1..=options.iterations {
        measured.rows.extend(measurement.fork(iteration).await?);
        progress.advance();
    }
    drop(progress);
    drop(measurement);
    daemon.end()?;
    measured.complete = true;
    Ok(())
}
