//! A packet to transmit: headers in a buffer, payload by reference, then pad and ICRC.

use super::psn::Psn;
use super::sges::Sges;
use super::wire::bth::{self, Bth};
use super::wire::extended::Deth;
use super::wire::frame::{self, ETHERNET_LEN, Template};
use super::wire::icrc::{self, Icrc};
use super::wire::mad;
use drivers::hal::{Packet, Window};

/// Most inline bytes of a work request: with all headers the packet stays within the size that ports send at the lowest
/// cost.
pub const MAX_INLINE: usize = 96;

/// Longest head: a MAD is sent as part of it.
const MAX_HEAD: usize = frame::MAX_LEN + bth::LEN + Deth::LEN + mad::LEN;

/// One packet to transmit, filled by `poll_transmit`. The loop passes it to the port; while the port has no room, the
/// loop keeps it for later. Each port has a buffer of its own.
///
/// It is filled in wire order: [`TxBuffer::begin`], extended headers, payload, and then `Emitter::emit`, which
/// completes the headers before them and appends pad and ICRC.
#[derive(Debug)]
pub struct TxBuffer {
    head: [u8; MAX_HEAD],
    head_len: usize,
    payload: Sges,
    trailer: [u8; 8],
    trailer_len: usize,
    /// If the message does not end with this packet: queue pair of the peer, and PSN, of the next packet of the
    /// message.
    pub continues: Option<(u32, Psn)>,
}

impl Default for TxBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl TxBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        TxBuffer {
            head: [0; MAX_HEAD],
            head_len: 0,
            payload: Sges::empty(),
            trailer: [0; 8],
            trailer_len: 0,
            continues: None,
        }
    }

    /// The frame, for a port. Its payload stays in the memory of the work request.
    #[inline]
    pub fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.head.get(..self.head_len).unwrap_or_default(),
            payload: self.payload.as_slice(),
            trailer: self.trailer.get(..self.trailer_len).unwrap_or_default(),
        }
    }

    /// Begins with the headers of `template`, and room for a BTH.
    #[inline]
    pub fn begin(&mut self, template: &Template) {
        if let Some(place) = self.head.first_chunk_mut() {
            template.begin(place);
        }
        self.head_len = template.len() + bth::LEN;
        self.payload.clear();
        self.continues = None;
    }

    /// Begins the next packet of the message whose packet is in the buffer: no extended headers, and `len` bytes of a
    /// window, a multiple of 4, as payload.
    #[inline]
    pub fn continue_message(
        &mut self,
        template: &Template,
        window: &Window,
        offset: usize,
        len: usize,
    ) {
        let front = template.len() + bth::LEN;
        if self.head_len != front
            && let Some(place) = self.head.first_chunk_mut()
        {
            // The first packet of a WRITE has a RETH.
            template.begin(place);
            template.complete(place, bth::LEN + len + icrc::LEN);
            self.head_len = front;
        }
        self.payload.clear();
        self.refer(window, offset, len);
    }

    /// Adds an extended header.
    #[inline]
    pub fn extend<const N: usize>(&mut self, header: [u8; N]) {
        let rest = self.head.get_mut(self.head_len..).unwrap_or_default();
        if let Some(place) = rest.first_chunk_mut() {
            *place = header;
            self.head_len += N;
        }
    }

    /// Appends payload by copy: at most a MAD in all.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        if let Some(place) = self.head.get_mut(self.head_len..self.head_len + bytes.len()) {
            place.copy_from_slice(bytes);
            self.head_len += bytes.len();
        }
    }

    /// Appends the first `len` bytes of `bytes` as payload.
    #[inline]
    pub fn copy_short(&mut self, bytes: [u8; 8], len: usize) {
        let rest = self.head.get_mut(self.head_len..).unwrap_or_default();
        if let Some(place) = rest.first_chunk_mut() {
            // The bytes behind the payload are not sent.
            *place = bytes;
            self.head_len += len.min(bytes.len());
        }
    }

    /// Appends `len` bytes of a window, from `offset` on, as payload by reference.
    #[inline]
    pub fn refer(&mut self, window: &Window, offset: usize, len: usize) {
        if len > 0
            && let Some(part) = window.slice(offset, len)
        {
            self.payload.push(part);
        }
    }

    /// Sets `len` bytes of several windows, from `offset` on, as payload by reference.
    pub fn refer_part(&mut self, windows: &Sges, offset: usize, len: usize) {
        windows.part(offset, len, &mut self.payload);
    }
}

/// Assembles packets.
#[derive(Debug)]
pub struct Emitter {
    icrc: Icrc,
}

impl Emitter {
    /// An emitter that computes with `icrc`.
    pub fn new(icrc: Icrc) -> Self {
        Emitter { icrc }
    }

    /// Completes the packet in `tx`, which was begun with `template`, with `bth`. Its pad count is filled in here.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    pub fn emit(&self, tx: &mut TxBuffer, template: &Template, bth: Bth) {
        // Extended headers are whole words, so they do not change the pad.
        let behind = tx.head_len - template.len() + tx.payload.len();
        let pad = behind.wrapping_neg() & 3;
        if let Some(place) = tx.head.get_mut(template.len()..).and_then(|h| h.first_chunk_mut()) {
            Bth { pad: pad as u8, ..bth }.emit(place);
        }
        if let Some(place) = tx.head.first_chunk_mut() {
            template.complete(place, behind + pad + icrc::LEN);
        }
        self.close(tx, template, pad);
    }

    /// Completes a packet in `tx` that was begun by [`TxBuffer::continue_message`].
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    pub fn emit_middle(&self, tx: &mut TxBuffer, template: &Template, bth: Bth) {
        if let Some(place) = tx.head.get_mut(template.len()..).and_then(|h| h.first_chunk_mut()) {
            bth.emit(place);
        }
        self.close(tx, template, 0);
    }

    /// Appends pad and ICRC to a packet.
    // Inlined with the rest of the transmit path: 286 instructions a packet instead of 340 (`bench roce`).
    #[inline(always)]
    fn close(&self, tx: &mut TxBuffer, template: &Template, pad: usize) {
        let headers = tx.head.get(ETHERNET_LEN..tx.head_len).unwrap_or_default();
        let icrc = self.icrc.compute(template.network(), headers, tx.payload.as_slice(), pad);
        // The pad is zero; the ICRC is stored with its least significant byte first.
        tx.trailer = (u64::from(u32::from_le_bytes(icrc)) << (8 * pad)).to_le_bytes();
        tx.trailer_len = pad + icrc::LEN;
    }
}
