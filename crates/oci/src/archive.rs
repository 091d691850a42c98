//! Tar archives, entry by entry, from a stream that is not trusted.
//!
//! Understands what Docker, BuildKit, Podman, GNU tar and bsdtar write: ustar, the long names and
//! sparse files of GNU, and the records of pax. Holds one header in memory and nothing of a file's
//! content.
//!
//! Does not do: read global pax records; nobody's meaning of a layer depends on them.

use std::io::{self, ErrorKind, Read};

use crate::limit::HEADER_BYTES_MAX;

const BLOCK: usize = 512;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// One entry, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permission bits, set-user-id and the like included.
    pub(crate) mode: u16,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) modified: Time,
    /// Extended attributes in the order of the archive.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Seconds since 1970 and nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    File(FileSize),
    HardLink(Vec<u8>),
    Symlink(Vec<u8>),
    Directory,
    Character(u32, u32),
    Block(u32, u32),
    Fifo,
}

/// How long a file is and which parts of it the archive has; the rest is a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSize {
    pub(crate) bytes: u64,
    /// Offset and length of each part, ascending.
    pub(crate) parts: Vec<(u64, u64)>,
}

/// Reads an archive. Reading from it gives the content of the last entry.
pub(crate) struct Archive<R> {
    input: R,
    /// Content of the last entry that was not read.
    left: u64,
    padding: u64,
}

/// What entries before the entry itself say about it.
#[derive(Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    user: Option<u64>,
    group: Option<u64>,
    modified: Option<Time>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Option<SparseRecords>,
    bytes: u64,
}

#[derive(Default)]
struct SparseRecords {
    version: (u64, u64),
    name: Option<Vec<u8>>,
    size: u64,
}

