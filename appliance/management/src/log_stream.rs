//! `GET /api/v1/log`: the log as rows, or with `?follow` as server-sent events (WHATWG HTML, section 9.2).
//!
//! A follower costs nothing but its place while no message is logged: it has a cursor into the log, and no copy of it.
//! One that has once been up to date and then misses messages is too slow, and is disconnected.

use crate::caller::Caller;
use crate::config::{Config, Sha256, User};
use crate::console::log_row;
use crate::log_ring::{Cursor, Filter, LogRing};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::accountable;

/// Media type of events.
pub(crate) const EVENTS: &str = "text/event-stream";
/// Maximum followers of all servers together.
const FOLLOWERS: usize = 4;
/// Maximum followers of one host.
const OF_HOST: usize = 2;
/// Messages in one piece.
const BATCH: usize = 8;
/// Messages that one piece looks at, if the filter drops most.
const LOOKS: usize = 64;
/// Interval of comments that keep proxies from closing a quiet connection.
const COMMENTS: Duration = Duration::from_secs(15);

/// What a reader reads.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub log: &'a LogRing,
    pub config: &'a Config,
    pub now: Instant,
}

/// By what the owner of a stream was admitted. The stream ends when the configuration has it no longer.
#[derive(Debug, PartialEq)]
enum Grant {
    User(User),
    Token(Option<Sha256>),
}

impl Grant {
    fn of(config: &Config, caller: &Caller) -> Grant {
        let user = config.user.iter().find(|user| user.name.as_str() == caller.name);
        match user {
            Some(user) => Grant::User(user.clone()),
            None => Grant::Token(config.http.token_sha256),
        }
    }

    fn holds(&self, config: &Config) -> bool {
        match self {
            Grant::User(user) => config.user.contains(user),
            Grant::Token(token) => *token == config.http.token_sha256,
        }
    }
}

/// A reader of the log over HTTP.
#[derive(Debug)]
pub(crate) struct LogStream {
    cursor: Cursor,
    filter: Filter,
    /// The number of the first message after the rows. None for events.
    end: Option<u64>,
    /// Nothing was sent yet.
    is_first: bool,
    /// It has been up to date.
    was_current: bool,
    /// It has ended by itself.
    is_over: bool,
    host: IpAddr,
    grant: Grant,
    comment_due: Instant,
}

/// What follows a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    More,
    /// Nothing until a message is logged.
    Pending,
    End,
}

