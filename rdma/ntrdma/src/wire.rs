//! What lies in exposed memory: the introduction, commands, send entries and answers to atomics, as
//! little-endian 64-bit words. The layouts are this project's own, version 3 (the NTRDMA of Linux
//! lets the writer check keys, and has no place for atomics or generations).
//!
//! Words are loaded once, into private memory, and parsed from there. What does not parse is the
//! peer's mistake.

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
/// Words of an answer to an atomic.
pub const ANSWER_WORDS: usize = ANSWER / 8;

/// Versions that we speak, from and to.
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

/// How a machine introduces itself, once per session of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Number of the session, which both sides' nonces give.
    pub session: u32,
    /// How its exposed memory is divided.
    pub layout: Layout,
    /// Bytes that it exposes.
    pub exposed: u64,
    /// Whether it can load from what we expose as cheaply as from its own memory.
    pub loads: bool,
    /// Bytes of its ring for Ethernet frames, which lies behind the layout; 0 if it takes none.
    pub frames: u32,
    /// At which address of its regions the first byte that it exposes is, so that a WRITE to what it lends can go
    /// straight there; 0 if it lends nothing (as a peer that knows nothing of this says).
    pub lent_at: u64,
}

/// What is wrong with a peer's introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadInfo {
    /// It is not NTRDMA of this kind.
    NotNtrdma,
    /// It speaks only versions from and to these.
    Version(u32, u32),
    /// It is of another session.
    Session,
    /// It divides its memory in no possible way, or exposes less than that takes.
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
                "the peer speaks NTRDMA versions {min} to {max}, and this one {from} to {to}: update the older side"
            ),
            BadInfo::Session => f.write_str("the peer introduces itself for another session"),
            BadInfo::Layout => f.write_str(
                "the peer's rings do not fit into the memory that its bridge exposes: it needs a larger window or fewer queue pairs",
            ),
        }
    }
}

impl Info {
    /// As words.
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

    /// From words, for `session`, with a window of `window` bytes to the peer.
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

    /// Where in its exposed memory the `length` bytes from `address` of its regions on lie, if it lends them and a
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

/// What a command says of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Asks for a connection.
    Request(Proposal),
    /// Grants it.
    Accept { to: u32, proposal: Proposal },
    /// Refuses it.
    Reject { to: u32, reason: RejectReason, private_data: PrivateData },
    /// The granted connection is used.
    Ready { to: u32 },
    /// The request of that name, for that queue pair of ours, is withdrawn.
    Cancel { connection: u32, qpn: u32 },
    /// Nothing is written to queue pair `to` of the peer any more. It was connected to `from`; 0 if
    /// it was not. `refused` says why the oldest entry that is not done was refused, if that is the
    /// reason.
    Detach { to: u32, from: u32, refused: Option<Status> },
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// Its name there.
    pub connection: u32,
    /// Number of its queue pair there.
    pub qpn: u32,
    /// Port that is asked for.
    pub port: u16,
    /// Port it is asked from.
    pub from_port: u16,
    /// As who writes it sees them.
    pub parameters: ConnectionParameters,
    pub private_data: PrivateData,
}

const PRIVATE_WORDS: usize = MAX_PRIVATE_DATA.div_ceil(8);

impl Command {
    /// As words.
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

    /// From words; None if they are no command.
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

/// What a send entry does.
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
    /// Whether it is answered by what was there before.
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

/// Where the payload of an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the entry.
    Inline,
    /// In the memory for payload of the queue pair that it is sent to, from that offset. Of a READ:
    /// where the answer goes, in the memory for answers of who sends it.
    Staged(u32),
    /// In the memory that the sender exposes, from that offset.
    Lent(u64),
    /// Of a WRITE: where it belongs, which lies in the memory that its receiver exposes, from that offset.
    Placed(u64),
}

/// The entries of a message as words. What differs between its pieces is written before each is sent.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    pub opcode: Opcode,
    pub solicited: bool,
    /// Bytes of the message.
    pub total: u32,
    /// Where a WRITE goes, as the peer names it.
    pub address: u64,
    words: [u64; WHOLE_WORDS],
}

impl Template {
    /// Of a message to queue pair `qpn`; the rest as [`Entry`] has it.
    #[inline]
    pub fn new(opcode: Opcode, qpn: u32, total: u32, to: RemoteAddress, extra: u32) -> Self {
        let mut words = [0; WHOLE_WORDS];
        (words[1], words[4], words[5]) = (qpn.into(), pair(to.rkey, extra), total.into());
        Template { opcode, solicited: false, total, address: to.address, words }
    }

    /// With what an atomic compares or adds, and swaps.
    pub fn operands(&mut self, compare_add: u64, swap: u64) {
        (self.words[6], self.words[7]) = (compare_add, swap);
    }

    /// With payload in the entry.
    #[inline]
    pub fn payload(&mut self, bytes: &[u8; INLINE]) {
        for (word, chunk) in self.words[ENTRY_WORDS..].iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*chunk);
        }
    }

    /// Entry number `index`: the `length` bytes from `at`, whose payload is at `place`. Without payload in it, all behind
    /// the first [`ENTRY_WORDS`] is 0.
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
    /// Whether it is a message's first, and last.
    pub first: bool,
    pub last: bool,
    pub solicited: bool,
    /// Its number in the ring.
    pub index: u32,
    /// Number of the queue pair that it is for.
    pub qpn: u32,
    /// Bytes of this piece.
    pub length: u32,
    /// Bytes of the message.
    pub total: u32,
    pub place: Place,
    /// Remote address and key.
    pub address: u64,
    pub rkey: u32,
    /// Immediate, or key to invalidate.
    pub extra: u32,
    /// Atomics: what is compared with, or added.
    pub compare_add: u64,
    pub swap: u64,
}

impl Entry {
    /// From words; None if they are no entry. Nothing is said of whether offsets are within bounds.
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

/// The answer to an atomic. Other entries have none: that they are done says the bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number of the entry.
    pub index: u32,
    /// What was there before.
    pub value: u64,
}

impl Answer {
    /// As words.
    pub fn emit(&self) -> [u64; ANSWER_WORDS] {
        [self.index.into(), self.value]
    }

    /// From words; None if they are no answer.
    pub fn parse(words: &[u64; ANSWER_WORDS]) -> Option<Answer> {
        Some(Answer { index: u32::try_from(words[0]).ok()?, value: words[1] })
    }
}
