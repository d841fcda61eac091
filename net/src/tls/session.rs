//! One connection of a client, without its TCP socket: records in, text out, and back.

use super::context::Tls;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

/// Most bytes that wait to be whole records: the largest record (RFC 5246, section 6.2.3), and with that the
/// largest greeting that is taken.
const INCOMING: usize = (16 << 10) + (2 << 10) + 5;
/// Bytes of text in a record of ours.
const RECORD: usize = 4 << 10;
/// What a record is longer than its text at most.
const OVERHEAD: usize = 64;
/// Records that are sent after a failure at most.
const LAST_RECORDS: usize = 8;
/// How long a client that says nothing more is not taken for one that stalls.
const FRESH: Duration = Duration::from_millis(200);
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client did not go on with its handshake in time.
    Slow,
    /// What it said is wrong, or not what is spoken here.
    Wrong(String),
}

/// One connection.
pub struct Session {
    tls: Arc<Tls>,
    connection: UnbufferedServerConnection,
    /// Records that are not whole, or not looked at yet.
    incoming: Vec<u8>,
    /// There are bytes in `incoming` that were not looked at.
    fresh: bool,
    /// Text of the client that nobody has taken yet.
    text: Vec<u8>,
    /// Records for the client, of which `sent` bytes are gone.
    outgoing: Vec<u8>,
    sent: usize,
    begun: Instant,
    /// Until when the handshake has to be done.
    pub(super) deadline: Instant,
    open: bool,
    ended: bool,
    closed: bool,
    failure: Option<Failure>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Session { open, ended, failure, .. } = self;
        write!(f, "Session {{ open: {open}, ended: {ended}, failure: {failure:?} }}")
    }
}

impl Session {
    pub(super) fn new(tls: Arc<Tls>, config: Arc<ServerConfig>, now: Instant) -> Session {
        let connection = UnbufferedServerConnection::new(config);
        Session {
            tls,
            connection: connection.expect("the configuration is usable"),
            incoming: Vec::new(),
            fresh: false,
            text: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            begun: now,
            deadline: now + HANDSHAKE,
            open: false,
            ended: false,
            closed: false,
            failure: None,
        }
    }

