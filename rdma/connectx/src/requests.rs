//! Work requests as they lie in a send queue (Linux: `drivers/infiniband/hw/mlx5/wr.c`): segments of 16 bytes, the control
//! segment first, whose words are left to the queue.

use super::context::gid;
use super::send_queue::{Control, LONGEST};
use verbs::{DatagramTo, Payload, RemoteAddress, SendOperation, SendRequest, SendWith, VerbsError};

/// Opcodes.
const SEND_INVALIDATE: u8 = 0x01;
const WRITE: u8 = 0x08;
const WRITE_IMMEDIATE: u8 = 0x09;
const SEND: u8 = 0x0a;
const SEND_IMMEDIATE: u8 = 0x0b;
const READ: u8 = 0x10;
const COMPARE_SWAP: u8 = 0x11;
const FETCH_ADD: u8 = 0x12;

/// In the length of a segment: bytes follow it.
const INLINE: u64 = 1 << 31;
/// Words of a segment, of an address of datagrams.
const SEGMENT: usize = 2;
const ADDRESS: usize = 6;

/// A payload inline is at most so long.
pub const MAX_INLINE: usize = 96;
/// Longest message.
pub const LOG_MAX_MESSAGE: u32 = 30;

/// What a request may have.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Windows, bytes inline, and bytes in all.
    pub windows: usize,
    pub inline: usize,
    pub message: usize,
}

/// Blocks of the longest request of a queue pair.
pub fn blocks(windows: usize, inline: usize, datagrams: bool) -> u32 {
    let address = if datagrams { ADDRESS / SEGMENT } else { 1 };
    let data = windows.max(1).max((4 + inline).div_ceil(16));
    // An atomic operation has four segments.
    (1 + address + data).max(4).div_ceil(4) as u32
}

/// Where the next segment goes.
struct Writer<'a> {
    words: &'a mut [u64; LONGEST],
    at: usize,
}

impl Writer<'_> {
    #[inline]
    fn put(&mut self, first: u64, second: u64) {
        if let Some([one, other]) = self.words.get_mut(self.at..self.at + SEGMENT) {
            (*one, *other) = (first, second);
        }
        self.at += SEGMENT;
    }

    /// Segments of data; `key` is that of all memory in the domain.
    #[inline]
    fn data(&mut self, payload: &Payload<'_>, key: u32, most: &Most) -> Result<(), VerbsError> {
        match payload {
            Payload::Windows(windows) => {
                if windows.len() > most.windows || payload.len() > most.message {
                    return Err(VerbsError::Invalid);
                }
                // A length of 0 would stand for 2 GiB.
                for window in windows.iter().filter(|window| !window.is_empty()) {
                    self.put((window.len() as u64) << 32 | u64::from(key), window.bus_address());
                }
            }
            Payload::Inline(bytes) => {
                if bytes.len() > most.inline || bytes.len() > most.message {
                    return Err(VerbsError::Invalid);
                }
                if bytes.is_empty() {
                    return Ok(());
                }
                // The length in front of the bytes.
                let mut all = [0u8; (4 + MAX_INLINE).next_multiple_of(16)];
                let length = (INLINE | bytes.len() as u64) as u32;
                all[..4].copy_from_slice(&length.to_be_bytes());
                let place = all.get_mut(4..4 + bytes.len()).ok_or(VerbsError::Invalid)?;
                place.copy_from_slice(bytes);
                let used = (4 + bytes.len()).div_ceil(16);
                for segment in all.as_chunks::<16>().0.iter().take(used) {
                    let both = u128::from_be_bytes(*segment);
                    self.put((both >> 64) as u64, both as u64);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn remote(&mut self, to: RemoteAddress) {
        self.put(to.address, u64::from(to.rkey) << 32);
    }

    /// Where a datagram goes; `index` is that of the own GID.
    fn address(&mut self, to: &DatagramTo, index: u8) {
        let way = &to.address;
        let [a, b, c, d, e, f] = way.remote_mac.map(u64::from);
        let bytes = u128::from_be_bytes(gid(way.remote));
        self.put(
            u64::from(to.remote_qkey) << 32,
            (u64::from(to.remote_qpn & 0xff_ffff) | 1 << 31) << 32 | u64::from(way.source_port),
        );
        self.put(
            a << 24 | b << 16 | c << 8 | d,
            (e << 24 | f << 16 | u64::from(way.traffic_class) << 8 | u64::from(way.hop_limit))
                << 32
                | 1 << 30
                | u64::from(index) << 20,
        );
        self.put((bytes >> 64) as u64, bytes as u64);
    }
}

/// Writes what a user posts, into words that are 0; `datagram` is where it goes and the index of the own GID.
#[inline]
pub fn build(
    request: &SendRequest<'_>,
    key: u32,
    most: &Most,
    datagram: Option<(&DatagramTo, u8)>,
    words: &mut [u64; LONGEST],
) -> Result<Control, VerbsError> {
    let mut writer = Writer { words, at: SEGMENT };
    let mut control = Control { solicited: request.solicited, ..Control::default() };
    if let Some((to, index)) = datagram {
        let fits = matches!(
            request.operation,
            SendOperation::Send { with: SendWith::Nothing | SendWith::Immediate(_), .. }
        );
        if !fits {
            return Err(VerbsError::Invalid);
        }
        writer.address(to, index);
    }
    match &request.operation {
        SendOperation::Send { payload, with } => {
            (control.opcode, control.immediate) = match with {
                SendWith::Nothing => (SEND, 0),
                SendWith::Immediate(value) => (SEND_IMMEDIATE, *value),
                SendWith::Invalidate(rkey) => (SEND_INVALIDATE, *rkey),
            };
            writer.data(payload, key, most)?;
        }
        SendOperation::Write { payload, to, immediate } => {
            (control.opcode, control.immediate) = match immediate {
                None => (WRITE, 0),
                Some(value) => (WRITE_IMMEDIATE, *value),
            };
            writer.remote(*to);
            writer.data(payload, key, most)?;
        }
        SendOperation::Read { into, from } => {
            control.opcode = READ;
            writer.remote(*from);
            writer.data(&Payload::Windows(into), key, most)?;
        }
        SendOperation::CompareSwap { into, at, compare, swap } => {
            control.opcode = COMPARE_SWAP;
            writer.remote(*at);
            writer.put(*swap, *compare);
            writer.data(&Payload::Windows(&[eight(into)?]), key, most)?;
        }
        SendOperation::FetchAdd { into, at, add } => {
            control.opcode = FETCH_ADD;
            writer.remote(*at);
            writer.put(*add, 0);
            writer.data(&Payload::Windows(&[eight(into)?]), key, most)?;
        }
    }
    control.segments = writer.at / SEGMENT;
    Ok(control)
}

/// Where the value before an atomic operation goes.
fn eight(into: &drivers::hal::Window) -> Result<drivers::hal::Window, VerbsError> {
    if into.len() == 8 { Ok(*into) } else { Err(VerbsError::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_request_fits() {
        assert_eq!(blocks(4, 0, false), 2);
        assert_eq!(blocks(4, 64, false), 2);
        assert_eq!(blocks(1, 0, false), 1);
        let longest = blocks(softverbs::sges::MAX_SGE, MAX_INLINE, true) as usize;
        assert!(8 * longest <= LONGEST, "{longest}");
    }
}
