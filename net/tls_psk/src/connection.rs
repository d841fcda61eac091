//! The state that both roles share: buffers, keys, the reassembly of handshake messages, alerts and KeyUpdates.

use crate::alert::{Alert, Checked, Failure, Violation, violates};
use crate::cipher::RecordKey;
use crate::codec;
use crate::group::Group;
use crate::record::{ALERT, CHANGE_CIPHER_SPEC, HANDSHAKE, Incoming, Outgoing, TEXT};
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;
use drivers::hal::Instant;

/// Fills memory with bytes from a cryptographic generator.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Maximum number of bytes of a handshake message, without its header.
const MESSAGE: usize = 8 << 10;
/// Maximum number of records in a row without application data, after the handshake.
const IDLE_RECORDS: u32 = 32;
/// Maximum number of `change_cipher_spec` records, which middleboxes want to see (RFC 8446 appendix D.4).
const CHANGES: u32 = 4;
/// Blocks after which a key is not used any more, also for a peer that cannot take a KeyUpdate. 2^44 blocks are
/// 256 TiB; the chance to tell the cipher from an ideal one is then at most 2^-41.
const LAST_BLOCK: u64 = 1 << 44;

/// KeyUpdate's message, and its two values.
const KEY_UPDATE: u8 = 24;
const NOT_REQUESTED: u8 = 0;
const REQUESTED: u8 = 1;

/// Parameters of a session.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Groups, in order of preference. A client sends a share of the first.
    pub groups: &'static [Group],
    /// Time limit of the handshake.
    pub handshake: Duration,
    /// Bytes of the buffer for outgoing records; at least 2 KiB. A record carries at most this less 22 bytes, and at
    /// most 16 KiB.
    pub outgoing: usize,
    /// Whether the peer takes KeyUpdates. If not, a key is used for at most 2^44 blocks.
    pub key_updates: bool,
    /// Blocks of 16 bytes after which a KeyUpdate is sent; at most 2^34.
    pub blocks_per_key: u64,
}

impl Config {
    /// Minimum of [`Config::outgoing`]: the flight of a handshake must fit.
    pub const OUTGOING: usize = 2 << 10;
    /// Maximum of [`Config::blocks_per_key`]: 2^24.5 records of 16 KiB (RFC 8446 section 5.5), rounded down.
    pub const BLOCKS: u64 = 1 << 34;
}

impl Default for Config {
    fn default() -> Self {
        Config {
            groups: Group::ALL,
            handshake: Duration::from_secs(10),
            outgoing: TEXT + crate::record::OVERHEAD,
            key_updates: false,
            blocks_per_key: Config::BLOCKS,
        }
    }
}

/// State of a connection that does not depend on its role.
pub struct Connection {
    pub config: Config,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub read: Option<RecordKey>,
    pub write: Option<RecordKey>,
    /// Incomplete handshake messages.
    handshake: Vec<u8>,
    pub deadline: Instant,
    pub open: bool,
    /// The peer has sent close_notify.
    pub ended: bool,
    /// close_notify was sent.
    pub closed: bool,
    pub failure: Option<Failure>,
    /// A record was decrypted: from then on the peer sends none in clear.
    has_opened: bool,
    changes: u32,
    idle: u32,
    /// The peer has requested a KeyUpdate.
    owes_update: bool,
}

/// Content of a record.
pub enum Content {
    /// Nothing for the state machine.
    Nothing,
    /// Handshake messages: call [`Connection::next_message`].
    Handshake,
}

impl Connection {
    pub fn new(config: Config, now: Instant) -> Connection {
        let outgoing = config.outgoing.max(Config::OUTGOING);
        let blocks_per_key = config.blocks_per_key.min(Config::BLOCKS);
        Connection {
            config: Config { outgoing, blocks_per_key, ..config },
            incoming: Incoming::new(),
            outgoing: Outgoing::new(outgoing),
            read: None,
            write: None,
            handshake: Vec::new(),
            deadline: now + config.handshake,
            open: false,
            ended: false,
            closed: false,
            failure: None,
            has_opened: false,
            changes: 0,
            idle: 0,
            owes_update: false,
        }
    }

