//! Accounting of memory for unread messages: shares of channels, independent of the load of others.
//!
//! For a flow-controlled channel, memory is reserved for every granted credit until the user has taken the message, so
//! that no message with credit is dropped. One message of each such channel is reserved permanently, so it always makes
//! progress. The rest is shared: a channel may have at most a quarter of the free part, so that many busy channels
//! converge to equal parts, and a new channel finds some left. At most half of the shared part is granted. Messages of
//! stock peers, which have no credits, use the free part.

use super::MOST_CHANNELS;
use super::flow::WINDOW;

/// Messages in the shared part: 8 MiB. The messages reserved per channel are added to it.
const SHARED: usize = 2048;
/// Messages of the shared part that may be granted.
const MOST_GRANTED: usize = SHARED / 2;
/// Messages reserved permanently for each flow-controlled channel.
const OWN: u16 = 1;
/// Maximum number of messages in all channels.
pub(super) const MOST: usize = SHARED + MOST_CHANNELS * OWN as usize;

/// Use of the shared part.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Messages of stock peers, and granted ones.
    used: usize,
    /// Granted messages.
    granted: usize,
}

impl Memory {
    /// Allocates room for a message of a stock peer; false if there is none.
    pub fn keep(&mut self) -> bool {
        let has_room = !self.is_full();
        self.used += usize::from(has_room);
        has_room
    }

    /// Frees the room of `count` messages of stock peers.
    pub fn free(&mut self, count: usize) {
        self.used -= count;
    }

    /// Whether there is no room for messages of stock peers.
    pub fn is_full(&self) -> bool {
        self.used >= SHARED
    }

    /// Grants up to `more` messages to a channel that has `held`; the number granted.
    pub fn grant(&mut self, held: u16, more: u16) -> u16 {
        let free = (MOST_GRANTED - self.granted).min(SHARED - self.used);
        let most = WINDOW.min(OWN + (free / 4) as u16);
        let granted = most.saturating_sub(held).min(more);
        self.count(shared(held + granted) - shared(held));
        granted
    }

    /// Releases `less` of the `held` messages of a channel.
    pub fn release(&mut self, held: u16, less: u16) {
        let count = shared(held) - shared(held - less);
        self.used -= count;
        self.granted -= count;
    }

    fn count(&mut self, more: usize) {
        self.used += more;
        self.granted += more;
    }

    /// Used messages of the shared part, for tests.
    pub fn used(&self) -> usize {
        self.used
    }
}

/// Messages of the shared part among the `held` messages of a channel.
fn shared(held: u16) -> usize {
    held.saturating_sub(OWN).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_channels_find_memory_and_each_has_one_message() {
        let mut memory = Memory::default();
        let mut held = [0u16; MOST_CHANNELS];
        for channel in &mut held {
            *channel += memory.grant(*channel, WINDOW);
            assert!(*channel >= OWN, "each has its reserved message");
            assert!(memory.used <= MOST_GRANTED && memory.used == memory.granted);
        }
        assert_eq!((held[0], memory.grant(held[0], 1)), (WINDOW, 0));
        assert!(held[20] > OWN, "{} are left for the twentieth", held[20]);
        // Busy channels release and are granted again, and converge to equal parts.
        for _ in 0..200 {
            for channel in &mut held[..100] {
                memory.release(*channel, 1);
                *channel -= 1;
                *channel += memory.grant(*channel, 2);
                assert!(*channel >= OWN);
            }
        }
        let (least, most) = (held[..100].iter().min(), held[..100].iter().max());
        assert!(least >= Some(&8) && most <= Some(&12), "{least:?} {most:?}");
        // Half is left to stock peers.
        let kept = (0..2 * SHARED).filter(|_| memory.keep()).count();
        assert!(kept >= SHARED - MOST_GRANTED && memory.used == SHARED && memory.is_full());
        assert_eq!(memory.grant(OWN, 5), 0);
        memory.free(kept);
        held.iter().for_each(|held| memory.release(*held, *held));
        assert_eq!((memory.used, memory.granted), (0, 0));
    }
}
