//! Packets: requests and their responses, whole (a message is one, not its segments).

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Carried out.
    Done,
    /// Not now: try again.
    Retry,
    /// Refused.
    Error,
}

/// What a packet is. Fields are named as in the specification; `tid` joins an answer to its request.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A register is read, or written.
    Maintenance { hops: u8, tid: u16, offset: u32, write: Option<u32> },
    /// The answer: what was read (0 for a write), or an error.
    Maintained { tid: u16, value: Option<u32> },
    /// A device tells its host.
    PortWrite { words: [u32; 4] },
    /// 16 bits.
    Doorbell { tid: u16, info: u16 },
    /// The answer.
    Rung { tid: u16, status: Status },
    /// A message.
    Message { tid: u16, mailbox: u8, letter: u8, data: Vec<u8> },
    /// The answer.
    Received { tid: u16, mailbox: u8, status: Status },
    /// NREAD.
    Read { tid: u16, address: u64, len: usize },
    /// The answer; None is an error.
    Data { tid: u16, data: Option<Vec<u8>> },
    /// NWRITE without a `tid`, NWRITE_R with.
    Write { tid: Option<u16>, address: u64, data: Vec<u8> },
    /// The answer.
    Written { tid: u16, status: Status },
}

/// A packet on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Destination id.
    pub to: u16,
    /// Source id.
    pub from: u16,
    /// Whether ids have 16 bits.
    pub large: bool,
    /// What it is.
    pub kind: Kind,
}

impl Packet {
    /// The answer to this one.
    pub fn answer(&self, kind: Kind) -> Packet {
        Packet { to: self.from, from: self.to, large: self.large, kind }
    }
}
