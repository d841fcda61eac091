//! Packets: requests and responses. A message is one packet, not its segments.

/// Status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Executed.
    Done,
    /// Retry later.
    Retry,
    /// Refused.
    Error,
}

/// Kind of a packet. Fields are named as in the specification. A response has the `tid` of its request.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read or write of a register.
    Maintenance { hops: u8, tid: u16, offset: u32, write: Option<u32> },
    /// Response to `Maintenance`: the value read (0 for a write), or None for an error.
    Maintained { tid: u16, value: Option<u32> },
    /// Report of a device to its host.
    PortWrite { words: [u32; 4] },
    /// Doorbell with 16 bits of information.
    Doorbell { tid: u16, info: u16 },
    /// Response to `Doorbell`.
    Rung { tid: u16, status: Status },
    /// A message.
    Message { tid: u16, mailbox: u8, letter: u8, data: Vec<u8> },
    /// Response to `Message`.
    Received { tid: u16, mailbox: u8, status: Status },
    /// NREAD.
    Read { tid: u16, address: u64, len: usize },
    /// Response to `Read`; None is an error.
    Data { tid: u16, data: Option<Vec<u8>> },
    /// NWRITE without a `tid`, NWRITE_R with one.
    Write { tid: Option<u16>, address: u64, data: Vec<u8> },
    /// Response to `Write`.
    Written { tid: u16, status: Status },
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Destination id.
    pub to: u16,
    /// Source id.
    pub from: u16,
    /// Whether ids have 16 bits.
    pub large: bool,
    /// Kind and contents.
    pub kind: Kind,
}

impl Packet {
    /// A response to this packet.
    pub fn answer(&self, kind: Kind) -> Packet {
        Packet { to: self.from, from: self.to, large: self.large, kind }
    }
}
