//! Frames with correct checksums, so that the code behind the checksum test is reached.

/// A frame of TCP over IPv4 from 10.0.0.2 (the attacker) to 10.0.0.1.
pub fn tcp(source: u16, target: u16, numbers: (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [source.to_be_bytes(), target.to_be_bytes()].concat();
    segment.extend(numbers.0.to_be_bytes());
    segment.extend(numbers.1.to_be_bytes());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(data);
    v4(6, [10, 0, 0, 2], [10, 0, 0, 1], &segment)
}

/// A frame with an IPv4 packet, from station 2 to station 1.
pub fn v4(protocol: u8, source: [u8; 4], target: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(source);
    frame.extend(target);
    frame.extend(payload);
    seal(&mut frame);
    frame
}

/// A frame with an IPv6 packet, from station 2.
pub fn v6(next: u8, source: &str, target: &str, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, 255]);
    frame.extend(address(source));
    frame.extend(address(target));
    frame.extend(payload);
    seal(&mut frame);
    frame
}

/// Corrects the checksums of an IP packet and of its payload, if the packet is long enough.
pub fn seal(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(14..) else { return };
    let (header, protocol, addresses) = match packet.first().map(|byte| byte >> 4) {
        Some(4) if packet.len() >= 20 => {
            packet[10..12].fill(0);
            let header = 4 * (packet[0] & 15) as usize;
            let sum = checksum(0, packet.get(..header).unwrap_or_default());
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            (header, packet[9], 12..20)
        }
        Some(6) if packet.len() >= 40 => (40, packet[6], 8..40),
        _ => return,
    };
    let mut pseudo = packet[addresses].to_vec();
    let Some(payload) = packet.get_mut(header..) else { return };
    let at = match protocol {
        6 => 16,
        17 => 6,
        58 => 2,
        1 => {
            pseudo.clear();
            2
        }
        _ => return,
    };
    if payload.len() < at + 2 {
        return;
    }
    payload[at..at + 2].fill(0);
    let extra = match protocol {
        1 => 0,
        _ => u32::from(protocol) + payload.len() as u32,
    };
    pseudo.extend(&*payload);
    let sum = checksum(extra, &pseudo);
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum (RFC 1071).
fn checksum(extra: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)]));
    let mut sum = words.fold(u64::from(extra), |sum, word| sum + u64::from(word));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
