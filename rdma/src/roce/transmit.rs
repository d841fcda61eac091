//! A packet on its way out: headers in a buffer, payload by reference, pad and ICRC behind.

use super::sges::Sges;
use super::wire::bth::{self, Bth};
use super::wire::extended::Deth;
use super::wire::frame::{self, ETHERNET_LEN, Template};
use super::wire::icrc::{self, Icrc};
use super::wire::mad;
use drivers::hal::{Packet, Window};

/// Most bytes that a work request can carry inline: with all headers they stay within what a port
/// sends cheapest.
pub const MAX_INLINE: usize = 96;

/// Longest head: a MAD is sent as part of it.
const MAX_HEAD: usize = frame::MAX_LEN + bth::LEN + Deth::LEN + mad::LEN;

/// One packet to transmit, made by `poll_transmit`. The loop keeps it and hands it to the port;
/// if the port has no room, it hands the same packet over later.
#[derive(Debug)]
pub struct TxBuffer {
    head: [u8; MAX_HEAD],
    head_len: usize,
    payload: Sges,
    trailer: [u8; 8],
    trailer_len: usize,
}

impl Default for TxBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBuffer {
    /// An empty one.
    pub const fn new() -> Self {
        TxBuffer {
            head: [0; MAX_HEAD],
            head_len: 0,
            payload: Sges::empty(),
            trailer: [0; 8],
            trailer_len: 0,
        }
    }

    /// The frame, for a port. Its payload lies in the memory of the work request.
    #[inline]
    pub fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.head.get(..self.head_len).unwrap_or_default(),
            payload: self.payload.as_slice(),
            trailer: self.trailer.get(..self.trailer_len).unwrap_or_default(),
        }
    }
}

/// Payload of a packet.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// Copied into the head: at most a MAD.
    Bytes(&'a [u8]),
    /// By reference.
    Window(Window),
    /// By reference: so many bytes from an offset.
    Windows(&'a Sges, usize, usize),
}

impl Body<'_> {
    /// No payload.
    pub const EMPTY: Body<'static> = Body::Bytes(&[]);

    fn len(&self) -> usize {
        match self {
            Body::Bytes(bytes) => bytes.len(),
            Body::Window(window) => window.len(),
            Body::Windows(_, _, len) => *len,
        }
    }
}

/// Puts packets together.
#[derive(Debug)]
pub struct Emitter {
    icrc: Icrc,
}

impl Emitter {
    /// An emitter that computes with `icrc`.
    pub fn new(icrc: Icrc) -> Self {
        Emitter { icrc }
    }

    /// Puts a packet together in `tx`: `bth` (its pad count is filled in here), `extended` headers
    /// (at most those of an atomic), `body` (at most the largest path MTU).
    #[inline(always)]
    pub fn emit(
        &self,
        tx: &mut TxBuffer,
        template: &Template,
        bth: Bth,
        extended: &[u8],
        body: Body<'_>,
    ) {
        let length = body.len();
        let pad = length.wrapping_neg() & 3;
        let transport = bth::LEN + extended.len() + length + pad + icrc::LEN;
        let front = template.len() + bth::LEN;
        let mut head_len = front + extended.len();

        if let Some(place) = tx.head.first_chunk_mut() {
            template.emit(place, transport);
        }
        if let Some(place) = tx.head.get_mut(template.len()..).and_then(|h| h.first_chunk_mut()) {
            Bth { pad: pad as u8, ..bth }.emit(place);
        }

        if let (Some(place), false) = (tx.head.get_mut(front..head_len), extended.is_empty()) {
            place.copy_from_slice(extended);
        }
        tx.payload.clear();
        match body {
            Body::Bytes(bytes) => {
                if let Some(place) = tx.head.get_mut(head_len..head_len + bytes.len()) {
                    place.copy_from_slice(bytes);
                    head_len += bytes.len();
                }
            }
            Body::Window(window) => {
                if !window.is_empty() {
                    tx.payload.push(window);
                }
            }
            Body::Windows(sges, offset, len) => sges.part(offset, len, &mut tx.payload),
        }
        let headers = tx.head.get(ETHERNET_LEN..head_len).unwrap_or_default();
        let icrc = self.icrc.compute(template.network(), headers, tx.payload.as_slice(), pad);
        tx.head_len = head_len;
        // The pad is zero; the ICRC is stored with its least significant byte first.
        tx.trailer = (u64::from(u32::from_le_bytes(icrc)) << (8 * pad)).to_le_bytes();
        tx.trailer_len = pad + icrc::LEN;
    }
}
