//! Formats in exposed memory: the introduction, commands, send entries and responses to atomics, as
//! little-endian 64-bit words. The formats are this project's own, version 3 (in Linux's NTRDMA the
//! writer checks keys, and there are no fields for atomics or generations).
//!
//! Words are loaded once, into private memory, and parsed from there. A parse error is a
//! protocol violation of the peer.

use super::ethernet;
use super::layout::{ANSWER, COMMAND, ENTRY, INLINE, Layout};
use verbs::{
    ConnectionParameters, MAX_PRIVATE_DATA, PrivateData, RejectReason, RemoteAddress, Status,
};

/// Words of an introduction.
pub const INFO_WORDS: usize = 8;
/// Words of a command.
pub const COMMAND_WORDS: usize = COMMAND / 8;
/// Words of a send entry without payload.
pub const ENTRY_WORDS: usize = (ENTRY - INLINE) / 8;
/// Words of a send entry with payload.
pub const WHOLE_WORDS: usize = ENTRY / 8;
/// Words of a response to an atomic.
pub const ANSWER_WORDS: usize = ANSWER / 8;

/// Lowest and highest supported version.
const VERSIONS: (u32, u32) = (3, 3);
/// "NTRDMAis".
const MAGIC: u64 = u64::from_le_bytes(*b"NTRDMAis");

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Introduction of a machine, sent once per session of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Number of the session, computed from the nonces of both sides.
    pub session: u32,
    /// Layout of its exposed memory.
    pub layout: Layout,
    /// Bytes that it exposes.
    pub exposed: u64,
    /// Whether it can load from the peer's exposed memory as cheaply as from its own.
    pub loads: bool,
    /// Bytes of its ring for Ethernet frames, which follows the layout; 0 if it accepts no frames.
    pub frames: u32,
    /// Address in regions of its first exposed byte, so that a WRITE to lent memory can go directly
    /// there; 0 if it lends no memory (as from a peer that does not support it).
    pub lent_at: u64,
}

/// Why a peer's introduction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadInfo {
    /// The peer does not run this NTRDMA.
    NotNtrdma,
    /// The peer supports only versions from the first to the second number.
    Version(u32, u32),
    /// It is for another session.
    Session,
    /// Its layout is invalid, or larger than its exposed memory.
    Layout,
}

impl core::fmt::Display for BadInfo {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (from, to) = VERSIONS;
        match self {
            BadInfo::NotNtrdma => {
                f.write_str("the peer's software is not this NTRDMA: run the same on both sides")
            }
            BadInfo::Version(min, max) => write!(
                f,
                "the peer supports NTRDMA versions {min} to {max}, this appliance {from} to {to}: update the older side"
            ),
            BadInfo::Session => f.write_str("the peer's introduction is for another session"),
            BadInfo::Layout => f.write_str(
                "the peer's rings do not fit into the memory that its bridge exposes: it needs a larger window or fewer queue pairs",
            ),
        }
    }
}

impl Info {
    /// Encodes it as words.
    pub fn emit(&self) -> [u64; INFO_WORDS] {
        let layout = &self.layout;
        [
            MAGIC,
            pair(VERSIONS.0, VERSIONS.1),
            pair(self.session, u32::from(self.loads)),
            pair(layout.qps, layout.ring),
            pair(layout.staging, layout.landing),
            self.exposed,
            self.frames.into(),
            self.lent_at,
        ]
    }

