//! The modules of a program, read from its source: which file each one is in, what it defines, and
//! which names of other modules it uses.
//!
//! Guarantees: a name counts for the module that defines it, not for those that re-export it.
//! Nothing under `#[cfg(test)]` counts.
//!
//! It reads imports and paths, not types: a method that is called on a value shows no use of the
//! module that defines it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::source;

/// Keywords that an item's name follows.
const DEFINE: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];

/// Words that an item starts with; commas in it do not end it.
const ITEM: [&str; 14] = [
    "async", "const", "enum", "extern", "fn", "impl", "mod", "pub", "static", "struct", "trait",
    "type", "union", "unsafe",
];

/// All modules that are reached from the root file of a program or library.
#[derive(Debug, Default)]
pub(super) struct Modules {
    all: Vec<Module>,
}

#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    /// Where the files of its children are.
    folder: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    defined: Vec<String>,
    imports: Vec<Import>,
    /// Paths in the code, single names included.
    paths: Vec<Mention>,
}

/// One name of a `use`.
#[derive(Debug)]
struct Import {
    /// `*` for all names.
    name: String,
    path: Mention,
    /// Others see the name here. That alone is no use of it.
    is_reexport: bool,
}

#[derive(Debug)]
struct Mention {
    segments: Vec<String>,
    /// From 1.
    line: usize,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    Module(usize),
    /// Something that this module defines.
    Item(usize),
}

/// A file that uses a name of another file.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    /// Who uses it.
    pub(super) from: PathBuf,
    /// Who defines it.
    pub(super) to: PathBuf,
    /// Of `from`, from 1.
    pub(super) line: usize,
    /// The name.
    pub(super) name: String,
}

impl Modules {
    /// Reads the modules from the root file on; `read` gives a file's text if it is there.
    pub(super) fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let mut modules = Self::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        modules.add(Module { file: root.to_owned(), folder, ..Module::default() });
        // Those that are found while this runs are read as well.
        let mut unread = vec![0];
        while let Some(index) = unread.pop() {
            let Some(text) = read(&modules.all[index].file) else { continue };
            let tokens = tokens(&text);
            let mut parser = Parser { tokens: &tokens, at: 0, modules: &mut modules, read };
            parser.module(index, &mut unread);
        }
        modules
    }

    fn add(&mut self, module: Module) -> usize {
        self.all.push(module);
        self.all.len() - 1
    }

    /// Every use of a name of another file, once for each pair of files and name.
    pub(super) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (index, module) in self.all.iter().enumerate() {
            let imported = module.imports.iter().filter(|import| !import.is_reexport);
            let imported = imported.map(|import| &import.path);
            for mention in imported.chain(&module.paths) {
                let Some(Meaning::Item(found)) = self.path(index, &mention.segments, 0) else {
                    continue;
                };
                let (from, to) = (module.file.clone(), self.all[found].file.clone());
                let name = mention.segments.last().cloned().unwrap_or_default();
                if from != to {
                    uses.push(Use { from, to, line: mention.line, name });
                }
            }
        }
        uses.sort();
        uses.dedup_by(|b, a| (&a.from, &a.to, &a.name) == (&b.from, &b.to, &b.name));
        uses
    }

    /// What a path means in a module; None for what other crates define.
    fn path(&self, module: usize, segments: &[String], depth: usize) -> Option<Meaning> {
        let (first, rest) = segments.split_first()?;
        let mut meaning = match first.as_str() {
            "crate" => Meaning::Module(0),
            "self" => Meaning::Module(module),
            "super" => Meaning::Module(self.all[module].parent?),
            name => self.name(module, name, depth)?,
        };
        for segment in rest {
            let Meaning::Module(inside) = meaning else { break };
            meaning = match segment.as_str() {
                "super" => Meaning::Module(self.all[inside].parent?),
                "self" | "*" => meaning,
                // What a macro defines is not seen, so it counts for the module.
                name => self.name(inside, name, depth).unwrap_or(Meaning::Item(inside)),
            };
        }
        Some(meaning)
    }

    /// What a name means in a module. `depth` ends imports that lead to each other.
    fn name(&self, module: usize, name: &str, depth: usize) -> Option<Meaning> {
        let here = &self.all[module];
        if let Some(child) = here.children.get(name) {
            return Some(Meaning::Module(*child));
        }
        if here.defined.iter().any(|defined| defined == name) {
            return Some(Meaning::Item(module));
        }
        if depth > self.all.len() {
            return None;
        }
        // Without this, `use x::{self}` would look for `x` in itself.
        let leads_on = |import: &&Import| import.path.segments.first().is_none_or(|s| s != name);
        let imports = || here.imports.iter().filter(leads_on);
        if let Some(import) = imports().find(|import| import.name == name) {
            return self.path(module, &import.path.segments, depth + 1);
        }
        imports().filter(|import| import.name == "*").find_map(|import| {
            match self.path(module, &import.path.segments, depth + 1)? {
                Meaning::Module(of) if of != module => self.name(of, name, depth + 1),
                _ => None,
            }
        })
    }
}

