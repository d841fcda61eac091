//! The note beside the slots for the next release ([`release::Note`]): the access that the configuration in force
//! grants, and the time of the newest installed release.

use release::layout::NOTES;
use release::{NOTE, Note, latest};

/// Required of a trial without a note: releases that wrote no note required it for an upgrade.
const LEAST: &str = "system.upgrade_key is set";

/// The last note on this disk.
#[derive(Debug, Default)]
pub(super) struct Noted {
    generation: u64,
    /// The copy that is overwritten next.
    older: usize,
    /// Time of the newest release that was installed on this disk.
    pub made: u64,
    lines: Vec<String>,
    is_cut: bool,
}

impl Noted {
    /// Reads both copies.
    pub fn read(copies: [&[u8]; 2]) -> Noted {
        let (note, older) = latest(copies);
        let note = note.unwrap_or_default();
        let lines = note.text.lines().map(ToString::to_string).collect();
        let Note { generation, made, is_cut, .. } = note;
        Noted { generation, older, made, lines, is_cut }
    }

    /// Replaces the note. Returns its position on disk, and its bytes.
    pub fn replace(&mut self, made: u64, lines: Vec<String>) -> (u64, Box<[u8; NOTE]>) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.made = self.made.max(made);
        self.generation = self.generation.wrapping_add(1);
        let note =
            Note { generation: self.generation, made: self.made, text: &text, is_cut: false };
        let mut bytes = Box::new([0; NOTE]);
        note.emit(&mut bytes);
        let place = NOTES[self.older];
        self.older = 1 - self.older;
        self.lines = lines;
        (place, bytes)
    }

    /// Access that was in force, and is no longer.
    pub fn missing(&self, in_force: &[String]) -> Vec<String> {
        let least = [LEAST.to_string()];
        let before = if self.generation == 0 { &least[..] } else { &self.lines };
        let gone = before.iter().filter(|line| !in_force.contains(line));
        let mut missing: Vec<String> =
            gone.map(|line| format!("no longer in force: {line}")).collect();
        if self.is_cut {
            missing.push("the list of former access is too long to be compared".into());
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn note_is_read_back_and_lists_missing_access() {
        let mut noted = Noted::default();
        assert_eq!(noted.missing(&[]), [format!("no longer in force: {LEAST}")]);
        assert!(noted.missing(&lines(&[LEAST])).is_empty());
        let (first, bytes) = noted.replace(70, lines(&["export a of v", "rule r on 80"]));
        let read = Noted::read([&bytes[..], &[0; NOTE]]);
        assert_eq!((read.made, first), (70, NOTES[0]));
        assert!(read.missing(&lines(&["rule r on 80", "more", "export a of v"])).is_empty());
        assert_eq!(read.missing(&lines(&["export a of v"])), ["no longer in force: rule r on 80"]);
        // An older release that is installed by force does not lower the limit. The other copy is overwritten.
        let mut read = read;
        let (second, later) = read.replace(60, lines(&["export b of v"]));
        assert_eq!((read.made, second), (70, NOTES[1]));
        let again = Noted::read([&bytes[..], &later[..]]);
        assert_eq!((again.made, again.missing(&[]).len()), (70, 1));
    }
}