    /// Whether input is processed at all.
    pub fn is_over(&self) -> bool {
        self.failure.is_some() || self.ended
    }

    /// Processes the complete record.
    pub fn record(&mut self) -> Checked<Content> {
        let outer = self.incoming.outer();
        // A client cannot encrypt the alert with which it rejects a ServerHello.
        let in_clear = outer == CHANGE_CIPHER_SPEC || outer == ALERT && !self.has_opened;
        let key = if in_clear { None } else { self.read.as_mut() };
        let sealed = key.is_some();
        if sealed && outer != crate::record::APPLICATION_DATA {
            return violates(Alert::UNEXPECTED_MESSAGE, "the peer sent a TLS record in clear");
        }
        let (kind, content) = self.incoming.open(key)?;
        self.has_opened |= sealed;
        if kind != HANDSHAKE && !self.handshake.is_empty() {
            return violates(
                Alert::UNEXPECTED_MESSAGE,
                "the peer sent another TLS record within a handshake message",
            );
        }
        let result = match kind {
            CHANGE_CIPHER_SPEC if !sealed => self.change(content),
            ALERT | HANDSHAKE if content.is_empty() => {
                violates(Alert::UNEXPECTED_MESSAGE, "the peer sent an empty TLS record")
            }
            ALERT => self.alert(content),
            HANDSHAKE => {
                self.handshake.extend_from_slice(self.incoming.bytes(content));
                Ok(Content::Handshake)
            }
            crate::record::APPLICATION_DATA if sealed && self.open => {
                if content.is_empty() {
                    self.count_idle()?;
                } else {
                    self.idle = 0;
                    self.incoming.keep(content);
                    return Ok(Content::Nothing);
                }
                Ok(Content::Nothing)
            }
            _ => violates(Alert::UNEXPECTED_MESSAGE, "the peer sent an unexpected TLS record"),
        };
        self.incoming.clear();
        result
    }

    fn change(&mut self, content: Range<usize>) -> Checked<Content> {
        self.changes += 1;
        if self.open || self.incoming.bytes(content) != [1] || self.changes > CHANGES {
            return violates(
                Alert::UNEXPECTED_MESSAGE,
                "the peer sent an unexpected change_cipher_spec",
            );
        }
        Ok(Content::Nothing)
    }

    fn alert(&mut self, content: Range<usize>) -> Checked<Content> {
        let &[_, code] = self.incoming.bytes(content) else {
            return violates(Alert::DECODE_ERROR, "the peer sent a TLS alert of a wrong length");
        };
        match Alert(code) {
            Alert::CLOSE_NOTIFY if self.open => self.ended = true,
            Alert::USER_CANCELED => self.count_idle()?,
            alert => self.failure = Some(Failure::Alert(alert)),
        }
        Ok(Content::Nothing)
    }

    fn count_idle(&mut self) -> Checked<()> {
        self.idle += 1;
        if self.idle > IDLE_RECORDS {
            return violates(
                Alert::UNEXPECTED_MESSAGE,
                "the peer sent too many TLS records without data",
            );
        }
        Ok(())
    }