impl LogStream {
    /// A reader of the messages of `filter` from the number `from`: by default from the oldest one, or for a follower
    /// from the next one.
    pub fn new(
        source: Source<'_>,
        caller: &Caller,
        filter: Filter,
        from: Option<u64>,
        follow: bool,
    ) -> LogStream {
        let count = source.log.count();
        let host = caller.host().unwrap_or(IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED));
        LogStream {
            cursor: Cursor::at(from.unwrap_or(if follow { count } else { 0 }).min(count)),
            filter,
            end: (!follow).then_some(count),
            is_first: true,
            was_current: false,
            is_over: false,
            host: accountable(host),
            grant: Grant::of(source.config, caller),
            comment_due: source.now + COMMENTS,
        }
    }

    /// Whether it waits for further messages.
    pub fn follows(&self) -> bool {
        self.end.is_none()
    }

    /// Whether another follower may begin beside these.
    ///
    /// # Errors
    ///
    /// The reason, for the client.
    pub fn admit<'a>(
        &self,
        others: impl Iterator<Item = &'a LogStream>,
        connections: usize,
    ) -> Result<(), String> {
        if !self.follows() {
            return Ok(());
        }
        // The rest of the connections stays for other requests.
        let most = FOLLOWERS.min(connections / 4).max(1);
        let others: Vec<IpAddr> =
            others.filter(|other| other.follows()).map(|other| other.host).collect();
        if others.len() >= most {
            return Err(format!("{most} clients follow the log, which is the limit"));
        }
        match others.iter().filter(|host| **host == self.host).count() {
            OF_HOST.. => Err(format!("this host follows the log {OF_HOST} times, the limit")),
            _ => Ok(()),
        }
    }

    /// Whether the client was too slow: the connection has ended while messages wait for it.
    pub fn was_slow(&self, log: &LogRing) -> bool {
        self.follows() && self.was_current && !self.is_over && self.cursor.number() < log.count()
    }

    /// Generates the next piece.
    pub fn piece(&mut self, source: Source<'_>, piece: &mut Vec<u8>) -> Next {
        let next = match self.end {
            Some(end) => self.rows(source.log, end, piece),
            None => self.events(source, piece),
        };
        self.is_over = next == Next::End;
        next
    }

    fn rows(&mut self, log: &LogRing, end: u64, piece: &mut Vec<u8>) -> Next {
        for _ in 0..BATCH {
            let entry = log.next_of(&mut self.cursor, self.filter);
            let Some(entry) = entry.filter(|entry| entry.number < end) else {
                piece.extend_from_slice(if self.is_first { b"[]\n" } else { b"]\n" });
                return Next::End;
            };
            let sign = if core::mem::take(&mut self.is_first) { '[' } else { ',' };
            piece.extend_from_slice(format!("{sign}{}", log_row(&entry).to_json()).as_bytes());
        }
        Next::More
    }

    fn events(&mut self, source: Source<'_>, piece: &mut Vec<u8>) -> Next {
        let Source { log, config, now } = source;
        let mut event = |text: String| piece.extend_from_slice(text.as_bytes());
        if !self.grant.holds(config) {
            event("event: end\ndata: {\"reason\":\"access was withdrawn\"}\n\n".into());
            return Next::End;
        }
        if core::mem::take(&mut self.is_first) {
            event("retry: 3000\n\n".into());
        }
        let mut left = BATCH;
        for _ in 0..LOOKS {
            let Some((entry, missed)) = log.next(&mut self.cursor) else {
                self.was_current = true;
                if self.comment_due <= now {
                    self.comment_due = now + COMMENTS;
                    event(":\n\n".into());
                }
                return Next::Pending;
            };
            if missed > 0 && self.was_current {
                log.note_slow_follower();
                event("event: end\ndata: {\"reason\":\"too slow\"}\n\n".into());
                return Next::End;
            }
            if missed > 0 {
                event(format!("event: lost\ndata: {{\"messages\":{missed}}}\n\n"));
            }
            if self.filter.wants(entry.kind) {
                event(format!("id: {}\ndata: {}\n\n", entry.number, log_row(&entry).to_json()));
                left -= 1;
            }
            if left == 0 {
                return Next::More;
            }
        }
        Next::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Role, check};
    use log::{Level, Log as _, Record};

    struct Lab {
        log: LogRing,
        config: Config,
        now: Instant,
    }

    impl Lab {
        fn new() -> Lab {
            log::set_max_level(log::LevelFilter::Trace);
            let (log, now) = (LogRing::new(40, || Instant::ZERO), Instant::ZERO);
            Lab { log, config: check(USER.as_bytes()).unwrap(), now }
        }

        fn source(&self) -> Source<'_> {
            Source { log: &self.log, config: &self.config, now: self.now }
        }

        fn stream(&self, host: &str, filter: Filter, from: Option<u64>, follow: bool) -> LogStream {
            let from_host = Some(format!("{host}:4000").parse().unwrap());
            let caller = Caller {
                name: "ci".into(),
                from: from_host,
                role: Role::Read,
                ..Caller::console()
            };
            LogStream::new(self.source(), &caller, filter, from, follow)
        }

        fn write(&self, target: &str, text: &str, line: u32) {
            let mut record = Record::builder();
            record.level(Level::Info).target(target).line(Some(line));
            self.log.log(&record.args(format_args!("{text}")).build());
        }

        fn read(&self, stream: &mut LogStream) -> (String, Next) {
            let mut piece = Vec::new();
            let next = stream.piece(self.source(), &mut piece);
            (String::from_utf8(piece).unwrap(), next)
        }
    }

    const USER: &str = "[[user]]\nname = \"ci\"\nrole = \"read\"\ntoken_sha256 = \
        \"abababababababababababababababababababababababababababababababab\"\n";

    #[test]
    fn follower_gets_each_message_once_as_an_event() {
        let mut lab = Lab::new();
        lab.write("x", "before", 1);
        let mut stream = lab.stream("10.0.0.7", Filter::All, None, true);
        assert_eq!(lab.read(&mut stream), ("retry: 3000\n\n".into(), Next::Pending));
        assert_eq!(lab.read(&mut stream), (String::new(), Next::Pending));
        lab.write("x", "link \"up\"", 2);
        let (text, next) = lab.read(&mut stream);
        assert_eq!(next, Next::Pending);
        assert!(text.starts_with("id: 1\ndata: {\"seconds\":0,"), "{text}");
        assert!(text.ends_with("\"message\":\"link \\\"up\\\"\"}\n\n"), "{text}");
        lab.now = lab.now + COMMENTS;
        assert_eq!(lab.read(&mut stream), (":\n\n".into(), Next::Pending));
        let mut again = lab.stream("10.0.0.7", Filter::All, Some(0), true);
        let (text, _) = lab.read(&mut again);
        assert!(text.contains("id: 0\n") && text.contains("id: 1\n"), "{text}");
    }

    #[test]
    fn follower_of_the_audit_trail_gets_only_that_with_bounded_work() {
        let lab = Lab::new();
        let mut stream = lab.stream("10.0.0.7", Filter::Audit, None, true);
        lab.read(&mut stream);
        lab.write("x", "noise", 1);
        lab.write("audit", "console: save", 2);
        let (text, _) = lab.read(&mut stream);
        assert!(text.contains("console: save") && !text.contains("noise"), "{text}");
    }

    #[test]
    fn slow_follower_is_disconnected_and_counted() {
        let lab = Lab::new();
        let mut stream = lab.stream("10.0.0.7", Filter::All, None, true);
        assert_eq!(lab.read(&mut stream).1, Next::Pending);
        assert!(!stream.was_slow(&lab.log));
        (0..100).for_each(|line| lab.write("x", "noise", line));
        assert!(stream.was_slow(&lab.log));
        let (text, next) = lab.read(&mut stream);
        assert!(text.contains("too slow") && next == Next::End, "{text}");
        assert_eq!(lab.log.counters().slow_followers, 1);
        assert!(!stream.was_slow(&lab.log), "it is counted once");
        // A follower that asks for overwritten messages gets the event `lost` first.
        let mut late = lab.stream("10.0.0.7", Filter::All, Some(0), true);
        let (text, next) = lab.read(&mut late);
        assert!(text.contains("event: lost\n") && next == Next::More, "{text}");
    }

    #[test]
    fn stream_ends_when_the_user_is_removed() {
        let mut lab = Lab::new();
        let mut stream = lab.stream("10.0.0.7", Filter::All, None, true);
        assert_eq!(lab.read(&mut stream).1, Next::Pending);
        lab.config = Config::default();
        let (text, next) = lab.read(&mut stream);
        assert!(text.contains("access was withdrawn") && next == Next::End, "{text}");
    }

    #[test]
    fn followers_are_limited_in_all_and_per_host() {
        let lab = Lab::new();
        let stream = |host| lab.stream(host, Filter::All, None, true);
        let two = [stream("10.0.0.7"), stream("10.0.0.7")];
        assert!(stream("10.0.0.7").admit(two.iter(), 16).unwrap_err().contains("this host"));
        assert!(stream("10.0.0.8").admit(two.iter(), 16).is_ok());
        let four = [&two[0], &two[1], &stream("10.0.0.8"), &stream("10.0.0.9")];
        assert!(stream("10.0.0.1").admit(four.into_iter(), 16).is_err());
        assert!(stream("10.0.0.8").admit(two[..1].iter(), 4).is_err(), "one of four connections");
        assert!(lab.stream("10.0.0.7", Filter::All, None, false).admit(two.iter(), 16).is_ok());
    }

    #[test]
    fn rows_end_with_the_message_of_the_request() {
        let lab = Lab::new();
        assert_eq!(lab.read(&mut lab.stream("10.0.0.7", Filter::All, None, false)).0, "[]\n");
        (0..10).for_each(|line| lab.write("x", &format!("m{line}"), line));
        let mut stream = lab.stream("10.0.0.7", Filter::All, None, false);
        lab.write("x", "later", 99);
        let (mut text, next) = lab.read(&mut stream);
        assert_eq!(next, Next::More);
        let (rest, next) = lab.read(&mut stream);
        assert_eq!(next, Next::End);
        text += &rest;
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 10);
    }
}
