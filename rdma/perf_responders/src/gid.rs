//! Conversion of the tools' GIDs (16 bytes; IPv4 as `::ffff:a.b.c.d`) and hexadecimal numbers.

use core::net::{IpAddr, Ipv6Addr};

/// The IP address of a RoCEv2 GID.
pub fn address(gid: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(gid);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

/// The RoCEv2 GID of an IP address.
pub fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Parses a hexadecimal number as `sscanf("%x")` does; None if the text is empty, longer than 16 digits, or has any
/// other character.
pub fn hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter()
        .try_fold(0, |value, &digit| Some(value << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_conversion_round_trips_both_families() {
        for text in ["10.0.0.1", "fd00::1", "fe80::5054:ff:fe12:3456"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(bytes(ip)), ip);
        }
        assert_eq!(bytes("10.0.0.1".parse().unwrap())[10..], [0xff, 0xff, 10, 0, 0, 1]);
    }

    #[test]
    fn hex_parser_accepts_only_digits() {
        assert_eq!(hex(b"00fF"), Some(255));
        assert_eq!(hex(b"ffffffffffffffff"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"0x1", b" 1", b"g", b"00000000000000000"] {
            assert_eq!(hex(bad), None);
        }
    }
}
