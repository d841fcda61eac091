//! [`Support`]: all that a report of a problem needs as one tar file (POSIX.1-1988, ustar): the checks of `doctor`, the
//! output of every command that shows something, the log, and metrics. Secrets are hidden, as these commands do.
//!
//! It is made while it is sent: a part of a file is kept until its size is known. Longer files continue in further parts
//! (`show-log.2.txt`).

use super::command::Argument;
use super::commands::COMMANDS;
use super::run::{Ended, Run};
use super::system::System;
use crate::config::Role;
use base64ct::{Base64, Encoding};
use net::metrics::Place;

/// Bytes of a part, unless one piece of output is longer.
const PART: usize = 64 << 10;
/// Bytes of output at which a call ends.
const PIECE: usize = 4 << 10;
/// Batches of rows that a call takes of a long report.
const POLLS: usize = 8;
/// Bytes of a tar block.
const BLOCK: usize = 512;

/// How far metrics are written.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsPlace {
    /// Number of the section.
    pub section: usize,
    /// Place in the section.
    pub place: Place,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Call again.
    More,
    /// Nothing is ready; call again later.
    Pending,
    /// The end of the file.
    End,
}

/// What is written at present.
#[derive(Debug)]
enum Source {
    Command(Box<Run>),
    Metrics(MetricsPlace),
}

/// A support bundle in progress.
#[derive(Debug)]
pub struct Support {
    directory: String,
    /// Seconds since 1970.
    made: u64,
    /// Index of the next command in [`Support::commands`]; metrics follow the last one.
    next: usize,
    source: Option<Source>,
    name: String,
    part: usize,
    text: Vec<u8>,
}

impl Support {
    /// Starts a bundle of the appliance with this name.
    pub fn new(system: &dyn System) -> Support {
        let hostname = system.document().config().system.hostname.to_string();
        Support {
            directory: format!("{hostname}-support"),
            made: system.unix_seconds(),
            next: 0,
            source: None,
            name: String::new(),
            part: 0,
            text: Vec::new(),
        }
    }

    /// Name of the file.
    pub fn file_name(&self) -> String {
        format!("{}.tar", self.directory)
    }

    /// The commands: `doctor`, all of `show` without arguments, and all lists.
    fn commands() -> impl Iterator<Item = String> {
        let shows = COMMANDS.iter().filter(|command| {
            let optional = |argument: &Argument| argument.optional();
            let is_list = matches!(command.words, [_, "list"]);
            let is_show = matches!(command.words, ["doctor"] | ["show", ..]);
            (is_list || is_show)
                && command.role() == Role::Read
                && command.arguments.iter().all(optional)
        });
        shows.map(|command| command.words.join(" "))
    }

    /// Appends the next bytes of the file.
    pub fn poll(&mut self, system: &mut dyn System, out: &mut Vec<u8>) -> Made {
        let before = out.len();
        if self.source.is_none() && !self.begin(system) {
            // Two empty blocks end an archive.
            out.resize(out.len() + 2 * BLOCK, 0);
            return Made::End;
        }
        let more = self.fill(system);
        if !more || self.text.len() >= PART {
            self.emit(out);
        }
        if !more {
            self.source = None;
        }
        if out.len() > before { Made::More } else { Made::Pending }
    }

    /// Begins the next file. False after the last one.
    fn begin(&mut self, system: &mut dyn System) -> bool {
        (self.part, self.next) = (0, self.next + 1);
        let Some(line) = Self::commands().nth(self.next - 1) else {
            let is_metrics = self.next == Self::commands().count() + 1;
            self.name = "metrics".into();
            self.source = is_metrics.then(|| Source::Metrics(MetricsPlace::default()));
            return is_metrics;
        };
        self.name = line.replace(' ', "-");
        match Run::start(&line, system) {
            Ok(run) => self.source = Some(Source::Command(Box::new(run))),
            Err(why) => {
                self.text.extend_from_slice(format!("error: {why}\n").as_bytes());
                self.source = Some(Source::Metrics(MetricsPlace {
                    section: usize::MAX,
                    ..MetricsPlace::default()
                }));
            }
        }
        true
    }

    /// Takes output. False at the end of the file.
    fn fill(&mut self, system: &mut dyn System) -> bool {
        let mut text = String::new();
        let more = match &mut self.source {
            None => false,
            Some(Source::Metrics(place)) => system.metrics(place, &mut text, PIECE),
            Some(Source::Command(run)) => output(run, system, &mut text),
        };
        self.text.extend_from_slice(text.as_bytes());
        more
    }

