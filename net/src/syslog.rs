//! Log records as messages for a syslog server (RFC 5424), and a sender over UDP (RFC 5426). For streams, [`framed`]
//! precedes each message by its length (RFC 6587 section 3.4.1, RFC 5425 section 4.3).
//!
//! The sender queues a few messages. When the queue is full, the caller keeps the record in its own log and retries.
//! Messages have no structured data and no byte order mark.

mod attempts;

use crate::Interface;
use alloc::string::String;
use alloc::{format, vec};
pub use attempts::Attempts;
use core::fmt::{self, Write};
use core::net::SocketAddr;
use core::time::Duration;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp;

/// UDP port of syslog (IANA).
pub const PORT: u16 = 514;
/// TCP port of syslog (IANA: syslog-conn).
pub const TCP_PORT: u16 = 601;
/// TCP port of syslog over TLS (RFC 5425 section 4.1).
pub const TLS_PORT: u16 = 6514;
/// Longest message; RFC 5426 section 3.2: every receiver takes 480, most take 2048.
pub const MAX_MESSAGE: usize = 1024;
/// Messages that wait for the network.
const QUEUED: usize = 8;

/// How messages reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP (RFC 5426).
    Udp,
    /// TCP with octet counting (RFC 6587).
    Tcp,
    /// TLS (RFC 5425).
    Tls,
}

impl Transport {
    /// All transports.
    pub const ALL: [Transport; 3] = [Transport::Udp, Transport::Tcp, Transport::Tls];

    /// Its name before `://`.
    pub fn scheme(self) -> &'static str {
        match self {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
        }
    }

    /// Its usual port.
    pub fn port(self) -> u16 {
        match self {
            Transport::Udp => PORT,
            Transport::Tcp => TCP_PORT,
            Transport::Tls => TLS_PORT,
        }
    }
}

/// Severity of a record (RFC 5424 table 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A failure that needs an operator.
    Error = 3,
    /// A condition that may need an operator.
    Warning = 4,
    /// Normal, but worth a note.
    Notice = 5,
    /// Normal.
    Informational = 6,
    /// Of interest to developers.
    Debug = 7,
}

/// A log record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Severity.
    pub severity: Severity,
    /// Time of the event, if it is known.
    pub time: Option<Timestamp>,
    /// The part of the appliance that logs it; sent as MSGID, at most 32 characters.
    pub source: &'a str,
    /// The text. Control characters are sent as spaces, and long texts are truncated.
    pub text: &'a str,
}

/// Not sent: no route to the server yet, or the queue is full. Try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable;

/// The format of messages: their HOSTNAME and APP-NAME.
#[derive(Clone, Debug)]
pub struct Format {
    origin: String,
}

impl Format {
    /// `hostname` becomes HOSTNAME, and `program` APP-NAME.
    pub fn new(hostname: &str, program: &str) -> Format {
        Format { origin: format!("{} {}", Word(hostname, 255), Word(program, 48)) }
    }

    /// The message of a record, cut to `longest` bytes.
    pub fn message(&self, record: &Record<'_>, longest: usize) -> String {
        let mut message = String::with_capacity(MAX_MESSAGE);
        // Writing to a string does not fail.
        let _ = self.write(&mut message, record);
        message.truncate(message.floor_char_boundary(longest));
        message
    }

    fn write(&self, out: &mut String, record: &Record<'_>) -> fmt::Result {
        /// Facility 1: user-level messages.
        const FACILITY: u8 = 1;
        let priority = FACILITY * 8 + record.severity as u8;
        let source = Word(record.source, 32);
        write!(out, "<{priority}>1 ")?;
        match record.time {
            Some(time) => write!(out, "{time}")?,
            // NILVALUE (section 6.2.3): the receiver has a clock.
            None => out.push('-'),
        }
        write!(out, " {} - {source} - ", self.origin)?;
        out.extend(record.text.chars().map(|c| if c.is_control() { ' ' } else { c }));
        Ok(())
    }
}

/// A message for a stream: its length in bytes, a space, and the message.
pub fn framed(message: &str) -> String {
    format!("{} {message}", message.len())
}

/// Sender of records to one server over one interface.
#[derive(Debug)]
pub struct Sender {
    server: SocketAddr,
    format: Format,
    socket: SocketHandle,
    sent: u64,
}

