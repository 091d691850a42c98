//! The witness in a guest: started, and asked whether all that it sees belongs to one instant.

use std::time::Duration;

use forkd_engine::guest::FileWrite;
use forkd_types::PageIndex;

use crate::Guest;
use crate::environment::required_path;

/// Where the program is in the guest.
const PROGRAM: &str = "/srv/forkd-witness";

/// Pages of each writer that are written in random order.
const PAGES: u64 = 2048;

/// Longest wait for an answer of a guest that may be damaged.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where pages of the witness are in guest RAM.
#[derive(Debug, Clone)]
pub struct WitnessPages {
    /// Pages that are written all the time: each within 64 writes of its writer.
    pub hot: Vec<PageIndex>,
    /// For each writer, the page that begins with the count of its writes.
    pub writes: Vec<PageIndex>,
    /// The page that begins with the count of records on disk.
    pub records: PageIndex,
}

/// What the witness found.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Whether nothing spoke against one instant.
    pub ok: bool,
    /// Writes that each writer has done.
    pub writes: Vec<u64>,
    /// Messages that went through the pipe.
    pub messages: u64,
    /// Records on disk.
    pub records: u64,
    /// Where its pages were meanwhile.
    pub pages: WitnessPages,
    /// All of it, with the violations, as the witness wrote it.
    pub text: String,
}

impl Guest<'_> {
    /// Starts the witness and waits until it has written each of its pages.
    pub async fn start_witness(&self, seed: u64) {
        let program = std::fs::read(required_path("FORKD_WITNESS")).expect("the witness is built");
        let mut write = FileWrite::new(PROGRAM);
        write.mode = Some(0o755);
        let written = self.lab.engine.write_file(&self.id, write, program).await;
        written.expect("the witness is written");
        // The agent comes first: renewal and requests shall not wait for the writers.
        let command =
            format!("nice -n 10 {PROGRAM} write --seed {seed} --pages {PAGES} --disk /srv");
        self.spawn(&command).await;
        loop {
            if let Ok(verdict) = self.ask_witness().await {
                assert!(verdict.ok, "the witness of a fresh guest: {}", verdict.text);
                if verdict.writes.iter().all(|writes| *writes > PAGES) && verdict.records > 0 {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The witness's verdict.
    ///
    /// # Errors
    /// What the engine or the witness says when there is no verdict.
    pub async fn ask_witness(&self) -> Result<Verdict, String> {
        let command = format!("{PROGRAM} check");
        let output = tokio::time::timeout(PATIENCE, self.try_sh(&command)).await;
        let output = output.map_err(|_| format!("no verdict within {PATIENCE:?}"))?;
        let output = output.map_err(|error| error.to_string())?;
        if output.code != 0 {
            return Err(output.stdout);
        }
        let value: serde_json::Value = serde_json::from_str(&output.stdout)
            .map_err(|error| format!("{error}: {}", output.stdout))?;
        let number = |field: &str| value[field].as_u64().unwrap_or_default();
        let numbers = |field: &str| -> Vec<u64> {
            let array = value[field].as_array().into_iter().flatten();
            array.filter_map(serde_json::Value::as_u64).collect()
        };
        let pages = |field| numbers(field).into_iter().map(PageIndex::new).collect::<Vec<_>>();
        let mut writes = pages("count_frames");
        let records = writes.pop().ok_or("the witness does not know where its pages are")?;
        Ok(Verdict {
            ok: value["ok"] == true,
            writes: numbers("writes"),
            messages: number("messages"),
            records: number("records"),
            pages: WitnessPages { hot: pages("hot_frames"), writes, records },
            text: output.stdout,
        })
    }
}
