//! `forkd eval`: run Python code in a sandbox.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use forkd_api::{EvalPart, EvalRequest, text_to_bytes};
use forkd_types::limit;

use crate::console::{output, report};
use crate::daemon::connect;
use crate::exit::{self, Exit};
use crate::options::Global;

/// Run Python code in a sandbox
///
/// The interpreter keeps its variables between calls. Prints what the code prints, then what it
/// displays, then the value of its last expression.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd eval sb-0123456789ab 'x = 6 * 7'\n  \
    forkd eval sb-0123456789ab x\n  \
    forkd eval sb-0123456789ab - < script.py\n  \
    forkd eval sb-0123456789ab figure --save-parts plot     # plot/value.png")]
pub(crate) struct Options {
    /// The sandbox
    sandbox: String,
    /// The code, or `-` to read it from standard input
    #[arg(allow_hyphen_values = true)]
    code: String,
    /// Interrupt the code after this many seconds
    #[arg(long, value_name = "SECS", default_value_t = limit::EXEC_TIMEOUT_DEFAULT.as_secs())]
    timeout_secs: u64,
    /// Write the value in each form that it has to a file in this directory: value.txt, value.html,
    /// value.png and so on; and what the code displays: display-1.txt, display-1.png and so on
    #[arg(long, value_name = "DIR")]
    save_parts: Option<PathBuf>,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<ExitCode> {
    let mut code = options.code;
    if code == "-" {
        code.clear();
        std::io::stdin().read_to_string(&mut code).context("read standard input")?;
    }
    let request = EvalRequest { code, timeout_secs: options.timeout_secs };
    let answer = connect::client(global).await?.eval(&options.sandbox, &request).await?;
    if let Some(directory) = &options.save_parts {
        save(directory, "value", &answer.parts)?;
        for (number, display) in answer.displays.iter().enumerate() {
            save(directory, &format!("display-{}", number + 1), &display.parts)?;
        }
    }
    if global.json {
        output::json(&answer)?;
    } else {
        let stdout = text_to_bytes(&answer.stdout, answer.stdout_base64.as_deref());
        let stderr = text_to_bytes(&answer.stderr, answer.stderr_base64.as_deref());
        output::guest_streams(&stdout, &stderr)?;
        let plain = answer.displays.iter().filter_map(|display| display.parts.first());
        for text in plain.map(|part| &part.data).chain(&answer.result) {
            output::line(text)?;
        }
        if answer.displays_left_out > 0 {
            report::note(&format!("{} more values had no room", answer.displays_left_out));
        }
        if let Some(error) = &answer.error {
            report::note(report::printable(error).trim_end());
        }
    }
    if answer.timed_out {
        report::note(&format!("interrupted the code after {} s", request.timeout_secs));
        return Ok(Exit::TimedOut.into());
    }
    Ok(exit::of_program(answer.exit_code))
}

/// Endings of files, by media type.
const ENDINGS: [(&str, &str); 12] = [
    ("text/plain", "txt"),
    ("text/html", "html"),
    ("text/markdown", "md"),
    ("text/latex", "tex"),
    ("image/svg+xml", "svg"),
    ("image/png", "png"),
    ("image/jpeg", "jpg"),
    ("application/pdf", "pdf"),
    ("application/json", "json"),
    ("application/javascript", "js"),
    ("application/vnd.forkd.chart+json", "chart.json"),
    ("application/vnd.forkd.table+json", "table.json"),
];

/// The file for the form with this number. A media type comes from the guest: it is no file name.
fn file_name(of: &str, number: usize, mime: &str) -> String {
    match ENDINGS.iter().find(|(known, _)| *known == mime) {
        Some((_, ending)) => format!("{of}.{ending}"),
        None => format!("{of}-{number}.bin"),
    }
}

/// Writes the forms of the value that the files are called after.
fn save(directory: &Path, of: &str, parts: &[EvalPart]) -> anyhow::Result<()> {
    let wrong = || format!("write to `{}`", directory.display());
    fs::create_dir_all(directory).with_context(wrong)?;
    for (number, part) in parts.iter().enumerate() {
        let path = directory.join(file_name(of, number + 1, &part.mime));
        let bytes = part.bytes().context("the daemon sent a value that is not what it says")?;
        fs::write(&path, bytes).with_context(|| format!("write `{}`", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_value_has_a_file_and_no_guest_names_one() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("new/plot");
        let parts = [
            EvalPart::of("text/plain".to_owned(), b"<Figure>".to_vec()),
            EvalPart::of("image/png".to_owned(), vec![0x89, 0xFF]),
            EvalPart::of("../../x".to_owned(), vec![1]),
        ];
        save(&directory, "value", &parts).unwrap();
        save(&directory, "display-1", &parts[..2]).unwrap();
        let read = |name: &str| fs::read(directory.join(name)).unwrap();
        assert_eq!(read("value.txt"), b"<Figure>");
        assert_eq!(read("value.png"), [0x89, 0xFF]);
        assert_eq!(read("value-3.bin"), [1]);
        assert_eq!(read("display-1.png"), [0x89, 0xFF]);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 5);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = save(&file.path().join("x"), "value", &[]).unwrap_err();
        assert!(format!("{error:#}").contains("/x`"), "{error:#}");
    }
}
