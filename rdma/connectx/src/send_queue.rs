//! A send queue: blocks of 64 bytes, which a work request takes one to three of. Nothing is told to the card before
//! [`SendQueue::flush`], which has a completion written for the last request in any case: so all that was done is known
//! a batch later, whatever its user wants to hear of.

use super::function::Function;
use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use drivers::hal::{Cells, Window};
use verbs::{MrId, SendRequest, VerbsError};

pub const BLOCK: usize = 64;
/// Words of a block, and of the longest request.
pub const WORDS: usize = BLOCK / 8;
pub const LONGEST: usize = 3 * WORDS;
/// A request waits for those before it that change keys.
pub const FENCE_SMALL: u8 = 1;
/// A completion is wanted.
const SIGNALED: u8 = 2 << 2;
const SOLICITED: u8 = 1 << 1;

/// What comes of a request once it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is a user's, who hears of its success, or not.
    User { id: u64, success: Success },
    /// A chunk of a region has lost a key, or been given one, or both in this order. A user who is told calls it so.
    Key { id: u64, change: Change },
    /// A spare key has come to a domain.
    Moved { key: u32 },
}

/// A change of the keys of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub region: MrId,
    pub chunk: u16,
    /// Places in the pool of the keys that it loses, and that it gets.
    pub takes: Option<u32>,
    pub gives: Option<u32>,
    /// Whether a user is told, and whether he is though nothing goes wrong, and waits for it.
    pub tells: bool,
    pub is_awaited: bool,
}

/// What is kept of a request about keys.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Key(Change),
    Moved(u32),
}

/// Whether the user of a request hears of its success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    Untold,
    /// Once something else gives cause to look, and perhaps of a later one alone: nobody is woken for it
    /// ([`SendRequest::ack_lazily`]).
    Told,
    Awaited,
}

impl Success {
    pub fn of(request: &SendRequest<'_>) -> Success {
        match (request.signaled, request.ack_lazily) {
            (false, _) => Success::Untold,
            (true, true) => Success::Told,
            (true, false) => Success::Awaited,
        }
    }
}

impl Then {
    /// Whether somebody waits for its success.
    pub fn is_awaited(self) -> bool {
        match self {
            Then::User { success, .. } => success == Success::Awaited,
            Then::Key { change, .. } => change.is_awaited,
            Then::Moved { .. } => true,
        }
    }
}

/// A request that the card has, or will be told of. It begins where the one before it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// What its user calls it.
    id: u64,
    /// The block behind it.
    end: u32,
    kind: WorkKind,
    /// How many requests of the user's it is.
    count: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WorkKind {
    /// The user's, who wants to hear of it if it fails.
    #[default]
    Quiet,
    /// The user's, who hears of it.
    Told,
    /// The user's, who waits for it.
    Awaited,
    /// Something of a key: the next one of those that are kept of these.
    Key,
    /// The same, which somebody waits for.
    AwaitedKey,
}

/// What a request says in its control segment, beside what the queue knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub opcode: u8,
    /// Segments of 16 bytes, with this one.
    pub segments: usize,
    /// An immediate, or a key.
    pub immediate: u32,
    pub solicited: bool,
    /// How it waits for those before it.
    pub fence: u8,
}

/// The queue.
pub struct SendQueue {
    blocks: Cells<[AtomicU64; 8]>,
    words: Cells<AtomicU64>,
    record: Window,
    entries: u32,
    number: u32,
    /// Blocks that were written, that the card was told of, and that came back, in all.
    written: u32,
    told: u32,
    back: u32,
    /// The last request: its block, and its first two words.
    last: u32,
    control: [u64; 2],
    /// Works that are not done: from the first to behind the last, in all.
    works: Box<[Work]>,
    first_work: u32,
    end_work: u32,
    /// Those of keys among them, of which none takes less than two blocks; the blocks of the last one that was taken out,
    /// from the first to behind the last.
    changes: Box<[Kept]>,
    first_change: u32,
    end_change: u32,
    changed: (u32, u32),
    /// Requests of the user that may be outstanding, that are, and that ever were posted, modulo 2^32.
    limit: u32,
    outstanding: u32,
    pub posted: u32,
    /// Blocks that each of them takes at most.
    blocks_each: u32,
    /// How the next request waits for the one before it.
    pub fence: u8,
}