impl Sender {
    /// A sender to `server`. `hostname` becomes HOSTNAME, and `program` APP-NAME.
    pub fn new(
        interface: &mut Interface,
        server: SocketAddr,
        hostname: &str,
        program: &str,
    ) -> Self {
        let nothing = udp::PacketBuffer::new(vec![], vec![]);
        let size = QUEUED * MAX_MESSAGE;
        let waiting =
            udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; QUEUED], vec![0; size]);
        let mut socket = udp::Socket::new(nothing, waiting);
        socket.bind(PORT).expect("the socket is new and the port is not 0");
        let format = Format::new(hostname, program);
        Sender { server, format, socket: interface.sockets().add(socket), sent: 0 }
    }

    /// Queues a record; it leaves with the interface's next poll.
    pub fn send(
        &mut self,
        interface: &mut Interface,
        record: &Record<'_>,
    ) -> Result<(), Unavailable> {
        interface.next_hop(self.server.ip()).ok_or(Unavailable)?;
        let longest = MAX_MESSAGE.min(interface.mtu_to(self.server.ip()) - 48);
        let message = self.format.message(record, longest);
        let socket = interface.sockets().get_mut::<udp::Socket>(self.socket);
        socket.send_slice(message.as_bytes(), self.server).map_err(|_| Unavailable)?;
        self.sent += 1;
        Ok(())
    }

    /// Messages sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Closes the socket; queued messages are lost.
    pub fn stop(self, interface: &mut Interface) {
        interface.sockets().remove(self.socket);
    }
}

/// A field of the header: printable ASCII without spaces, of bounded length, `-` if empty.
struct Word<'a>(&'a str, usize);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("-");
        }
        for c in self.0.chars().take(self.1) {
            f.write_char(if c.is_ascii_graphic() { c } else { '?' })?;
        }
        Ok(())
    }
}

/// A time since 1970-01-01 UTC, formatted in the profile of RFC 3339 that RFC 5424 section 6.2.3 requires: with
/// microseconds, or with the number of decimals given by the precision (`{:.0}`, `{:.3}`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp(pub Duration);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0.as_secs(), self.0.subsec_micros());
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match f.precision() {
            Some(0) => f.write_char('Z'),
            Some(digits @ 1..=5) => {
                write!(f, ".{:0digits$}Z", micros / 10_u32.pow(6 - digits as u32))
            }
            _ => write!(f, ".{micros:06}Z"),
        }
    }
}

/// Gregorian date of the `days`th day after 1970-01-01. Counts in eras of 400 years, and in years that begin on 1
/// March, so that the leap day is the last of a year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, january) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + january, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn timestamps_follow_rfc_3339() {
        // Checked with date(1).
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000005Z"),
            (951_782_400, "2000-02-29T00:00:00.000005Z"),
            (951_868_799, "2000-02-29T23:59:59.000005Z"),
            (1_763_636_868, "2025-11-20T11:07:48.000005Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000005Z"),
        ] {
            let time = Duration::from_secs(seconds) + Duration::from_micros(5);
            assert_eq!(Timestamp(time).to_string(), text);
        }
        let time = Timestamp(Duration::new(1_763_636_868, 12_999_999));
        assert_eq!(format!("{time:.0}"), "2025-11-20T11:07:48Z");
        assert_eq!(format!("{time:.3}"), "2025-11-20T11:07:48.012Z");
    }

    #[test]
    fn every_day_of_a_thousand_years_follows_the_one_before() {
        let mut before = civil(0);
        for days in 1..365_250 {
            let (year, month, day) = civil(days);
            let next_day = (year, month) == (before.0, before.1) && day == before.2 + 1;
            let next_month =
                day == 1 && (month == before.1 + 1 || (month, year) == (1, before.0 + 1));
            assert!(next_day || next_month, "{before:?} {year} {month} {day}");
            before = (year, month, day);
        }
        assert_eq!(before, (2970, 1, 7));
    }

    #[test]
    fn framed_message_begins_with_its_length_in_bytes() {
        let record = Record { severity: Severity::Error, time: None, source: "a", text: "\u{e4}b" };
        let message = Format::new("h", "p").message(&record, MAX_MESSAGE);
        assert_eq!(framed(&message), "21 <11>1 - h p - a - \u{e4}b");
        assert_eq!(Format::new("h", "p").message(&record, 20), "<11>1 - h p - a - \u{e4}");
    }

    #[test]
    fn header_words_are_printable() {
        assert_eq!(Word("", 5).to_string(), "-");
        assert_eq!(Word("a b\u{e4}\ncdef", 6).to_string(), "a?b??c");
    }
}