impl<R: Read> Archive<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0 }
    }

    pub(crate) const fn inner(&mut self) -> &mut R {
        &mut self.input
    }

    pub(crate) fn into_inner(self) -> R {
        self.input
    }

    /// The next entry; what was not read of the last one is skipped.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut said = Said::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.number(124, 12)?;
            match header.0[156] {
                b'L' => said.path = Some(without_end(self.said(size, &mut said.bytes)?)),
                b'K' => said.link = Some(without_end(self.said(size, &mut said.bytes)?)),
                b'x' => {
                    let records = self.said(size, &mut said.bytes)?;
                    said.read_records(&records)?;
                }
                b'g' | b'V' => self.begin_content(size),
                _ => return self.entry(&header, said).map(Some),
            }
        }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let rest = self.left + self.padding;
        let skipped = io::copy(&mut (&mut self.input).take(rest), &mut io::sink())?;
        if skipped < self.left {
            return Err(damaged("it ends in the middle of a file"));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    const fn begin_content(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES;
    }

    /// None at the end.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match self.input.read(&mut block[have..])? {
                0 if have == 0 => return Ok(None),
                0 => return Err(damaged("it ends in the middle of a header")),
                count => have += count,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header(block);
        header.check()?;
        Ok(Some(header))
    }

    /// The content of an entry about another one.
    fn said(&mut self, size: u64, bytes: &mut u64) -> io::Result<Vec<u8>> {
        *bytes = bytes.saturating_add(size);
        if *bytes > HEADER_BYTES_MAX {
            return Err(damaged("the name or the attributes of an entry are too long"));
        }
        self.begin_content(size);
        let mut text = Vec::new();
        self.read_to_end(&mut text)?;
        Ok(text)
    }

    fn entry(&mut self, header: &Header, said: Said) -> io::Result<Entry> {
        let mut path = said.path.unwrap_or_else(|| header.path());
        let link = said.link.unwrap_or_else(|| header.text(157, 100));
        let device =
            || io::Result::Ok((narrow(header.number(329, 8)?)?, narrow(header.number(337, 8)?)?));
        let stored = match said.size {
            Some(size) => size,
            None => header.number(124, 12)?,
        };
        let kind = match header.0[156] {
            // Before there was a type for directories.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' => {
                self.begin_content(stored);
                match said.sparse {
                    Some(records) => {
                        path = records.name.clone().unwrap_or(path);
                        Kind::File(self.sparse_of_records(&records)?)
                    }
                    None => Kind::File(FileSize { bytes: stored, parts: vec![(0, stored)] }),
                }
            }
            b'S' => Kind::File(self.sparse_of_header(header, stored)?),
            b'1' => Kind::HardLink(link),
            b'2' => Kind::Symlink(link),
            b'3' => device().map(|(major, minor)| Kind::Character(major, minor))?,
            b'4' => device().map(|(major, minor)| Kind::Block(major, minor))?,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                let kind = char::from(other);
                return Err(damaged(format!("it has an entry of the unknown kind {kind:?}")));
            }
        };
        let modified = match said.modified {
            Some(time) => time,
            None => Time { seconds: header.signed(136, 12)?, nanoseconds: 0 },
        };
        let id = |said: Option<u64>, at| narrow(said.map_or_else(|| header.number(at, 8), Ok)?);
        Ok(Entry {
            path,
            kind,
            mode: u16::try_from(header.number(100, 8)? & 0o7777).unwrap_or_default(),
            user: id(said.user, 108)?,
            group: id(said.group, 116)?,
            modified,
            attributes: said.attributes,
        })
    }

    /// The map of a sparse file as GNU tar writes it: in the header and in blocks after it.
    fn sparse_of_header(&mut self, header: &Header, stored: u64) -> io::Result<FileSize> {
        let mut parts = Vec::new();
        let mut add = |block: &Header, at: usize, count: usize| -> io::Result<()> {
            for at in (at..).step_by(24).take(count) {
                if block.0[at] != 0 {
                    parts.push((block.number(at, 12)?, block.number(at + 12, 12)?));
                }
            }
            Ok(())
        };
        add(header, 386, 4)?;
        let (mut more, mut blocks) = (header.0[482] != 0, 0);
        while more {
            blocks += BLOCK_BYTES;
            if blocks > HEADER_BYTES_MAX {
                return Err(damaged("a sparse file has too many parts"));
            }
            let mut block = Header([0; BLOCK]);
            self.input.read_exact(&mut block.0)?;
            add(&block, 0, 21)?;
            more = block.0[504] != 0;
        }
        self.begin_content(stored);
        sparse(header.number(483, 12)?, parts, stored)
    }

    /// The map of a sparse file as pax records have it: at the beginning of the content.
    fn sparse_of_records(&mut self, records: &SparseRecords) -> io::Result<FileSize> {
        if records.version != (1, 0) {
            return Err(damaged(
                "it has a sparse file of an old format; write it with GNU tar 1.34",
            ));
        }
        let (mut read, mut line, mut numbers) = (0_u64, Vec::new(), Vec::new());
        let mut wanted = None;
        while wanted.is_none_or(|count| numbers.len() < count) || read % BLOCK_BYTES != 0 {
            let mut byte = [0];
            self.read_exact(&mut byte)?;
            read += 1;
            if read > HEADER_BYTES_MAX {
                return Err(damaged("a sparse file has too many parts"));
            }
            match byte[0] {
                b'\n' => {
                    let number = decimal(&std::mem::take(&mut line))?;
                    match wanted {
                        None if number > HEADER_BYTES_MAX => {
                            return Err(damaged("a sparse file has too many parts"));
                        }
                        None => wanted = usize::try_from(number * 2).ok(),
                        Some(_) => numbers.push(number),
                    }
                }
                // Padding follows the last number.
                _ if wanted.is_some_and(|count| numbers.len() >= count) => {}
                other => line.push(other),
            }
        }
        let parts = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        sparse(records.size, parts, self.left)
    }
}

