//! Detects whether a server was restarted since a path last connected: acknowledged but unflushed writes may then be
//! lost.
//!
//! Our servers report it ([`crate::wire::ConnectResponse`], `incarnation`). A stock server forgets a session with its
//! last path, and then refuses `first_conn` 0, whether it was restarted or only disconnected: that is no evidence. But
//! its connection manager (Linux: drivers/infiniband/core/cm.c) numbers connections by counting up, and masks the count
//! with a random number that it draws once, when the module is loaded: `local_id = id ^ cm.random_id_operand`. Two such
//! numbers of one boot differ like two close counts; two numbers of different boots do so by chance once in 180,000
//! times.

use super::Client;
use verbs::{ConnectionId, RdmaDevice};

/// Connections that a server may number between two of ours, as a power of two.
const NEAR: u32 = 10;

/// Identity of one boot of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerIdentity {
    /// The incarnation that the server reports; 0 for none.
    pub incarnation: u64,
    /// The local ID of the newest connection at the server's connection manager, as read from the wire in network byte
    /// order.
    pub connection: Option<u32>,
}

/// Whether a server was restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// It was not restarted.
    Same,
    /// It was restarted.
    Anew,
    /// Unknown, without evidence.
    Unknown,
}

impl ServerIdentity {
    /// Compares with the identity of a later connection.
    pub fn compare(&self, later: &ServerIdentity) -> Continuity {
        if self.incarnation != 0 || later.incarnation != 0 {
            return match self.incarnation == later.incarnation {
                true => Continuity::Same,
                false => Continuity::Anew,
            };
        }
        let (Some(one), Some(other)) = (self.connection, later.connection) else {
            return Continuity::Unknown;
        };
        // Linux has the count in CPU byte order: little-endian on all servers of RTRS.
        let [one, other] = [one, other].map(u32::swap_bytes);
        // A server that does not mask the count, or repeats it, is not Linux: no evidence.
        if one == other || one >> 16 == 0 || other >> 16 == 0 {
            return Continuity::Unknown;
        }
        // Close counts are equal above some bit, or a carry has run through ones up to there.
        let high = (one ^ other) >> NEAR;
        match high & (high + 1) == 0 {
            true => Continuity::Same,
            false => Continuity::Anew,
        }
    }
}

impl Client {
    /// Updates the server's identity from an established connection, whose response had `incarnation`.
    pub(super) fn update_identity<P: RdmaDevice + ?Sized>(
        &mut self,
        connection: ConnectionId,
        incarnation: u64,
        provider: &P,
    ) {
        let later = ServerIdentity { incarnation, connection: provider.peer_id(connection) };
        match self.identity.compare(&later) {
            Continuity::Same => {}
            _ if self.continuity == Continuity::Anew => {}
            other => self.continuity = other,
        }
        self.identity = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn linux(count: u32, mask: u32) -> ServerIdentity {
        ServerIdentity { incarnation: 0, connection: Some((count ^ mask).swap_bytes()) }
    }

    #[test]
    fn ids_of_a_linux_capture_are_of_one_boot() {
        // Local communication IDs of the two REPs of one path, from a capture of Linux 6.12.
        let [one, other] = [0xbe25_0aa7, 0xbf25_0aa7]
            .map(|id| ServerIdentity { incarnation: 0, connection: Some(id) });
        assert_eq!(one.compare(&other), Continuity::Same);
        let rebooted = ServerIdentity { incarnation: 0, connection: Some(0x0c81_77d3) };
        assert_eq!(other.compare(&rebooted), Continuity::Anew);
    }

    #[test]
    fn missing_evidence_is_unknown() {
        let known = linux(7, 0x1234_5678);
        let unknown = ServerIdentity::default();
        assert_eq!(unknown.compare(&known), Continuity::Unknown);
        assert_eq!(known.compare(&unknown), Continuity::Unknown);
        // A server that counts without a mask, from the beginning after each start.
        assert_eq!(linux(3, 0).compare(&linux(4, 0)), Continuity::Unknown);
        assert_eq!(known.compare(&known), Continuity::Unknown, "the same number twice");
    }

    #[test]
    fn reported_incarnation_decides() {
        let reports = |incarnation| ServerIdentity { incarnation, ..linux(7, 0x1234_5678) };
        assert_eq!(reports(5).compare(&reports(5)), Continuity::Same);
        assert_eq!(reports(5).compare(&reports(6)), Continuity::Anew);
        assert_eq!(reports(5).compare(&reports(0)), Continuity::Anew);
    }

    proptest! {
        #[test]
        fn close_counts_are_of_one_boot(
            count: u32, more in 1..1u32 << NEAR, mask: u32,
        ) {
            let later = count.wrapping_add(more);
            let continuity = linux(count, mask).compare(&linux(later, mask));
            let hidden = [count, later].iter().all(|count| (count ^ mask) >> 16 != 0);
            // A wrap-around looks like a restart; it takes four thousand million connections.
            prop_assert!(continuity == Continuity::Same || !hidden || later < count);
        }
    }

    #[test]
    fn different_boots_look_the_same_once_in_180_000_times() {
        let mut rng = netsim::Rng::new(9);
        let mut random = || rand_core::Rng::next_u32(&mut rng);
        let same = (0..2_000_000)
            .filter(|_| linux(5, random()).compare(&linux(9, random())) == Continuity::Same)
            .count();
        assert!(same < 40, "{same} of two million");
    }
}
