//! The lines of one kind. When all places are taken, the code that has logged the most lines loses its oldest one, and
//! of its lines the host that caused the most. So neither a host nor a chatty part displaces what others have said.

use super::{Entry, Text};
use drivers::hal::Instant;
use log::Level;
use std::collections::VecDeque;

/// What is known of a line beside its text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Its number among the lines of all kinds.
    pub number: u64,
    pub at: Instant,
    pub level: Level,
    /// Where in the code it was logged.
    pub site: u32,
    /// The host that it is about, or its text.
    pub source: u32,
    /// Its place among the texts.
    place: u16,
}

impl Line {
    /// A line that has no place yet.
    pub fn new(number: u64, at: Instant, level: Level, site: u32, source: u32) -> Line {
        Line { number, at, level, site, source, place: 0 }
    }
}

/// So many lines of a site, or of a source within it.
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
    /// Room for so many lines.
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

    /// Lines that there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Where the first line with this number, or a later one, is.
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

    /// Adds a line; another goes if all places are taken.
    pub fn push(&mut self, mut line: Line, text: Text) {
        if self.lines.len() < self.capacity {
            line.place = self.texts.len() as u16;
            self.texts.push(text);
        } else if let Some(gone) = self.lines.remove(self.victim()) {
            count(&mut self.sites, gone.site, 0, -1);
            count(&mut self.sources, gone.site, gone.source, -1);
            line.place = gone.place;
            if let Some(place) = self.texts.get_mut(usize::from(line.place)) {
                *place = text;
            }
        }
        count(&mut self.sites, line.site, 0, 1);
        count(&mut self.sources, line.site, line.source, 1);
        self.lines.push_back(line);
    }

    /// The position of the line that goes next.
    fn victim(&self) -> usize {
        let most = self.sites.iter().map(|count| count.lines).max().unwrap_or(0);
        let has_most = |site| self.sites.iter().any(|c| c.site == site && c.lines == most);
        // Of several the one whose oldest line is older.
        let site = self.lines.iter().map(|line| line.site).find(|&site| has_most(site));
        let site = site.unwrap_or(0);
        let of_site = || self.sources.iter().filter(|count| count.site == site);
        let most = of_site().map(|count| count.lines).max().unwrap_or(0);
        let loses = |line: &Line| {
            line.site == site && of_site().any(|c| c.source == line.source && c.lines == most)
        };
        self.lines.iter().position(loses).unwrap_or(0)
    }
}

/// Counts a line more, or less. There are no more counts than lines, for which there is room.
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
    /// A line of a kind.
    pub(super) fn of(kind: super::Kind, line: &Line, text: &Text, epoch: Option<u64>) -> Entry {
        Entry { number: line.number, at: line.at, level: line.level, kind, epoch, text: *text }
    }
}
