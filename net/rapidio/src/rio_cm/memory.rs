//! Memory for messages that were not read yet: who may have how much of it, whatever the others do.
//!
//! Of a channel between our own, what the other end was told that it may send is set aside until our user has taken it,
//! so that nothing is thrown away that was promised room. One message of each such channel is set aside for good, and it
//! always goes on. The rest is shared: a channel may have a quarter of what is free at most, so that many that are busy
//! come to equal parts, and who comes late finds some. What is promised is half of it at most; messages of stock peers,
//! which are promised nothing, take what is free.

use super::MOST_CHANNELS;
use super::flow::WINDOW;

/// Messages that are shared: 8 MiB. Those that are set aside for each channel come to this.
const SHARED: usize = 2048;
/// How many of these may be promised.
const PROMISED: usize = SHARED / 2;
/// Set aside for each channel between our own.
const OWN: u16 = 1;
/// Messages in all channels at most.
pub(super) const MOST: usize = SHARED + MOST_CHANNELS * OWN as usize;

/// What is used of the shared part.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Messages of stock peers, and what is promised.
    used: usize,
    /// What is promised.
    promised: usize,
}

impl Memory {
    /// A message of a stock peer is to be kept; false if there is no room.
    pub fn keep(&mut self) -> bool {
        let has_room = !self.is_full();
        self.used += usize::from(has_room);
        has_room
    }

    /// So many messages of stock peers are kept no more.
    pub fn forget(&mut self, count: usize) {
        self.used -= count;
    }

    /// Whether nothing of stock peers can be kept.
    pub fn is_full(&self) -> bool {
        self.used >= SHARED
    }

    /// How many of `more` a channel is promised that has been promised `held`.
    pub fn promise(&mut self, held: u16, more: u16) -> u16 {
        let free = (PROMISED - self.promised).min(SHARED - self.used);
        let most = WINDOW.min(OWN + (free / 4) as u16);
        let promised = most.saturating_sub(held).min(more);
        self.count(shared(held + promised) - shared(held));
        promised
    }

    /// A channel that was promised `held` needs `less` of it no more.
    pub fn release(&mut self, held: u16, less: u16) {
        let count = shared(held) - shared(held - less);
        self.used -= count;
        self.promised -= count;
    }

    fn count(&mut self, more: usize) {
        self.used += more;
        self.promised += more;
    }

    /// What is used: for tests.
    pub fn used(&self) -> usize {
        self.used
    }
}

/// How much of what a channel was promised is of the shared part.
fn shared(held: u16) -> usize {
    held.saturating_sub(OWN).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_late_finds_some_and_each_has_one() {
        let mut memory = Memory::default();
        let mut held = [0u16; MOST_CHANNELS];
        for channel in &mut held {
            *channel += memory.promise(*channel, WINDOW);
            assert!(*channel >= OWN, "each has its own");
            assert!(memory.used <= PROMISED && memory.used == memory.promised);
        }
        assert_eq!((held[0], memory.promise(held[0], 1)), (WINDOW, 0));
        assert!(held[20] > OWN, "{} are left for the twentieth", held[20]);
        // Who is busy gives back and is promised anew, and all come to the same.
        for _ in 0..200 {
            for channel in &mut held[..100] {
                memory.release(*channel, 1);
                *channel -= 1;
                *channel += memory.promise(*channel, 2);
                assert!(*channel >= OWN);
            }
        }
        let (least, most) = (held[..100].iter().min(), held[..100].iter().max());
        assert!(least >= Some(&8) && most <= Some(&12), "{least:?} {most:?}");
        // Half is left to stock peers, and no more than there is.
        let kept = (0..2 * SHARED).filter(|_| memory.keep()).count();
        assert!(kept >= SHARED - PROMISED && memory.used == SHARED && memory.is_full());
        assert_eq!(memory.promise(OWN, 5), 0);
        memory.forget(kept);
        held.iter().for_each(|held| memory.release(*held, *held));
        assert_eq!((memory.used, memory.promised), (0, 0));
    }
}
