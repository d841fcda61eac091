//! SYN cookies that were accepted, so that each opens one connection. A cookie proves that the peer received it, but
//! not that it is used for the first time. Data right behind a handshake has the same sequence numbers. If the server
//! has refused the connection meanwhile, the data would open another one, which would be refused, counted and reset
//! again. So would a frame that the network duplicates.
//!
//! The table has a fixed size and a keyed hash. Without the key a peer cannot know which cookies share a slot. Only
//! valid cookies get in. A cookie that another one has overwritten can open a connection again until it expires.

use crate::isn::Secret;
use crate::segment::Ends;
use alloc::boxed::Box;
use alloc::vec;

/// Slots, a power of two. Data right behind a handshake arrives within a round trip or two.
const PLACES: usize = 1024;

/// Accepted cookies of an interface.
pub struct SpentCookies {
    /// Hashes of both ends, the peer's sequence number and the cookie. The cookie depends on the time.
    places: Box<[u64]>,
    secret: Secret,
}

impl SpentCookies {
    /// An empty table.
    pub fn new(secret: Secret) -> Self {
        SpentCookies { places: vec![0; PLACES].into(), secret }
    }

    /// Records that this cookie, sent for a SYN with the sequence number `theirs`, was accepted. False if it was
    /// accepted before.
    pub fn spend(&mut self, ends: Ends, theirs: u32, cookie: u32) -> bool {
        let (place, hash) = self.place(ends, theirs, cookie);
        core::mem::replace(&mut self.places[place], hash) != hash
    }

    /// Whether a cookie was accepted before.
    pub fn has(&self, ends: Ends, theirs: u32, cookie: u32) -> bool {
        let (place, hash) = self.place(ends, theirs, cookie);
        self.places[place] == hash
    }

    /// Removes a cookie, so that it can be accepted again.
    pub fn forget(&mut self, ends: Ends, theirs: u32, cookie: u32) {
        let (place, hash) = self.place(ends, theirs, cookie);
        if self.places[place] == hash {
            self.places[place] = 0;
        }
    }

    fn place(&self, ends: Ends, theirs: u32, cookie: u32) -> (usize, u64) {
        let hash = self.secret.mark(ends, theirs, cookie);
        (hash as usize % PLACES, hash)
    }
}

#[cfg(test)]
mod tests {
    use crate::Interface;
    use crate::connections::{Limits, Owner};
    use crate::segment::{ACK, Ends, RST, SYN};
    use crate::testing::{arp_request, sent, tcp, with_address};
    use core::time::Duration;
    use drivers::hal::Instant;
    use std::vec::Vec;

    const PORT: u16 = 7;
    const CLIENT: u16 = 4000;
    const LIMITS: Limits = Limits { connections: 4, receive: 512, transmit: 512 };
    const MSS: [u8; 4] = [2, 4, 5, 0xb4];
    /// The client's sequence number.
    const ISN: u32 = 100;

    /// A server that refuses every client, and its clients.
    struct Lab {
        interface: Interface,
        owner: Owner,
        now: Instant,
        /// Clients that were refused.
        refused: usize,
    }

    fn ends(remote_port: u16) -> Ends {
        let (remote, local) = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        Ends { local_port: PORT, remote_port, remote, local }
    }

    impl Lab {
        fn new(limits: Limits) -> Self {
            let mut interface = with_address();
            let owner = interface.connections().open_owner(limits);
            interface.connections().listen(PORT, owner);
            interface.handle_frame(&arp_request(), Instant::ZERO);
            Lab { interface, owner, now: Instant::ZERO, refused: 0 }
        }

        /// The server accepts all connections and resets them, as a server with a list of allowed hosts does.
        fn refuse(&mut self) {
            while let Some(name) = self.interface.connections().accept(self.owner) {
                self.interface.connections().release(name, true, self.now);
                self.refused += 1;
            }
            while self.interface.connections().next_turned_away(self.owner).is_some() {
                self.refused += 1;
            }
        }

        /// A client's segment arrives.
        fn receive(&mut self, port: u16, flags: u8, sequence: u32, acknowledged: u32, data: &[u8]) {
            let options: &[u8] = if flags == SYN { &MSS } else { &[] };
            let frame = tcp(ends(port), flags, sequence, acknowledged, options, data);
            self.interface.handle_frame(&frame, self.now);
        }

