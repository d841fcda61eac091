//! Submission queue entries (Base Specification 2.0 section 3.3.3.1, NVM Command Set Specification section 3). Numbers
//! are little-endian; offsets are in bytes.

use nvme_tcp::wire::SQE;

/// Opcode of fabrics commands.
const FABRICS: u8 = 0x7f;
/// Keep alive timeouts and similar numbers that do not fit are capped.
const MOST_MILLISECONDS: u128 = u32::MAX as u128;

/// Types of fabrics commands.
mod fabrics {
    pub const PROPERTY_SET: u8 = 0;
    pub const CONNECT: u8 = 1;
    pub const PROPERTY_GET: u8 = 4;
    pub const SEND: u8 = 5;
    pub const RECEIVE: u8 = 6;
}

/// Properties.
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0;
    /// Configuration.
    pub const CC: u32 = 0x14;
    /// Status.
    pub const CSTS: u32 = 0x1c;
}

/// Opcodes of I/O commands.
pub mod io {
    pub const FLUSH: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const READ: u8 = 2;
    pub const ZEROES: u8 = 8;
    pub const DATASET: u8 = 9;
}

/// Bit of [`blocks`]' control: the data is durable before the command completes.
pub const FUA: u16 = 1 << 14;

/// Pages of logs.
pub mod log {
    /// Changed namespaces.
    pub const CHANGED: u8 = 4;
    /// ANA.
    pub const ANA: u8 = 0x0c;
}

/// A command, without identifier and SGL.
#[derive(Clone, Copy, Debug)]
pub struct Sqe(pub [u8; SQE]);

impl Sqe {
    fn new(opcode: u8) -> Sqe {
        let mut entry = [0; SQE];
        // Byte 1: data is described by an SGL.
        (entry[0], entry[1]) = (opcode, 0x40);
        Sqe(entry)
    }

    fn with<const N: usize>(mut self, offset: usize, bytes: [u8; N]) -> Sqe {
        if let Some(place) = self.0.get_mut(offset..offset + N) {
            place.copy_from_slice(&bytes);
        }
        self
    }

    fn nsid(self, nsid: u32) -> Sqe {
        self.with(4, nsid.to_le_bytes())
    }

    /// The entry with an identifier, and the SGL of `length` bytes of data (Base Specification section 4.1.2).
    pub fn finish(self, cid: u16, length: usize, in_capsule: bool) -> [u8; SQE] {
        // Data block at an offset of the capsule, or transport SGL data block.
        let kind = if in_capsule { 0x01 } else { 0x5a };
        let length = (length as u32).to_le_bytes();
        self.with(2, cid.to_le_bytes()).with(32, length).with(39, [kind]).0
    }
}

/// Connect of queue `qid` with `entries` places. The admin queue's has the keep alive timeout.
pub fn connect(qid: u16, entries: u16, keepalive: core::time::Duration) -> Sqe {
    let milliseconds = if qid == 0 { keepalive.as_millis().min(MOST_MILLISECONDS) } else { 0 };
    Sqe::new(FABRICS)
        .with(4, [fabrics::CONNECT])
        .with(42, qid.to_le_bytes())
        .with(44, entries.saturating_sub(1).to_le_bytes())
        // No flow control of the submission queue, so that data may complete a command.
        .with(46, [1 << 2])
        .with(48, (milliseconds as u32).to_le_bytes())
}

/// Bytes of a Connect's data.
pub const CONNECT_DATA: usize = 1024;

/// Data of a Connect. NQNs have at most 223 bytes.
pub fn connect_data(id: &[u8; 16], cntlid: u16, subsystem: &str, host: &str) -> [u8; CONNECT_DATA] {
    let mut data = [0; CONNECT_DATA];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = data.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, id);
    put(16, &cntlid.to_le_bytes());
    put(256, subsystem.as_bytes());
    put(512, host.as_bytes());
    data
}

/// Reads a property of 4 bytes, or 8 if `wide`.
pub fn property_get(offset: u32, wide: bool) -> Sqe {
    let get = Sqe::new(FABRICS).with(4, [fabrics::PROPERTY_GET]);
    get.with(40, [u8::from(wide)]).with(44, offset.to_le_bytes())
}

/// Writes a property of 4 bytes.
pub fn property_set(offset: u32, value: u32) -> Sqe {
    let set = Sqe::new(FABRICS).with(4, [fabrics::PROPERTY_SET]);
    set.with(44, offset.to_le_bytes()).with(48, value.to_le_bytes())
}

/// Authentication Send of `length` bytes, or Receive.
pub fn authentication(sends: bool, length: usize) -> Sqe {
    let kind = if sends { fabrics::SEND } else { fabrics::RECEIVE };
    Sqe::new(FABRICS).with(4, [kind]).with(41, [1, 1, 0xe9]).with(44, (length as u32).to_le_bytes())
}

/// Identify with this CNS.
pub fn identify(cns: u8, nsid: u32) -> Sqe {
    Sqe::new(0x06).nsid(nsid).with(40, [cns])
}

/// Get Log Page of `length` bytes from `offset`, multiples of 4.
pub fn log_page(page: u8, specific: u8, offset: u64, length: usize) -> Sqe {
    let dwords = (length / 4).saturating_sub(1) as u32;
    let log = Sqe::new(0x02).nsid(u32::MAX).with(40, [page, specific]);
    log.with(42, dwords.to_le_bytes()).with(48, offset.to_le_bytes())
}

/// Set Features: number of I/O queues.
pub fn set_queues(count: u16) -> Sqe {
    let count = count.saturating_sub(1).to_le_bytes();
    Sqe::new(0x09).with(40, [0x07]).with(44, count).with(46, count)
}

/// Set Features: the events that are reported.
pub fn set_events(mask: u32) -> Sqe {
    Sqe::new(0x09).with(40, [0x0b]).with(44, mask.to_le_bytes())
}

/// Asynchronous Event Request.
pub fn event_request() -> Sqe {
    Sqe::new(0x0c)
}

/// Keep Alive.
pub fn keep_alive() -> Sqe {
    Sqe::new(0x18)
}

/// A command on `count` blocks, 1 to 65536, from `first`.
pub fn blocks(opcode: u8, nsid: u32, first: u64, count: u32, control: u16) -> Sqe {
    let count = count.saturating_sub(1) as u16;
    Sqe::new(opcode)
        .nsid(nsid)
        .with(40, first.to_le_bytes())
        .with(48, count.to_le_bytes())
        .with(50, control.to_le_bytes())
}

/// Flush.
pub fn flush(nsid: u32) -> Sqe {
    Sqe::new(io::FLUSH).nsid(nsid)
}

/// Dataset Management: deallocates one range, whose description is [`range`].
pub fn deallocate(nsid: u32) -> Sqe {
    Sqe::new(io::DATASET).nsid(nsid).with(44, [1 << 2])
}

/// Description of a range of `count` blocks from `first`.
pub fn range(first: u64, count: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    bytes[8..].copy_from_slice(&first.to_le_bytes());
    bytes
}
