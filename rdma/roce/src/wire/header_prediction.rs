//! The expected headers of packets that a peer sends to a connected queue pair over IPv4: all fields that are the same
//! in each packet are known from the connection. A packet with these headers needs few of the checks of other frames,
//! as in TCP's header prediction (Jacobson, 1990). Any other packet takes the complete path. The comparison leaves out
//! the destination queue pair, which selects the prediction.

use super::bth;
use super::frame::{ETHERNET_LEN, Network, Template, sum_ipv4};
use super::icrc;
use super::opcode::Opcode;

/// Bytes before the extended headers.
const LEN: usize = BTH + bth::LEN;

// Offsets, from the destination MAC on.
const SOURCE_MAC: usize = 6;
const ETHERTYPE: usize = 12;
const IP: usize = ETHERNET_LEN;
const TOTAL_LENGTH: usize = IP + 2;
const FRAGMENT: usize = IP + 6;
const TIME_TO_LIVE: usize = IP + 8;
const PROTOCOL: usize = IP + 9;
const ADDRESSES: usize = IP + 12;
const UDP: usize = IP + 20;
const DESTINATION_PORT: usize = UDP + 2;
const UDP_LENGTH: usize = UDP + 4;
const UDP_CHECKSUM: usize = UDP + 6;
const BTH: usize = UDP + 8;
const FLAGS: usize = BTH + 1;
const PKEY: usize = BTH + 2;
/// The bits of the flags with the pad count.
const PAD: u8 = 0x30;
const RESERVED: usize = BTH + 4;
const QUEUE_PAIR: usize = BTH + 5;

/// Number of 8-byte words with these headers, up to the upper bits of the queue pair.
const WORDS: usize = 6;

/// The bytes that are the same in all packets: first offset, end offset, and mask.
const FIXED: [(usize, usize, u8); 10] = [
    // MAC addresses; Ethertype, version and length of the network header.
    (0, IP + 1, 0xff),
    // No fragment; DF may have any value.
    (FRAGMENT, FRAGMENT + 1, 0x3f),
    (FRAGMENT + 1, TIME_TO_LIVE, 0xff),
    (PROTOCOL, PROTOCOL + 1, 0xff),
    (ADDRESSES, UDP, 0xff),
    (DESTINATION_PORT, UDP_LENGTH, 0xff),
    // No checksum.
    (UDP_CHECKSUM, BTH, 0xff),
    // Version of the transport header.
    (FLAGS, PKEY, 0x0f),
    // Accepts full and limited members of the partition.
    (PKEY, PKEY + 1, 0x7f),
    (PKEY + 1, RESERVED, 0xff),
];

/// Mask of the bits that are the same in all packets.
const SAME: [u64; WORDS] = {
    let mut bytes = [[0; 8]; WORDS];
    let mut field = 0;
    while field < FIXED.len() {
        let (mut at, end, bits) = FIXED[field];
        while at < end {
            bytes[at / 8][at % 8] = bits;
            at += 1;
        }
        field += 1;
    }
    let mut words = [0; WORDS];
    let mut n = 0;
    while n < WORDS {
        words[n] = u64::from_ne_bytes(bytes[n]);
        n += 1;
    }
    words
};

/// The expected headers of packets from a peer to one queue pair.
#[derive(Clone, Copy, Debug)]
pub struct HeaderPrediction {
    words: [u64; WORDS],
}

impl HeaderPrediction {
    /// For packets of the peer that `template` addresses, from the MAC address `from`. None over IPv6 and for RoCEv1.
    pub fn new(template: &Template, from: [u8; 6]) -> Option<Self> {
        if template.network() != Network::Ipv4 {
            return None;
        }
        let own = template.headers();
        let mut header = [0; 8 * WORDS];
        header[..BTH].copy_from_slice(own.get(..BTH)?);
        header[..SOURCE_MAC].copy_from_slice(&own[SOURCE_MAC..ETHERTYPE]);
        header[SOURCE_MAC..ETHERTYPE].copy_from_slice(&from);
        header[ADDRESSES..ADDRESSES + 4].copy_from_slice(&own[ADDRESSES + 4..UDP]);
        header[ADDRESSES + 4..UDP].copy_from_slice(&own[ADDRESSES..ADDRESSES + 4]);
        header[PKEY..RESERVED].copy_from_slice(&bth::DEFAULT_PKEY.to_be_bytes());
        Some(HeaderPrediction { words: words(&header) })
    }

    /// The destination queue pair of `frame`, which begins with its destination MAC, if it is RoCE over IPv4.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn queue_pair(frame: &[u8]) -> Option<u32> {
        let header = frame.first_chunk::<LEN>()?;
        Some(u32::from_be_bytes([
            0,
            header[QUEUE_PAIR],
            header[QUEUE_PAIR + 1],
            header[QUEUE_PAIR + 2],
        ]))
    }

    /// The bytes of `frame` from its network header on, if it has these headers, with consistent lengths and a correct
    /// checksum.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn matches<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let header = frame.first_chunk()?;
        let seen = words(header);
        let different = |n: usize| (seen[n] ^ self.words[n]) & SAME[n];
        if (0..WORDS).fold(0, |all, n| all | different(n)) != 0 {
            return None;
        }
        let headers = frame.get(IP..)?;
        let length = |at| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let total = length(TOTAL_LENGTH);
        if total != headers.len()
            || length(UDP_LENGTH) + UDP != total + IP
            || !sum_ipv4(headers.first_chunk()?).is_multiple_of(0xffff)
        {
            return None;
        }
        Some(headers)
    }
}

/// PSN and payload of a packet over IPv4 from the middle of a WRITE, if it has no pad and no ACK request.
// Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
#[inline(always)]
pub fn middle_of_write(headers: &[u8]) -> Option<(u32, &[u8])> {
    let (header, rest) = headers.split_first_chunk::<{ LEN - IP }>()?;
    let [opcode, flags, _, _, _, _, _, _, ack_request, psn @ ..] =
        header.last_chunk::<{ bth::LEN }>()?;
    if *opcode != Opcode::WriteMiddle as u8 || flags & PAD != 0 || ack_request & 0x80 != 0 {
        return None;
    }
    let [a, b, c] = *psn;
    Some((u32::from_be_bytes([0, a, b, c]), rest.get(..rest.len().checked_sub(icrc::LEN)?)?))
}

// Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
#[inline(always)]
fn words(header: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}
