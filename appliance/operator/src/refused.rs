//! Refusals to peers: the latest for `show refused`, a log line for each, and a count by kind and reason. A host with
//! many refusals cannot fill the log, which counts repeats ([`crate::log_ring`]), nor `show refused`, which evicts that
//! host's own entries first.

use crate::log_ring;
use crate::report::Value;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::accountable;
use net::refusal::{Refusal, Refusals};
use std::collections::VecDeque;

/// Refusals that `show refused` shows.
const SHOWN: usize = 32;
/// Interval at which the number of refusals without details is logged.
const PACE: Duration = Duration::from_secs(60);

/// The number of refusals of one kind and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Kind of request, such as `session`.
    pub what: &'static str,
    /// Reason, such as `host_not_admitted`.
    pub reason: &'static str,
    /// Number of refusals.
    pub count: u64,
}

/// A refusal and its repeats.
#[derive(Debug)]
struct Row {
    /// Time of the latest repeat.
    at: Instant,
    times: u64,
    /// Hash of kind and reason, for fast comparison.
    kind: u32,
    /// The accountable host.
    host: Option<IpAddr>,
    refusal: Refusal,
}

/// Records and counters of refusals.
#[derive(Debug)]
pub struct Refused {
    last: VecDeque<Row>,
    counts: Vec<Count>,
    /// Refusals without details since their number was last logged.
    unknown: u64,
    /// When the number of refusals without details was last logged.
    logged: Option<Instant>,
}

impl Default for Refused {
    fn default() -> Self {
        let last = VecDeque::with_capacity(SHOWN);
        Refused { last, counts: Vec::new(), unknown: 0, logged: None }
    }
}

impl Refused {
    /// Takes the refusals of an engine.
    pub fn take(&mut self, refusals: &mut Refusals, now: Instant) {
        while let Some(refusal) = refusals.pop() {
            self.add(refusal, now);
        }
        for (what, reason, count) in refusals.take_more() {
            self.unknown += count;
            self.count(what, reason, count);
        }
        if self.unknown > 0 && self.logged.is_none_or(|logged| logged + PACE <= now) {
            let more = core::mem::take(&mut self.unknown);
            self.logged = Some(now);
            log_ring::refused(
                "more",
                format_args!(
                    "{more} more refusals; isthmus_refused_total counts them by kind and reason"
                ),
            );
        }
    }

    /// Adds one refusal.
    pub fn add(&mut self, refusal: Refusal, now: Instant) {
        self.count(refusal.what, refusal.reason, 1);
        log_ring::refused(refusal.reason, format_args!("{}", line(&refusal)));
        let is_same = |row: &Row| {
            let Refusal { who, what, asked, reason, .. } = &row.refusal;
            let of = (refusal.who, refusal.what, refusal.reason);
            (*who, *what, *reason) == of && *asked == refusal.asked
        };
        let same = self.last.iter().position(is_same);
        let gone = same.or_else(|| (self.last.len() == SHOWN).then(|| self.victim()));
        let gone = gone.and_then(|at| self.last.remove(at));
        let times = gone.filter(|_| same.is_some()).map_or(0, |row| row.times) + 1;
        let kind = log_ring::hash(&[refusal.what.as_bytes(), refusal.reason.as_bytes()]);
        let host = refusal.who.map(accountable);
        self.last.push_back(Row { at: now, times, kind, host, refusal });
    }

    /// The row to evict: the oldest row of the host with the most rows, within the kind with the most rows.
    fn victim(&self) -> usize {
        let of_kind = |row: &Row| self.last.iter().filter(|it| it.kind == row.kind).count();
        let most = self.last.iter().map(of_kind).max().unwrap_or(0);
        let kind = self.last.iter().find(|row| of_kind(row) == most).map(|row| row.kind);
        let rows = || self.last.iter().filter(|row| Some(row.kind) == kind);
        let of_host = |row: &Row| rows().filter(|it| it.host == row.host).count();
        let most = rows().map(of_host).max().unwrap_or(0);
        let is_victim = |row: &Row| Some(row.kind) == kind && of_host(row) == most;
        self.last.iter().position(is_victim).unwrap_or(0)
    }

    /// Number of refusals by kind and reason.
    pub fn counts(&self) -> &[Count] {
        &self.counts
    }

    /// The latest refusals with their times, newest first.
    pub fn newest(&self) -> impl Iterator<Item = (Instant, &Refusal)> {
        self.last.iter().rev().map(|row| (row.at, &row.refusal))
    }

    /// The report of `show refused`, newest first.
    pub fn report(&self) -> Value {
        Value::list(self.last.iter().rev().map(|Row { at, times, refusal, .. }| {
            Value::object([
                ("at_seconds", at.since(Instant::ZERO).as_secs_f64().into()),
                ("times", (*times).into()),
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

/// The log line of a refusal: `refused session "a" of 10.0.0.2: the name is taken; …`
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
    fn latest_refusals_are_shown_and_all_are_counted() {
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
        let rows: Vec<_> = refused.last.iter().map(|row| (row.refusal.reason, row.times)).collect();
        // Refusals that overflowed the queue have no details.
        assert_eq!(rows, [("host_not_admitted", 32), ("limit", 3)]);
        assert_eq!((refused.unknown, refused.logged), (0, Some(Instant::ZERO)));
        refusals.count("connection", "limit", 5);
        refused.take(&mut refusals, Instant::ZERO + PACE / 2);
        assert_eq!(refused.unknown, 5, "their number is logged once a minute");
        refused.take(&mut refusals, Instant::ZERO + PACE);
        assert_eq!(refused.unknown, 0);
    }

    #[test]
    fn refusals_of_other_hosts_survive_floods_by_one_host_or_many() {
        let mut refused = Refused::default();
        let of = |who: [u8; 4], asked: usize, reason| Refusal {
            who: Some(who.into()),
            asked: asked.to_string(),
            ..refusal(reason)
        };
        refused.add(of([10, 0, 0, 2], 0, "limit"), Instant::ZERO);
        refused.add(of([10, 0, 0, 3], 0, "host_not_admitted"), Instant::ZERO);
        for asked in 0..100 {
            refused.add(of([10, 0, 0, 9], asked, "host_not_admitted"), Instant::ZERO);
        }
        let of_host = |refused: &Refused, host: [u8; 4]| {
            refused.last.iter().filter(|row| row.refusal.who == Some(host.into())).count()
        };
        assert_eq!((of_host(&refused, [10, 0, 0, 3]), refused.last.len()), (1, SHOWN));
        for host in 0..100 {
            refused.add(of([10, 1, 0, host], 0, "host_not_admitted"), Instant::ZERO);
        }
        assert_eq!((of_host(&refused, [10, 0, 0, 2]), refused.last.len()), (1, SHOWN));
    }

    #[test]
    fn log_line_names_host_request_and_advice() {
        assert_eq!(
            line(&refusal("host_not_admitted")),
            "refused connection \"port 1234\" of 10.0.0.2: no export admits this host; add it to export.N.hosts"
        );
    }
}