    /// Parses words, for `session`, with a window of `window` bytes to the peer.
    pub fn parse(words: &[u64; INFO_WORDS], session: u32, window: usize) -> Result<Info, BadInfo> {
        let [magic, versions, about, rings, bytes, exposed, frames, lent_at] = *words;
        if magic != MAGIC {
            return Err(BadInfo::NotNtrdma);
        }
        let (min, max) = (low(versions), high(versions));
        if min > VERSIONS.1 || max < VERSIONS.0 {
            return Err(BadInfo::Version(min, max));
        }
        if low(about) != session {
            return Err(BadInfo::Session);
        }
        let layout = Layout {
            qps: low(rings),
            ring: high(rings),
            staging: low(bytes),
            landing: high(bytes),
        };
        let frames = u32::try_from(frames).map_err(|_| BadInfo::Layout)?;
        if !layout.is_valid() || !ethernet::is_valid(frames) {
            return Err(BadInfo::Layout);
        }
        let needed = layout.size() as u64 + u64::from(frames);
        if needed > window as u64 || needed > exposed {
            return Err(BadInfo::Layout);
        }
        let loads = high(about) & 1 == 1;
        Ok(Info { session, layout, exposed, loads, frames, lent_at })
    }

    /// Offset in its exposed memory of the `length` bytes at `address` in its regions, if it lends them and a
    /// window of `window` bytes covers them.
    #[inline]
    pub fn lent(&self, address: u64, length: usize, window: usize) -> Option<usize> {
        let used = self.layout.size() + self.frames as usize;
        let offset = usize::try_from(address.checked_sub(self.lent_at)?).ok()?;
        let end = offset.checked_add(length)?;
        let inside = self.lent_at != 0 && offset >= used && end <= window;
        (inside && end as u64 <= self.exposed).then_some(offset)
    }
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Requests a connection.
    Request(Proposal),
    /// Accepts a connection.
    Accept { to: u32, proposal: Proposal },
    /// Rejects a connection.
    Reject { to: u32, reason: RejectReason, private_data: PrivateData },
    /// Confirms an accepted connection.
    Ready { to: u32 },
    /// Withdraws the request for `connection` with the sender's queue pair `qpn`.
    Cancel { connection: u32, qpn: u32 },
    /// The sender no longer writes to the receiver's queue pair `to`, which was connected to `from`, or 0 if
    /// it was not connected. `refused` is why the oldest pending entry was refused, if that is the
    /// reason.
    Detach { to: u32, from: u32, refused: Option<Status> },
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its id at the sender.
    pub connection: u32,
    /// Number of its queue pair at the sender.
    pub qpn: u32,
    /// Port of the listener.
    pub port: u16,
    /// Port of the requester.
    pub from_port: u16,
    /// Parameters from the sender's point of view.
    pub parameters: ConnectionParameters,
    pub private_data: PrivateData,
}

const PRIVATE_WORDS: usize = MAX_PRIVATE_DATA.div_ceil(8);

impl Command {
    /// Encodes it as words.
    pub fn emit(&self) -> [u64; COMMAND_WORDS] {
        let mut words = [0; COMMAND_WORDS];
        match self {
            Command::Request(proposal) => put_proposal(&mut words, 1, proposal),
            Command::Accept { to, proposal } => {
                put_proposal(&mut words, 2, proposal);
                words[1] |= pair(0, *to);
            }
            Command::Reject { to, reason, private_data } => {
                words[0] = 3;
                words[1] = pair(0, *to);
                words[3] = u64::from(reason.0) << 32;
                put_private(&mut words, private_data);
            }
            Command::Ready { to } => {
                words[0] = 4;
                words[1] = pair(0, *to);
            }
            Command::Cancel { connection, qpn } => {
                words[0] = 5;
                words[1] = pair(*connection, 0);
                words[2] = pair(*qpn, 0);
            }
            Command::Detach { to, from, refused } => {
                words[0] = 6;
                words[1] = match refused {
                    None => 0,
                    Some(Status::RemoteInvalidRequest) => 1,
                    Some(Status::RemoteAccess) => 2,
                    Some(_) => 3,
                };
                words[2] = pair(*from, *to);
            }
        }
        words
    }