    /// Takes the next complete handshake message, with its header.
    pub fn next_message(&mut self) -> Checked<Option<Vec<u8>>> {
        let &[_, a, b, c, ..] = self.handshake.as_slice() else { return Ok(None) };
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > MESSAGE {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the peer's TLS handshake message is longer than 8 KiB",
            );
        }
        if self.handshake.len() < 4 + len {
            return Ok(None);
        }
        let rest = self.handshake.split_off(4 + len);
        Ok(Some(core::mem::replace(&mut self.handshake, rest)))
    }

    /// Fails if there is a part of a message behind one after which the key changes (RFC 8446 section 5.1).
    pub fn ends_with_message(&self) -> Checked<()> {
        if self.handshake.is_empty() {
            return Ok(());
        }
        violates(
            Alert::UNEXPECTED_MESSAGE,
            "the peer's TLS message is followed by another in its record",
        )
    }

    /// A handshake message behind an open handshake.
    pub fn late_message(&mut self, message: &[u8], takes_tickets: bool) -> Checked<()> {
        const NEW_SESSION_TICKET: u8 = 4;
        self.count_idle()?;
        match *message {
            [NEW_SESSION_TICKET, ..] if takes_tickets => Ok(()),
            [KEY_UPDATE, 0, 0, 1, what @ (NOT_REQUESTED | REQUESTED)] => {
                self.ends_with_message()?;
                if let Some(key) = &mut self.read {
                    key.update()?;
                }
                self.owes_update |= what == REQUESTED;
                Ok(())
            }
            [KEY_UPDATE, ..] => {
                violates(Alert::ILLEGAL_PARAMETER, "the peer sent a malformed KeyUpdate")
            }
            _ => violates(
                Alert::UNEXPECTED_MESSAGE,
                "the peer sent an unexpected TLS message after the handshake",
            ),
        }
    }

    /// Queues handshake messages, in one record.
    pub fn send_messages(&mut self, bytes: &[u8]) -> Checked<()> {
        let fill = |into: &mut [u8]| into.copy_from_slice(bytes);
        self.outgoing.push(HANDSHAKE, self.write.as_mut(), bytes.len(), fill)
    }

    pub fn send_change(&mut self) -> Checked<()> {
        self.outgoing.push(CHANGE_CIPHER_SPEC, None, 1, |into| into.fill(1))
    }

    pub fn send_alert(&mut self, alert: Alert) -> Checked<()> {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let is_closure = matches!(alert, Alert::CLOSE_NOTIFY | Alert::USER_CANCELED);
        let bytes = [if is_closure { WARNING } else { FATAL }, alert.0];
        self.outgoing.push(ALERT, self.write.as_mut(), 2, |into| into.copy_from_slice(&bytes))
    }

    /// Sends the KeyUpdate that the peer has requested, if there is room.
    pub fn settle(&mut self) {
        let may_send = !self.closed && self.failure.is_none();
        if self.owes_update && may_send && self.outgoing.has_reserve() {
            self.owes_update = false;
            if let Err(why) = self.send_update() {
                self.fail(why);
            }
        }
    }

    fn send_update(&mut self) -> Checked<()> {
        let mut message = Vec::new();
        codec::message(&mut message, KEY_UPDATE, |into| into.push(NOT_REQUESTED));
        self.send_messages(&message)?;
        match &mut self.write {
            Some(key) => key.update(),
            None => Ok(()),
        }
    }

    /// Updates the write key if it was used enough.
    pub fn renew(&mut self) -> Checked<()> {
        let used = self.write.as_ref().map_or(0, RecordKey::blocks);
        if self.config.key_updates && used >= self.config.blocks_per_key {
            self.owes_update = false;
            return self.send_update();
        }
        if used >= LAST_BLOCK {
            return violates(Alert::INTERNAL_ERROR, "a TLS key has reached its last block");
        }
        Ok(())
    }

    /// Records a failure, and queues its alert.
    pub fn fail(&mut self, why: Violation) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(Failure::Violation { alert: why.alert, why: why.why });
        // It cannot be sent with a key whose sequence numbers are used up.
        let _ = self.send_alert(why.alert);
        self.drop_input();
    }

    /// Drops keys and input that are not needed any more.
    pub fn drop_input(&mut self) {
        self.incoming.clear();
        self.handshake = Vec::new();
        self.read = None;
    }

    /// Releases the memory of the handshake.
    pub fn opened(&mut self) {
        self.open = true;
        self.handshake = Vec::new();
    }

    /// Bytes of a record's header and more that the peer has sent of an incomplete record.
    pub fn sealed(&self) -> bool {
        self.read.is_some()
    }
}
