//! `forkd top`: what goes on, as it goes on.

mod frame;
mod view;

use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use forkd_api::Snapshot;
use forkd_client::{Client, EventFilter, EventStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::console::signals::Signals;
use crate::console::terminal::{self, Keys, Mode, Page};
use crate::console::{manner, output};
use crate::daemon::connect;
use crate::exit::Exit;
use crate::options::Global;

use frame::{Frame, Pauses};

/// Show sandboxes, memory, branches and pauses, live
///
/// Press q to quit. If standard output is no terminal, it prints one table and exits, as with
/// --once. PAUSES has a bar for each of a sandbox's last branches: a longer pause is a higher bar.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd top\n  \
    forkd top --interval 5\n  \
    forkd top --once\n  \
    forkd top --json | jq .memory.private_bytes")]
pub(crate) struct Options {
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECS", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let client = connect::client(global).await?;
    // Followed from before the first look on, so that no pause is missed between them.
    let filter = EventFilter { kind: Some("snapshot.ready".into()), ..EventFilter::default() };
    let mut events = client.events(&filter, None).await?;
    let mut pauses = Pauses::of(&client.snapshots().await?);
    if global.json {
        output::json(&Frame::look(&client).await?.as_json(&pauses))?;
        return Ok(Exit::Ok.into());
    }
    if options.once || !std::io::stdout().is_terminal() {
        let frame = Frame::look(&client).await?;
        for line in view::lines(&frame, &pauses, None, manner::stdout_has_colour()) {
            output::line(&line)?;
        }
        return Ok(Exit::Ok.into());
    }
    live(&client, &mut events, &mut pauses, Duration::from_secs(options.interval)).await
}

async fn live(
    client: &Client,
    events: &mut EventStream,
    pauses: &mut Pauses,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::catch()?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut frame = Frame::look(client).await?;
    let has_keys = std::io::stdin().is_terminal();
    let mode = if has_keys { Some(Mode::enter(Keys::AtOnce)?) } else { None };
    let page = Page::enter()?;
    let mut keys = has_keys.then(keys);
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let exit = loop {
        let size = terminal::size();
        page.show(&view::lines(&frame, pauses, Some(size), manner::stdout_has_colour()))?;
        tokio::select! {
            _ = ticks.tick() => frame = Frame::look(client).await?,
            event = events.next() => match event? {
                Some(event) => note(pauses, &event.data),
                None => anyhow::bail!("the daemon stopped"),
            },
            caught = signals.next() => break caught.exit(),
            _ = resized.recv() => {}
            key = next(&mut keys) => if matches!(key, b'q' | b'Q') { break Exit::Ok.into() },
        }
    };
    drop(page);
    drop(mode);
    Ok(exit)
}

/// Notes the pause that an event tells of. A snapshot that was not branched has none.
fn note(pauses: &mut Pauses, data: &str) {
    if let Ok(snapshot) = serde_json::from_str::<Snapshot>(data) {
        pauses.add(&snapshot);
    }
}

/// The keys that are pressed. The thread reads until this program ends.
fn keys() -> mpsc::Receiver<u8> {
    let (send, keys) = mpsc::channel(16);
    thread::spawn(move || {
        for key in std::io::stdin().lock().bytes() {
            let Ok(key) = key else { return };
            if send.blocking_send(key).is_err() {
                return;
            }
        }
    });
    keys
}

/// The next key; none comes where nobody types.
async fn next(keys: &mut Option<mpsc::Receiver<u8>>) -> u8 {
    match keys {
        Some(open) => match open.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}