    /// Parses words; None if they are not a command.
    pub fn parse(words: &[u64; COMMAND_WORDS]) -> Option<Command> {
        let to = high(words[1]);
        Some(match words[0] as u8 {
            1 => Command::Request(proposal(words)?),
            2 => Command::Accept { to, proposal: proposal(words)? },
            3 => Command::Reject {
                to,
                reason: RejectReason(high(words[3]) as u16),
                private_data: private(words)?,
            },
            4 => Command::Ready { to },
            5 => Command::Cancel { connection: low(words[1]), qpn: low(words[2]) },
            6 => Command::Detach {
                to: high(words[2]),
                from: low(words[2]),
                refused: match words[1] {
                    0 => None,
                    1 => Some(Status::RemoteInvalidRequest),
                    2 => Some(Status::RemoteAccess),
                    _ => Some(Status::RemoteOperation),
                },
            },
            _ => return None,
        })
    }
}

fn put_private(words: &mut [u64; COMMAND_WORDS], private: &PrivateData) {
    let bytes = private.as_slice();
    words[0] |= (bytes.len() as u64) << 56;
    for (word, chunk) in words[4..].iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(whole);
    }
}

fn private(words: &[u64; COMMAND_WORDS]) -> Option<PrivateData> {
    let mut bytes = [0; 8 * PRIVATE_WORDS];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(&words[4..]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    PrivateData::new(bytes.get(..(words[0] >> 56) as usize)?)
}

fn put_proposal(words: &mut [u64; COMMAND_WORDS], kind: u8, proposal: &Proposal) {
    let p = &proposal.parameters;
    let counts = [p.responder_resources, p.initiator_depth, p.retry_count, p.rnr_retry_count];
    let [a, b, c, d] = counts;
    words[0] = u64::from_le_bytes([kind, a, b, c, d, p.min_rnr_timer, 0, 0]);
    words[1] = pair(proposal.connection, 0);
    words[2] = pair(proposal.qpn, 0);
    words[3] = u64::from(proposal.port) | u64::from(proposal.from_port) << 16;
    put_private(words, &proposal.private_data);
}

fn proposal(words: &[u64; COMMAND_WORDS]) -> Option<Proposal> {
    let [_, a, b, c, d, timer, _, _] = words[0].to_le_bytes();
    Some(Proposal {
        connection: low(words[1]),
        qpn: low(words[2]),
        port: words[3] as u16,
        from_port: (words[3] >> 16) as u16,
        parameters: ConnectionParameters {
            responder_resources: a,
            initiator_depth: b,
            retry_count: c,
            rnr_retry_count: d,
            min_rnr_timer: timer,
        },
        private_data: private(words)?,
    })
}

/// Operation of a send entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// SEND.
    Send = 1,
    /// SEND with immediate.
    SendImmediate,
    /// SEND with invalidate.
    SendInvalidate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate.
    WriteImmediate,
    /// RDMA READ.
    Read,
    /// Compare-and-swap.
    CompareSwap,
    /// Fetch-and-add.
    FetchAdd,
}

impl Opcode {
    /// Whether its response is the former value.
    #[inline]
    pub fn is_atomic(self) -> bool {
        matches!(self, Opcode::CompareSwap | Opcode::FetchAdd)
    }

    #[inline]
    fn parse(byte: u8) -> Option<Self> {
        use Opcode::*;
        Some(match byte {
            1 => Send,
            2 => SendImmediate,
            3 => SendInvalidate,
            4 => Write,
            5 => WriteImmediate,
            6 => Read,
            7 => CompareSwap,
            8 => FetchAdd,
            _ => return None,
        })
    }
}

/// Location of an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the entry.
    Inline,
    /// Offset in the staging memory of the destination queue pair. For a READ: offset of the response in the
    /// sender's landing memory.
    Staged(u32),
    /// Offset in the sender's exposed memory.
    Lent(u64),
    /// For a WRITE: offset of the destination in the receiver's exposed memory.
    Placed(u64),
}

/// The entries of a message as words. Fields that differ between its pieces are set before each is sent.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    pub opcode: Opcode,
    pub solicited: bool,
    /// Bytes of the message.
    pub total: u32,
    /// Remote address of a WRITE.
    pub address: u64,
    words: [u64; WHOLE_WORDS],
}

