//! Whether a server was restarted since a path last connected to it: what it had answered and not
//! made durable may then be lost.
//!
//! Our servers say so ([`crate::wire::ConnectResponse`], `incarnation`). A stock one forgets a
//! session with its last path, and then refuses `first_conn` 0, whether it was restarted or only
//! cut off: that tells nothing. But its connection manager (Linux: drivers/infiniband/core/cm.c)
//! numbers connections by counting up, and hides the count behind a number that it draws once, when
//! the module is loaded: `local_id = id ^ cm.random_id_operand`. Two such numbers of one life differ
//! like two counts that are close; of two lives, they do so by chance once in 180,000 times.

use super::Client;
use verbs::{ConnectionId, RdmaDevice};

/// Connections that a server may have numbered between two of ours, as a power of two.
const NEAR: u32 = 10;

/// What tells one life of a server from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Life {
    /// What the server says of it; 0 for nothing.
    pub incarnation: u64,
    /// The number by which its connection manager knows the newest connection, as read from the wire
    /// in network byte order.
    pub connection: Option<u32>,
}

/// Whether a server is the one that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// It was not started anew.
    Same,
    /// It was restarted.
    Anew,
    /// Nobody can tell.
    Unknown,
}

impl Life {
    /// What a later sign of life says of the server.
    pub fn compare(&self, later: &Life) -> Continuity {
        if self.incarnation != 0 || later.incarnation != 0 {
            return match self.incarnation == later.incarnation {
                true => Continuity::Same,
                false => Continuity::Anew,
            };
        }
        let (Some(one), Some(other)) = (self.connection, later.connection) else {
            return Continuity::Unknown;
        };
        // Linux has the count in its own byte order: little-endian on all that serve RTRS.
        let [one, other] = [one, other].map(u32::swap_bytes);
        // Who does not hide the count, or repeats it, is not Linux: nothing follows from it.
        if one == other || one >> 16 == 0 || other >> 16 == 0 {
            return Continuity::Unknown;
        }
        // Counts that are close are equal from some bit on, or a carry went through ones up to there.
        let high = (one ^ other) >> NEAR;
        match high & (high + 1) == 0 {
            true => Continuity::Same,
            false => Continuity::Anew,
        }
    }
}

impl Client {
    /// Takes a sign of life: a connection stands, whose answer told `incarnation`.
    pub(super) fn take_sign_of_life<P: RdmaDevice + ?Sized>(
        &mut self,
        connection: ConnectionId,
        incarnation: u64,
        provider: &P,
    ) {
        let later = Life { incarnation, connection: provider.peer_id(connection) };
        match self.life.compare(&later) {
            Continuity::Same => {}
            _ if self.continuity == Continuity::Anew => {}
            other => self.continuity = other,
        }
        self.life = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn linux(count: u32, mask: u32) -> Life {
        Life { incarnation: 0, connection: Some((count ^ mask).swap_bytes()) }
    }

    #[test]
    fn what_linux_numbers_is_of_one_life() {
        // Local communication IDs of the two REPs of one path, from a capture of Linux 6.12.
        let [one, other] =
            [0xbe25_0aa7, 0xbf25_0aa7].map(|id| Life { incarnation: 0, connection: Some(id) });
        assert_eq!(one.compare(&other), Continuity::Same);
        let rebooted = Life { incarnation: 0, connection: Some(0x0c81_77d3) };
        assert_eq!(other.compare(&rebooted), Continuity::Anew);
    }

    #[test]
    fn without_evidence_nothing_is_said() {
        let known = linux(7, 0x1234_5678);
        let silent = Life::default();
        assert_eq!(silent.compare(&known), Continuity::Unknown);
        assert_eq!(known.compare(&silent), Continuity::Unknown);
        // Somebody who counts and hides nothing, from the beginning again after each start.
        assert_eq!(linux(3, 0).compare(&linux(4, 0)), Continuity::Unknown);
        assert_eq!(known.compare(&known), Continuity::Unknown, "the same number twice");
    }

    #[test]
    fn what_a_server_says_counts() {
        let says = |incarnation| Life { incarnation, ..linux(7, 0x1234_5678) };
        assert_eq!(says(5).compare(&says(5)), Continuity::Same);
        assert_eq!(says(5).compare(&says(6)), Continuity::Anew);
        assert_eq!(says(5).compare(&says(0)), Continuity::Anew);
    }

    proptest! {
        #[test]
        fn counts_that_are_close_are_of_one_life(
            count: u32, more in 1..1u32 << NEAR, mask: u32,
        ) {
            let later = count.wrapping_add(more);
            let told = linux(count, mask).compare(&linux(later, mask));
            let hidden = [count, later].iter().all(|count| (count ^ mask) >> 16 != 0);
            // Wrapping around is as good as a new life; it takes four thousand million connections.
            prop_assert!(told == Continuity::Same || !hidden || later < count);
        }
    }

    #[test]
    fn another_life_is_taken_for_the_same_once_in_180_000_times() {
        let mut rng = netsim::Rng::new(9);
        let mut random = || rand_core::RngCore::next_u32(&mut rng);
        let same = (0..2_000_000)
            .filter(|_| linux(5, random()).compare(&linux(9, random())) == Continuity::Same)
            .count();
        assert!(same < 40, "{same} of two million");
    }
}
