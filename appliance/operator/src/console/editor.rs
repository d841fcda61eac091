//! The line editor. It draws only with characters, spaces and backspaces (and one escape sequence for Ctrl-L), so that
//! it works on any terminal and in the log of a script. It does not know the terminal's width: editing the first row of
//! a wrapped line may look wrong, but the entered line is correct.

use super::keys::{Decoder, Key};
use super::output::Output;
use super::secrets;
use std::collections::VecDeque;

/// The prompt.
pub const PROMPT: &str = "isthmus> ";
/// The prompt while the lines of a document are entered.
const VERBATIM_PROMPT: &str = "| ";
/// Longest line in bytes: the size of a document, so that a certificate with its issuers fits.
pub const MAX_LINE: usize = 16 << 10;
/// Capacity of the line buffer that is kept between lines.
const USUAL: usize = 1024;
/// Number of lines in the history.
const HISTORY: usize = 32;
/// Maximum lines of a private key in PEM.
const KEY_LINES: u8 = 100;
/// Reason why pasted lines of a private key are ignored.
const KEY: &str =
    "enter a private key on one line, with spaces instead of line ends: set http.key -----BEGIN …";

/// Event of a typed byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A line was entered.
    Line(String),
    /// A line was entered that must not be executed, with the reason.
    Refused(&'static str),
    /// The text before the cursor is to be completed.
    Complete,
}

/// The edited line, and the history.
#[derive(Debug, Default)]
pub struct Editor {
    decoder: Decoder,
    /// Visible ASCII only, so that a byte is a column.
    line: Vec<u8>,
    cursor: usize,
    /// Start of the secret part of the line, which is shown as stars.
    hidden: Option<usize>,
    /// Remaining lines that may belong to a private key pasted line by line.
    key_lines: u8,
    /// Reason to refuse the line on Enter.
    refused: Option<&'static str>,
    history: VecDeque<Vec<u8>>,
    /// Lines are parts of a document: they are not recalled, and may be lines of a private key.
    verbatim: bool,
    /// Shown position in the history, and the typed line to return to.
    browsing: Option<(usize, Vec<u8>)>,
}

impl Editor {
    /// Takes one byte.
    pub fn push(&mut self, byte: u8, out: &mut Output) -> Option<Event> {
        match self.decoder.push(byte)? {
            Key::Char(c) => self.insert(&[c], out),
            Key::Enter => return self.enter(out),
            Key::Tab if self.verbatim => self.insert(b" ", out),
            Key::Tab => return Some(Event::Complete),
            Key::Interrupt => {
                out.text("^C\n");
                self.verbatim = false;
                self.key_lines = 0;
                self.clear();
                self.draw(out);
            }
            Key::Left => self.move_to(self.cursor.saturating_sub(1), out),
            Key::Right => self.move_to(self.cursor + 1, out),
            Key::Home => self.move_to(0, out),
            Key::End => self.move_to(self.line.len(), out),
            Key::Up | Key::Down if self.verbatim => {}
            Key::Up => self.browse(true, out),
            Key::Down => self.browse(false, out),
            Key::Backspace => self.remove(self.cursor.saturating_sub(1), self.cursor, out),
            Key::Delete => self.remove(self.cursor, self.cursor + 1, out),
            Key::KillBefore => self.remove(0, self.cursor, out),
            Key::KillAfter => self.remove(self.cursor, self.line.len(), out),
            Key::KillWord => self.remove(self.word_start(), self.cursor, out),
            Key::Clear => {
                out.raw(b"\x1b[H\x1b[2J");
                self.draw(out);
            }
            Key::Noise => self.refused = Some("not ASCII text"),
        }
        None
    }

    /// Begins or ends the lines of a document.
    pub fn set_verbatim(&mut self, verbatim: bool) {
        (self.verbatim, self.key_lines) = (verbatim, 0);
        self.clear();
    }

    /// Whether the lines of a document are entered.
    pub fn is_verbatim(&self) -> bool {
        self.verbatim
    }

