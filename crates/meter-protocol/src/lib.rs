//! What `forkd bench` tells the meter in a guest, and what the meter answers.
//!
//! A request is the meter's only argument, as JSON. Its answer is one line of JSON on standard
//! output. Both sides are built together, so there are no versions.
//!
//! Does not do: I/O, or measure anything.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Pages of 4 KiB in a MiB.
pub const PAGES_PER_MIB: u64 = 256;

/// What the stall meter keeps one figure of.
pub const INTERVAL_NS: u64 = 1_000_000;

/// What the meter is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a program in the background. Answered when it is ready.
    Start(Program),
    /// Ask a program that runs.
    Ask(Question),
}

/// A program that goes on in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Notes how long a virtual CPU was held up. Answers [`Spinning`].
    Stall,
    /// Writes pages all the time and counts them. Answers [`Written`].
    Write(Write),
    /// Holds so many MiB of pages that were written. Answers [`Dirtied`].
    Dirty(NonZeroU64),
}

impl Program {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Write(_) => "write",
            Self::Dirty(_) => "dirty",
        }
    }
}

/// What a program can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// The stall meter stops and answers what it has measured: [`Stall`].
    StopStall,
    /// How much was written so far: [`Written`].
    CountWritten,
    /// The pages that are held are written again: [`Dirtied`].
    DirtyAgain,
}

impl Question {
    /// The name of the program that knows the answer.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::StopStall => "stall",
            Self::CountWritten => "write",
            Self::DirtyAgain => "dirty",
        }
    }
}

/// What is written, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Size of the area, MiB.
    pub mib: NonZeroU64,
    /// How fast.
    pub rate: Rate,
    /// Which page comes next.
    pub order: Order,
    /// How much of a page is written.
    pub touch: Touch,
}

/// How fast pages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Rate {
    /// As fast as it goes.
    Max,
    /// MiB per second.
    MibPerSecond(NonZeroU32),
}

/// Which page is written next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The one behind the last.
    Sequential,
    /// Any.
    Random,
}

/// How much of a page is written at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// One word.
    Word,
    /// All of it.
    Page,
}

/// The stall meter has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spinning {
    /// Whether it has real-time priority.
    pub real_time: bool,
    /// The virtual CPU that it has for itself.
    pub cpu: usize,
}

/// What the stall meter measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Why it had no real-time priority on a CPU of its own, if so.
    pub problem: Option<String>,
    /// How long it measured, by the guest's clock.
    pub spun_ns: u64,
    /// The longest gap that began in each interval of [`INTERVAL_NS`].
    pub longest_ns: Vec<u64>,
}

/// What has been written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Pages, the same one again among them.
    pub pages: u64,
    /// The guest's time.
    pub at_ns: u64,
}

/// The pages that are held have been written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dirtied {
    /// How many there are.
    pub pages: u64,
    /// How long it took.
    pub took_us: u64,
}

/// The given word means nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("use {0}")]
pub struct UnknownWord(&'static str);

impl FromStr for Rate {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text, text.parse()) {
            ("max", _) => Ok(Self::Max),
            (_, Ok(rate)) => Ok(Self::MibPerSecond(rate)),
            (_, Err(_)) => Err(UnknownWord("`max` or MiB per second")),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = UnknownWord;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Max => f.write_str("max"),
            Self::MibPerSecond(rate) => rate.fmt(f),
        }
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl FromStr for Order {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "random" => Ok(Self::Random),
            _ => Err(UnknownWord("`sequential` or `random`")),
        }
    }
}

impl FromStr for Touch {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "word" => Ok(Self::Word),
            "page" => Ok(Self::Page),
            _ => Err(UnknownWord("`word` or `page`")),
        }
    }
}

/// A message as one line.
///
/// # Errors
/// None that these messages can have.
pub fn to_line(message: &impl Serialize) -> Result<String, serde_json::Error> {
    serde_json::to_string(message)
}

/// The message that a line holds.
///
/// # Errors
/// When the line is no such message.
pub fn from_line<T: DeserializeOwned>(line: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(rate: Rate) -> Request {
        let (order, touch) = (Order::Random, Touch::Word);
        Request::Start(Program::Write(Write { mib: NonZeroU64::MIN, rate, order, touch }))
    }

    #[test]
    fn what_one_side_says_the_other_understands_and_it_is_one_line() {
        for request in [
            Request::Start(Program::Stall),
            Request::Start(Program::Dirty(NonZeroU64::MIN)),
            write(Rate::Max),
            write(Rate::MibPerSecond(NonZeroU32::MIN)),
            Request::Ask(Question::StopStall),
        ] {
            let line = to_line(&request).unwrap();
            assert_eq!(from_line::<Request>(&line).unwrap(), request, "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
        let stall = Stall { problem: Some("a\nb".into()), spun_ns: 7, longest_ns: vec![5, 0] };
        let line = to_line(&stall).unwrap();
        assert!(from_line::<Stall>(&line).unwrap() == stall && !line.contains('\n'), "{line}");
    }

    #[test]
    fn nothing_can_be_asked_for_that_makes_no_sense() {
        for line in [
            r#"{"start":{"dirty":0}}"#,
            r#"{"start":{"write":{"mib":1,"rate":"0","order":"random","touch":"word"}}}"#,
            r#"{"start":{"write":{"mib":1,"rate":"fast","order":"random","touch":"word"}}}"#,
            r#"{"ask":"how are you"}"#,
            "stall",
        ] {
            assert!(from_line::<Request>(line).is_err(), "{line}");
        }
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for touch in [Touch::Word, Touch::Page] {
            let word = serde_json::to_value(touch).unwrap();
            assert_eq!(word.as_str().unwrap().parse(), Ok(touch));
        }
        for order in [Order::Sequential, Order::Random] {
            let word = serde_json::to_value(order).unwrap();
            assert_eq!(word.as_str().unwrap().parse(), Ok(order));
        }
        assert!("all".parse::<Touch>().is_err() && "back".parse::<Order>().is_err());
    }
}
