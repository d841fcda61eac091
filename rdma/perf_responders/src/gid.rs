//! Addresses as the tools write them: 16 bytes of a GID, IPv4 as `::ffff:a.b.c.d`.

use core::net::{IpAddr, Ipv6Addr};

/// The address that a GID of RoCEv2 stands for.
pub fn address(gid: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(gid);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

/// The GID of an address.
pub fn bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A number in hexadecimal digits, as `sscanf("%x")` takes it; None if there is anything else.
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
    fn both_families_go_there_and_back() {
        for text in ["10.0.0.1", "fd00::1", "fe80::5054:ff:fe12:3456"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(address(bytes(ip)), ip);
        }
        assert_eq!(bytes("10.0.0.1".parse().unwrap())[10..], [0xff, 0xff, 10, 0, 0, 1]);
    }

    #[test]
    fn only_digits_are_numbers() {
        assert_eq!(hex(b"00fF"), Some(255));
        assert_eq!(hex(b"ffffffffffffffff"), Some(u64::MAX));
        for bad in [&b""[..], b"+1", b"0x1", b" 1", b"g", b"00000000000000000"] {
            assert_eq!(hex(bad), None);
        }
    }
}
