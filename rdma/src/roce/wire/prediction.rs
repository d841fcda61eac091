//! Header prediction, as TCP has it (Jacobson, 1990): a packet from the middle of a WRITE over IPv4
//! differs from those around it in nothing but its identification, its header's checksum, its PSN and its
//! payload. What holds for the first packet of a WRITE holds for those that have the same headers; one that
//! has others goes the whole way.

use super::bth;
use super::extended::Reth;
use super::frame::{ETHERNET_LEN, Frame, Network, sum_ipv4};
use super::icrc;
use super::opcode::Opcode;
use crate::verbs::QpId;

/// Bytes before the payload.
const LEN: usize = BTH + bth::LEN;

// Where things are, from the destination MAC on.
const IP: usize = ETHERNET_LEN;
const IDENTIFICATION: usize = IP + 4;
const FRAGMENT: usize = IP + 6;
const CHECKSUM: usize = IP + 10;
const ADDRESSES: usize = IP + 12;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;
const ACK_REQUEST: usize = BTH + 8;
const PSN: usize = BTH + 9;

/// The words that hold them, with the first bytes of the payload.
const WORDS: usize = LEN.div_ceil(8);

/// The bits that are the same in all packets.
const SAME: [u64; WORDS] = {
    let mut bytes = [[0xff; 8]; WORDS];
    let mut at = 0;
    while at < 8 * WORDS {
        if matches!(at, IDENTIFICATION..FRAGMENT | CHECKSUM..ADDRESSES | PSN..) {
            bytes[at / 8][at % 8] = 0;
        }
        at += 1;
    }
    let mut words = [0; WORDS];
    let mut n = 0;
    while n < WORDS {
        words[n] = u64::from_ne_bytes(bytes[n]);
        n += 1;
    }
    words
};

/// What the next packet of a WRITE looks like.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    words: [u64; WORDS],
    /// Of the whole frame, in bytes.
    len: usize,
    port: usize,
    /// Whose packet it is.
    pub qp: QpId,
}

impl Prediction {
    /// What follows the first packet of a WRITE, which was taken for `qp` at `port`. None where nothing
    /// can be predicted: over IPv6, and with UDP checksums.
    pub fn after(first: &Frame<'_>, port: usize, qp: QpId) -> Option<Self> {
        let mut header = [0; 8 * WORDS];
        header[..IP].copy_from_slice(first.ethernet);
        header[IP..].copy_from_slice(first.headers.get(..8 * WORDS - IP)?);
        if first.network != Network::Ipv4 || header[UDP + 6..BTH] != [0, 0] {
            return None;
        }
        let total = first.headers.len().checked_sub(Reth::LEN)?;
        header[IP + 2..IDENTIFICATION].copy_from_slice(&(total as u16).to_be_bytes());
        header[UDP + 4..UDP + 6].copy_from_slice(&((total - 20) as u16).to_be_bytes());
        header[BTH] = Opcode::WriteMiddle as u8;
        // One that asks for an ACK is not predicted, whatever the first one did.
        header[ACK_REQUEST] &= 0x7f;
        Some(Prediction { words: words(&header), len: IP + total, port, qp })
    }

    /// If `frame`, from its destination MAC on, is what was predicted, but for its payload and ICRC: the
    /// frame, its PSN and its payload.
    #[inline]
    pub fn matches<'a>(&self, port: usize, frame: &'a [u8]) -> Option<(Frame<'a>, u32, &'a [u8])> {
        if frame.len() != self.len || port != self.port {
            return None;
        }
        let seen = words(frame.first_chunk()?);
        let different = seen.iter().zip(&self.words).fold(0, |all, (a, b)| all | (a ^ b));
        let (ethernet, headers) = frame.split_first_chunk()?;
        if different != 0 || !sum_ipv4(headers.first_chunk()?).is_multiple_of(0xffff) {
            return None;
        }
        let (header, rest) = frame.split_first_chunk::<LEN>()?;
        let psn = u32::from_be_bytes(*header.last_chunk()?) & 0xff_ffff;
        let payload = rest.get(..rest.len().checked_sub(icrc::LEN)?)?;
        Some((Frame { ethernet, network: Network::Ipv4, headers }, psn, payload))
    }
}

/// What is the same in all packets.
#[inline]
fn words(header: &[u8; 8 * WORDS]) -> [u64; WORDS] {
    let mut words = SAME;
    for (word, bytes) in words.iter_mut().zip(header.as_chunks().0) {
        *word &= u64::from_ne_bytes(*bytes);
    }
    words
}
