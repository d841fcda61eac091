//! Work requests in the format of a send queue (Linux: `drivers/infiniband/hw/mlx5/wr.c`): segments of 16 bytes. The
//! control segment comes first; the queue fills it in.

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

/// Flag in the length of a segment: inline bytes follow.
const INLINE: u64 = 1 << 31;
/// Words of a segment, and of the address of a datagram.
const SEGMENT: usize = 2;
const ADDRESS: usize = 6;

/// Longest inline payload.
pub const MAX_INLINE: usize = 96;
/// Log2 of the longest message.
pub const LOG_MAX_MESSAGE: u32 = 30;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Windows, inline bytes, and total bytes.
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

/// Writes segments one after another.
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

    /// Writes data segments; `key` is the domain's key for all memory.
    #[inline]
    fn data(
        &mut self,
        payload: &Payload<'_>,
        key: u32,
        limits: &RequestLimits,
    ) -> Result<(), VerbsError> {
        match payload {
            Payload::Windows(windows) => {
                if windows.len() > limits.windows || payload.len() > limits.message {
                    return Err(VerbsError::Invalid);
                }
                // A length of 0 means 2 GiB.
                for window in windows.iter().filter(|window| !window.is_empty()) {
                    self.put((window.len() as u64) << 32 | u64::from(key), window.bus_address());
                }
            }
            Payload::Inline(bytes) => {
                if bytes.len() > limits.inline || bytes.len() > limits.message {
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

    /// Writes the address of a datagram; `index` is that of the own GID.
    fn address(&mut self, to: &DatagramTo, index: u8) {
        let path = &to.address;
        let [a, b, c, d, e, f] = path.remote_mac.map(u64::from);
        let bytes = u128::from_be_bytes(gid(path.remote));
        self.put(
            u64::from(to.remote_qkey) << 32,
            (u64::from(to.remote_qpn & 0xff_ffff) | 1 << 31) << 32 | u64::from(path.source_port),
        );
        self.put(
            a << 24 | b << 16 | c << 8 | d,
            (e << 24 | f << 16 | u64::from(path.traffic_class) << 8 | u64::from(path.hop_limit))
                << 32
                | 1 << 30
                | u64::from(index) << 20,
        );
        self.put((bytes >> 64) as u64, bytes as u64);
    }
}

/// The fast path for most requests of users: WRITEs and SENDs of one block. Returns the words behind the control
/// segment, the same as those of [`build`]; None for any other request.
// Constants of the caller's request decide at compile time what is written (`bench mlx5`).
#[inline(always)]
pub fn short(
    request: &SendRequest<'_>,
    key: u32,
    limits: &RequestLimits,
) -> Option<(Control, [u64; 6])> {
    let mut control = Control { solicited: request.solicited, ..Control::default() };
    let mut rest = [0; 6];
    let (payload, at) = match &request.operation {
        SendOperation::Write { payload, to, immediate } => {
            (control.opcode, control.immediate) = match immediate {
                None => (WRITE, 0),
                Some(value) => (WRITE_IMMEDIATE, *value),
            };
            (rest[0], rest[1]) = (to.address, u64::from(to.rkey) << 32);
            (payload, 2)
        }
        SendOperation::Send { payload, with } => {
            (control.opcode, control.immediate) = match with {
                SendWith::Nothing => (SEND, 0),
                SendWith::Immediate(value) => (SEND_IMMEDIATE, *value),
                SendWith::Invalidate(rkey) => (SEND_INVALIDATE, *rkey),
            };
            (payload, 0)
        }
        _ => return None,
    };
    control.segments = 1 + at / SEGMENT;
    match *payload {
        Payload::Windows([]) => {}
        Payload::Windows([window]) if !window.is_empty() => {
            if limits.windows == 0 || window.len() > limits.message {
                return None;
            }
            rest[at] = (window.len() as u64) << 32 | u64::from(key);
            rest[at + 1] = window.bus_address();
            control.segments += 1;
        }
        // A length, and up to 12 bytes behind it. RTRS sends 8 bytes: without a loop.
        Payload::Inline(&[a, b, c, d, e, f, g, h]) if limits.inline >= 8 => {
            let first = u64::from(u32::from_be_bytes([a, b, c, d]));
            rest[at] = (INLINE | 8) << 32 | first;
            rest[at + 1] = u64::from(u32::from_be_bytes([e, f, g, h])) << 32;
            control.segments += 1;
        }
        // Behind the length, in the rest of the block: 44 bytes of a SEND, as SMC-R's messages have.
        Payload::Inline(bytes)
            if !bytes.is_empty() && bytes.len() <= limits.inline.min(8 * (rest.len() - at) - 4) =>
        {
            let mut segments = [0u8; 48];
            segments[..4].copy_from_slice(&((INLINE | bytes.len() as u64) as u32).to_be_bytes());
            segments[4..4 + bytes.len()].copy_from_slice(bytes);
            for (word, bytes) in rest[at..].iter_mut().zip(segments.as_chunks::<8>().0) {
                *word = u64::from_be_bytes(*bytes);
            }
            control.segments += (4 + bytes.len()).div_ceil(16);
        }
        _ => return None,
    }
    Some((control, rest))
}

/// Writes a user's request into words that are 0; `datagram` has its destination and the index of the own GID.
#[inline]
pub fn build(
    request: &SendRequest<'_>,
    key: u32,
    limits: &RequestLimits,
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
            writer.data(payload, key, limits)?;
        }
        SendOperation::Write { payload, to, immediate } => {
            (control.opcode, control.immediate) = match immediate {
                None => (WRITE, 0),
                Some(value) => (WRITE_IMMEDIATE, *value),
            };
            writer.remote(*to);
            writer.data(payload, key, limits)?;
        }
        SendOperation::Read { into, from } => {
            control.opcode = READ;
            writer.remote(*from);
            writer.data(&Payload::Windows(into), key, limits)?;
        }
        SendOperation::CompareSwap { into, at, compare, swap } => {
            control.opcode = COMPARE_SWAP;
            writer.remote(*at);
            writer.put(*swap, *compare);
            writer.data(&Payload::Windows(&[eight(into)?]), key, limits)?;
        }
        SendOperation::FetchAdd { into, at, add } => {
            control.opcode = FETCH_ADD;
            writer.remote(*at);
            writer.put(*add, 0);
            writer.data(&Payload::Windows(&[eight(into)?]), key, limits)?;
        }
    }
    control.segments = writer.at / SEGMENT;
    Ok(control)
}

/// The destination of the old value of an atomic operation.
fn eight(into: &drivers::hal::Window) -> Result<drivers::hal::Window, VerbsError> {
    if into.len() == 8 { Ok(*into) } else { Err(VerbsError::Invalid) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;

    #[test]
    fn short_requests_equal_built_ones() {
        let mut arena = Arena::on_heap(1 << 16);
        let window = arena.alloc(100, 64).unwrap();
        let limits = RequestLimits { windows: 2, inline: 44, message: 1000 };
        let to = RemoteAddress { address: 0x1234_5678_9abc, rkey: 0x700 };
        let empty = window.slice(0, 0).unwrap();
        let payloads = [
            Payload::Windows(&[]),
            Payload::Windows(&[window]),
            Payload::Windows(&[empty]),
            Payload::Windows(&[window, window]),
            Payload::Inline(&[]),
            Payload::Inline(b"12345678"),
            Payload::Inline(b"123456789012"),
            Payload::Inline(b"1234567890123"),
            Payload::Inline(&[7; 28]),
            Payload::Inline(&[7; 29]),
            Payload::Inline(&[7; 44]),
            Payload::Inline(&[7; 45]),
        ];
        let mut short_ones = 0;
        for payload in payloads {
            for operation in [
                SendOperation::Send { payload, with: SendWith::Nothing },
                SendOperation::Send { payload, with: SendWith::Immediate(7) },
                SendOperation::Send { payload, with: SendWith::Invalidate(9) },
                SendOperation::Write { payload, to, immediate: None },
                SendOperation::Write { payload, to, immediate: Some(5) },
            ] {
                let request = SendRequest {
                    id: 1,
                    operation,
                    signaled: true,
                    solicited: true,
                    datagram: None,
                    carries: None,
                    ack_lazily: false,
                };
                let mut words = [0; LONGEST];
                let built = build(&request, 0x4500, &limits, None, &mut words);
                let Some((control, rest)) = short(&request, 0x4500, &limits) else { continue };
                short_ones += 1;
                assert_eq!(Ok(control), built);
                assert_eq!(rest[..], words[2..8]);
                assert!(words[8..].iter().all(|word| *word == 0));
            }
        }
        // All but the longest payloads; those only in SENDs.
        assert_eq!(short_ones, 6 * 5 + 2 * 3);
    }

    #[test]
    fn the_longest_request_fits() {
        assert_eq!(blocks(4, 0, false), 2);
        assert_eq!(blocks(4, 64, false), 2);
        assert_eq!(blocks(1, 0, false), 1);
        let longest = blocks(softverbs::sges::MAX_SGE, MAX_INLINE, true) as usize;
        assert!(8 * longest <= LONGEST, "{longest}");
    }
}
