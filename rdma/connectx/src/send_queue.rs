//! A send queue: blocks of 64 bytes, of which a work request takes one to three. [`SendQueue::flush`] rings the
//! doorbell for all requests written before, and requests a completion of the last one in any case. So the end of every
//! request is known a batch later, whether or not its user wants a completion.

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
/// Fence mode: a request waits for earlier changes of keys.
pub const FENCE_SMALL: u8 = 1;
/// Requests a completion.
const SIGNALED: u8 = 2 << 2;
const SOLICITED: u8 = 1 << 1;

/// The action when a request completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCompletion {
    /// Completion of a user's request.
    User { id: u64, success: Success },
    /// A chunk of a region has lost a key, or got one, or both in this order. A completion for the user has this id.
    Key { id: u64, change: Change },
    /// A spare key was moved to a domain.
    Moved { key: u32 },
}

/// A change of the keys of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub region: MrId,
    pub chunk: u16,
    /// Places in the pool of the keys that are revoked and granted.
    pub revoked: Option<u32>,
    pub granted: Option<u32>,
    /// Whether the user gets a completion on failure, and whether also on success and waits for it.
    pub has_completion: bool,
    pub is_awaited: bool,
}

/// The details of a key request that is not done.
#[derive(Clone, Copy, Debug)]
enum KeyWork {
    Key(Change),
    Moved(u32),
}

/// Whether the user of a request gets a completion on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Success {
    Unsignaled,
    /// A completion when the queue is polled for another reason, perhaps only that of a later request: it raises no
    /// interrupt ([`SendRequest::ack_lazily`]).
    Lazy,
    Awaited,
}

impl Success {
    pub fn of(request: &SendRequest<'_>) -> Success {
        match (request.signaled, request.ack_lazily) {
            (false, _) => Success::Unsignaled,
            (true, true) => Success::Lazy,
            (true, false) => Success::Awaited,
        }
    }
}

impl OnCompletion {
    /// Whether the user waits for its success.
    pub fn is_awaited(self) -> bool {
        match self {
            OnCompletion::User { success, .. } => success == Success::Awaited,
            OnCompletion::Key { change, .. } => change.is_awaited,
            OnCompletion::Moved { .. } => true,
        }
    }
}

/// A request in the queue. It begins where the one before it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    /// The user's id.
    id: u64,
    /// The number of the block behind it.
    end: u32,
    kind: WorkKind,
    /// Number of user requests in it.
    count: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WorkKind {
    /// A user's request that completes only on failure.
    #[default]
    Unsignaled,
    /// A user's request whose completion may be late.
    Lazy,
    /// A user's request that the user waits for.
    Awaited,
    /// A key request; its details are the next entry of `changes`.
    Key,
    /// A key request that the user waits for.
    AwaitedKey,
}

/// Fields of the control segment that the queue does not know itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    pub opcode: u8,
    /// Number of segments of 16 bytes, including this one.
    pub segments: usize,
    /// An immediate, or a key.
    pub immediate: u32,
    pub solicited: bool,
    /// Fence mode towards earlier requests.
    pub fence: u8,
}

/// The queue.
pub struct SendQueue {
    blocks: Cells<[AtomicU64; 8]>,
    words: Cells<AtomicU64>,
    record: Window,
    entries: u32,
    number: u32,
    /// Numbers of blocks written, rung by the doorbell, and retired, since the start.
    written: u32,
    flushed: u32,
    retired: u32,
    /// The last request: its block number, and its first two words.
    last: u32,
    control: [u64; 2],
    /// Requests that are not done, and the numbers of the first one and behind the last one.
    works: Box<[Work]>,
    first_work: u32,
    end_work: u32,
    /// Details of the key requests among them, each of at least two blocks, with the numbers of the first one and
    /// behind the last one; and the block range of the last one taken out.
    changes: Box<[KeyWork]>,
    first_change: u32,
    end_change: u32,
    changed: (u32, u32),
    /// User requests: their limit, those outstanding, and those posted so far, modulo 2^32.
    limit: u32,
    outstanding: u32,
    pub posted: u32,
    /// Most blocks of each user request.
    blocks_each: u32,
    /// Fence mode of the next request.
    pub fence: u8,
}

