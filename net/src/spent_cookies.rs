//! SYN cookies that were taken in. A cookie says only that its peer has received it; that it has made a connection
//! already is not in it. What a peer sends right behind its handshake has the same numbers, and comes after the
//! connection is gone where that was refused at once: without this it would be one more connection, that is
//! refused, counted and reset once more; and so would a frame be that the network delivers twice.
//!
//! A table of fixed size, by a keyed hash. Who knows the key alone knows which cookies share a place, and only one
//! that was received gets in. One that is pushed out by another is worth a connection again while it is young.

use crate::isn::Secret;
use crate::segment::Ends;
use alloc::boxed::Box;
use alloc::vec;

/// Places, a power of two: what arrives behind a handshake does so within a round trip or two.
const PLACES: usize = 1024;

/// The cookies of an interface that were taken in.
pub struct SpentCookies {
    /// Hashes of both ends, the peer's number and the cookie, which has the time in it.
    places: Box<[u64]>,
    secret: Secret,
}

impl SpentCookies {
    /// None yet.
    pub fn new(secret: Secret) -> Self {
        SpentCookies { places: vec![0; PLACES].into(), secret }
    }

    /// Takes note that this cookie, the answer to a SYN with the sequence number `theirs`, was taken in. False if it
    /// was before.
    pub fn spend(&mut self, ends: Ends, theirs: u32, cookie: u32) -> bool {
        let (place, hash) = self.place(ends, theirs, cookie);
        core::mem::replace(&mut self.places[place], hash) != hash
    }

    /// Whether it was taken in.
    pub fn has(&self, ends: Ends, theirs: u32, cookie: u32) -> bool {
        let (place, hash) = self.place(ends, theirs, cookie);
        self.places[place] == hash
    }

    /// It may be taken in once more.
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
    use crate::testing::{question, sent, tcp, with_address};
    use core::time::Duration;
    use drivers::hal::Instant;
    use std::vec::Vec;

    const PORT: u16 = 7;
    const CLIENT: u16 = 4000;
    const LIMITS: Limits = Limits { connections: 4, receive: 512, transmit: 512 };
    const MSS: [u8; 4] = [2, 4, 5, 0xb4];
    /// The client's sequence number.
    const ISN: u32 = 100;

    /// A server that refuses everybody, and its clients.
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
            interface.handle_frame(&question(), Instant::ZERO);
            Lab { interface, owner, now: Instant::ZERO, refused: 0 }
        }

        /// The server takes what there is to take, and refuses it as one with a list of hosts does.
        fn refuse(&mut self) {
            while let Some(name) = self.interface.connections().accept(self.owner) {
                self.interface.connections().leave(name, true, self.now);
                self.refused += 1;
            }
            while self.interface.connections().next_turned_away(self.owner).is_some() {
                self.refused += 1;
            }
        }

        /// A client's segment arrives.
        fn hear(&mut self, port: u16, flags: u8, sequence: u32, acknowledged: u32, data: &[u8]) {
            let options: &[u8] = if flags == SYN { &MSS } else { &[] };
            let frame = tcp(ends(port), flags, sequence, acknowledged, options, data);
            self.interface.handle_frame(&frame, self.now);
        }

        /// A round: what is said to clients, flags and sequence numbers.
        fn round(&mut self) -> Vec<(u8, u32)> {
            self.refuse();
            sent(&mut self.interface, self.now).iter().map(|said| (said.0, said.1)).collect()
        }

        /// A client calls; what acknowledges the answer.
        fn call(&mut self, port: u16) -> u32 {
            self.hear(port, SYN, ISN, 0, &[]);
            let said = self.round();
            let [(flags, number)] = said[..] else { panic!("{said:?}") };
            assert_eq!(flags, SYN | ACK);
            number.wrapping_add(1)
        }

        /// Whether all that is said is a reset, once for each of `segments`.
        fn resets(&mut self, segments: usize) {
            let said = self.round();
            assert!(said.iter().all(|&(flags, _)| flags & RST != 0), "{said:?}");
            assert_eq!(said.len(), segments, "{said:?}");
        }

        fn later(&mut self, milliseconds: u64) {
            self.now = self.now + Duration::from_millis(milliseconds);
        }
    }

    #[test]
    fn who_is_refused_and_has_sent_data_already_is_refused_once() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.call(CLIENT);
        lab.hear(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // All of this was on its way when the reset was sent, some of it twice.
        for _ in 0..2 {
            for (at, data) in [(0, &b"GET /"[..]), (5, b" HTTP"), (10, b"/1.1")] {
                lab.hear(CLIENT, ACK, ISN + 1 + at, next, data);
                lab.resets(1);
            }
        }
        // And the handshake's own last segment, as long as its cookie is good and after that.
        for _ in 0..50 {
            lab.later(1000);
            lab.hear(CLIENT, ACK, ISN + 1, next, &[]);
            lab.resets(1);
        }
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    #[test]
    fn all_segments_in_one_round_are_refused_once() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.call(CLIENT);
        lab.hear(CLIENT, ACK, ISN + 1, next, &[]);
        lab.refuse();
        for at in [0, 5, 10, 0] {
            lab.hear(CLIENT, ACK, ISN + 1 + at, next, b"12345");
        }
        lab.resets(4);
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    #[test]
    fn whom_there_is_no_place_for_is_turned_away_once() {
        let mut lab = Lab::new(Limits { connections: 1, ..LIMITS });
        let (first, second) = (lab.call(CLIENT), lab.call(CLIENT + 1));
        lab.hear(CLIENT, ACK, ISN + 1, first, &[]);
        lab.hear(CLIENT + 1, ACK, ISN + 1, second, &[]);
        lab.hear(CLIENT + 1, ACK, ISN + 1, second, b"hello");
        let said = lab.round();
        assert!(said.iter().filter(|&&(flags, _)| flags & RST != 0).count() >= 2, "{said:?}");
        assert_eq!(lab.refused, 2, "each once");
    }

    #[test]
    fn a_syn_that_comes_twice_is_one_client() {
        let mut lab = Lab::new(LIMITS);
        let next = lab.call(CLIENT);
        assert_eq!(lab.call(CLIENT), next, "the answer is the same");
        lab.hear(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // The second answer is acknowledged once more.
        lab.hear(CLIENT, ACK, ISN + 1, next, &[]);
        lab.resets(1);
        // A third SYN was held up on its way, and so was data.
        lab.call(CLIENT);
        lab.hear(CLIENT, ACK, ISN + 1, next, b"hello");
        lab.resets(1);
        assert_eq!((lab.refused, lab.interface.tcp().sizes()[0]), (1, 0));
    }

    /// As a small machine does that was booted anew.
    #[test]
    fn who_calls_again_with_the_same_numbers_is_a_client_again() {
        let mut lab = Lab::new(LIMITS);
        let mut before = None;
        for clients in 1..5 {
            let next = lab.call(CLIENT);
            assert_ne!(before.replace(next), Some(next));
            lab.hear(CLIENT, ACK, ISN + 1, next, b"hello");
            lab.resets(1);
            assert_eq!(lab.refused, clients);
            lab.later(100);
        }
    }

    /// Others may fill the table: then a client may be counted twice, but nobody is kept out.
    #[test]
    fn ten_thousand_clients_keep_nobody_out() {
        let mut lab = Lab::new(LIMITS);
        for port in 5000..15_000 {
            let next = lab.call(port);
            lab.hear(port, ACK, ISN + 1, next, b"hello");
            lab.resets(1);
        }
        assert_eq!(lab.refused, 10_000);
    }
}
