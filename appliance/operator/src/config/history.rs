//! [`History`]: the last revisions of the running configuration. The config disk keeps them, see [`super::disk`].

use crate::report::Value;
use net::syslog::Timestamp;
use std::collections::VecDeque;

/// Maximum number of revisions.
pub const REVISIONS: usize = 50;
/// Maximum bytes of all documents together. Beyond, the oldest revisions are dropped.
const BYTES: usize = 512 << 10;
/// Highest number that is read from a disk.
const LAST: u64 = u64::MAX / 2;
/// Longest comment and author in bytes.
const WORDS: usize = 200;

/// A revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Number, from 1. It grows by one with each change, also across reboots.
    pub number: u64,
    /// Time in seconds since 1970; 0 if the appliance did not know the time.
    pub at: u64,
    /// Who changed the configuration, and from where.
    pub by: String,
    /// The command.
    pub what: String,
    /// The operator's comment.
    pub comment: String,
    /// The whole configuration after the change.
    pub text: String,
}

impl Revision {
    /// UTC time, if known.
    pub fn utc(&self) -> Option<String> {
        let time = core::time::Duration::from_secs(self.at);
        (self.at > 0).then(|| format!("{:.0}", Timestamp(time)))
    }

    /// The revision as a row of a report, without its document.
    pub fn row(&self) -> Value {
        Value::object([
            ("revision", self.number.into()),
            ("time", self.utc().map_or(Value::None, Value::from)),
            ("by", self.by.clone().into()),
            ("what", self.what.clone().into()),
            ("comment", self.comment.clone().into()),
        ])
    }

    /// The revision as text for a slot: five lines, then the document.
    pub fn to_slot(&self) -> String {
        let line = |text: &str| text.replace(['\n', '\r'], " ");
        format!(
            "{}\n{}\n{}\n{}\n{}\n{}",
            self.number,
            self.at,
            line(&self.by),
            line(&self.what),
            line(&self.comment),
            self.text
        )
    }

    /// Reads the text of a slot. None for one that this program does not write: without a document, which would be the
    /// open default, or with a number that none can follow.
    pub fn of_slot(text: &str) -> Option<Revision> {
        let mut lines = text.splitn(6, '\n');
        let mut next = || lines.next();
        let number = next()?.parse().ok().filter(|number| (1..=LAST).contains(number))?;
        let at = next()?.parse().ok()?;
        let (by, what, comment) = (next()?.into(), next()?.into(), next()?.into());
        let text = next().filter(|text| !text.is_empty())?.into();
        Some(Revision { number, at, by, what, comment, text })
    }
}

/// The last revisions, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    revisions: VecDeque<Revision>,
    /// Number of the newest revision that is on the config disk.
    written: u64,
}

impl History {
    /// The revisions that a config disk holds, in any order. Duplicates and gaps are accepted.
    pub fn of(mut found: Vec<Revision>) -> History {
        found.sort_by_key(|revision| revision.number);
        let mut history = History::default();
        for revision in found {
            history.keep(revision);
        }
        history.written = history.newest().map_or(0, |revision| revision.number);
        history
    }

    fn keep(&mut self, revision: Revision) {
        if self.newest().is_some_and(|newest| newest.number >= revision.number) {
            return;
        }
        self.revisions.push_back(revision);
        let bytes = |all: &VecDeque<Revision>| all.iter().map(|one| one.text.len()).sum::<usize>();
        while self.revisions.len() > REVISIONS
            || (self.revisions.len() > 1 && bytes(&self.revisions) > BYTES)
        {
            self.revisions.pop_front();
        }
    }

    /// The newest revision.
    pub fn newest(&self) -> Option<&Revision> {
        self.revisions.back()
    }

    /// The revision of this number.
    pub fn get(&self, number: u64) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.number == number)
    }

    /// All revisions, newest first.
    pub fn iter(&self) -> impl Iterator<Item = &Revision> {
        self.revisions.iter().rev()
    }

    /// Adds a revision if its document differs from the newest one. Returns the number of the newest revision.
    pub fn add(&mut self, at: u64, by: &str, what: &str, comment: &str, text: String) -> u64 {
        let number = match self.newest() {
            Some(newest) if newest.text == text => return newest.number,
            Some(newest) => newest.number.saturating_add(1),
            None => 1,
        };
        let cut = |text: &str| text[..text.floor_char_boundary(WORDS)].replace(['\n', '\r'], " ");
        let (by, what, comment) = (cut(by), cut(what), cut(comment));
        self.keep(Revision { number, at, by, what, comment, text });
        number
    }

    /// The oldest revision that is not on the config disk.
    pub fn unwritten(&self) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.number > self.written)
    }

    /// Whether a revision is not on the config disk.
    #[inline]
    pub fn has_unwritten(&self) -> bool {
        self.newest().is_some_and(|newest| newest.number > self.written)
    }

    /// Notes that no revision so far will be written.
    pub fn note_all_written(&mut self) {
        self.written = self.newest().map_or(0, |newest| newest.number);
    }

    /// Notes that a revision, and all before it, are on the config disk.
    pub fn note_written(&mut self, number: u64) {
        self.written = self.written.max(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_the_last_fifty_different_documents() {
        let mut history = History::default();
        for i in 0..70u64 {
            let number = history.add(i, "console", "set", "", format!("a = {i}"));
            assert_eq!(number, i + 1);
            assert_eq!(history.add(i, "console", "set", "", format!("a = {i}")), i + 1, "the same");
        }
        assert_eq!(history.iter().count(), REVISIONS);
        assert!(history.get(20).is_none() && history.get(21).is_some());
        assert_eq!(history.unwritten().unwrap().number, 21);
        history.note_written(69);
        assert_eq!(history.unwritten().unwrap().number, 70);
        history.note_written(70);
        assert!(history.unwritten().is_none());
    }

    #[test]
    fn documents_of_a_history_have_a_limit_in_bytes() {
        let mut history = History::default();
        for i in 0..60 {
            history.add(0, "", "", "", format!("{i:016000}"));
        }
        let bytes: usize = history.iter().map(|revision| revision.text.len()).sum();
        assert!(bytes <= BYTES && history.iter().count() > 20, "{bytes}");
    }

    #[test]
    fn document_that_no_slot_holds_is_kept_as_it_is() {
        let mut history = History::default();
        let long = "x".repeat(2 * crate::config::MAX_DOCUMENT);
        let number = history.add(0, "", "", "", long.clone());
        assert_eq!(history.add(0, "", "", "", long.clone()), number, "the same");
        assert_eq!(history.get(number).unwrap().text, long, "never another document in its place");
    }

    #[test]
    fn revision_is_read_back_from_its_slot() {
        let mut history = History::default();
        history.add(
            1_800_000_000,
            "http ci from 10.0.0.7:1",
            "commit",
            "a\nb",
            "x = 1\ny = 2\n".into(),
        );
        let one = history.newest().unwrap();
        assert_eq!(one.comment, "a b");
        assert_eq!(Revision::of_slot(&one.to_slot()).as_ref(), Some(one));
        assert!(one.utc().unwrap().starts_with("2027-01-15T08:00:00"));
        let last = format!("{}\n1\n\n\n\na = 1", u64::MAX);
        for wrong in ["", "1\n2\n3", "x\n1\n\n\n\n", "0\n1\n\n\n\na = 1", "1\n1\n\n\n\n", &last] {
            assert_eq!(Revision::of_slot(wrong), None, "{wrong:?}");
        }
        let again = History::of(vec![one.clone(), one.clone()]);
        assert_eq!(again.iter().count(), 1);
        assert!(again.unwritten().is_none());
    }
}
