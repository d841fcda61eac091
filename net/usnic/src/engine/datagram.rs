//! The datagram to send. There is one buffer, and header fields that do not change are not written again.

use super::send::Fragment;
use super::{Channel, NONE};
use crate::wire::header::MAX_HEADER;
use core::net::{Ipv4Addr, SocketAddrV4};
use drivers::hal::Window;

/// A datagram to send: a header, and the payload after it.
#[derive(Debug)]
pub struct Transmit {
    /// Number of the interface.
    pub interface: usize,
    /// Channel whose port is the source.
    pub channel: Channel,
    /// Destination.
    pub to: SocketAddrV4,
    /// Whether to set Don't Fragment, because the datagram tests the path MTU.
    pub dont_fragment: bool,
    pub(super) header: [u8; MAX_HEADER],
    pub(super) length: usize,
    payload: [Window; 2],
    pub(super) windows: usize,
    /// The endpoint, if this is a new CHUNK without an ACK: the header of the next CHUNK then differs in a few fields.
    /// [`NONE`] otherwise.
    pub(super) chunk_of: u32,
}

impl Transmit {
    pub(super) fn new() -> Self {
        Transmit {
            interface: 0,
            channel: Channel::Data,
            to: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            dont_fragment: false,
            header: [0; MAX_HEADER],
            length: 0,
            payload: [Window::empty(); 2],
            windows: 0,
            chunk_of: NONE,
        }
    }

    /// The first bytes of the UDP payload.
    #[inline]
    pub fn header(&self) -> &[u8] {
        self.header.get(..self.length).unwrap_or(&[])
    }

    /// The rest of the UDP payload, in place. Copy it before the memory of a sent message returns to the user.
    #[inline]
    pub fn payload(&self) -> &[Window] {
        self.payload.get(..self.windows).unwrap_or(&[])
    }

    /// Bytes of UDP payload.
    pub fn len(&self) -> usize {
        self.length + self.payload().iter().map(Window::len).sum::<usize>()
    }

    /// Whether it has no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer for a new header.
    #[inline]
    pub(super) fn header_mut(&mut self) -> &mut [u8; MAX_HEADER] {
        self.chunk_of = NONE;
        &mut self.header
    }

    /// Sets the payload.
    #[inline]
    pub(super) fn set_payload(&mut self, payload: Window) {
        self.windows = usize::from(!payload.is_empty());
        self.payload[0] = payload;
    }

    /// Sets a part of a non-empty fragment as the payload.
    #[inline]
    pub(super) fn set_part(&mut self, fragment: &Fragment, offset: u32, length: u32) {
        match fragment.windows[0].slice(offset as usize, length as usize) {
            Some(payload) => {
                self.windows = 1;
                self.payload[0] = payload;
            }
            None => self.set_pieces(fragment.pieces(offset, length)),
        }
    }

    /// Sets a payload of two pieces.
    #[inline(never)]
    fn set_pieces(&mut self, pieces: [Window; 2]) {
        self.windows = match pieces {
            [_, second] if !second.is_empty() => 2,
            [first, _] => usize::from(!first.is_empty()),
        };
        self.payload = pieces;
    }
}
