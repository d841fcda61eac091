//! Length of a frame's headers: the part that a capture without `payload` keeps.

/// Bytes of a frame's headers: the whole ARP packet; for IP, up to and including the transport header; for RoCE, up to
/// and including BTH and extended transport headers (InfiniBand Architecture Specification, volume 1, section 9.2.4);
/// otherwise the Ethernet header. May exceed the length of the frame.
pub(super) fn length(frame: &[u8]) -> usize {
    let be16 = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = 14;
    let mut kind = be16(12);
    // IEEE 802.1Q and 802.1ad.
    while let Some(0x8100 | 0x88a8) = kind
        && at < 22
    {
        (kind, at) = (be16(at + 2), at + 4);
    }
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    let (protocol, next) = match kind {
        Some(0x0806) => return at + 28,
        // RoCEv1: a GRH before the BTH.
        Some(0x8915) => return at + 40 + infiniband(byte(at + 40)),
        Some(0x0800) => (byte(at + 9), at + usize::from(byte(at) & 15) * 4),
        Some(0x86dd) => (byte(at + 6), at + 40),
        _ => return at,
    };
    // A later fragment has no transport header.
    let fragment = kind == Some(0x0800) && be16(at + 6).is_some_and(|f| f & 0x1fff != 0);
    next + match protocol {
        _ if fragment => 0,
        1 | 58 => 8,
        6 => usize::from(byte(next + 12) >> 4) * 4,
        17 if be16(next + 2) == Some(4791) => 8 + infiniband(byte(next + 8)),
        17 => 8,
        _ => 0,
    }
}

/// Bytes of BTH and extended transport headers, by the opcode.
fn infiniband(opcode: u8) -> usize {
    const BTH: usize = 12;
    let extended = match opcode {
        // RC and UC: immediate data, or a key to invalidate.
        0x03 | 0x05 | 0x09 | 0x16 | 0x17 | 0x23 | 0x25 | 0x29 => 4,
        // RETH; with immediate data.
        0x06 | 0x0a | 0x0c | 0x26 | 0x2a => 16,
        0x0b | 0x2b => 20,
        // AETH; with AtomicAckETH; AtomicETH.
        0x0d | 0x0f..=0x11 => 4,
        0x12 => 12,
        0x13 | 0x14 => 28,
        // UD: DETH; with immediate data.
        0x64 => 8,
        0x65 => 12,
        _ => 0,
    };
    BTH + extended
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn ip(kind: [u8; 2], protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut frame = alloc::vec![0; 12];
        frame.extend(kind);
        if kind == [0x08, 0] {
            frame.extend([0x46, 0, 0, 0, 0, 0, 0, 0, 0, protocol]);
            frame.resize(14 + 24, 0);
        } else {
            frame.extend([0x60, 0, 0, 0, 0, 0, protocol]);
            frame.resize(14 + 40, 0);
        }
        frame.extend(rest);
        frame
    }

    #[test]
    fn headers_end_where_payload_begins() {
        let roce = |opcode| [&[0, 0, 0x12, 0xb7, 0, 0, 0, 0][..], &[opcode]].concat();
        let v4 = [8, 0];
        assert_eq!(length(&ip(v4, 17, &roce(0x04))), 38 + 8 + 12, "SEND Only");
        assert_eq!(length(&ip(v4, 17, &roce(0x0b))), 38 + 8 + 12 + 20, "WRITE Only with Immediate");
        assert_eq!(length(&ip(v4, 17, &roce(0x64))), 38 + 8 + 12 + 8, "a MAD");
        assert_eq!(length(&ip([0x86, 0xdd], 17, &roce(0x10))), 54 + 8 + 12 + 4, "READ Response");
        assert_eq!(length(&ip(v4, 17, &[0, 0, 0, 53])), 38 + 8);
        let tcp = [0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];
        assert_eq!(length(&ip(v4, 6, &tcp)), 38 + 32);
        assert_eq!(length(&ip(v4, 1, &[8])), 38 + 8);
        let mut tagged = ip(v4, 17, &roce(0x04));
        tagged.splice(12..12, [0x81, 0, 0, 7]);
        assert_eq!(length(&tagged), 42 + 8 + 12);
        let mut fragment = ip(v4, 17, &roce(0x04));
        fragment[21] = 1;
        assert_eq!(length(&fragment), 38);
        assert_eq!(length(&[0; 60]), 14);
    }

    proptest! {
        #[test]
        fn no_frame_panics(frame in proptest::collection::vec(any::<u8>(), 0..100)) {
            length(&frame);
        }
    }
}
