//! Records of refused requests: source, request, reason and remedy. Engines queue them in their own [`Refusals`], and
//! the caller of the engine takes them out to log and count them.

use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// Refusals that are queued. Further ones are only counted.
const KEPT: usize = 32;
/// Maximum length in bytes of a text chosen by a peer.
const LONGEST: usize = 128;

/// One refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Source address of the request's frame.
    pub who: Option<IpAddr>,
    /// Kind of the requested object, as a label: `connection`, `session`, `map`, `login`, `handshake`.
    pub what: &'static str,
    /// The requested object, such as a port or the names of session and export.
    pub asked: String,
    /// Reason as a label, such as `host_not_admitted`. `what` and `reason` select a counter.
    pub reason: &'static str,
    /// Reason and remedy for the operator.
    pub advice: Cow<'static, str>,
}

/// A bounded queue of refusals, and counters of those that did not fit.
#[derive(Debug, Default)]
pub struct Refusals {
    kept: VecDeque<Refusal>,
    /// Counters of refusals that were not queued, by `what` and `reason`.
    more: Vec<(&'static str, &'static str, u64)>,
}

impl Refusals {
    /// Adds a refusal.
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

    /// Moves all refusals and counts of `other` into this queue.
    pub fn absorb(&mut self, other: &mut Refusals) {
        while let Some(refusal) = other.kept.pop_front() {
            self.push(refusal);
        }
        for (what, reason, count) in other.more.drain(..) {
            self.count(what, reason, count);
        }
    }

    /// Counts `count` refusals without details.
    pub fn count(&mut self, what: &'static str, reason: &'static str, count: u64) {
        match self.more.iter_mut().find(|(w, r, _)| (*w, *r) == (what, reason)) {
            Some((_, _, known)) => *known += count,
            None => self.more.push((what, reason, count)),
        }
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Takes the oldest refusal.
    pub fn pop(&mut self) -> Option<Refusal> {
        self.kept.pop_front()
    }

    /// Takes the counters of refusals that were not queued.
    pub fn take_more(&mut self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
        self.more.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_limit_are_only_counted() {
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
