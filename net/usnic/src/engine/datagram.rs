//! A datagram that is to be sent. There is one at a time, and what of its header is as in the last is left as it is.

use super::send::Fragment;
use super::{Channel, NONE};
use crate::wire::header::MAX_HEADER;
use core::net::{Ipv4Addr, SocketAddrV4};
use drivers::hal::Window;

/// A datagram to send: a header, and behind it the payload.
#[derive(Debug)]
pub struct Transmit {
    /// At which interface.
    pub interface: usize,
    /// From which of its ports.
    pub channel: Channel,
    /// Where to.
    pub to: SocketAddrV4,
    /// Routers must not fragment it: it finds out what the path carries.
    pub dont_fragment: bool,
    pub(super) header: [u8; MAX_HEADER],
    pub(super) length: usize,
    payload: [Window; 2],
    pub(super) windows: usize,
    /// The endpoint of which this is a new CHUNK that acknowledges nothing, whose header differs little from that of the
    /// next; or none.
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

    /// The rest of it, where it lies: read it before memory that was given to be sent is the user's again.
    #[inline]
    pub fn payload(&self) -> &[Window] {
        self.payload.get(..self.windows).unwrap_or(&[])
    }

    /// Bytes of UDP payload.
    pub fn len(&self) -> usize {
        self.length + self.payload().iter().map(Window::len).sum::<usize>()
    }

    /// Whether it has no bytes, which none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a header that is written next; its room.
    #[inline(always)]
    pub(super) fn header_mut(&mut self) -> &mut [u8; MAX_HEADER] {
        self.chunk_of = NONE;
        &mut self.header
    }

    /// Takes a payload.
    #[inline(always)]
    pub(super) fn set_payload(&mut self, payload: Window) {
        self.windows = usize::from(!payload.is_empty());
        self.payload[0] = payload;
    }

    /// Takes a part of a fragment, which has bytes, as payload.
    #[inline(always)]
    pub(super) fn set_part(&mut self, fragment: &Fragment, offset: u32, length: u32) {
        match fragment.windows[0].slice(offset as usize, length as usize) {
            Some(payload) => {
                self.windows = 1;
                self.payload[0] = payload;
            }
            None => self.set_pieces(fragment.pieces(offset, length)),
        }
    }

    /// Takes a payload that lies in two pieces.
    #[inline(never)]
    fn set_pieces(&mut self, pieces: [Window; 2]) {
        self.windows = match pieces {
            [_, second] if !second.is_empty() => 2,
            [first, _] => usize::from(!first.is_empty()),
        };
        self.payload = pieces;
    }
}