        /// One poll: flags and sequence numbers of the segments sent to clients.
        fn round(&mut self) -> Vec<(u8, u32)> {
            self.refuse();
            sent(&mut self.interface, self.now).iter().map(|sent| (sent.0, sent.1)).collect()
        }

        /// A client sends a SYN. Returns the acknowledgement number for the SYN-ACK.
        fn send_syn(&mut self, port: u16) -> u32 {
            self.receive(port, SYN, ISN, 0, &[]);
            let sent = self.round();
            let [(flags, number)] = sent[..] else { panic!("{sent:?}") };
            assert_eq!(flags, SYN | ACK);
            number.wrapping_add(1)
        }

        /// Asserts that only resets are sent, one for each of `segments`.
        fn resets(&mut self, segments: usize) {
            let sent = self.round();
            assert!(sent.iter().all(|&(flags, _)| flags & RST != 0), "{sent:?}");
            assert_eq!(sent.len(), segments, "{sent:?}");
        }

        fn later(&mut self, milliseconds: u64) {
            self.now = self.now + Duration::from_millis(milliseconds);
        }
    }

    #[test]
    fn refused_client_with_data_in_flight_is_counted_once() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.send_syn(CLIENT);
        lab.receive(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // Data in flight when the reset was sent, and duplicates of it.
        for _ in 0..2 {
            for (at, data) in [(0, &b"GET /"[..]), (5, b" HTTP"), (10, b"/1.1")] {
                lab.receive(CLIENT, ACK, ISN + 1 + at, next, data);
                lab.resets(1);
            }
        }
        // The handshake's ACK again, while its cookie is valid and after it has expired.
        for _ in 0..50 {
            lab.later(1000);
            lab.receive(CLIENT, ACK, ISN + 1, next, &[]);
            lab.resets(1);
        }
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    #[test]
    fn all_segments_in_one_round_are_refused_once() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.send_syn(CLIENT);
        lab.receive(CLIENT, ACK, ISN + 1, next, &[]);
        lab.refuse();
        for at in [0, 5, 10, 0] {
            lab.receive(CLIENT, ACK, ISN + 1 + at, next, b"12345");
        }
        lab.resets(4);
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    #[test]
    fn client_without_a_place_is_turned_away_once() {
        let mut lab = Lab::new(Limits { connections: 1, ..LIMITS });
        let (first, second) = (lab.send_syn(CLIENT), lab.send_syn(CLIENT + 1));
        lab.receive(CLIENT, ACK, ISN + 1, first, &[]);
        lab.receive(CLIENT + 1, ACK, ISN + 1, second, &[]);
        lab.receive(CLIENT + 1, ACK, ISN + 1, second, b"hello");
        let sent = lab.round();
        assert!(sent.iter().filter(|&&(flags, _)| flags & RST != 0).count() >= 2, "{sent:?}");
        assert_eq!(lab.refused, 2, "each once");
    }

    #[test]
    fn duplicate_syn_counts_as_one_client() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.send_syn(CLIENT);
        assert_eq!(lab.send_syn(CLIENT), next, "the answer is the same");
        lab.receive(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // The client acknowledges the second SYN-ACK.
        lab.receive(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // A third SYN arrives late, and so does data.
        lab.send_syn(CLIENT);
        lab.receive(CLIENT, ACK, ISN + 1, next, b"hello");
        lab.resets(1);
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    /// A small machine may do so after a reboot.
    #[test]
    fn client_that_reconnects_with_the_same_numbers_is_counted_again() {
        let mut lab = Lab::new(LIMITS);
        let mut before = None;
        for clients in 1..5 {
            let next = lab.send_syn(CLIENT);
            assert_ne!(before.replace(next), Some(next));
            lab.receive(CLIENT, ACK, ISN + 1, next, b"hello");
            lab.resets(1);
            assert_eq!(lab.refused, clients);
            lab.later(100);
        }
    }

    /// When other clients fill the table, a client may be counted twice, but none is locked out.
    #[test]
    fn full_table_locks_no_client_out() {
        let mut lab = Lab::new(LIMITS);
        for port in 5000..15_000 {
            let next = lab.send_syn(port);
            lab.receive(port, ACK, ISN + 1, next, b"hello");
            lab.resets(1);
        }
        assert_eq!(lab.refused, 10_000);
    }
}
