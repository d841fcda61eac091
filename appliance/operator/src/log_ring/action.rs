//! Lines about operators' actions: who did what. And [`Actors`], which limits the lines of those who are not
//! administrators.

use super::{Text, hash};
use core::time::Duration;
use drivers::hal::Instant;
use log::Level;

/// Lines of one actor about one kind of action that are kept at once. Further ones are counted.
pub(super) const BURST: u32 = 16;
/// Time after which another one is kept.
pub(super) const EACH: Duration = Duration::from_secs(120);
/// Kinds of action that are limited one by one. The others of an actor share a limit.
const KINDS: usize = 16;
/// Maximum number of limits in use at a time. When all are, the rest shares the first.
const LIMITS: usize = 128;

/// The parts of a line: `http ci by certificate from 10.0.0.7:40122: commit: revision 7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action<'a> {
    /// Who, without an address: `http ci`, `http`, `console`. Only an administrator can make another name.
    pub who: &'a str,
    /// The client's address.
    pub address: Option<&'a str>,
    /// The user was known by a certificate.
    pub by_certificate: bool,
    /// What.
    pub what: &'a str,
}

impl<'a> Action<'a> {
    /// The parts of a line.
    pub fn of(text: &'a str) -> Action<'a> {
        // Names have neither spaces nor colons, so the first colon with a space ends the caller.
        let (who, what) = text.split_once(": ").unwrap_or(("", text));
        let (who, address) = match who.rsplit_once(" from ") {
            Some((who, address)) => (who, Some(address)),
            None => (who, None),
        };
        let certified = who.strip_suffix(" by certificate");
        Action { who: certified.unwrap_or(who), address, by_certificate: certified.is_some(), what }
    }

    /// The name of the user, if it has one.
    pub fn name(&self) -> Option<&'a str> {
        self.who.split_once(' ').map(|(_, name)| name)
    }

    /// Who and from where, as at the start of the line.
    pub(super) fn prefix(&self, text: &'a str) -> &'a str {
        text.strip_suffix(self.what).unwrap_or_default()
    }

    /// Identifies the actor.
    pub fn actor(&self) -> u32 {
        hash(&[self.who.as_bytes()])
    }

    /// Identifies the actor and the kind of the action, which is its first word.
    pub(super) fn kind(&self) -> u32 {
        let verb = self.what.split([' ', ':']).next().unwrap_or_default();
        hash(&[self.who.as_bytes(), b" ", verb.as_bytes()])
    }

    /// Identifies the actor and the whole action, from any address.
    pub(super) fn whole(&self) -> u32 {
        hash(&[self.who.as_bytes(), b": ", self.what.as_bytes()])
    }
}

/// Lines that were counted instead of kept.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub count: u64,
    /// The kind of action, or the one that the others share.
    pub kind: u32,
    pub level: Level,
    /// The last one.
    pub text: Text,
}

/// The limit of one actor's lines about one kind of action.
#[derive(Debug)]
struct Limit {
    actor: u32,
    kind: u32,
    /// When [`BURST`] lines may be kept again.
    calm: Instant,
    held: Option<Held>,
}

/// Limits in use.
#[derive(Debug)]
pub(super) struct Actors {
    limits: Vec<Limit>,
}

impl Default for Actors {
    fn default() -> Self {
        let mut limits = Vec::with_capacity(LIMITS);
        limits.push(Limit { actor: 0, kind: 0, calm: Instant::ZERO, held: None });
        Actors { limits }
    }
}

impl Limit {
    /// When another line may be kept.
    fn due(&self) -> Instant {
        let most = (EACH * (BURST - 1)).as_nanos() as u64;
        Instant::from_nanos(self.calm.as_nanos().saturating_sub(most))
    }

    fn spend(&mut self, now: Instant) {
        self.calm = self.calm.max(now) + EACH;
    }
}

impl Actors {
    /// The kind of action as which a line is kept. None if it is counted instead.
    pub fn admit(
        &mut self,
        action: Action<'_>,
        level: Level,
        text: &Text,
        now: Instant,
    ) -> Option<u32> {
        let at = self.place(action.actor(), action.kind(), now);
        let limit = &mut self.limits[at];
        if limit.held.is_none() && limit.due() <= now {
            limit.spend(now);
            return Some(limit.kind);
        }
        let count = limit.held.as_ref().map_or(0, |held| held.count) + 1;
        limit.held = Some(Held { count, kind: limit.kind, level, text: *text });
        None
    }

    /// The index of a limit.
    fn place(&mut self, actor: u32, kind: u32, now: Instant) -> usize {
        let find = |limits: &[Limit], kind| {
            limits.iter().position(|limit| (limit.actor, limit.kind) == (actor, kind))
        };
        if let Some(at) = find(&self.limits, kind) {
            return at;
        }
        let mut number = 0;
        self.limits.retain(|limit| {
            number += 1;
            number == 1 || limit.held.is_some() || now < limit.calm
        });
        // An actor that invents kinds of actions gets no further limit for each.
        let of_actor = self.limits.iter().filter(|limit| limit.actor == actor).count();
        let kind = if of_actor < KINDS { kind } else { 0 };
        match find(&self.limits, kind) {
            Some(at) => at,
            None if self.limits.len() >= LIMITS => 0,
            None => {
                self.limits.push(Limit { actor, kind, calm: now, held: None });
                self.limits.len() - 1
            }
        }
    }

    /// Takes the next count that is to be logged, in place of a line.
    pub fn take_due(&mut self, now: Instant) -> Option<Held> {
        let is_due = |limit: &&mut Limit| limit.held.is_some() && limit.due() <= now;
        let limit = self.limits.iter_mut().find(is_due)?;
        limit.spend(now);
        limit.held.take()
    }

    /// When the next count is to be logged.
    pub fn due(&self) -> Option<Instant> {
        self.limits.iter().filter(|limit| limit.held.is_some()).map(Limit::due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn action_has_its_parts() {
        let text = "http ci by certificate from [fd00::7]:40122: set a: refused: no: key";
        let action = Action::of(text);
        assert_eq!((action.who, action.name()), ("http ci", Some("ci")));
        assert_eq!((action.address, action.by_certificate), (Some("[fd00::7]:40122"), true));
        assert_eq!(action.what, "set a: refused: no: key");
        assert_eq!(action.prefix(text), "http ci by certificate from [fd00::7]:40122: ");
        let other = Action::of("http ci from 10.0.0.1:1: set a: refused: no: key");
        assert_eq!((other.actor(), other.whole()), (action.actor(), action.whole()));
        for (text, who, name) in [
            ("http from 10.0.0.7:1: save", "http", None),
            ("http from from 10.0.0.7:1: save", "http from", Some("from")),
            ("console: save", "console", None),
            ("console ann: login", "console ann", Some("ann")),
            ("save", "", None),
        ] {
            assert_eq!((Action::of(text).who, Action::of(text).name()), (who, name), "{text}");
        }
        let kind = |what: &str| Action::of(&format!("http ci: {what}")).kind();
        assert_eq!(kind("ping 10.0.0.1"), kind("ping 10.0.0.2: refused"));
        assert_ne!(kind("ping 10.0.0.1"), kind("reboot"));
    }
}