impl<R: Read> Read for Archive<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.input.read(&mut buffer[..most])?;
        if count == 0 && most > 0 {
            return Err(damaged("it ends in the middle of a file"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// The parts must lie in the file one after the other and be what is stored.
fn sparse(bytes: u64, parts: Vec<(u64, u64)>, stored: u64) -> io::Result<FileSize> {
    let (mut end, mut sum) = (0, 0_u64);
    for (offset, length) in &parts {
        let part_end = offset.checked_add(*length).filter(|part_end| *part_end <= bytes);
        let part_end = part_end.filter(|_| *offset >= end);
        end = part_end.ok_or_else(|| damaged("the parts of a sparse file are not in order"))?;
        sum = sum.saturating_add(*length);
    }
    if sum != stored {
        return Err(damaged("the parts of a sparse file are not what is stored"));
    }
    Ok(FileSize { bytes, parts })
}

impl Said {
    /// Records of pax: `LENGTH KEY=VALUE`, one after the other.
    fn read_records(&mut self, mut text: &[u8]) -> io::Result<()> {
        let broken = || damaged("a pax record is broken");
        while !text.is_empty() {
            let space = text.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
            let length = usize::try_from(decimal(&text[..space])?).map_err(|_| broken())?;
            let record = text.get(space + 1..length).ok_or_else(broken)?;
            let record = record.strip_suffix(b"\n").ok_or_else(broken)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(broken)?;
            self.keep(&record[..equals], &record[equals + 1..])?;
            text = &text[length..];
        }
        Ok(())
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"size" => self.size = Some(decimal(value)?),
            b"uid" => self.user = Some(decimal(value)?),
            b"gid" => self.group = Some(decimal(value)?),
            b"mtime" => self.modified = Some(time(value)?),
            b"GNU.sparse.major" => self.sparse().version.0 = decimal(value)?,
            b"GNU.sparse.minor" => self.sparse().version.1 = decimal(value)?,
            b"GNU.sparse.name" => self.sparse().name = Some(value.to_vec()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse().size = decimal(value)?,
            b"GNU.sparse.map" => self.sparse().version = (0, 1),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.attributes.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        Ok(())
    }

    fn sparse(&mut self) -> &mut SparseRecords {
        self.sparse.get_or_insert_default()
    }
}

struct Header([u8; BLOCK]);

impl Header {
    fn check(&self) -> io::Result<()> {
        let field = 148..156;
        let plain = |(at, byte): (usize, &u8)| if field.contains(&at) { b' ' } else { *byte };
        let sum: u64 = self.0.iter().enumerate().map(|pair| u64::from(plain(pair))).sum();
        if self.number(148, 8)? != sum {
            return Err(damaged("it is no tar archive, or a header is broken"));
        }
        Ok(())
    }

    fn text(&self, at: usize, length: usize) -> Vec<u8> {
        let field = &self.0[at..at + length];
        field.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// With the prefix that ustar has; GNU tar has other things in its place.
    fn path(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let mut path =
            if &self.0[257..263] == b"ustar\0" { self.text(345, 155) } else { Vec::new() };
        if path.is_empty() {
            return name;
        }
        path.push(b'/');
        path.extend(name);
        path
    }

    fn signed(&self, at: usize, length: usize) -> io::Result<i64> {
        let field = &self.0[at..at + length];
        // Base 256, which can be negative; else octal.
        if field[0] & 0x80 == 0 {
            return i64::try_from(octal(field)?).map_err(|_| damaged("a number is too large"));
        }
        let sign = i64::from(field[0] & 0x40 != 0);
        let first = i64::from(field[0] & 0x3f) - (sign << 6);
        field[1..].iter().try_fold(first, |value, byte| {
            let shifted =
                value.checked_mul(256).and_then(|value| value.checked_add((*byte).into()));
            shifted.ok_or_else(|| damaged("a number is too large"))
        })
    }

    fn number(&self, at: usize, length: usize) -> io::Result<u64> {
        u64::try_from(self.signed(at, length)?).map_err(|_| damaged("a number is negative"))
    }
}

fn octal(field: &[u8]) -> io::Result<u64> {
    let digits = field.iter().skip_while(|byte| **byte == b' ');
    digits.take_while(|byte| !matches!(byte, 0 | b' ')).try_fold(0_u64, |value, byte| match byte {
        b'0'..=b'7' if value >> 60 == 0 => Ok(value << 3 | u64::from(byte - b'0')),
        _ => Err(damaged("a number is broken")),
    })
}

fn decimal(text: &[u8]) -> io::Result<u64> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'));
    text.and_then(|text| text.parse().ok()).ok_or_else(|| damaged("a number is broken"))
}

/// Seconds with a fraction, possibly before 1970.
fn time(text: &[u8]) -> io::Result<Time> {
    let broken = || damaged("a time is broken");
    let text = std::str::from_utf8(text).map_err(|_| broken())?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().map_err(|_| broken())?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().map_err(|_| broken())?;
    if whole.starts_with('-') && nanoseconds > 0 {
        let seconds = seconds.checked_sub(1).ok_or_else(broken)?;
        return Ok(Time { seconds, nanoseconds: 1_000_000_000 - nanoseconds });
    }
    Ok(Time { seconds, nanoseconds })
}

fn narrow(number: u64) -> io::Result<u32> {
    u32::try_from(number).map_err(|_| damaged("an id or a device number is too large"))
}

fn without_end(mut text: Vec<u8>) -> Vec<u8> {
    if let Some(end) = text.iter().position(|byte| *byte == 0) {
        text.truncate(end);
    }
    text
}

pub(crate) fn damaged(problem: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem.into())
}