impl SendQueue {
    /// A queue of 2^`log` blocks in `memory` from `offset` on, for up to `limit` user requests of at most `blocks_each`
    /// blocks.
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
            flushed: 0,
            retired: 0,
            last: 0,
            control: [0; 2],
            works: vec![Work::default(); entries].into(),
            first_work: 0,
            end_work: 0,
            changes: vec![KeyWork::Moved(0); (entries / 2).max(1)].into(),
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

    /// Sets the card's number of the queue pair.
    pub fn set_number(&mut self, number: u32) {
        self.number = number;
    }

    /// Whether the user may post one more request.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_room_for(1)
    }

    /// Whether the user may post `count` more requests.
    #[inline]
    pub fn has_room_for(&self, count: u32) -> bool {
        self.outstanding + count <= self.limit
    }

    /// Whether there is room for `count` blocks that are not the user's.
    #[inline]
    pub fn has_blocks(&self, count: u32) -> bool {
        let reserved = (self.limit - self.outstanding.min(self.limit)) * self.blocks_each;
        self.written.wrapping_sub(self.retired) + count + reserved <= self.entries
    }

    /// Number of user requests that are not done.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Number of requests that are not done and that a user waits for.
    pub fn awaited(&self) -> u32 {
        let count = self.end_work.wrapping_sub(self.first_work);
        let all = (0..count).map(|n| self.first_work.wrapping_add(n) & (self.entries - 1));
        let kinds = all.filter_map(|index| Some(self.works.get(index as usize)?.kind));
        kinds.filter(|kind| matches!(kind, WorkKind::Awaited | WorkKind::AwaitedKey)).count() as u32
    }

    /// Whether no request is outstanding.
    pub fn is_idle(&self) -> bool {
        self.first_work == self.end_work
    }

    /// Whether there are requests whose doorbell is not rung yet.
    #[inline]
    pub fn has_unflushed(&self) -> bool {
        self.written != self.flushed
    }

    /// Whether the user's requests up to number `posted` are done.
    pub fn has_done(&self, posted: u32) -> bool {
        self.outstanding <= self.posted.wrapping_sub(posted)
    }

    /// The first two words of the next request. `flush` requests a completion for the last one.
    #[inline]
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

    #[inline]
    fn push_change(&mut self, work: KeyWork) {
        let index = self.end_change as usize & (self.changes.len() - 1);
        if let Some(place) = self.changes.get_mut(index) {
            *place = work;
        }
        self.end_change = self.end_change.wrapping_add(1);
    }

    #[inline]
    fn pop_change(&mut self) -> Option<KeyWork> {
        let index = self.first_change as usize & (self.changes.len() - 1);
        self.first_change = self.first_change.wrapping_add(1);
        self.changes.get(index).copied()
    }

    /// Ends a request that consists of everything written since the last call. It counts as `count` requests of the
    /// user.
    #[inline]
    pub fn end(&mut self, then: OnCompletion, count: u8) {
        let (id, kind) = match then {
            OnCompletion::User { id, success: Success::Unsignaled } => (id, WorkKind::Unsignaled),
            OnCompletion::User { id, success: Success::Lazy } => (id, WorkKind::Lazy),
            OnCompletion::User { id, success: Success::Awaited } => (id, WorkKind::Awaited),
            OnCompletion::Key { id, change } => {
                self.push_change(KeyWork::Key(change));
                (id, if change.is_awaited { WorkKind::AwaitedKey } else { WorkKind::Key })
            }
            OnCompletion::Moved { key } => {
                self.push_change(KeyWork::Moved(key));
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

    /// Writes a request; `words` has all but the control segment. There must be room for it.
    #[inline]
    pub fn write(&mut self, words: &mut [u64; LONGEST], control: Control, then: OnCompletion) {
        [words[0], words[1]] = self.begin(&control);
        for block in words.as_chunks::<WORDS>().0.iter().take(control.segments.div_ceil(4)) {
            self.store(block);
        }
        self.end(then, 1);
    }

    /// Writes a request of `BLOCKS` blocks, which have all but the control segment, without ending it.
    // Constants of the caller's request decide at compile time what is written (`bench mlx5`).
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

    #[inline]
    fn store(&mut self, block: &[u64; WORDS]) {
        let index = self.written & (self.entries - 1);
        let mut swapped = *block;
        for word in &mut swapped {
            *word = word.swap_bytes();
        }
        self.blocks.store(index as usize, &swapped);
        self.written = self.written.wrapping_add(1);
    }

    /// Rings the doorbell for all requests written, by one register write, if there are any.
    #[inline]
    pub fn flush(&mut self, function: &Function) {
        if self.written == self.flushed {
            return;
        }
        self.flushed = self.written;
        let index = (self.last & (self.entries - 1)) as usize * WORDS + 1;
        self.words.store(index, (self.control[1] | u64::from(SIGNALED) << 32).swap_bytes());
        self.record.store32(4, (self.written & 0xffff).swap_bytes());
        fence(Ordering::SeqCst);
        function.ring(self.control[0]);
    }

    /// Takes out completed requests up to the one with this counter, as long as no user waits for them; changes of keys
    /// are passed to `changed`. Returns whether the request with the counter was among them, and the id of the last
    /// lazy one: its completion implies those before it.
    #[inline]
    pub fn retire_unawaited(
        &mut self,
        counter: u16,
        mut changed: impl FnMut(&Change),
    ) -> (bool, Option<u64>) {
        let mut last_lazy = None;
        if !self.is_outstanding(counter) {
            return (false, last_lazy);
        }
        while self.first_work != self.end_work {
            let index = self.first_work & (self.entries - 1);
            let Some(&Work { id, end, kind, count }) = self.works.get(index as usize) else {
                break;
            };
            match kind {
                WorkKind::Unsignaled => {}
                WorkKind::Lazy => last_lazy = Some(id),
                WorkKind::Key => {
                    self.changed = (self.retired, end);
                    if let Some(KeyWork::Key(change)) = self.pop_change() {
                        changed(&change);
                    }
                }
                WorkKind::Awaited | WorkKind::AwaitedKey => break,
            }
            self.outstanding -= u32::from(count);
            let is_last = Self::is_of(counter, self.retired, end);
            self.retired = end;
            self.first_work = self.first_work.wrapping_add(1);
            if is_last {
                return (true, last_lazy);
            }
        }
        (false, last_lazy)
    }

    /// Whether a request that is not done may have this counter.
    #[inline]
    fn is_outstanding(&self, counter: u16) -> bool {
        let ahead = counter.wrapping_sub(self.retired as u16);
        u32::from(ahead) < self.written.wrapping_sub(self.retired)
    }

    /// Whether a counter is within a range of blocks.
    #[inline]
    fn is_of(counter: u16, first: u32, end: u32) -> bool {
        u32::from(counter.wrapping_sub(first as u16)) < end.wrapping_sub(first)
    }

    /// Whether a counter is of the change that was taken out last: each of its two requests may have failed.
    pub fn is_of_last_change(&self, counter: u16) -> bool {
        let (first, end) = self.changed;
        Self::is_of(counter, first, end)
    }

    /// Takes out the next request, given a completion with this counter; the flag is true if it is the one with the
    /// counter. None if no request is outstanding with it.
    #[inline]
    pub fn retire(&mut self, counter: u16) -> Option<(OnCompletion, bool)> {
        if !self.is_outstanding(counter) {
            return None;
        }
        let first = self.retired;
        let then = self.drop_oldest()?;
        Some((then, Self::is_of(counter, first, self.retired)))
    }

    /// Takes out the oldest request, which will never complete.
    #[inline]
    pub fn drop_oldest(&mut self) -> Option<OnCompletion> {
        if self.first_work == self.end_work {
            return None;
        }
        let Work { id, end, kind, count } =
            *self.works.get((self.first_work & (self.entries - 1)) as usize)?;
        let first = core::mem::replace(&mut self.retired, end);
        self.first_work = self.first_work.wrapping_add(1);
        let success = match kind {
            WorkKind::Key | WorkKind::AwaitedKey => {
                self.changed = (first, end);
                return self.pop_change().map(|work| match work {
                    KeyWork::Key(change) => OnCompletion::Key { id, change },
                    KeyWork::Moved(key) => OnCompletion::Moved { key },
                });
            }
            WorkKind::Unsignaled => Success::Unsignaled,
            WorkKind::Lazy => Success::Lazy,
            WorkKind::Awaited => Success::Awaited,
        };
        self.outstanding -= u32::from(count);
        Some(OnCompletion::User { id, success })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;

    fn change(revoked: u32) -> OnCompletion {
        let id = revoked.into();
        let (revoked, granted, has_completion, is_awaited) = (Some(revoked), Some(9), true, true);
        OnCompletion::Key {
            id,
            change: Change {
                region: MrId(1),
                chunk: 2,
                revoked,
                granted,
                has_completion,
                is_awaited,
            },
        }
    }

    /// Of several lazy requests only the last is reported, and an awaited request is not passed over.
    #[test]
    fn last_lazy_request_is_reported_for_earlier_ones() {
        let mut arena = Arena::on_heap(1 << 16);
        let (memory, record) = (arena.alloc(64 << 6, 64).unwrap(), arena.alloc(8, 64).unwrap());
        let mut queue = SendQueue::new(&memory, 0, 6, record, 8, 1).unwrap();
        let one = Control { segments: 4, ..Control::default() };
        let post = |queue: &mut SendQueue, id, success| {
            queue.put([[1; WORDS]], one);
            queue.end(OnCompletion::User { id, success }, 1);
        };
        for round in 0..40_000u32 {
            let at = queue.written as u16;
            post(&mut queue, 1, Success::Lazy);
            post(&mut queue, 2, Success::Unsignaled);
            post(&mut queue, 3, Success::Lazy);
            post(&mut queue, 4, Success::Unsignaled);
            if round % 2 == 0 {
                assert_eq!(queue.retire_unawaited(at.wrapping_add(3), |_| ()), (true, Some(3)));
            } else {
                assert_eq!(queue.retire_unawaited(at.wrapping_add(1), |_| ()), (true, Some(1)));
                post(&mut queue, 5, Success::Awaited);
                let last = at.wrapping_add(4);
                assert_eq!(queue.retire_unawaited(last, |_| ()), (false, Some(3)));
                let awaited = OnCompletion::User { id: 5, success: Success::Awaited };
                assert_eq!(queue.retire(last), Some((awaited, true)));
            }
            assert!(queue.is_idle() && queue.outstanding() == 0);
        }
    }

    /// A change of two requests, of 2 and 3 blocks, is done with the second. If they fail, each has a completion.
    #[test]
    fn change_of_two_requests_is_retired_once() {
        let mut arena = Arena::on_heap(1 << 16);
        let (memory, record) = (arena.alloc(64 << 6, 64).unwrap(), arena.alloc(8, 64).unwrap());
        let mut queue = SendQueue::new(&memory, 0, 6, record, 4, 1).unwrap();
        let two = Control { segments: 8, ..Control::default() };
        let three = Control { segments: 12, ..Control::default() };
        // Counters and block numbers wrap.
        for round in 0..40_000u32 {
            let at = queue.written as u16;
            queue.put([[1; WORDS]; 2], two);
            queue.put([[2; WORDS]; 3], three);
            queue.end(change(round), 1);
            assert!(!queue.is_idle() && queue.retire_unawaited(at, |_| ()) == (false, None));
            let after = at.wrapping_add(5);
            assert_eq!(queue.retire(after), None, "no request has this counter");
            // A completion of one of them, or of both.
            let reported = [at, at.wrapping_add(2)];
            assert_eq!(queue.retire(reported[round as usize % 2]), Some((change(round), true)));
            assert!(queue.is_idle());
            for counter in reported {
                assert_eq!(queue.retire(counter), None);
                assert!(queue.is_of_last_change(counter));
            }
            assert!(
                !queue.is_of_last_change(after) && !queue.is_of_last_change(at.wrapping_sub(1))
            );
        }
    }
}
