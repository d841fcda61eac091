//! What was refused: the last of it for `show refused`, a line in the log for each, and a count of each
//! kind and reason. A host that is refused again and again does not fill the log, which counts repeats
//! ([`crate::log_ring`]).

use crate::log_ring;
use crate::report::Value;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::refusal::{Refusal, Refusals};
use std::collections::VecDeque;

/// Refusals that `show refused` shows.
const SHOWN: usize = 32;
/// How often the number of those of which nothing else is known is logged.
const PACE: Duration = Duration::from_secs(60);

/// One kind of refusal, counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// What was asked for, such as `session`.
    pub what: &'static str,
    /// Why it was refused, such as `host_not_admitted`.
    pub reason: &'static str,
    /// How often.
    pub count: u64,
}

/// What was refused.
#[derive(Debug)]
pub struct Refused {
    last: VecDeque<(Instant, Refusal)>,
    counts: Vec<Count>,
    /// Refusals of which nothing else is known since their number was logged, and when that was.
    unknown: u64,
    told: Option<Instant>,
}

impl Default for Refused {
    fn default() -> Self {
        let last = VecDeque::with_capacity(SHOWN);
        Refused { last, counts: Vec::new(), unknown: 0, told: None }
    }
}

impl Refused {
    /// Takes what an engine has refused.
    pub fn take(&mut self, refusals: &mut Refusals, now: Instant) {
        while let Some(refusal) = refusals.pop() {
            self.add(refusal, now);
        }
        for (what, reason, count) in refusals.take_more() {
            self.unknown += count;
            self.count(what, reason, count);
        }
        if self.unknown > 0 && self.told.is_none_or(|told| told + PACE <= now) {
            let more = core::mem::take(&mut self.unknown);
            self.told = Some(now);
            log_ring::refused(
                "more",
                format_args!("{more} more were refused (isthmus_refused_total says what and why)"),
            );
        }
    }

    /// Adds one refusal.
    pub fn add(&mut self, refusal: Refusal, now: Instant) {
        self.count(refusal.what, refusal.reason, 1);
        log_ring::refused(refusal.reason, format_args!("{}", line(&refusal)));
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back((now, refusal));
    }

    /// How often each kind was refused, for which reason.
    pub fn counts(&self) -> &[Count] {
        &self.counts
    }

    /// The last ones, newest first.
    pub fn report(&self) -> Value {
        Value::list(self.last.iter().rev().map(|(at, refusal)| {
            Value::object([
                ("at_seconds", at.since(Instant::ZERO).as_secs_f64().into()),
                ("from", refusal.who.map_or(Value::None, Value::display)),
                ("what", refusal.what.into()),
                ("asked", refusal.asked.clone().into()),
                ("reason", refusal.reason.into()),
                ("advice", refusal.advice.to_string().into()),
            ])
        }))
    }

    fn count(&mut self, what: &'static str, reason: &'static str, more: u64) {
        let known = self.counts.iter_mut().find(|c| (c.what, c.reason) == (what, reason));
        match known {
            Some(count) => count.count += more,
            None => self.counts.push(Count { what, reason, count: more }),
        }
    }
}

/// `refused session "a" of 10.0.0.2: the name is taken; …`
fn line(refusal: &Refusal) -> String {
    let Refusal { who, what, asked, advice, .. } = refusal;
    let shown = if asked.is_empty() { String::new() } else { format!(" {asked:?}") };
    let of = who.map(|who: IpAddr| format!(" of {}", who.to_canonical())).unwrap_or_default();
    format!("refused {what}{shown}{of}: {advice}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(reason: &'static str) -> Refusal {
        let who = Some("::ffff:10.0.0.2".parse().unwrap());
        let advice = "no export admits this host; add it to export.N.hosts".into();
        Refusal { who, what: "connection", asked: "port 1234".into(), reason, advice }
    }

    #[test]
    fn the_last_are_shown_and_all_are_counted() {
        let (mut refused, mut refusals) = (Refused::default(), Refusals::default());
        for _ in 0..40 {
            refusals.push(refusal("host_not_admitted"));
        }
        refused.take(&mut refusals, Instant::ZERO);
        for _ in 0..3 {
            refused.add(refusal("limit"), Instant::ZERO);
        }
        let count = |reason, count| Count { what: "connection", reason, count };
        assert_eq!(refused.counts(), [count("host_not_admitted", 40), count("limit", 3)]);
        assert_eq!(refused.last.len(), SHOWN);
        assert_eq!(refused.last.back().map(|(_, last)| last.reason), Some("limit"));
        assert_eq!((refused.unknown, refused.told), (0, Some(Instant::ZERO)));
        refusals.count("connection", "limit", 5);
        refused.take(&mut refusals, Instant::ZERO + PACE / 2);
        assert_eq!(refused.unknown, 5, "their number is logged once a minute");
        refused.take(&mut refusals, Instant::ZERO + PACE);
        assert_eq!(refused.unknown, 0);
    }

    #[test]
    fn a_line_says_who_what_and_what_to_do() {
        assert_eq!(
            line(&refusal("host_not_admitted")),
            "refused connection \"port 1234\" of 10.0.0.2: no export admits this host; add it to export.N.hosts"
        );
    }
}