#[derive(Debug)]
struct Token {
    text: String,
    line: usize,
}

/// Words and punctuation of the code; `::` is one.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, line) in source::parse(text).iter().enumerate() {
        let mut continues = false;
        for character in line.code.chars() {
            let is_word = character.is_alphanumeric() || character == '_';
            let joins = |last: &Token| match character {
                ':' => last.text == ":" && continues,
                _ => is_word && continues && last.text.ends_with(is_word_character),
            };
            match tokens.last_mut() {
                Some(last) if joins(last) => last.text.push(character),
                _ if character.is_whitespace() => {}
                _ => tokens.push(Token { text: character.to_string(), line: index + 1 }),
            }
            continues = !character.is_whitespace();
        }
    }
    tokens
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    modules: &'a mut Modules,
    read: &'a dyn Fn(&Path) -> Option<String>,
}

impl Parser<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| &token.text)
    }

    fn before(&self, back: usize) -> &str {
        self.at.checked_sub(back).map_or("", |index| &self.tokens[index].text)
    }

    /// Reads a module up to its closing brace, or to the end of the file.
    fn module(&mut self, index: usize, unread: &mut Vec<usize>) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "#" if matches!(self.text(1), "[" | "!") => {
                    self.attribute();
                    continue;
                }
                "use" if self.text(1) != "<" => {
                    self.import(index);
                    continue;
                }
                "mod" if is_word(self.text(1)) => {
                    self.child(index, unread);
                    continue;
                }
                "macro_rules" if depth == 0 && self.text(1) == "!" => {
                    let name = self.text(2).to_owned();
                    self.modules.all[index].defined.push(name);
                }
                word if DEFINE.contains(&word) && depth == 0 && is_word(self.text(1)) => {
                    let name = self.text(1).to_owned();
                    self.modules.all[index].defined.push(name);
                }
                word if is_word(word) => {
                    self.mention(index);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Passes over `#[..]`, and over what it stands before if that is for tests only.
    fn attribute(&mut self) {
        let start = self.at;
        while self.at < self.tokens.len() && self.text(0) != "[" {
            self.at += 1;
        }
        self.group();
        let texts = self.tokens[start..self.at].iter().map(|token| token.text.as_str());
        let attribute: String = texts.collect();
        if attribute.starts_with("#[cfg(test") || attribute.starts_with("#[cfg(all(test") {
            self.skip();
        }
    }

    /// Passes over brackets and what is in them.
    fn group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Passes over an item, a field, an arm or a statement.
    fn skip(&mut self) {
        while self.text(0) == "#" {
            self.at += 1;
            self.group();
        }
        let is_import = self.text(0) == "use";
        let is_item = is_import || ITEM.contains(&self.text(0));
        while self.at < self.tokens.len() {
            match self.text(0) {
                ";" => break,
                "," if !is_item => break,
                "}" | ")" | "]" => return,
                "{" if !is_import => {
                    self.group();
                    return;
                }
                "(" | "[" | "{" => self.group(),
                _ => self.at += 1,
            }
        }
        self.at += 1;
    }

    /// Reads `mod name;` or `mod name { .. }`.
    fn child(&mut self, parent: usize, unread: &mut Vec<usize>) {
        let name = self.text(1).to_owned();
        let above = &self.modules.all[parent];
        let folder = above.folder.join(&name);
        let is_inline = self.text(2) == "{";
        let flat = above.folder.join(format!("{name}.rs"));
        let file = match is_inline {
            true => above.file.clone(),
            false if (self.read)(&flat).is_some() => flat,
            false => folder.join("mod.rs"),
        };
        let module = Module { file, folder, parent: Some(parent), ..Module::default() };
        let index = self.modules.add(module);
        self.modules.all[parent].children.insert(name, index);
        self.at += 3;
        if is_inline {
            self.module(index, unread);
            self.at += 1;
        } else {
            unread.push(index);
        }
    }

    /// Reads a `use` to its end.
    fn import(&mut self, module: usize) {
        let is_reexport = match self.before(1) {
            "pub" => true,
            ")" => {
                let open = self.tokens[..self.at].iter().rposition(|token| token.text == "(");
                open.is_some_and(|open| open > 0 && self.tokens[open - 1].text == "pub")
            }
            _ => false,
        };
        self.at += 1;
        self.tree(module, &mut Vec::new(), is_reexport);
    }

    /// Reads one branch of a `use`, and leaves the comma, brace or semicolon after it.
    fn tree(&mut self, module: usize, path: &mut Vec<String>, is_reexport: bool) {
        let (outer, line) = (path.len(), self.tokens.get(self.at).map_or(0, |token| token.line));
        let mut name = None;
        loop {
            match self.text(0) {
                "{" => {
                    while matches!(self.text(0), "{" | ",") {
                        self.at += 1;
                        if self.text(0) != "}" {
                            self.tree(module, path, is_reexport);
                        }
                    }
                    self.at += 1;
                    path.truncate(outer);
                    return;
                }
                "as" => {
                    name = Some(self.text(1).to_owned());
                    self.at += 2;
                }
                "::" => self.at += 1,
                "," | "}" | ";" | "" => break,
                word => {
                    path.push(word.to_owned());
                    self.at += 1;
                }
            }
        }
        let segments: Vec<String> = path.clone();
        path.truncate(outer);
        let last = segments.iter().rev().find(|segment| *segment != "self");
        if let Some(name) = name.or_else(|| last.cloned()) {
            let import = Import { name, path: Mention { segments, line }, is_reexport };
            self.modules.all[module].imports.push(import);
        }
    }

    /// Reads a path in the code. A single name counts where it can only be that of an item.
    fn mention(&mut self, module: usize) {
        let after = self.before(1).to_owned();
        let line = self.tokens[self.at].line;
        let mut segments = vec![self.text(0).to_owned()];
        self.at += 1;
        while self.text(0) == "::" && is_word(self.text(1)) {
            segments.push(self.text(1).to_owned());
            self.at += 2;
        }
        let is_upper = segments[0].starts_with(char::is_uppercase);
        let is_called = matches!(self.text(0), "(" | "!" | "::");
        let is_path = segments.len() > 1 || is_upper || is_called;
        // A method, a name that is just being defined, or the rest of a path.
        let is_other = matches!(after.as_str(), "." | "fn" | "::") || DEFINE.contains(&&*after);
        if is_path && !is_other {
            self.modules.all[module].paths.push(Mention { segments, line });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uses in a program of these files, as `from -> to: name`.
    fn uses(files: &[(&str, &str)]) -> Vec<String> {
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        let short = |path: &Path| path.display().to_string().replace(".rs", "");
        let uses = Modules::read(Path::new("lib.rs"), &read).uses();
        let tell =
            |found: &Use| format!("{} -> {}: {}", short(&found.from), short(&found.to), found.name);
        uses.iter().map(tell).collect()
    }

    #[test]
    fn imports_and_paths_name_the_file_that_defines() {
        let found = uses(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::{Thing, deep::{Other as O, f}};\nfn g() { super::c::run(); }"),
            ("b/mod.rs", "pub mod deep; pub struct Thing;"),
            ("b/deep.rs", "pub struct Other; pub fn f() {}"),
            ("c.rs", "use crate::{b, b::deep};\npub fn run() { b::make!(); deep::f() }"),
        ]);
        let wanted = [
            "a -> b/deep: Other",
            "a -> b/deep: f",
            "a -> b/mod: Thing",
            "a -> c: run",
            "c -> b/deep: f",
            "c -> b/mod: make",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_re_export_is_no_use_and_leads_to_the_definition() {
        let parent = "mod deep; mod user; pub(crate) use self::deep::Thing; pub use deep::*;";
        let files = |parent| {
            uses(&[
                ("lib.rs", "mod x;"),
                ("x.rs", parent),
                ("x/deep.rs", "pub struct Thing; pub fn f() {}"),
                ("x/user.rs", "use super::{Thing, f};"),
            ])
        };
        let wanted = ["x/user -> x/deep: Thing", "x/user -> x/deep: f"];
        assert_eq!(files(parent), wanted);
        let uses_it = format!("{parent} fn new() -> Thing {{}}");
        assert_eq!(files(&uses_it)[2..], ["x -> x/deep: Thing"]);
    }

    #[test]
    fn a_child_that_takes_what_its_parent_defines_uses_it() {
        let child = ("a.rs", "use super::*;\nfn f(_: Own, _: Other) {}");
        let found = uses(&[("lib.rs", "mod a; struct Own; use other::Other;"), child]);
        assert_eq!(found, ["a -> lib: Own"]);
    }

    #[test]
    fn inline_modules_belong_to_their_file() {
        let found = uses(&[
            ("lib.rs", "mod a; mod here { use super::a::X; pub mod in_it; pub struct Y; }"),
            ("a.rs", "pub struct X; fn f(_: crate::here::Y) {}"),
            ("here/in_it.rs", "use super::super::a::X;"),
        ]);
        assert_eq!(found, ["a -> lib: Y", "here/in_it -> a: X", "lib -> a: X"]);
    }

    #[test]
    fn what_is_for_tests_only_does_not_count() {
        let found = uses(&[
            ("lib.rs", "mod a; mod b;"),
            (
                "a.rs",
                "#[cfg(test)]\nuse crate::b::{X, Y};\n#[cfg(all(test, unix))] #[allow(x)]\n\
                 fn f<A, B>() -> [u8; 2] { crate::b::f() }\n\
                 #[cfg(test)] mod tests { use crate::b::X; }\n\
                 struct S { #[cfg(test)] x: crate::b::X, y: u8 }\n\
                 #[cfg(not(test))] use crate::b::Z;",
            ),
            ("b.rs", "pub struct X; pub struct Y; pub struct Z; pub fn f() {}"),
        ]);
        assert_eq!(found, ["a -> b: Z"]);
    }

    #[test]
    fn methods_fields_comments_and_text_are_no_uses() {
        let found = uses(&[
            (
                "lib.rs",
                "mod a; pub use a::{run, Name};\nfn f() { x.run(); let run = 1; }\n// Name\n\
                        const T: &str = \"a::run()\"; fn h<'a>(s: &'a str) {}",
            ),
            ("a.rs", "pub fn run() {} pub struct Name;"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn imports_that_lead_to_each_other_end() {
        let files =
            [("lib.rs", "mod a; mod b;"), ("a.rs", "pub use crate::b::*; use x::{self, Y};")];
        let found = uses(&[files[0], files[1], ("b.rs", "pub use crate::a::*; fn f() -> Z {}")]);
        assert_eq!(found, Vec::<String>::new());
    }
}
