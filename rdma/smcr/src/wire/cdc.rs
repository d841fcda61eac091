//! CDC messages, which follow the data with cursors and flags (RFC 7609, appendix A.4).

use core::fmt;

/// First byte of a CDC message.
pub const TYPE: u8 = 0xfe;
/// Length of a CDC message.
pub const LEN: usize = 44;

bitflags::bitflags! {
    /// Flags of the producer.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Producer: u8 {
        /// The producer has more data than the window has room.
        const WRITE_BLOCKED = 0x80;
        /// Urgent data will follow.
        const URGENT_PENDING = 0x40;
        /// The byte before the cursor is urgent.
        const URGENT_PRESENT = 0x20;
        /// The producer requests the consumer cursor.
        const UPDATE_REQUESTED = 0x10;
        /// Failover validation: the message has the sequence number up to which the receiver must have received
        /// messages.
        const FAILOVER = 0x08;
    }
}

bitflags::bitflags! {
    /// Flags of the end of a connection. A bit stays set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct End: u8 {
        /// The sender will send no more data.
        const SENDING_DONE = 0x80;
        /// The socket is closed.
        const CLOSED = 0x40;
        /// The socket is closed, and data was lost.
        const ABORT = 0x20;
    }
}

impl End {
    /// Whether the socket is closed, with or without loss of data.
    pub const fn is_closed(self) -> bool {
        self.intersects(End::CLOSED.union(End::ABORT))
    }
}

/// A position in a ring buffer: offset and number of wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Number of wraps, modulo 2^16.
    pub wrap: u16,
    /// Offset in bytes, less than the size of the ring.
    pub count: u32,
}

impl Cursor {
    /// The cursor of a byte of the stream, in a ring of `size` bytes (a power of two).
    #[inline]
    pub const fn at(position: u64, size: u32) -> Self {
        Cursor { wrap: (position / size as u64) as u16, count: position as u32 & (size - 1) }
    }

    /// How far this cursor is ahead of the byte at `position`, in a ring of `size` bytes (a power
    /// of two); negative if it is behind. None if it lies outside of the ring.
    #[inline]
    pub const fn ahead_of(self, position: u64, size: u32) -> Option<i64> {
        if self.count >= size {
            return None;
        }
        // A cursor has the position modulo 2^16 rounds.
        let bits = 16 + size.trailing_zeros();
        let mine = (self.wrap as u64) * size as u64 + self.count as u64;
        let difference = mine.wrapping_sub(position) << (64 - bits);
        Some(difference as i64 >> (64 - bits))
    }

    fn parse(b: &[u8; 8]) -> Self {
        let [_, _, w0, w1, c @ ..] = *b;
        Cursor { wrap: u16::from_be_bytes([w0, w1]), count: u32::from_be_bytes(c) }
    }

    fn emit(self) -> [u8; 8] {
        let ([w0, w1], [c0, c1, c2, c3]) = (self.wrap.to_be_bytes(), self.count.to_be_bytes());
        [0, 0, w0, w1, c0, c1, c2, c3]
    }
}

/// A CDC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdc {
    /// Sequence number of the message on its connection.
    pub seqno: u16,
    /// The receiver's token of the connection.
    pub token: u32,
    /// Where the sender writes next, in the receiver's buffer.
    pub produced: Cursor,
    /// Where the sender reads next, in its own buffer.
    pub consumed: Cursor,
    /// Flags of the producer.
    pub producer: Producer,
    /// Flags of the end.
    pub end: End,
}

impl Cdc {
    /// Parses a message. Returns None for another type or length.
    #[inline]
    pub fn parse(b: &[u8; LEN]) -> Option<Self> {
        if b[0] != TYPE || usize::from(b[1]) != LEN {
            return None;
        }
        Some(Cdc {
            seqno: u16::from_be_bytes([b[2], b[3]]),
            token: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
            produced: Cursor::parse(b[8..16].first_chunk()?),
            consumed: Cursor::parse(b[16..24].first_chunk()?),
            producer: Producer::from_bits_truncate(b[24]),
            end: End::from_bits_truncate(b[25]),
        })
    }

    /// Emits the message.
    #[inline]
    pub fn emit(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        b[0] = TYPE;
        b[1] = LEN as u8;
        b[2..4].copy_from_slice(&self.seqno.to_be_bytes());
        b[4..8].copy_from_slice(&self.token.to_be_bytes());
        b[8..16].copy_from_slice(&self.produced.emit());
        b[16..24].copy_from_slice(&self.consumed.emit());
        b[24] = self.producer.bits();
        b[25] = self.end.bits();
        b
    }
}

impl fmt::Display for Cdc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p, c) = (self.produced, self.consumed);
        write!(f, "CDC {} token {:#x} ", self.seqno, self.token)?;
        write!(f, "produced {}.{} consumed {}.{} ", p.wrap, p.count, c.wrap, c.count)?;
        write!(f, "flags {:02x} {:02x}", self.producer.bits(), self.end.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::{vector, vectors};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn linux_messages_round_trip() {
        let all = vectors("cdc");
        assert_eq!(all.len(), 6);
        for bytes in &all {
            let bytes = bytes.first_chunk().unwrap();
            assert_eq!(Cdc::parse(bytes).unwrap().emit(), *bytes);
        }
        let first = Cdc::parse(all[0].first_chunk().unwrap()).unwrap();
        assert_eq!((first.seqno, first.token), (1, 1));
        assert_eq!(first.produced, Cursor { wrap: 0, count: 64 });
        let last = Cdc::parse(all[5].first_chunk().unwrap()).unwrap();
        assert_eq!(last.end, End::SENDING_DONE | End::CLOSED);
        assert_eq!(last.consumed.count, 72);
    }

    #[test]
    fn parse_rejects_other_types_and_lengths() {
        let mut bytes: [u8; LEN] = *vector("cdc").first_chunk().unwrap();
        bytes[1] = 45;
        assert_eq!(Cdc::parse(&bytes), None);
        bytes[..2].copy_from_slice(&[1, 44]);
        assert_eq!(Cdc::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn cursor_distance_is_exact(
            code in 0u8..16, position: u32, rounds: u16, step in -(1i64 << 27)..(1i64 << 27),
        ) {
            let size = super::super::rmbe_bytes(code);
            let position = (u64::from(position) << 16 | u64::from(rounds)) + (1 << 40);
            let step = step % (1 + 2 * i64::from(size));
            let cursor = Cursor::at(position.wrapping_add_signed(step), size);
            prop_assert!(cursor.count < size);
            prop_assert_eq!(cursor.ahead_of(position, size), Some(step));
            prop_assert_eq!(Cursor { count: size, ..cursor }.ahead_of(position, size), None);
        }

        #[test]
        fn any_bytes(bytes: [u8; 32], rest: [u8; 10]) {
            let mut all = [0; LEN];
            all[..2].copy_from_slice(&[TYPE, LEN as u8]);
            all[2..34].copy_from_slice(&bytes);
            all[34..].copy_from_slice(&rest);
            let cdc = Cdc::parse(&all).unwrap();
            prop_assert_eq!(Cdc::parse(&cdc.emit()), Some(cdc));
        }
    }
}
