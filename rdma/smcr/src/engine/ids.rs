//! IDs of sockets and of work requests.

/// ID of a socket: its token in CDC messages of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub(super) u32);

impl SocketId {
    /// ID of no socket.
    pub(super) const NONE: SocketId = SocketId(0);

    pub(super) fn new(key: usize, generation: u16) -> Self {
        SocketId(u32::from(generation) << 16 | (key as u32 + 1))
    }

    /// The token in CDC messages.
    pub fn token(self) -> u32 {
        self.0
    }

    /// Slot of the socket, which a later socket may reuse.
    pub fn place(self) -> usize {
        self.key()
    }

    pub(super) fn key(self) -> usize {
        (self.0 & 0xffff).wrapping_sub(1) as usize
    }
}

/// ID of a work request: group, link, and number of the receive or SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId(u64);

impl WorkId {
    pub fn new(group: usize, link: usize, receive: usize) -> Self {
        WorkId((group as u64) << 32 | (link as u64) << 16 | receive as u64)
    }
    pub fn from_bits(bits: u64) -> Self {
        WorkId(bits)
    }
    pub fn to_bits(self) -> u64 {
        self.0
    }
    pub fn group(self) -> usize {
        (self.0 >> 32) as usize
    }
    pub fn link(self) -> usize {
        (self.0 >> 16) as usize & 0xffff
    }
    pub fn receive(self) -> usize {
        self.0 as usize & 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        let id = WorkId::from_bits(WorkId::new(70_000, 2, 63).to_bits());
        assert_eq!((id.group(), id.link(), id.receive()), (70_000, 2, 63));
        assert_eq!(SocketId::new(0, 0).0, 1, "a token is not 0");
        assert_eq!(SocketId::new(0xfffd, 0xffff).key(), 0xfffd);
    }
}
