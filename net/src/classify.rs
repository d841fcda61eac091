//! Classifies a received frame: RoCE, UDP echo, a UDP engine, or the control plane.
//!
//! Compares ethertype, IP protocol and destination port only; the consumer of the frame validates it.
//! Frames with IPv4 options or IPv6 extension headers go to the control plane.

/// UDP port of RoCEv2 (IANA).
const ROCE_PORT: u16 = 4791;
/// UDP port of the echo service (RFC 862).
pub const ECHO_PORT: u16 = 7;

const ROCEV1: [u8; 2] = [0x89, 0x15];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;

/// Consumer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// RoCE, version 1 or 2.
    Roce,
    /// A datagram for the UDP echo service.
    UdpEcho,
    /// Another datagram over IPv4 to this port: for the engine of the port, or for the control plane without one.
    Udp(u16),
    /// A frame for the control plane ([`crate::Interface::handle_frame`]).
    Other,
}

/// Classifies `frame`.
#[inline]
pub fn classify(frame: &[u8]) -> Class {
    let Some(head) = frame.first_chunk::<38>() else { return Class::Other };
    let (is_v4, port) = match [head[12], head[13]] {
        IPV4 if head[14] == 0x45 && head[23] == UDP => {
            // Only a first fragment begins with a UDP header. Neither RoCE nor the echo service accepts fragments.
            if u16::from_be_bytes([head[20], head[21]]) & 0x3fff != 0 {
                return Class::Other;
            }
            (true, u16::from_be_bytes([head[36], head[37]]))
        }
        IPV6 if head[20] == UDP => match frame.get(56..58) {
            Some(&[high, low]) => (false, u16::from_be_bytes([high, low])),
            _ => return Class::Other,
        },
        ROCEV1 => return Class::Roce,
        _ => return Class::Other,
    };
    match port {
        ROCE_PORT => Class::Roce,
        ECHO_PORT => Class::UdpEcho,
        port if is_v4 => Class::Udp(port),
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::udp;
    use std::net::IpAddr;

    #[test]
    fn frames_are_classified_by_protocol_and_port() {
        for (from, to) in [("10.0.0.2", "10.0.0.1"), ("fe80::2", "fe80::1")] {
            let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let class = |port| classify(&udp(from, to, 9999, port, b"data"));
            assert_eq!(class(4791), Class::Roce);
            assert_eq!(class(7), Class::UdpEcho);
            assert_eq!(class(53), if from.is_ipv4() { Class::Udp(53) } else { Class::Other });
            let mut frame = udp(from, to, 9999, 4791, b"data");
            assert_eq!(
                classify(&frame[..40]),
                if from.is_ipv4() { Class::Roce } else { Class::Other }
            );
            frame[12..14].copy_from_slice(&ROCEV1);
            assert_eq!(classify(&frame), Class::Roce);
            frame[12..14].copy_from_slice(&[8, 6]);
            assert_eq!(classify(&frame), Class::Other);
        }
        assert_eq!(classify(&[]), Class::Other);
    }

    #[test]
    fn fragments_and_other_protocols_are_others() {
        let (from, to) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        for (at, value) in [(20, 0x20), (21, 1), (23, 6), (14, 0x46)] {
            let mut frame = udp(from, to, 9999, 4791, b"data");
            frame[at] = value;
            assert_eq!(classify(&frame), Class::Other, "byte {at}");
        }
    }
}