    fn prompt(&self) -> &'static str {
        if self.verbatim { VERBATIM_PROMPT } else { PROMPT }
    }

    /// The text before the cursor.
    pub fn before_cursor(&self) -> &str {
        core::str::from_utf8(&self.line[..self.cursor]).unwrap_or_default()
    }

    /// Inserts text at the cursor as if typed.
    pub fn insert_text(&mut self, text: &str, out: &mut Output) {
        self.insert(text.as_bytes(), out);
    }

    /// Draws prompt and line.
    pub fn draw(&self, out: &mut Output) {
        out.text(self.prompt());
        self.show(0, self.line.len(), out);
        out.repeat(8, self.line.len() - self.cursor);
    }

    /// Sends a part of the line, with stars for its secret part.
    fn show(&self, from: usize, to: usize, out: &mut Output) {
        let hidden = self.hidden.unwrap_or(to).clamp(from, to);
        out.raw(&self.line[from..hidden]);
        out.repeat(b'*', to - hidden);
    }

    /// Erases prompt and line from the terminal, to show other text in their place.
    pub fn wipe(&self, out: &mut Output) {
        out.raw(b"\r");
        out.repeat(b' ', self.prompt().len() + self.line.len());
        out.raw(b"\r");
    }

    fn clear(&mut self) {
        self.line.clear();
        self.line.shrink_to(USUAL);
        (self.cursor, self.refused, self.browsing, self.hidden) = (0, None, None, None);
        if self.key_lines > 0 {
            self.hidden = Some(0);
        }
    }

    fn insert(&mut self, bytes: &[u8], out: &mut Output) {
        if self.line.len() + bytes.len() > MAX_LINE {
            self.refused = Some("longer than 16384 bytes");
        }
        if self.refused.is_some() {
            return;
        }
        self.line.splice(self.cursor..self.cursor, bytes.iter().copied());
        // A secret part stays hidden, even if the words before it change.
        self.hidden = match self.hidden {
            Some(from) if self.cursor < from => Some(from + bytes.len()),
            None => secrets::hidden_from(&self.line, self.cursor..self.cursor + bytes.len()),
            hidden => hidden,
        };
        self.show(self.cursor, self.line.len(), out);
        self.cursor += bytes.len();
        out.repeat(8, self.line.len() - self.cursor);
    }

    fn enter(&mut self, out: &mut Output) -> Option<Event> {
        out.text("\n");
        let line = core::mem::take(&mut self.line);
        let refused = self.refused.take();
        if self.verbatim {
            // The lines of a private key are shown as stars.
            let ends = secrets::ends_key(&line) || self.key_lines == 0;
            self.key_lines = if ends { 0 } else { self.key_lines - 1 };
            if secrets::begins_key(&line) {
                self.key_lines = KEY_LINES;
            }
            self.clear();
            let text = String::from_utf8(line).unwrap_or_default();
            return Some(refused.map_or(Event::Line(text), Event::Refused));
        }
        if self.key_lines > 0 {
            self.key_lines = if secrets::ends_key(&line) { 0 } else { self.key_lines - 1 };
            let is_over = self.key_lines == 0;
            self.clear();
            return Some(if is_over { Event::Refused(KEY) } else { Event::Line(String::new()) });
        }
        if secrets::begins_key(&line) {
            self.key_lines = KEY_LINES;
            self.clear();
            return Some(Event::Line(String::new()));
        }
        self.clear();
        if let Some(why) = refused {
            return Some(Event::Refused(why));
        }
        let text = String::from_utf8(line.clone()).unwrap_or_default();
        let known = self.history.back() == Some(&line) || text.trim().is_empty();
        if !known && secrets::may_be_recalled(&text) {
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            self.history.push_back(line);
        }
        Some(Event::Line(text))
    }

    fn move_to(&mut self, place: usize, out: &mut Output) {
        let place = place.min(self.line.len());
        if place < self.cursor {
            out.repeat(8, self.cursor - place);
        } else {
            self.show(self.cursor, place, out);
        }
        self.cursor = place;
    }

    fn remove(&mut self, from: usize, to: usize, out: &mut Output) {
        let to = to.min(self.line.len());
        if from >= to {
            return;
        }
        self.move_to(from, out);
        self.line.drain(from..to);
        if let Some(hidden) = &mut self.hidden {
            *hidden -= (*hidden).min(to) - (*hidden).min(from);
        }
        // An empty line is a new line, except within a pasted key.
        if self.line.is_empty() && self.key_lines == 0 {
            self.hidden = None;
        }
        self.show(from, self.line.len(), out);
        out.repeat(b' ', to - from);
        out.repeat(8, self.line.len() - from + (to - from));
    }

    fn word_start(&self) -> usize {
        let before = &self.line[..self.cursor];
        let end = before.iter().rposition(|&c| c != b' ').map_or(0, |i| i + 1);
        before[..end].iter().rposition(|&c| c == b' ').map_or(0, |i| i + 1)
    }

    fn browse(&mut self, back: bool, out: &mut Output) {
        let newest = self.history.len();
        let place = self.browsing.as_ref().map_or(newest, |(place, _)| *place);
        let wanted = if back { place.checked_sub(1) } else { Some(place + 1) };
        let Some(wanted) = wanted.filter(|&w| w <= newest && w != place) else { return };
        let typed = match self.browsing.take() {
            Some((_, typed)) => typed,
            None => self.line.clone(),
        };
        let shown = self.history.get(wanted).unwrap_or(&typed).clone();
        self.remove(0, self.line.len(), out);
        self.hidden = if self.key_lines > 0 { Some(0) } else { None };
        self.insert(&shown, out);
        self.browsing = (wanted < newest).then_some((wanted, typed));
    }
}

#[cfg(test)]
#[path = "editor_tests.rs"]
mod tests;
