//! The command line, without any library: the program is copied into guests and stays small.

/// How it is called.
pub(crate) const USAGE: &str = "usage:
  forkd-meter stall [--most-ms N]
  forkd-meter write --mib N [--rate MIB_PER_S|max] [--order sequential|random] [--touch word|page]
  forkd-meter dirty --mib N
  forkd-meter ask stall|write|dirty WORD";

/// The word that makes us be the program rather than start it.
pub(crate) const FOREGROUND: &str = "--foreground";

/// Longest area, MiB: a guest with more memory than that is not measured.
const MIB_MAX: u64 = 1 << 20;

/// A measurement of the stall ends by itself after this time of the guest.
const MOST_MS_DEFAULT: u64 = 30_000;
const MOST_MS_MAX: u64 = 600_000;

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// Start a program in the background.
    Start(Program),
    /// Be that program.
    Run(Program),
    /// Ask a program that runs.
    Ask { program: &'static str, word: String },
}

/// A program that goes on until it is told to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Program {
    Stall(StallOptions),
    Write(WriteOptions),
    Dirty(DirtyOptions),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StallOptions {
    /// Ends by itself after this time.
    pub(crate) most_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    /// Size of the area.
    pub(crate) mib: u64,
    pub(crate) rate: Rate,
    pub(crate) order: Order,
    pub(crate) touch: Touch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyOptions {
    /// Size of the area.
    pub(crate) mib: u64,
}

/// How fast pages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rate {
    Max,
    MibPerSecond(u64),
}

/// Which page comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Sequential,
    Random,
}

/// How much of a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Word,
    Page,
}

/// Names of the programs that run in the background.
pub(crate) const NAMES: [&str; 3] = ["stall", "write", "dirty"];

/// What the arguments ask for, or what is wrong with them.
pub(crate) fn parse(arguments: &[String]) -> Result<Command, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let foreground = words.contains(&FOREGROUND);
    let words: Vec<&str> = words.into_iter().filter(|word| *word != FOREGROUND).collect();
    let program = match words.as_slice() {
        ["ask", name, word] => {
            let known = NAMES.into_iter().find(|known| known == name);
            let program = known.ok_or_else(|| format!("there is no program `{name}`"))?;
            return Ok(Command::Ask { program, word: (*word).to_owned() });
        }
        ["stall", options @ ..] => Program::Stall(stall(options)?),
        ["write", options @ ..] => Program::Write(write(options)?),
        ["dirty", options @ ..] => Program::Dirty(dirty(options)?),
        _ => return Err("not understood".to_owned()),
    };
    Ok(if foreground { Command::Run(program) } else { Command::Start(program) })
}

fn stall(words: &[&str]) -> Result<StallOptions, String> {
    let mut options = StallOptions { most_ms: MOST_MS_DEFAULT };
    for (name, value) in pairs(words)? {
        match name {
            "--most-ms" => options.most_ms = number(name, value, MOST_MS_MAX)?,
            other => return Err(format!("`{other}` is no option of stall")),
        }
    }
    Ok(options)
}

fn write(words: &[&str]) -> Result<WriteOptions, String> {
    let mut mib = None;
    let (mut rate, mut order, mut touch) = (Rate::Max, Order::Sequential, Touch::Word);
    for (name, value) in pairs(words)? {
        match (name, value) {
            ("--mib", _) => mib = Some(number(name, value, MIB_MAX)?),
            ("--rate", "max") => rate = Rate::Max,
            ("--rate", _) => rate = Rate::MibPerSecond(number(name, value, MIB_MAX)?),
            ("--order", "sequential") => order = Order::Sequential,
            ("--order", "random") => order = Order::Random,
            ("--touch", "word") => touch = Touch::Word,
            ("--touch", "page") => touch = Touch::Page,
            _ => return Err(format!("`{name} {value}` is no option of write")),
        }
    }
    Ok(WriteOptions { mib: mib.ok_or("--mib is missing")?, rate, order, touch })
}

fn dirty(words: &[&str]) -> Result<DirtyOptions, String> {
    match pairs(words)?.as_slice() {
        [("--mib", value)] => Ok(DirtyOptions { mib: number("--mib", value, MIB_MAX)? }),
        _ => Err("dirty needs --mib and nothing else".to_owned()),
    }
}

fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let pair = |chunk: &[&'a str]| match chunk {
        [name, value] => Ok((*name, *value)),
        _ => Err(format!("`{}` has no value", chunk.concat())),
    };
    words.chunks(2).map(pair).collect()
}

fn number(name: &str, value: &str, most: u64) -> Result<u64, String> {
    match value.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("`{name} {value}`: a number from 1 to {most} is expected")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Command, String> {
        parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_come_in_any_order_and_have_defaults() {
        let write = WriteOptions {
            mib: 256,
            rate: Rate::MibPerSecond(100),
            order: Order::Random,
            touch: Touch::Word,
        };
        let text = "write --order random --mib 256 --rate 100";
        assert_eq!(parsed(text).unwrap(), Command::Start(Program::Write(write)));
        let stall = Program::Stall(StallOptions { most_ms: MOST_MS_DEFAULT });
        assert_eq!(parsed("stall").unwrap(), Command::Start(stall));
        let dirty = Program::Dirty(DirtyOptions { mib: 1 });
        assert_eq!(parsed("dirty --mib 1 --foreground").unwrap(), Command::Run(dirty));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, name) in [
            ("write --rate 1", "--mib"),
            ("write --mib 0", "--mib 0"),
            ("write --mib 5 --rate fast", "--rate fast"),
            ("write --mib", "--mib"),
            ("stall --mib 5", "--mib"),
            ("ask nobody stop", "nobody"),
            ("spin", "not understood"),
        ] {
            let problem = parsed(text).unwrap_err();
            assert!(problem.contains(name), "{text}: {problem}");
        }
    }
}