    /// Takes in what came from the client; how much of it, the rest has to wait.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        // Nobody reads any more: what comes has no use.
        if self.failure.is_some() || self.ended {
            return bytes.len();
        }
        if !self.text.is_empty() {
            return 0;
        }
        let taken = bytes.len().min(INCOMING - self.incoming.len());
        self.incoming.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        self.fresh |= taken > 0;
        taken
    }

    /// Looks at what has come, and after the time.
    pub fn poll(&mut self, now: Instant) {
        if self.failure.is_some() {
            return;
        }
        if !self.open && self.deadline <= now {
            self.failure = Some(Failure::Slow);
        } else if self.fresh && (self.open || self.tls.due() <= now) {
            let before = self.tls.operations();
            self.fresh = false;
            self.advance(None);
            if self.tls.operations() != before {
                self.tls.worked(now);
            }
        }
    }

    /// Has `take` look at the client's text, which says how much of it it has taken; whether it took any.
    pub fn take(&mut self, take: impl FnOnce(&[u8]) -> usize) -> bool {
        if self.text.is_empty() {
            return false;
        }
        let taken = take(&self.text).min(self.text.len());
        self.text.drain(..taken);
        taken > 0
    }

    /// Whether [`Session::write`] takes something.
    pub fn has_room(&self) -> bool {
        self.open && self.outgoing.is_empty() && self.failure.is_none() && !self.closed
    }

    /// Seals the beginning of `text`; how much of it.
    pub fn write(&mut self, text: &[u8]) -> usize {
        let text = text.get(..text.len().min(RECORD)).unwrap_or_default();
        if text.is_empty() || !self.has_room() {
            return 0;
        }
        self.advance(Some(text));
        text.len()
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        if self.open && !self.closed && self.failure.is_none() {
            self.advance(Some(&[]));
        }
        self.closed = true;
    }

    /// Records that are to be sent.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or_default()
    }

    /// The first `count` bytes of [`Session::outgoing`] were sent.
    pub fn consume(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Whether the handshake is done.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether the client has said that nothing more will come, and all of its text was taken.
    pub fn is_ended(&self) -> bool {
        self.ended && self.text.is_empty()
    }

    /// Why it is over, if it is. What is still in [`Session::outgoing`] tells the client.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether its handshake waits for the client, and has for a while.
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.stalls_at().is_some_and(|at| at <= now)
    }

    /// From when on its handshake stalls, if the client says nothing more.
    pub fn stalls_at(&self) -> Option<Instant> {
        (!self.open && !self.fresh).then(|| self.begun + FRESH)
    }

    /// When [`Session::poll`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.open || self.failure.is_some() {
            return None;
        }
        let waits = self.fresh.then(|| self.tls.due());
        Some(waits.map_or(self.deadline, |due| due.min(self.deadline)))
    }

    /// Goes on as far as it can with what there is. `what` is text to seal, or empty for the end.
    fn advance(&mut self, mut what: Option<&[u8]>) {
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(&mut self.incoming);
            let mut more = true;
            let mut failed = None;
            match state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        match record {
                            Ok(record) => {
                                discard += record.discard;
                                self.text.extend_from_slice(record.payload);
                            }
                            Err(why) => failed = Some(why.to_string()),
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut record)) => {
                    let into = &mut self.outgoing;
                    failed = append(into, |room| match record.encode(room) {
                        Ok(len) => Ok(Ok(len)),
                        Err(EncodeError::InsufficientSize(need)) => Ok(Err(need.required_size)),
                        Err(why) => Err(why.to_string()),
                    });
                }
                // What is to be sent stands in `outgoing`.
                Ok(ConnectionState::TransmitTlsData(record)) => record.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.open = true;
                    more = false;
                    if let Some(text) = what.take() {
                        let into = &mut self.outgoing;
                        failed = append(into, |room| {
                            let sealed = match text.is_empty() {
                                true => traffic.queue_close_notify(room),
                                false => traffic.encrypt(text, room),
                            };
                            match sealed {
                                Ok(len) => Ok(Ok(len)),
                                Err(EncryptError::InsufficientSize(need)) => {
                                    Ok(Err(need.required_size))
                                }
                                Err(why) => Err(why.to_string()),
                            }
                        });
                    }
                }
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(ConnectionState::BlockedHandshake) => {
                    more = false;
                    if self.incoming.len() - discard >= INCOMING {
                        failed = Some("its greeting is too long".into());
                    }
                }
                Ok(ConnectionState::Closed) => more = false,
                Ok(_) => failed = Some("it sent what was not asked for".into()),
                Err(why) => failed = Some(why.to_string()),
            }
            self.incoming.drain(..discard.min(self.incoming.len()));
            if let Some(why) = failed {
                self.fail(why);
                return;
            }
            if !more {
                return;
            }
        }
    }

    /// It is over. The alert that says so, if there is one, is put behind what is to be sent.
    fn fail(&mut self, why: String) {
        self.failure = Some(Failure::Wrong(why));
        // An alert comes before all that is still to be looked at, and may wait behind records that were about to be
        // sent, as the answer to a new key.
        let mut alerted = false;
        for _ in 0..LAST_RECORDS {
            if alerted {
                break;
            }
            let start = self.outgoing.len();
            let status = self.connection.process_tls_records(&mut self.incoming);
            let Ok(ConnectionState::EncodeTlsData(mut record)) = status.state else { break };
            append(&mut self.outgoing, |room| match record.encode(room) {
                Ok(len) => Ok(Ok(len)),
                Err(EncodeError::InsufficientSize(need)) => Ok(Err(need.required_size)),
                Err(why) => Err(why.to_string()),
            });
            alerted = self.outgoing.get(start..).is_some_and(is_alert);
        }
        self.incoming = Vec::new();
        self.text = Vec::new();
    }
}

/// Whether a record of ours is an alert: by its type, or in TLS 1.3, which hides it, by its length.
fn is_alert(record: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const HIDDEN: u8 = 23;
    // Header, level and description, type, and the tag of the cipher.
    record.first() == Some(&ALERT)
        || record.first() == Some(&HIDDEN) && record.len() == 5 + 2 + 1 + 16
}

/// Appends to `buffer` what `encode` writes into the room that it is given: the length, or how much it needs.
/// Why it cannot be written, if it cannot.
fn append(
    buffer: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<Result<usize, usize>, String>,
) -> Option<String> {
    let start = buffer.len();
    let mut room = RECORD + OVERHEAD;
    loop {
        buffer.resize(start + room, 0);
        match encode(buffer.get_mut(start..).unwrap_or_default()) {
            Ok(Ok(len)) => {
                buffer.truncate(start + len);
                return None;
            }
            Ok(Err(need)) if need > room => room = need,
            Ok(Err(_)) => return Some("a record has no room".into()),
            Err(why) => {
                buffer.truncate(start);
                return Some(why);
            }
        }
    }
}
