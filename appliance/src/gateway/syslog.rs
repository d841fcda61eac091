//! The log, sent to a syslog server (RFC 5424 over UDP) if one is configured.

use super::network::Network;
use crate::config::System;
use crate::log_ring::{Cursor, Entry, Kind, LogRing};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use log::Level;
use management::status::WallClock;
use net::syslog::{Record, Sender, Severity};

/// Wait before a retry when there was no room for a message.
const RETRY: Duration = Duration::from_millis(10);

/// The connection to the server, and its position in the log.
#[derive(Debug, Default)]
pub(super) struct Syslog {
    sender: Option<(usize, SocketAddr, Sender)>,
    cursor: Cursor,
    /// Read from the log and not sent yet.
    next: Option<Entry>,
    /// Count of log messages at the last poll.
    seen: u64,
    /// When to retry after there was no room.
    retry_at: Option<Instant>,
}

impl Syslog {
    /// Whether there are new messages, or a retry is due. Messages that wait for a route to the server are sent when
    /// the control plane has other work, such as a new address.
    pub fn wants_poll(&self, system: &System, log: &LogRing, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| at <= now)
            || system.syslog.is_some() && self.seen != log.count()
    }

    /// When the next retry is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends new messages, as long as there are room and a route. Returns their number.
    pub fn poll(
        &mut self,
        networks: &mut [Network],
        system: &System,
        log: &LogRing,
        clock: &WallClock,
        now: Instant,
    ) -> usize {
        self.retry_at = None;
        if self.sender.is_none() && system.syslog.is_none() {
            return 0;
        }
        if self.sender.as_ref().map(|(_, server, _)| *server) != system.syslog
            && let Some((index, _, sender)) = self.sender.take()
        {
            sender.stop(&mut networks[index].interface);
        }
        let Some(server) = system.syslog else { return 0 };
        self.seen = log.count();
        if self.sender.is_none() {
            let has_route = |n: &Network| n.interface.next_hop(server.ip()).is_some();
            let Some(index) = networks.iter().position(has_route) else { return 0 };
            let interface = &mut networks[index].interface;
            let hostname = system.hostname.to_string();
            self.sender =
                Some((index, server, Sender::new(interface, server, &hostname, "isthmus")));
        }
        let Some((index, _, sender)) = &mut self.sender else { return 0 };
        let mut sent = 0;
        loop {
            if self.next.is_none() {
                self.next = log.next(&mut self.cursor).map(|(entry, missed)| {
                    log.lost(missed);
                    entry
                });
            }
            let Some(entry) = &self.next else { return sent };
            let record = Record {
                severity: severity(entry),
                time: clock.is_plausible.then(|| clock.at(entry.at)),
                source: "appliance",
                text: entry.text(),
            };
            if sender.send(&mut networks[*index].interface, &record).is_err() {
                self.retry_at = Some(now + RETRY);
                return sent;
            }
            self.next = None;
            sent += 1;
        }
    }
}

fn severity(entry: &Entry) -> Severity {
    match entry.level {
        _ if entry.kind == Kind::Audit => Severity::Notice,
        Level::Error => Severity::Error,
        Level::Warn => Severity::Warning,
        Level::Info => Severity::Informational,
        Level::Debug | Level::Trace => Severity::Debug,
    }
}
