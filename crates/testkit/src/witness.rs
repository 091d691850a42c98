//! The witness in a guest: started, and asked whether all that it sees belongs to one instant.

use std::time::Duration;

use forkd_engine::guest::FileWrite;

use crate::Guest;
use crate::environment::required_path;

/// Where the program is in the guest.
const PROGRAM: &str = "/srv/forkd-witness";

/// Pages of each writer that are written in random order.
const PAGES: u64 = 2048;

/// Longest wait for an answer of a guest that may be damaged.
const PATIENCE: Duration = Duration::from_secs(30);

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
        let writes = value["writes"].as_array().into_iter().flatten();
        Ok(Verdict {
            ok: value["ok"] == true,
            writes: writes.filter_map(serde_json::Value::as_u64).collect(),
            messages: number("messages"),
            records: number("records"),
            text: output.stdout,
        })
    }
}