impl SendQueue {
    /// Of 2^`log` blocks from `offset` of the memory on, for up to `limit` requests of its user, of `blocks_each` at most.
    pub fn new(
        memory: &Window,
        offset: usize,
        log: u32,
        record: Window,
        limit: u32,
        blocks_each: u32,
    ) -> Result<SendQueue, VerbsError> {
        let entries = 1usize << log;
        Ok(SendQueue {
            blocks: Cells::new(memory, offset, entries).ok_or(VerbsError::NoRoom)?,
            words: Cells::new(memory, offset, entries * WORDS).ok_or(VerbsError::NoRoom)?,
            record,
            entries: entries as u32,
            number: 0,
            written: 0,
            told: 0,
            back: 0,
            last: 0,
            control: [0; 2],
            works: vec![Work::default(); entries].into(),
            first_work: 0,
            end_work: 0,
            changes: vec![Kept::Moved(0); (entries / 2).max(1)].into(),
            first_change: 0,
            end_change: 0,
            changed: (0, 0),
            limit,
            outstanding: 0,
            posted: 0,
            blocks_each,
            fence: 0,
        })
    }

    /// The card calls its queue pair so.
    pub fn named(&mut self, number: u32) {
        self.number = number;
    }

    /// Whether its user may post one more.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_for(1)
    }

    /// Whether its user may post so many more.
    #[inline]
    pub fn has_room_for(&self, count: u32) -> bool {
        self.outstanding + count <= self.limit
    }

    /// Whether there is room for so many blocks that are not the user's.
    #[inline]
    pub fn has_blocks(&self, count: u32) -> bool {
        let kept = (self.limit - self.outstanding.min(self.limit)) * self.blocks_each;
        self.written.wrapping_sub(self.back) + count + kept <= self.entries
    }

    /// Requests of the user that are not done.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Requests that are not done and of which somebody is to hear.
    pub fn awaited(&self) -> u32 {
        let count = self.end_work.wrapping_sub(self.first_work);
        let all = (0..count).map(|n| self.first_work.wrapping_add(n) & (self.entries - 1));
        let kinds = all.filter_map(|index| Some(self.works.get(index as usize)?.kind));
        kinds.filter(|kind| matches!(kind, WorkKind::Awaited | WorkKind::AwaitedKey)).count() as u32
    }

    /// Whether nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.first_work == self.end_work
    }

    /// Whether there is something that the card was not told of.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.written != self.told
    }

    /// Whether the user's requests up to that number are done.
    pub fn has_done(&self, posted: u32) -> bool {
        self.outstanding <= self.posted.wrapping_sub(posted)
    }

    /// The first two words of the next request, which has a completion written if it is the last one.
    #[inline(always)]
    fn begin(&mut self, control: &Control) -> [u64; 2] {
        let counter = u64::from(self.written as u16);
        let (number, segments) = (u64::from(self.number), control.segments as u64);
        let flags =
            control.fence.max(self.fence) << 5 | if control.solicited { SOLICITED } else { 0 };
        self.fence = 0;
        self.control = [
            (counter << 8 | u64::from(control.opcode)) << 32 | number << 8 | segments,
            u64::from(flags) << 32 | u64::from(control.immediate),
        ];
        self.last = self.written;
        self.control
    }

    #[inline(always)]
    fn keep(&mut self, kept: Kept) {
        let index = self.end_change as usize & (self.changes.len() - 1);
        if let Some(place) = self.changes.get_mut(index) {
            *place = kept;
        }
        self.end_change = self.end_change.wrapping_add(1);
    }

    #[inline(always)]
    fn take_kept(&mut self) -> Option<Kept> {
        let index = self.first_change as usize & (self.changes.len() - 1);
        self.first_change = self.first_change.wrapping_add(1);
        self.changes.get(index).copied()
    }

    /// What was written since the last end, `count` requests of the user's, or several that are one to him, was this.
    #[inline(always)]
    pub fn end(&mut self, then: Then, count: u8) {
        let (id, kind) = match then {
            Then::User { id, success: Success::Untold } => (id, WorkKind::Quiet),
            Then::User { id, success: Success::Told } => (id, WorkKind::Told),
            Then::User { id, success: Success::Awaited } => (id, WorkKind::Awaited),
            Then::Key { id, change } => {
                self.keep(Kept::Key(change));
                (id, if change.is_awaited { WorkKind::AwaitedKey } else { WorkKind::Key })
            }
            Then::Moved { key } => {
                self.keep(Kept::Moved(key));
                (0, WorkKind::AwaitedKey)
            }
        };
        let count = if matches!(kind, WorkKind::Key | WorkKind::AwaitedKey) { 0 } else { count };
        self.outstanding += u32::from(count);
        self.posted = self.posted.wrapping_add(count.into());
        let index = self.end_work & (self.entries - 1);
        if let Some(work) = self.works.get_mut(index as usize) {
            *work = Work { id, end: self.written, kind, count };
        }
        self.end_work = self.end_work.wrapping_add(1);
    }

    /// Writes a request, of which `words` has all but the control segment. There is room for it.
    #[inline]
    pub fn write(&mut self, words: &mut [u64; LONGEST], control: Control, then: Then) {
        [words[0], words[1]] = self.begin(&control);
        for block in words.as_chunks::<WORDS>().0.iter().take(control.segments.div_ceil(4)) {
            self.store(block);
        }
        self.end(then, 1);
    }

    /// Writes a request of so many blocks, of which these have all but the control segment, and does not end it.
    #[inline(always)]
    pub fn put<const BLOCKS: usize>(
        &mut self,
        mut blocks: [[u64; WORDS]; BLOCKS],
        control: Control,
    ) {
        const { assert!(BLOCKS > 0) };
        [blocks[0][0], blocks[0][1]] = self.begin(&control);
        for block in &blocks {
            self.store(block);
        }
    }

    #[inline(always)]
    fn store(&mut self, block: &[u64; WORDS]) {
        let index = self.written & (self.entries - 1);
        let mut swapped = *block;
        for word in &mut swapped {
            *word = word.swap_bytes();
        }
        self.blocks.store(index as usize, &swapped);
        self.written = self.written.wrapping_add(1);
    }

    /// Has the card do what was written, by one write to a register, if there is anything.
    #[inline]
    pub fn flush(&mut self, function: &Function) {
        if self.written == self.told {
            return;
        }
        self.told = self.written;
        let index = (self.last & (self.entries - 1)) as usize * WORDS + 1;
        self.words.store(index, (self.control[1] | u64::from(SIGNALED) << 32).swap_bytes());
        self.record.store32(4, (self.written & 0xffff).swap_bytes());
        fence(Ordering::SeqCst);
        function.ring(self.control[0]);
    }

    /// Takes out requests that are done, up to the one with this counter, as long as nobody waits for them; what has become
    /// of keys is for `changed`. Whether that one was among them, and the last that its user hears of: he knows by it that
    /// those before it are done.
    #[inline]
    pub fn pass(&mut self, counter: u16, mut changed: impl FnMut(&Change)) -> (bool, Option<u64>) {
        let mut told = None;
        if !self.is_outstanding(counter) {
            return (false, told);
        }
        while self.first_work != self.end_work {
            let index = self.first_work & (self.entries - 1);
            let Some(&Work { id, end, kind, count }) = self.works.get(index as usize) else {
                break;
            };
            match kind {
                WorkKind::Quiet => {}
                WorkKind::Told => told = Some(id),
                WorkKind::Key => {
                    self.changed = (self.back, end);
                    if let Some(Kept::Key(change)) = self.take_kept() {
                        changed(&change);
                    }
                }
                WorkKind::Awaited | WorkKind::AwaitedKey => break,
            }
            self.outstanding -= u32::from(count);
            let is_it = Self::is_of(counter, self.back, end);
            self.back = end;
            self.first_work = self.first_work.wrapping_add(1);
            if is_it {
                return (true, told);
            }
        }
        (false, told)
    }

    /// Whether a request that is not done may have this counter.
    #[inline]
    fn is_outstanding(&self, counter: u16) -> bool {
        let ahead = counter.wrapping_sub(self.back as u16);
        u32::from(ahead) < self.written.wrapping_sub(self.back)
    }

    /// Whether a counter is that of a request from a block to before another.
    #[inline]
    fn is_of(counter: u16, first: u32, end: u32) -> bool {
        u32::from(counter.wrapping_sub(first as u16)) < end.wrapping_sub(first)
    }

    /// Whether a counter is of the change that was taken out last: of the two requests of one, each may have failed.
    pub fn is_of_last_change(&self, counter: u16) -> bool {
        let (first, end) = self.changed;
        Self::is_of(counter, first, end)
    }

    /// The next request that is done, as a completion of the one with this counter says; and whether it is that one.
    /// None if there is none, or if no request has that counter.
    #[inline]
    pub fn retire(&mut self, counter: u16) -> Option<(Then, bool)> {
        if !self.is_outstanding(counter) {
            return None;
        }
        let first = self.back;
        let then = self.give_up()?;
        Some((then, Self::is_of(counter, first, self.back)))
    }

    /// Takes a request out that will never be done, the oldest first.
    #[inline]
    pub fn give_up(&mut self) -> Option<Then> {
        if self.first_work == self.end_work {
            return None;
        }
        let Work { id, end, kind, count } =
            *self.works.get((self.first_work & (self.entries - 1)) as usize)?;
        let first = core::mem::replace(&mut self.back, end);
        self.first_work = self.first_work.wrapping_add(1);
        let success = match kind {
            WorkKind::Key | WorkKind::AwaitedKey => {
                self.changed = (first, end);
                return self.take_kept().map(|kept| match kept {
                    Kept::Key(change) => Then::Key { id, change },
                    Kept::Moved(key) => Then::Moved { key },
                });
            }
            WorkKind::Quiet => Success::Untold,
            WorkKind::Told => Success::Told,
            WorkKind::Awaited => Success::Awaited,
        };
        self.outstanding -= u32::from(count);
        Some(Then::User { id, success })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;

    fn change(takes: u32) -> Then {
        let id = takes.into();
        let (takes, gives, tells, is_awaited) = (Some(takes), Some(9), true, true);
        Then::Key {
            id,
            change: Change { region: MrId(1), chunk: 2, takes, gives, tells, is_awaited },
        }
    }

    /// Of several that nobody waits for the last is told of, and what is waited for is not passed.
    #[test]
    fn one_is_told_of_for_those_before_it() {
        let mut arena = Arena::on_heap(1 << 16);
        let (memory, record) = (arena.alloc(64 << 6, 64).unwrap(), arena.alloc(8, 64).unwrap());
        let mut queue = SendQueue::new(&memory, 0, 6, record, 8, 1).unwrap();
        let one = Control { segments: 4, ..Control::default() };
        let post = |queue: &mut SendQueue, id, success| {
            queue.put([[1; WORDS]], one);
            queue.end(Then::User { id, success }, 1);
        };
        for round in 0..40_000u32 {
            let at = queue.written as u16;
            post(&mut queue, 1, Success::Told);
            post(&mut queue, 2, Success::Untold);
            post(&mut queue, 3, Success::Told);
            post(&mut queue, 4, Success::Untold);
            if round % 2 == 0 {
                assert_eq!(queue.pass(at.wrapping_add(3), |_| ()), (true, Some(3)));
            } else {
                assert_eq!(queue.pass(at.wrapping_add(1), |_| ()), (true, Some(1)));
                post(&mut queue, 5, Success::Awaited);
                let last = at.wrapping_add(4);
                assert_eq!(queue.pass(last, |_| ()), (false, Some(3)));
                let awaited = Then::User { id: 5, success: Success::Awaited };
                assert_eq!(queue.retire(last), Some((awaited, true)));
            }
            assert!(queue.is_idle() && queue.outstanding() == 0);
        }
    }

    /// A change of two requests, of 2 and 3 blocks, is done with the second; if they fail, each of them says so.
    #[test]
    fn two_requests_are_one_change() {
        let mut arena = Arena::on_heap(1 << 16);
        let (memory, record) = (arena.alloc(64 << 6, 64).unwrap(), arena.alloc(8, 64).unwrap());
        let mut queue = SendQueue::new(&memory, 0, 6, record, 4, 1).unwrap();
        let two = Control { segments: 8, ..Control::default() };
        let three = Control { segments: 12, ..Control::default() };
        // Counters go round, and so do blocks.
        for round in 0..40_000u32 {
            let at = queue.written as u16;
            queue.put([[1; WORDS]; 2], two);
            queue.put([[2; WORDS]; 3], three);
            queue.end(change(round), 1);
            assert!(!queue.is_idle() && queue.pass(at, |_| ()) == (false, None));
            let after = at.wrapping_add(5);
            assert_eq!(queue.retire(after), None, "of none that there is");
            // One of both is heard of, or both are.
            let heard = [at, at.wrapping_add(2)];
            assert_eq!(queue.retire(heard[round as usize % 2]), Some((change(round), true)));
            assert!(queue.is_idle());
            for counter in heard {
                assert_eq!(queue.retire(counter), None);
                assert!(queue.is_of_last_change(counter));
            }
            assert!(
                !queue.is_of_last_change(after) && !queue.is_of_last_change(at.wrapping_sub(1))
            );
        }
    }
}
