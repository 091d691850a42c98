//! Which file has the recipe, and how it is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forkd_recipe::{
    Arguments, Base, Problem, Recipe, StartFrom, parse_dockerfile, parse_forkd_toml,
};

use crate::console::report::Hinted;

/// Names that are looked for, in order.
const NAMES: [&str; 2] = ["forkd.toml", "Dockerfile"];

/// Longest recipe, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// What the command line says of the recipe.
#[derive(Debug)]
pub(crate) struct Source {
    /// The directory that files are copied from.
    pub(crate) context: PathBuf,
    /// The file, if not one of the usual names.
    pub(crate) file: Option<PathBuf>,
    /// The snapshot or image in place of the one that the recipe names.
    pub(crate) from: Option<String>,
    /// Values of `ARG`.
    pub(crate) arguments: Arguments,
    /// Whether a Dockerfile's command is started.
    pub(crate) start: StartFrom,
}

/// Stands for standard input, which has a `forkd.toml`.
const STANDARD_INPUT: &str = "-";

/// Reads the recipe.
pub(crate) fn read(source: &Source) -> anyhow::Result<Recipe> {
    let path = match &source.file {
        Some(path) => path.clone(),
        None => find(&source.context)?,
    };
    let shown = path.display();
    let is_input = path.as_os_str() == STANDARD_INPUT;
    let text = match is_input {
        true => limited(io::stdin().lock()),
        false => File::open(&path).and_then(limited),
    };
    let text = text.with_context(|| format!("read `{shown}`"))?;
    if text.len() as u64 > BYTES_MAX {
        let hint = "put what is long into files, and copy them";
        return Err(Hinted::new(format!("`{shown}` is longer than 1 MiB"), hint).into());
    }
    let is_toml = is_input || path.extension().is_some_and(|extension| extension == "toml");
    if is_toml && (!source.arguments.is_empty() || source.start == StartFrom::Command) {
        let hint = "leave out --build-arg and --start-cmd; write `start` into the recipe";
        return Err(Hinted::usage(format!("`{shown}` has no ARG and no CMD"), hint).into());
    }
    let parsed = match is_toml {
        true => parse_forkd_toml(&text),
        false => parse_dockerfile(&text, &source.arguments, source.start),
    };
    let mut recipe = parsed.map_err(|problem| refused(&path, &problem))?;
    if let Some(name) = &source.from {
        recipe.base = Base::Name(name.clone());
    }
    Ok(recipe)
}

/// The text; of one that is too long, enough to know that.
fn limited(from: impl Read) -> io::Result<String> {
    let mut text = Vec::new();
    from.take(BYTES_MAX + 1).read_to_end(&mut text)?;
    String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn find(context: &Path) -> anyhow::Result<PathBuf> {
    let paths = NAMES.map(|name| context.join(name));
    paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let message = format!("`{}` has no forkd.toml and no Dockerfile", context.display());
        Hinted::usage(message, "write one, or name the recipe with -f").into()
    })
}

/// The refusal of a recipe, or of a file beside it.
pub(crate) fn refused(path: &Path, problem: &Problem) -> Hinted {
    Hinted::new(format!("{}: {problem}", path.display()), &problem.remedy)
}