    /// Appends the text as a file, and forgets it.
    fn emit(&mut self, out: &mut Vec<u8>) {
        if self.text.is_empty() && self.part > 0 {
            return;
        }
        self.part += 1;
        let part = if self.part > 1 { format!(".{}", self.part) } else { String::new() };
        let name = format!("{}/{}{part}.txt", self.directory, self.name);
        out.extend(header(&name, self.text.len() as u64, self.made));
        // The padding is that of the file: `out` may begin in the middle of a block.
        let padding = self.text.len().next_multiple_of(BLOCK) - self.text.len();
        out.append(&mut self.text);
        out.resize(out.len() + padding, 0);
    }
}

/// Takes some output of a command. False at its end.
fn output(run: &mut Run, system: &mut dyn System, text: &mut String) -> bool {
    for _ in 0..POLLS {
        match run.poll(system, text) {
            Ok(true) if text.len() < PIECE => {}
            Ok(_) => return true,
            Err(Ended(Ok(()))) => return false,
            Err(Ended(Err(why))) => {
                text.push_str(&format!("error: {why}\n"));
                return false;
            }
        }
    }
    true
}

/// The header of a file.
fn header(name: &str, size: u64, made: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &str| {
        for (to, from) in header.iter_mut().skip(at).zip(text.bytes()) {
            *to = from;
        }
    };
    // A longer name does not occur: a hostname has at most 64 bytes.
    put(0, name.get(..100).unwrap_or(name));
    put(100, "0000644");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{size:011o}"));
    put(136, &format!("{made:011o}"));
    put(148, "        ");
    put(156, "0");
    put(257, "ustar");
    put(263, "00");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    for (to, from) in header.iter_mut().skip(148).zip(format!("{sum:06o}\0").bytes()) {
        *to = from;
    }
    header
}

/// A support bundle as base64 (RFC 4648), for a terminal.
#[derive(Debug)]
pub struct Encoded {
    support: Support,
    bytes: Vec<u8>,
    begun: bool,
}

/// Bytes in a line of base64.
const LINE: usize = 57;

impl Encoded {
    /// Encodes a bundle.
    pub fn new(support: Support) -> Encoded {
        Encoded { support, bytes: Vec::new(), begun: false }
    }

    /// Appends the next lines. True at the end.
    pub fn poll(&mut self, system: &mut dyn System, out: &mut String) -> bool {
        if !core::mem::replace(&mut self.begun, true) {
            let name = self.support.file_name();
            out.push_str(&format!("begin-base64 644 {name}\n"));
        }
        let mut ends = false;
        if self.bytes.len() < LINE {
            ends = self.support.poll(system, &mut self.bytes) == Made::End;
        }
        // A few lines at a time, so that a terminal is not flooded.
        let whole = (self.bytes.len() / LINE * LINE).min(PIECE / LINE * LINE);
        let taken = if ends { self.bytes.len() } else { whole };
        for line in self.bytes.drain(..taken).collect::<Vec<u8>>().chunks(LINE) {
            let mut text = [0; LINE / 3 * 4];
            // The buffer has room for a whole line.
            out.push_str(Base64::encode(line, &mut text).unwrap_or_default());
            out.push('\n');
        }
        if ends {
            out.push_str("====\n");
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_that_of_tar() {
        let header = header("a-support/doctor.txt", 5, 1_700_000_000);
        assert!(header.starts_with(b"a-support/doctor.txt\0"));
        assert_eq!(&header[124..136], b"00000000005\0");
        assert_eq!(&header[136..148], b"14524770400\0");
        assert_eq!(&header[257..265], b"ustar\x0000");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum::<u32>()
            - header[148..156].iter().map(|&byte| u32::from(byte)).sum::<u32>()
            + 8 * 32;
        assert_eq!(&header[148..156], format!("{sum:06o}\0 ").as_bytes());
    }

    #[test]
    fn bundle_has_the_commands_that_show_something() {
        let commands: Vec<String> = Support::commands().collect();
        for wanted in
            ["doctor", "show log", "show config", "show crash", "session list", "nvme list"]
        {
            assert!(commands.iter().any(|command| command == wanted), "{wanted}");
        }
        for unwanted in ["set", "reboot", "support", "show nvme connect"] {
            assert!(commands.iter().all(|command| command != unwanted), "{unwanted}");
        }
    }
}
