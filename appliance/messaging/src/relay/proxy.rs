//! The PROXY protocol, version 2 (haproxy, doc/proxy-protocol.txt, section 2.2): a header before the first byte to a
//! server, with the client's address. For TCP, without extensions.

use core::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, on behalf of a client.
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Bytes of the longest header.
pub const MAX_HEADER: usize = 16 + 36;

/// Writes the header for a client at `source` that connected to `destination`. Returns its length. If the address
/// families differ, both addresses are written as IPv6.
pub fn header(source: SocketAddr, destination: SocketAddr, into: &mut [u8; MAX_HEADER]) -> usize {
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        into[length..length + bytes.len()].copy_from_slice(bytes);
        length += bytes.len();
    };
    put(&SIGNATURE);
    match (source, destination) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            put(&[PROXY, TCP_OVER_IPV4, 0, 12]);
            put(&from.ip().octets());
            put(&to.ip().octets());
        }
        (from, to) => {
            put(&[PROXY, TCP_OVER_IPV6, 0, 36]);
            for end in [from, to] {
                let ip = match end.ip() {
                    core::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    core::net::IpAddr::V6(ip) => ip,
                };
                put(&ip.octets());
            }
        }
    }
    put(&source.port().to_be_bytes());
    put(&destination.port().to_be_bytes());
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_the_specification() {
        let mut into = [0; MAX_HEADER];
        let from = "10.0.0.2:40336".parse().unwrap();
        let length = header(from, "10.0.0.1:80".parse().unwrap(), &mut into);
        let expected = [
            0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0,
            12, 10, 0, 0, 2, 10, 0, 0, 1, 0x9d, 0x90, 0, 80,
        ];
        assert_eq!(into[..length], expected);
        let length =
            header("[fd00::2]:1".parse().unwrap(), "[fd00::1]:2".parse().unwrap(), &mut into);
        assert_eq!((length, into[13], into[15]), (MAX_HEADER, 0x21, 36));
        assert_eq!((into[31], into[47], into[49], into[51]), (2, 1, 1, 2));
    }
}
