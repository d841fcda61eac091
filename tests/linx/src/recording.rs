//! Recordings of LINX for Linux (`data/original`).

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// Device id and RIOCM port of A and of B.
pub const ENDS: [(u16, u16); 2] = [(0x0101, 11), (0x0202, 22)];

/// A side of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first.
    A = 0,
    /// The second.
    B = 1,
}

use Side::{A, B};

/// Bytes of a packet: the recorded ones, and length and CRC-32 of the rest.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// The recorded first bytes.
    pub recorded: Vec<u8>,
    rest: Option<(usize, u32)>,
}

impl Bytes {
    /// Whether the packet is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.recorded.len() + self.rest.map_or(0, |rest| rest.0)
    }

    /// All bytes, with zeros in place of those that were not recorded.
    pub fn whole(&self) -> Vec<u8> {
        let mut bytes = self.recorded.clone();
        bytes.resize(self.len(), 0);
        bytes
    }

    /// Whether these bytes match.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let Some((recorded, rest)) = bytes.split_at_checked(self.recorded.len()) else {
            return false;
        };
        recorded == self.recorded
            && match self.rest {
                Some((length, crc)) => rest.len() == length && crc32fast::hash(rest) == crc,
                None => rest.is_empty(),
            }
    }
}

/// A line of a recording.
#[derive(Clone, Debug)]
pub struct Line {
    /// Time in microseconds.
    pub at: i64,
    /// Its sender; None for neither A nor B.
    pub from: Option<Side>,
    /// The TCP connection; empty over RapidIO.
    pub stream: String,
    /// The sent bytes.
    pub bytes: Bytes,
    /// Description of the packet.
    pub text: String,
}

fn bytes(hex: &str) -> Result<Bytes> {
    let mut parts = hex.split('~');
    let digits = parts.next().unwrap_or_default();
    ensure!(digits.len().is_multiple_of(2), "{digits}");
    let recorded = (0..digits.len() / 2)
        .map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16))
        .collect::<Result<_, _>>()?;
    let rest = match (parts.next(), parts.next()) {
        (Some(length), Some(crc)) => Some((length.parse()?, u32::from_str_radix(crc, 16)?)),
        _ => None,
    };
    Ok(Bytes { recorded, rest })
}

/// The packets of a recording, without the events of users.
pub fn read(name: &str) -> Result<Vec<Line>> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/original")).join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut lines = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (words, text) = line.split_once(';').unwrap_or((line, ""));
        let words: Vec<&str> = words.split_whitespace().collect();
        let [at, direction, rest @ ..] = &words[..] else { bail!("{line}") };
        if *direction == "--" {
            continue;
        }
        let from = match direction.split_once('>') {
            Some(("A", "B")) => Some(A),
            Some(("B", "A")) => Some(B),
            Some(_) => None,
            None => bail!("{line}"),
        };
        let (stream, hex) = match rest {
            [hex] if !hex.starts_with("tcp") => ("", *hex),
            [stream] => (*stream, ""),
            [stream, hex] => (*stream, *hex),
            _ => bail!("{line}"),
        };
        lines.push(Line {
            at: (at.parse::<f64>()? * 1000.0) as i64,
            from,
            stream: stream.into(),
            bytes: bytes(hex)?,
            text: text.trim().trim_end_matches(" [injected]").into(),
        });
    }
    ensure!(!lines.is_empty(), "{name} is empty");
    Ok(lines)
}

/// Names of the recordings.
pub fn names() -> Result<Vec<String>> {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/original"));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "README.txt" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
