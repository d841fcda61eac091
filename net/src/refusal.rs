//! What was refused: who asked for what, why it was not given, and what to do about it. Engines put it
//! into a [`Refusals`] of their own, and whoever runs them takes it out, to log and count it.

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// Refusals that are kept until somebody takes them. More are only counted.
const KEPT: usize = 32;
/// Most bytes of a text that a peer chose.
const LONGEST: usize = 128;

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Address of who asked, as the frame has it.
    pub who: Option<IpAddr>,
    /// The kind of thing asked for: a label such as `connection`, `session`, `map`, `login`, `handshake`.
    pub what: &'static str,
    /// Which one, such as a port or the names of session and export.
    pub asked: String,
    /// Why: a label such as `host_not_admitted`; what and reason name a counter.
    pub reason: &'static str,
    /// The same for people: why, and what to do about it.
    pub advice: Cow<'static, str>,
}

/// A bounded queue of refusals, and how many there were of those that found no room in it.
#[derive(Debug, Default)]
pub struct Refusals {
    kept: VecDeque<Refusal>,
    /// What, reason and number of refusals that were not kept.
    more: Vec<(&'static str, &'static str, u64)>,
}

impl Refusals {
    /// Adds one.
    pub fn push(&mut self, mut refusal: Refusal) {
        if self.kept.len() < KEPT {
            let end = refusal.asked.floor_char_boundary(LONGEST);
            refusal.asked.truncate(end);
            self.kept.push_back(refusal);
            return;
        }
        let Refusal { what, reason, .. } = refusal;
        self.count(what, reason, 1);
    }

    /// Takes over all that another has.
    pub fn absorb(&mut self, other: &mut Refusals) {
        while let Some(refusal) = other.kept.pop_front() {
            self.push(refusal);
        }
        for (what, reason, count) in other.more.drain(..) {
            self.count(what, reason, count);
        }
    }

    /// Adds so many that nothing else is known of.
    pub fn count(&mut self, what: &'static str, reason: &'static str, count: u64) {
        match self.more.iter_mut().find(|(w, r, _)| (*w, *r) == (what, reason)) {
            Some((_, _, known)) => *known += count,
            None => self.more.push((what, reason, count)),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes the oldest that was kept.
    pub fn pop(&mut self) -> Option<Refusal> {
        self.kept.pop_front()
    }

    /// Takes what, reason and number of those that were not kept.
    pub fn take_more(&mut self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        self.more.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_kept() {
        let mut refusals = Refusals::default();
        for reason in ["a", "b"] {
            for _ in 0..100 {
                refusals.push(Refusal {
                    who: None,
                    what: "map",
                    asked: "ä".repeat(100),
                    reason,
                    advice: "".into(),
                });
            }
        }
        let kept =
            core::iter::from_fn(|| refusals.pop()).inspect(|r| assert!(r.asked.len() <= 128));
        assert_eq!(kept.count(), 32);
        assert!(refusals.take_more().eq([("map", "a", 68), ("map", "b", 100)]));
        assert!(refusals.is_empty() && refusals.take_more().next().is_none());
    }
}