impl Template {
    /// A template for a message to queue pair `qpn`; the other arguments are fields of [`Entry`].
    #[inline]
    pub fn new(opcode: Opcode, qpn: u32, total: u32, to: RemoteAddress, extra: u32) -> Self {
        let mut words = [0; WHOLE_WORDS];
        (words[1], words[4], words[5]) = (qpn.into(), pair(to.rkey, extra), total.into());
        Template { opcode, solicited: false, total, address: to.address, words }
    }

    /// Sets the operands of an atomic.
    pub fn operands(&mut self, compare_add: u64, swap: u64) {
        (self.words[6], self.words[7]) = (compare_add, swap);
    }

    /// Sets payload in the entry.
    #[inline]
    pub fn payload(&mut self, bytes: &[u8; INLINE]) {
        for (word, chunk) in self.words[ENTRY_WORDS..].iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*chunk);
        }
    }

    /// Entry number `index`: the `length` bytes from `at`, whose payload is at `place`. Without payload in the entry,
    /// all words after the first [`ENTRY_WORDS`] are 0.
    #[inline]
    pub fn entry(&mut self, index: u32, at: u32, length: u32, place: Place) -> &[u64; WHOLE_WORDS] {
        let (kind, place) = match place {
            Place::Inline => (0, 0),
            Place::Staged(offset) => (1, u64::from(offset)),
            Place::Lent(offset) => (2, offset),
            Place::Placed(offset) => (3, offset),
        };
        let (first, last) = (u32::from(at == 0), u32::from(at + length == self.total));
        let flags = first | last << 1 | u32::from(self.solicited) << 2;
        self.words[0] = pair(self.opcode as u32 | flags << 8 | kind << 16, index);
        self.words[1] = pair(low(self.words[1]), length);
        self.words[2] = place;
        self.words[3] = self.address.wrapping_add(at.into());
        &self.words
    }
}

/// A message, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub opcode: Opcode,
    /// Whether it is the first of its message.
    pub first: bool,
    /// Whether it is the last of its message.
    pub last: bool,
    pub solicited: bool,
    /// Number of the entry.
    pub index: u32,
    /// Number of the destination queue pair.
    pub qpn: u32,
    /// Bytes of this piece.
    pub length: u32,
    /// Bytes of the message.
    pub total: u32,
    pub place: Place,
    /// Remote address.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Immediate, or key to invalidate.
    pub extra: u32,
    /// Atomics: the value to compare or add.
    pub compare_add: u64,
    /// Atomics: the value to swap in.
    pub swap: u64,
}

impl Entry {
    /// Parses words; None if they are not an entry. Offsets are not checked against bounds.
    #[inline]
    pub fn parse(words: &[u64; ENTRY_WORDS]) -> Option<Entry> {
        let [opcode, flags, kind, _] = low(words[0]).to_le_bytes();
        Some(Entry {
            opcode: Opcode::parse(opcode)?,
            first: flags & 1 != 0,
            last: flags & 2 != 0,
            solicited: flags & 4 != 0,
            index: high(words[0]),
            qpn: low(words[1]),
            length: high(words[1]),
            total: low(words[5]),
            place: match kind {
                0 => Place::Inline,
                1 => Place::Staged(u32::try_from(words[2]).ok()?),
                2 => Place::Lent(words[2]),
                3 => Place::Placed(words[2]),
                _ => return None,
            },
            address: words[3],
            rkey: low(words[4]),
            extra: high(words[4]),
            compare_add: words[6],
            swap: words[7],
        })
    }
}

/// The response to an atomic. Other entries have none: the bell reports that they are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the entry.
    pub index: u32,
    /// The former value.
    pub value: u64,
}

impl Answer {
    /// Encodes it as words.
    pub fn emit(&self) -> [u64; ANSWER_WORDS] {
        [self.index.into(), self.value]
    }

    /// Parses words; None if they are not a response.
    pub fn parse(words: &[u64; ANSWER_WORDS]) -> Option<Answer> {
        Some(Answer { index: u32::try_from(words[0]).ok()?, value: words[1] })
    }
}
