//! A TLS connection of a client without its TCP socket: decrypts received records, and encrypts responses.

use super::authorities::ClientCertificate;
use super::context::{Term, Tls};
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use drivers::hal::Instant;
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

/// Maximum bytes of incomplete records: the largest record (RFC 5246 section 6.2.3). It also limits the client's
/// handshake messages.
pub(super) const INCOMING: usize = (16 << 10) + (2 << 10) + 5;
/// Bytes of text in a sent record.
pub(super) const RECORD: usize = 4 << 10;
/// Maximum overhead of a record beyond its text.
const OVERHEAD: usize = 64;
/// Maximum number of records that are sent after a failure.
const LAST_RECORDS: usize = 8;
/// Time after the start before an unfinished handshake counts as stalled.
const FRESH: Duration = Duration::from_millis(200);
/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why a session has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client did not complete its handshake in time.
    Slow,
    /// The client violated the protocol, or needs an unsupported version or suite.
    Wrong(String),
}

/// A TLS session.
pub struct Session {
    tls: Arc<Tls>,
    connection: UnbufferedServerConnection,
    /// Received records that are incomplete or not processed yet.
    incoming: Vec<u8>,
    /// `incoming` has bytes that were not processed.
    fresh: bool,
    /// Decrypted text that the caller has not taken yet.
    text: Vec<u8>,
    /// Records for the client, of which `sent` bytes were sent.
    outgoing: Vec<u8>,
    sent: usize,
    begun: Instant,
    /// Deadline of the handshake.
    pub(super) deadline: Instant,
    open: bool,
    /// The client's certificate, whose key it has, and how long the names in it count.
    certificate: Option<(Arc<ClientCertificate>, Term)>,
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
            certificate: None,
            ended: false,
            closed: false,
            failure: None,
        }
    }

    /// Accepts bytes from the client. Returns how many; the rest must be offered again later.
    pub fn receive(&mut self, bytes: &[u8]) -> usize {
        // No further input is processed: discarded.
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

    /// Processes received records, and enforces the deadline of the handshake.
    pub fn poll(&mut self, now: Instant) {
        if self.failure.is_some() {
            return;
        }
        if !self.open && self.deadline <= now {
            self.failure = Some(Failure::Slow);
        } else if self.fresh && (self.open || self.tls.due() <= now) {
            let before = self.tls.operations();
            let was_open = self.open;
            self.fresh = false;
            self.advance(None);
            if self.open && !was_open {
                let sent = self.connection.peer_certificates().unwrap_or_default();
                self.certificate = self.tls.identify(sent, now);
            }
            let operations = self.tls.operations() - before;
            if operations > 0 {
                self.tls.worked(operations, now);
            }
        }
    }

    /// Passes the client's text to `take`, which returns the number of bytes it consumed. Returns whether it consumed
    /// any.
    pub fn take(&mut self, take: impl FnOnce(&[u8]) -> usize) -> bool {
        if self.text.is_empty() {
            return false;
        }
        let taken = take(&self.text).min(self.text.len());
        self.text.drain(..taken);
        taken > 0
    }

    /// Whether [`Session::write`] accepts text.
    pub fn has_room(&self) -> bool {
        self.open && self.outgoing.is_empty() && self.failure.is_none() && !self.closed
    }

    /// Encrypts the beginning of `text`. Returns the number of bytes encrypted.
    pub fn write(&mut self, text: &[u8]) -> usize {
        let text = text.get(..text.len().min(RECORD)).unwrap_or_default();
        if text.is_empty() || !self.has_room() {
            return 0;
        }
        self.advance(Some(text));
        text.len()
    }

    /// Queues a close_notify alert.
    pub fn close(&mut self) {
        if self.open && !self.closed && self.failure.is_none() {
            self.advance(Some(&[]));
        }
        self.closed = true;
    }

    /// Records to be sent.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or_default()
    }

    /// Marks the first `count` bytes of [`Session::outgoing`] as sent.
    pub fn consume(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// The client's certificate, after the handshake. The client has proved that it has the key.
    pub fn certificate(&mut self, now: Instant) -> Option<Arc<ClientCertificate>> {
        let (certificate, term) = self.certificate.as_mut()?;
        if certificate.names.is_ok()
            && let Some(why) = self.tls.objection(*term, now)
        {
            let (sha256, names) = (certificate.sha256, Err(why.into()));
            *certificate = Arc::new(ClientCertificate { sha256, names });
        }
        Some(certificate.clone())
    }

    /// Whether the client has sent close_notify, and all its text was taken.
    pub fn is_ended(&self) -> bool {
        self.ended && self.text.is_empty()
    }

    /// Why it has failed, if it has. [`Session::outgoing`] has the alert for the client.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether its handshake has waited for the client for a while.
    pub fn is_stalled(&self, now: Instant) -> bool {
        self.stalls_at().is_some_and(|at| at <= now)
    }

    /// When its handshake counts as stalled, if the client sends nothing more.
    pub fn stalls_at(&self) -> Option<Instant> {
        (!self.open && !self.fresh).then(|| self.begun + FRESH)
    }

    /// When [`Session::poll`] is due if no bytes arrive.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.open || self.failure.is_some() {
            return None;
        }
        let waits = self.fresh.then(|| self.tls.due());
        Some(waits.map_or(self.deadline, |due| due.min(self.deadline)))
    }

    /// Processes input as far as possible. `what` is text to encrypt; empty text queues close_notify.
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
                // The record is in `outgoing`.
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
                        failed = Some("the client's handshake message is too long".into());
                    }
                }
                Ok(ConnectionState::Closed) => more = false,
                Ok(_) => failed = Some("the client sent an unexpected message".into()),
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

    /// Records a failure, and queues the alert for the client, if rustls has one, behind other records.
    fn fail(&mut self, why: String) {
        self.failure = Some(Failure::Wrong(why));
        // rustls returns pending records before the alert, such as the answer to a key update.
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

/// Whether a sent record is an alert: by its type, or by its length in TLS 1.3, which hides the type.
fn is_alert(record: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const HIDDEN: u8 = 23;
    // Header, level and description, type, and the tag of the cipher.
    record.first() == Some(&ALERT)
        || record.first() == Some(&HIDDEN) && record.len() == 5 + 2 + 1 + 16
}

/// Appends the output of `encode` to `buffer`. `encode` returns the length written, or the room that it needs. Returns
/// an error, if any.
pub(super) fn append(
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
            Ok(Err(_)) => return Some("no room for a record".into()),
            Err(why) => {
                buffer.truncate(start);
                return Some(why);
            }
        }
    }
}
