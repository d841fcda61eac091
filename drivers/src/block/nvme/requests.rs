//! Requests in flight, in slots. A command's identifier is the slot of its request and the slot's generation, so a
//! duplicate completion, or one with a wrong identifier, matches no request.

use super::queue::Command;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most requests, because a slot's number has 8 bits in the identifier.
pub const MOST: u16 = 255;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The slot has no request.
    Free,
    /// The request waits until the controller takes commands again.
    Waiting,
    /// The controller has the request.
    Sent,
}

/// A slot for a request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The caller's tag.
    pub tag: u64,
    /// When the request was sent, in milliseconds of `Age`.
    pub since: u32,
    /// Number of the unit that submitted the request.
    pub unit: u16,
    /// Times that the request was sent again.
    pub tries: u8,
    /// An abort of the request was requested.
    pub aborted: bool,
    generation: u8,
    stage: Stage,
}

/// The requests of a pair of queues.
pub struct Requests {
    requests: Box<[Request]>,
    /// The command of each slot, without its identifier.
    commands: Box<[Command]>,
    free: Vec<u16>,
}

impl Requests {
    /// Slots for `count` requests, at most [`MOST`].
    pub fn new(count: u16) -> Self {
        let count = count.min(MOST);
        let free = Request {
            tag: 0,
            since: 0,
            unit: 0,
            tries: 0,
            aborted: false,
            generation: 0,
            stage: Stage::Free,
        };
        Requests {
            requests: alloc::vec![free; count.into()].into(),
            commands: alloc::vec![[0; 8]; count.into()].into(),
            free: (0..count).rev().collect(),
        }
    }

    /// Number of slots.
    pub fn capacity(&self) -> u16 {
        self.requests.len() as u16
    }

    /// The slot for the next request.
    #[inline]
    pub fn next(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Puts a waiting request into the slot [`Requests::next`].
    #[inline]
    pub fn put(&mut self, unit: u16, tag: u64, command: Command) -> Option<u16> {
        let place = self.free.pop()?;
        let request = self.requests.get_mut(usize::from(place))?;
        let generation = request.generation;
        *request = Request {
            tag,
            since: 0,
            unit,
            tries: 0,
            aborted: false,
            generation,
            stage: Stage::Waiting,
        };
        *self.commands.get_mut(usize::from(place))? = command;
        Some(place)
    }

    /// Marks the request of a slot as sent at time `age`. Returns its command and identifier.
    #[inline]
    pub fn send(&mut self, place: u16, age: u32) -> Option<(&Command, u16)> {
        let request = self.requests.get_mut(usize::from(place))?;
        request.stage = Stage::Sent;
        request.since = age;
        let cid = u16::from(request.generation) << 8 | place;
        Some((self.commands.get(usize::from(place))?, cid))
    }

    /// The slot of the sent request whose command has the identifier `cid`.
    #[inline]
    pub fn find(&self, cid: u16) -> Option<u16> {
        let place = cid & 0xff;
        let request = self.requests.get(usize::from(place))?;
        let same = request.stage == Stage::Sent && u16::from(request.generation) == cid >> 8;
        same.then_some(place)
    }

    /// The identifier of the command of a slot.
    pub fn identifier(&self, place: u16) -> u16 {
        let generation = self.get(place).map_or(0, |request| request.generation);
        u16::from(generation) << 8 | place
    }

    /// The request of a slot.
    #[inline]
    pub fn get(&self, place: u16) -> Option<&Request> {
        self.requests.get(usize::from(place))
    }

    /// The request of a slot, for changes.
    pub fn get_mut(&mut self, place: u16) -> Option<&mut Request> {
        self.requests.get_mut(usize::from(place))
    }

    /// Takes a sent request back, to send it again. The command gets another identifier.
    pub fn take_back(&mut self, place: u16) {
        if let Some(request) = self.get_mut(place) {
            request.stage = Stage::Waiting;
            request.generation = request.generation.wrapping_add(1);
            request.tries = request.tries.saturating_add(1);
            request.aborted = false;
        }
    }

    /// Ends a request, and frees its slot. Returns its unit and its tag.
    #[inline]
    pub fn end(&mut self, place: u16) -> Option<(u16, u64)> {
        let request = self.requests.get_mut(usize::from(place))?;
        request.stage = Stage::Free;
        request.generation = request.generation.wrapping_add(1);
        let ended = (request.unit, request.tag);
        self.free.push(place);
        Some(ended)
    }

    /// The first slot from `from` whose request waits.
    pub fn waiting(&self, from: u16) -> Option<u16> {
        self.first(from, Stage::Waiting)
    }

    /// The first slot from `from` whose request the controller has.
    pub fn sent(&self, from: u16) -> Option<u16> {
        self.first(from, Stage::Sent)
    }

    fn first(&self, from: u16, stage: Stage) -> Option<u16> {
        (from..self.capacity()).find(|&place| self.get(place).is_some_and(|r| r.stage == stage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_matches_one_completion_only() {
        let mut requests = Requests::new(2);
        let place = requests.put(3, 77, [1; 8]).unwrap();
        assert_eq!(requests.find(requests.identifier(place)), None, "not sent yet");
        let (command, cid) = requests.send(place, 5).unwrap();
        assert_eq!((*command, cid), ([1; 8], place));
        assert_eq!(requests.find(cid), Some(place));
        assert_eq!(requests.find(cid ^ 1), None, "of no request");
        requests.take_back(place);
        assert_eq!(requests.find(cid), None, "the old identifier of a request that is sent again");
        let (_, again) = requests.send(place, 5).unwrap();
        assert_eq!((requests.find(cid), requests.find(again)), (None, Some(place)));
        assert_eq!(requests.end(place), Some((3, 77)));
        assert_eq!(requests.find(again), None, "a duplicate completion");
        let next = requests.put(3, 78, [2; 8]).unwrap();
        requests.send(next, 6);
        assert_eq!(
            (next, requests.find(again)),
            (place, None),
            "the identifier of the slot's previous request"
        );
    }

    #[test]
    fn capacity_is_bounded_and_full_table_refuses_requests() {
        let mut requests = Requests::new(1000);
        assert_eq!(requests.capacity(), MOST);
        for tag in 0..u64::from(MOST) {
            let place = requests.put(0, tag, [0; 8]).unwrap();
            requests.send(place, 0);
        }
        assert_eq!((requests.next(), requests.put(0, 0, [0; 8])), (None, None));
        assert_eq!(
            (requests.sent(0), requests.sent(254), requests.sent(255)),
            (Some(0), Some(254), None)
        );
    }
}
