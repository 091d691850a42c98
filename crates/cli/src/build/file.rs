//! Which file has the recipe, and how it is read.

use std::fs;
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

/// Reads the recipe.
pub(crate) fn read(source: &Source) -> anyhow::Result<Recipe> {
    let path = match &source.file {
        Some(path) => path.clone(),
        None => find(&source.context)?,
    };
    let shown = path.display();
    let size = fs::metadata(&path).with_context(|| format!("read `{shown}`"))?.len();
    if size > BYTES_MAX {
        let hint = "put what is long into files, and copy them";
        return Err(Hinted::new(format!("`{shown}` is longer than 1 MiB"), hint).into());
    }
    let text = fs::read_to_string(&path).with_context(|| format!("read `{shown}`"))?;
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
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
