//! State of the screen, changed by keys and by rounds of requests. No I/O.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use launch::remote::Failure;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::sections::{COUNT, SECTIONS, Table};
use crate::snapshot::{Order, Snapshot};
use crate::text::{duration, harmless};

/// Longest filter in characters.
const LONGEST_FILTER: usize = 60;

/// The state of the screen.
#[derive(Debug)]
pub struct App {
    /// The address, as the user typed it.
    pub address: String,
    /// The newest reports.
    pub now: Option<Snapshot>,
    /// The reports before those. None after a restart of the appliance.
    pub before: Option<Snapshot>,
    /// Since when the appliance does not answer, in UTC, and why.
    pub away: Option<Away>,
    /// Why access was refused.
    pub denied: Option<String>,
    /// Nothing is fetched.
    pub is_paused: bool,
    /// Only rows with this text are shown.
    pub filter: String,
    /// Keys go to the filter.
    pub is_typing: bool,
    /// The section at the top of the screen.
    pub section: usize,
    /// The line of the section at the top.
    pub line: usize,
    /// Lines of each section when it was drawn last.
    pub heights: [usize; COUNT],
    /// Lines of the screen for sections.
    pub room: usize,
    /// The user leaves.
    pub is_over: bool,
}

/// The appliance does not answer.
#[derive(Clone, Debug)]
pub struct Away {
    /// Since when.
    pub since: Instant,
    /// The time of day of that in UTC.
    pub clock: String,
    /// Why.
    pub why: String,
}

impl App {
    /// A screen without reports.
    pub fn new(address: &str) -> App {
        App {
            address: harmless(address),
            now: None,
            before: None,
            away: None,
            denied: None,
            is_paused: false,
            filter: String::new(),
            is_typing: false,
            section: 0,
            line: 0,
            heights: [0; COUNT],
            room: 0,
            is_over: false,
        }
    }

    /// Takes the result of a round.
    pub fn take(&mut self, round: Result<Snapshot, Failure>) {
        match round {
            Ok(snapshot) => {
                (self.away, self.denied) = (None, None);
                let last = self.now.take();
                self.before = last.filter(|last| last.uptime() <= snapshot.uptime());
                self.now = Some(snapshot);
            }
            Err(Failure::Refused(status @ (401 | 403), why)) => {
                self.denied = Some(harmless(&format!("access refused ({status}): {why}")));
            }
            Err(failure) => {
                let why = harmless(&failure.to_string());
                match &mut self.away {
                    Some(away) => away.why = why,
                    None => self.away = Some(Away { since: Instant::now(), clock: clock(), why }),
                }
            }
        }
    }

    /// Acts on a key. Returns an order for the thread that fetches.
    pub fn press(&mut self, key: KeyEvent) -> Option<Order> {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        if is_control && key.code == KeyCode::Char('c') {
            self.is_over = true;
            return None;
        }
        if self.is_typing {
            self.edit(key.code);
            return None;
        }
        match key.code {
            KeyCode::Char('q') => self.is_over = true,
            KeyCode::Char('/') => (self.is_typing, self.section, self.line) = (true, 0, 0),
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('p') => {
                self.is_paused = !self.is_paused;
                return Some(if self.is_paused { Order::Pause } else { Order::Fetch });
            }
            KeyCode::Char('r') if !self.is_paused => return Some(Order::Fetch),
            KeyCode::Tab | KeyCode::Right => {
                (self.section, self.line) = ((self.section + 1) % COUNT, 0);
            }
            KeyCode::BackTab | KeyCode::Left => {
                (self.section, self.line) = ((self.section + COUNT - 1) % COUNT, 0);
            }
            KeyCode::Down => self.scroll(1),
            KeyCode::Up => self.scroll(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll(self.page()),
            KeyCode::PageUp => self.scroll(-self.page()),
            KeyCode::Home => (self.section, self.line) = (0, 0),
            KeyCode::End => (self.section, self.line) = (COUNT - 1, 0),
            _ => {}
        }
        None
    }

    fn edit(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) if self.filter.chars().count() < LONGEST_FILTER => {
                self.filter.push_str(&harmless(&c.to_string()));
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Enter => self.is_typing = false,
            _ => {}
        }
    }

    /// Lines of a page.
    fn page(&self) -> isize {
        isize::try_from(self.room.saturating_sub(1).max(1)).unwrap_or(1)
    }

    /// Moves the top of the screen by lines, until the last line is at its bottom.
    fn scroll(&mut self, lines: isize) {
        let all: usize = self.heights.iter().sum();
        let most = all.saturating_sub(self.room).max(self.top());
        let top = self.top().saturating_add_signed(lines).min(most);
        let mut start = 0;
        for (section, &height) in self.heights.iter().enumerate() {
            if top < start + height || section == COUNT - 1 {
                let last = height.saturating_sub(1);
                (self.section, self.line) = (section, (top - start).min(last));
                return;
            }
            start += height;
        }
    }

    /// The line of all sections at the top of the screen.
    pub fn top(&self) -> usize {
        let start: usize = self.heights[..self.section].iter().sum();
        start + self.line.min(self.heights[self.section].saturating_sub(1))
    }

    /// The table of a section: the rows that the filter admits, and the number of all rows.
    pub fn table(&self, section: usize) -> Option<(Table, usize)> {
        let now = self.now.as_ref()?;
        let found = SECTIONS.get(section)?;
        let mut table = (found.table)(now, self.before.as_ref());
        if let Some(why) = now.missing(found.path) {
            table.empty = harmless(why);
        }
        let all = table.rows.len();
        let wanted = self.filter.to_lowercase();
        if !wanted.is_empty() {
            let has = |text: &String| text.to_lowercase().contains(&wanted);
            table.rows.retain(|row| row.cells.iter().any(has) || has(&row.note));
        }
        Some((table, all))
    }

    /// What is true of everything, and whether something is wrong: 0 for nothing, 1 for warnings, 2 for faults.
    pub fn health(&self) -> (String, u8) {
        let Some(now) = &self.now else { return ("no report yet".into(), 1) };
        let report = now.page(crate::sections::DOCTOR);
        let many = |key: &str, what: &str| {
            let count = report[key].as_u64().unwrap_or(0);
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let (what, grade) = match report["state"].as_str() {
            Some("ok") => return ("Everything is in order".into(), 0),
            Some("warning") => ("Works, with warnings", 1),
            Some("fault") => ("Something does not work", 2),
            _ => return ("The state is not known".into(), 1),
        };
        (format!("{what}: {}, {}", many("faults", "fault"), many("warnings", "warning")), grade)
    }

    /// Name, version and time since the start of the appliance.
    pub fn title(&self) -> String {
        let Some(now) = &self.now else { return format!("Isthmus at {}", self.address) };
        let version = &now.page(crate::sections::STATUS)["version"];
        let field = |key: &str| crate::text::shown(&version[key]);
        format!(
            "Isthmus {}, version {}, commit {}, up {}",
            field("hostname"),
            field("version"),
            field("commit"),
            duration(now.uptime())
        )
    }
}

/// The time of day in UTC.
fn clock() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
    duration(now % 86400.0) + " UTC"
}
