//! Hand-made TCP segments of a client.

use crate::common::mac;
use smoltcp::wire::{Ipv4Packet, TcpPacket};
use std::net::IpAddr;

pub const PORT: u16 = 7777;
const CLIENT_PORT: u16 = 4000;
const SYN: u8 = 2;
const ACK: u8 = 0x10;
const SYN_ACK: u8 = SYN | ACK;

/// A segment from a client at a station, without data.
fn segment(station: u8, from: IpAddr, to: IpAddr, flags: u8, acknowledged: u32) -> Vec<u8> {
    let mut tcp = [CLIENT_PORT.to_be_bytes(), PORT.to_be_bytes()].concat();
    tcp.extend(if flags == SYN { 100u32 } else { 101 }.to_be_bytes());
    tcp.extend(acknowledged.to_be_bytes());
    // An MSS of 8960.
    tcp.extend([0x60, flags, 0xff, 0xff, 0, 0, 0, 0, 2, 4, 0x23, 0]);
    TcpPacket::new_unchecked(&mut tcp[..]).fill_checksum(&from.into(), &to.into());
    let mut frame = [mac(1), mac(station)].concat();
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            frame.extend([8, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(from.octets());
            frame.extend(to.octets());
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 6, 64]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("one family"),
    }
    frame.extend(tcp);
    frame
}

pub fn syn(station: u8, from: IpAddr, to: IpAddr) -> Vec<u8> {
    segment(station, from, to, SYN, 0)
}

/// The MSS of a SYN-ACK among these frames, and the segment that completes the handshake.
pub fn handshake(
    frames: &[Vec<u8>],
    station: u8,
    from: IpAddr,
    to: IpAddr,
) -> Option<(u16, Vec<u8>)> {
    let answer = frames.iter().find_map(|frame| tcp_of(frame).filter(|tcp| tcp[13] == SYN_ACK))?;
    assert_eq!(answer[20..22], [2, 4], "MSS comes first");
    let number = u32::from_be_bytes(answer[4..8].try_into().unwrap());
    let mss = u16::from_be_bytes([answer[22], answer[23]]);
    Some((mss, segment(station, from, to, ACK, number.wrapping_add(1))))
}

/// Lengths of the IP packets with TCP among these frames.
pub fn lengths(frames: &[Vec<u8>]) -> Vec<usize> {
    frames.iter().filter(|frame| tcp_of(frame).is_some()).map(|frame| frame.len() - 14).collect()
}

fn tcp_of(frame: &[u8]) -> Option<&[u8]> {
    match (&frame[12..14], frame[20], frame[23]) {
        ([8, 0], _, 6) => frame.get(34..),
        ([0x86, 0xdd], 6, _) => frame.get(54..),
        _ => None,
    }
}
