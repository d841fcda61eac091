//! The lines of one kind. When the share is full, the oldest line is evicted of the host with the most lines, within
//! the place in the code with the most lines. So neither a host nor a chatty place in the code displaces other lines.

use super::{Entry, Text};
use drivers::hal::Instant;
use log::Level;
use std::collections::VecDeque;

/// A line without its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Number among the lines of all kinds.
    pub number: u64,
    pub at: Instant,
    pub level: Level,
    /// Hash of the place in the code that logged the line.
    pub site: u32,
    /// Hash of the host that the line is about, or of its text.
    pub source: u32,
    /// Index of its text.
    place: u16,
}

impl Line {
    /// A line without an index of its text.
    pub fn new(number: u64, at: Instant, level: Level, site: u32, source: u32) -> Line {
        Line { number, at, level, site, source, place: 0 }
    }
}

/// Number of lines of a site, or of a source within a site.
#[derive(Clone, Copy, Debug)]
struct Count {
    site: u32,
    source: u32,
    lines: u16,
}

/// The lines, oldest first.
#[derive(Debug)]
pub(super) struct Share {
    capacity: usize,
    lines: VecDeque<Line>,
    texts: Vec<Text>,
    sites: Vec<Count>,
    sources: Vec<Count>,
}

impl Share {
    /// A share for `capacity` lines.
    pub fn new(capacity: usize) -> Share {
        let capacity = capacity.clamp(1, usize::from(u16::MAX));
        Share {
            capacity,
            lines: VecDeque::with_capacity(capacity),
            texts: Vec::with_capacity(capacity),
            sites: Vec::with_capacity(capacity),
            sources: Vec::with_capacity(capacity),
        }
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Position of the first line with this number or a later one.
    pub fn position(&self, number: u64) -> usize {
        self.lines.partition_point(|line| line.number < number)
    }

    /// Number of the line at a position.
    pub fn number(&self, at: usize) -> Option<u64> {
        self.lines.get(at).map(|line| line.number)
    }

    /// The line at a position, with its text.
    pub fn get(&self, at: usize) -> Option<(&Line, &Text)> {
        let line = self.lines.get(at)?;
        Some((line, self.texts.get(usize::from(line.place))?))
    }

    /// Adds a line. Evicts another if the share is full.
    pub fn push(&mut self, mut line: Line, text: Text) {
        if self.lines.len() < self.capacity {
            line.place = self.texts.len() as u16;
            self.texts.push(text);
        } else if let Some(evicted) = self.lines.remove(self.victim()) {
            count(&mut self.sites, evicted.site, 0, -1);
            count(&mut self.sources, evicted.site, evicted.source, -1);
            line.place = evicted.place;
            if let Some(place) = self.texts.get_mut(usize::from(line.place)) {
                *place = text;
            }
        }
        count(&mut self.sites, line.site, 0, 1);
        count(&mut self.sources, line.site, line.source, 1);
        self.lines.push_back(line);
    }

    /// Position of the line to evict.
    fn victim(&self) -> usize {
        let most = self.sites.iter().map(|count| count.lines).max().unwrap_or(0);
        let has_most = |site| self.sites.iter().any(|c| c.site == site && c.lines == most);
        // Among sites with equally many lines, the one with the oldest line.
        let site = self.lines.iter().map(|line| line.site).find(|&site| has_most(site));
        let site = site.unwrap_or(0);
        let of_site = || self.sources.iter().filter(|count| count.site == site);
        let most = of_site().map(|count| count.lines).max().unwrap_or(0);
        let is_victim = |line: &Line| {
            line.site == site && of_site().any(|c| c.source == line.source && c.lines == most)
        };
        self.lines.iter().position(is_victim).unwrap_or(0)
    }
}

/// Changes a count by `more`. Never allocates: there are at most as many counts as lines, and capacity for all.
fn count(counts: &mut Vec<Count>, site: u32, source: u32, more: i16) {
    match counts.iter_mut().position(|c| (c.site, c.source) == (site, source)) {
        Some(at) => {
            let lines = &mut counts[at].lines;
            *lines = lines.saturating_add_signed(more);
            if *lines == 0 {
                counts.swap_remove(at);
            }
        }
        None if more > 0 => counts.push(Count { site, source, lines: 1 }),
        None => {}
    }
}

impl Entry {
    /// The entry of a line.
    pub(super) fn of(kind: super::Kind, line: &Line, text: &Text, epoch: Option<u64>) -> Entry {
        Entry { number: line.number, at: line.at, level: line.level, kind, epoch, text: *text }
    }
}
