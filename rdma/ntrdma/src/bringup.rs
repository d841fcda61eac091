//! State table of the bring-up: from observations of the peer to the next state.
//!
//! The scratchpads carry values that cannot be confused with older ones:
//!
//! | scratchpad | written by the peer |
//! |---|---|
//! | 0 | its nonce, a new one each time |
//! | 1 | `greeting(local nonce, peer's nonce)`: the peer has read the local nonce, and none of its older writes is in flight |
//! | 2 | `cleared(local nonce, peer's nonce)`: the peer's memory is ready to be written |
//!
//! Each greeting depends on both nonces, so a greeting from an earlier session of either side does not match.
//! After `cleared`, introductions go through memory, and scratchpads are not read any more.
//!
//! A faulty peer may have overwritten all of this, including local writes. So a greeting is
//! repeated, and the wait for each later step has a timeout.

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The bridge is down, or local writes are still in flight.
    Down,
    /// The local nonce is written; waiting for the peer's greeting.
    Greeting,
    /// Local memory is cleared; waiting until the peer's is.
    Clearing,
    /// The local introduction is written; waiting for the peer's.
    Introducing,
    /// The link is up.
    Up,
}

/// Observations of the bridge and the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The bridge's link is up.
    pub link: bool,
    /// All local writes have arrived, and the delay after a fault of the peer is over.
    pub settled: bool,
    /// The peer's nonce has changed.
    pub new_nonce: bool,
    /// The peer has sent its greeting.
    pub greeted: bool,
    /// The peer has cleared its memory.
    pub cleared: bool,
    /// The peer has sent its introduction.
    pub introduced: bool,
    /// The peer's introduction is invalid, or it has violated the protocol.
    pub wrong: bool,
    /// The peer has timed out, or has sent its last heartbeat.
    pub silent: bool,
}

impl State {
    /// The next state.
    pub fn next(self, seen: Seen) -> State {
        use State::*;
        match self {
            _ if !seen.link => Down,
            Down if seen.settled => Greeting,
            Greeting if seen.greeted => Clearing,
            // A peer with a new nonce has to begin with a greeting.
            Clearing | Introducing if seen.new_nonce || seen.wrong || seen.silent => Down,
            Clearing if seen.cleared => Introducing,
            Introducing if seen.introduced => Up,
            Up if seen.silent || seen.wrong => Down,
            same => same,
        }
    }
}

/// The greeting for the peer with nonce `to`, from nonce `from`. Never 0.
pub fn greeting(to: u32, from: u32) -> u32 {
    mix(to, from) | 1
}

/// The value that reports to the peer with nonce `to` that memory is cleared. Never a greeting, nor 0.
pub fn cleared(to: u32, from: u32) -> u32 {
    mix(to, from) & !1 | 1 << 31
}

/// The number of a session, the same on both sides. Never 0.
pub fn session(a: u32, b: u32) -> u32 {
    mix(a.min(b), a.max(b)).max(1)
}

/// The nonce after `nonce`; never 0.
pub fn next_nonce(nonce: u32) -> u32 {
    nonce.wrapping_add(0x9e37_79b9).max(1)
}

fn mix(a: u32, b: u32) -> u32 {
    let both = (u64::from(a) << 32 | u64::from(b)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((both ^ both >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;
    use std::string::String;

    #[test]
    fn table() {
        use State::*;
        let link = Seen { link: true, ..Seen::default() };
        let columns = [
            ("no link", Seen::default()),
            ("nothing", link),
            ("settled", Seen { settled: true, ..link }),
            ("greeted", Seen { greeted: true, ..link }),
            ("cleared", Seen { cleared: true, ..link }),
            ("introduced", Seen { introduced: true, ..link }),
            ("wrong", Seen { introduced: true, wrong: true, ..link }),
            ("stranger", Seen { cleared: true, introduced: true, new_nonce: true, ..link }),
            ("silent", Seen { silent: true, ..link }),
        ];
        let mut text = String::new();
        for (name, seen) in columns {
            write!(text, "{name:11}").unwrap();
            for state in [Down, Greeting, Clearing, Introducing, Up] {
                let next = state.next(seen);
                let shown = if next == state { ".".into() } else { std::format!("{next:?}") };
                write!(text, "{shown:12}").unwrap();
            }
            text = text.trim_end().into();
            text.push('\n');
        }
        // From:    Down        Greeting    Clearing    Introducing Up
        let reviewed = "\
no link    .           Down        Down        Down        Down
nothing    .           .           .           .           .
settled    Greeting    .           .           .           .
greeted    .           Clearing    .           .           .
cleared    .           .           Introducing .           .
introduced .           .           .           Up          .
wrong      .           .           Down        Down        Down
stranger   .           .           Down        Down        .
silent     .           .           Down        Down        Down
";
        assert_eq!(text, reviewed, "{text}");
    }

    #[test]
    fn greetings_of_other_nonces_do_not_match() {
        let nonces = [1, 2, 3, 0x9e37_79b9, u32::MAX];
        let mut all = std::vec::Vec::new();
        for a in nonces {
            for b in nonces {
                all.extend([greeting(a, b), cleared(a, b)]);
                assert_eq!(session(a, b), session(b, a));
            }
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(!all.contains(&0));
    }
}
