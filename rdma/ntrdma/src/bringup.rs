//! How the link comes up, as a table: from what is seen of the peer to the next state.
//!
//! The scratchpads carry what cannot be taken for anything older:
//!
//! | scratchpad | the peer says |
//! |---|---|
//! | 0 | my nonce, drawn anew each time |
//! | 1 | `greeting(yours, mine)`: I have seen you, and nothing that I wrote before is under way |
//! | 2 | `cleared(yours, mine)`: my memory is ready to be written by you |
//!
//! Both nonces are in each greeting, so that one of an earlier life of either side fits no other.
//! After `cleared` introductions go through memory, and scratchpads are not looked at any more.
//!
//! A peer that was wrong may have written over any of it, also over what we have written. Who greets
//! says it again, therefore, and who waits for more than a greeting does not do so for ever.

/// Where the link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The bridge is down, or what we wrote is still under way.
    Down,
    /// Our nonce is out; the peer's greeting is awaited.
    Greeting,
    /// Our memory is cleared; the peer's is awaited.
    Clearing,
    /// Our introduction is out; the peer's is awaited.
    Introducing,
    /// Up.
    Up,
}

/// What is seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The bridge's link is there.
    pub link: bool,
    /// All that we wrote has arrived, and a pause after a mistake of the peer's is over.
    pub settled: bool,
    /// The peer's nonce is another than it was.
    pub stranger: bool,
    /// The peer greets us.
    pub greeted: bool,
    /// The peer has cleared its memory.
    pub cleared: bool,
    /// The peer has introduced itself.
    pub introduced: bool,
    /// Its introduction is wrong, or what it writes.
    pub wrong: bool,
    /// It has shown no sign of life for too long, or has said farewell.
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
            // Greetings of a stranger are taken only from the beginning.
            Clearing | Introducing if seen.stranger || seen.wrong || seen.silent => Down,
            Clearing if seen.cleared => Introducing,
            Introducing if seen.introduced => Up,
            Up if seen.silent || seen.wrong => Down,
            same => same,
        }
    }
}

/// What greets the peer of nonce `to`, from nonce `from`. Never 0.
pub fn greeting(to: u32, from: u32) -> u32 {
    mix(to, from) | 1
}

/// What tells the peer of nonce `to` that memory is cleared. Never a greeting, nor 0.
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
            ("stranger", Seen { cleared: true, introduced: true, stranger: true, ..link }),
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
    fn greetings_fit_nobody_else() {
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
