//! The way of one loop to the volumes that another loop, on another core, owns: two rings of requests and answers.
//! Who fills a ring wakes the other loop; neither takes a lock.

use super::check;
use super::{Completion, Operation, Request, Submitted, Tag, User, VolumeError, VolumeId, Volumes};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::Geometry;
use rtrb::{Consumer, Producer, RingBuffer};

/// Requests that may be under way on one channel, and of them on one volume: one that does not answer leaves room
/// for others.
const DEPTH: usize = 4096;
pub(super) const DEPTH_OF_VOLUME: u32 = 128;

/// Has a loop look into the rings that were filled for it.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// A request on its way to the owner.
#[derive(Clone, Copy, Debug)]
struct Asked {
    volume: VolumeId,
    request: Request,
}

/// Its answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    volume: VolumeId,
    word: u64,
    result: Result<(), VolumeError>,
}

/// The end of who asks.
pub struct Channel {
    asked: Producer<Asked>,
    answers: Consumer<Answer>,
    in_flight: usize,
    /// Something was asked since the other loop was told.
    untold: bool,
    /// Something could not be asked, for want of room.
    pub(super) starved: bool,
    wake: Wake,
}

/// The owner's end.
pub struct Served {
    /// As which user of the volumes it asks.
    user: User,
    asked: Consumer<Asked>,
    answers: Producer<Answer>,
    /// Requests that their volumes had no room for, in their order, by volume; and which volumes these are.
    waiting: Vec<VecDeque<Asked>>,
    full: Vec<VolumeId>,
    /// Something was answered since the other loop was told.
    untold: bool,
    wake: Wake,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A channel from the loop on core number `core` to the owner of volumes, which are woken by these: both ends.
pub fn channel(core: u16, owner: Wake, asker: Wake) -> (Channel, Served) {
    let (ask, asked) = RingBuffer::new(DEPTH);
    let (answer, answers) = RingBuffer::new(DEPTH);
    let (in_flight, untold, starved) = (0, false, false);
    let channel = Channel { asked: ask, answers, in_flight, untold, starved, wake: owner };
    let (user, waiting, full) = (User::core(core), Vec::new(), Vec::new());
    (channel, Served { user, asked, answers: answer, waiting, full, untold, wake: asker })
}

impl Channel {
    /// Asks the owner; its answer follows.
    pub(super) fn submit(
        &mut self,
        volume: VolumeId,
        geometry: &Geometry,
        request: &Request,
    ) -> Result<Submitted, VolumeError> {
        check(geometry, request)?;
        // So many answers fit at least.
        if self.in_flight == DEPTH {
            self.starved = true;
            return Err(VolumeError::Busy);
        }
        let asked = Asked { volume, request: *request };
        self.asked.push(asked).map_err(|_| VolumeError::Busy)?;
        self.in_flight += 1;
        self.untold = true;
        Ok(Submitted::Pending)
    }

    /// Tells the owner of what was asked.
    pub(super) fn flush(&mut self) {
        if core::mem::take(&mut self.untold) {
            (self.wake)();
        }
    }

    /// Whether there is an answer.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(super) fn poll(&mut self) -> Option<(VolumeId, Completion)> {
        let Answer { volume, word, result } = self.answers.pop().ok()?;
        self.in_flight -= 1;
        Some((volume, Completion { tag: Tag::new(User::SERVER, word), result }))
    }
}

impl Served {
    /// Whether something was asked that was not taken yet.
    pub fn pending(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Gives the volumes what was asked, and answers what they have done; how much.
    pub fn poll(&mut self, volumes: &mut Volumes) -> usize {
        let mut moved = 0;
        while let Ok(asked) = self.asked.pop() {
            moved += 1;
            // What waits for the same volume goes first.
            if self.waiting_for(asked.volume).is_empty() && self.submit(&asked, volumes) {
                continue;
            }
            if self.waiting_for(asked.volume).is_empty() {
                self.full.push(asked.volume);
            }
            self.waiting_for(asked.volume).push_back(asked);
        }
        let mut from = VolumeId(0);
        let mut ended = 0;
        while let Some((id, completion)) = volumes.poll(self.user, from) {
            from = id;
            ended += 1;
            self.answer(id, completion.tag.word, completion.result);
        }
        moved += self.retry(volumes);
        if moved > 0 {
            volumes.flush_queues();
        }
        if core::mem::take(&mut self.untold) {
            (self.wake)();
        }
        moved + ended
    }

    fn waiting_for(&mut self, volume: VolumeId) -> &mut VecDeque<Asked> {
        let index = volume.index();
        if index >= self.waiting.len() {
            self.waiting.resize_with(index + 1, VecDeque::new);
        }
        &mut self.waiting[index]
    }

    /// Gives the volumes what has waited for room; how much was taken.
    fn retry(&mut self, volumes: &mut Volumes) -> usize {
        let mut taken = 0;
        let mut full = core::mem::take(&mut self.full);
        full.retain(|&volume| {
            while let Some(&first) = self.waiting_for(volume).front() {
                if !self.submit(&first, volumes) {
                    return true;
                }
                self.waiting_for(volume).pop_front();
                taken += 1;
            }
            false
        });
        self.full = full;
        taken
    }

    /// Gives a request to its volume; false if that has no room.
    fn submit(&mut self, asked: &Asked, volumes: &mut Volumes) -> bool {
        let Asked { volume, request } = *asked;
        let word = request.tag.word;
        let renamed = Request { tag: Tag::new(self.user, word), ..request };
        let result = match volumes.submit(volume, &renamed) {
            Some(Ok(Submitted::Pending)) => return true,
            Some(Err(VolumeError::Busy)) => return false,
            Some(Ok(Submitted::Done)) => Ok(()),
            // Nobody but its owner may keep what is lent.
            Some(Ok(Submitted::Lent(lent))) if request.operation == Operation::Read => {
                request.data.write_window(0, &lent).map_err(|_| VolumeError::Io)
            }
            Some(Ok(Submitted::Lent(_))) | None => Err(VolumeError::Io),
            Some(Err(error)) => Err(error),
        };
        self.answer(volume, word, result);
        true
    }

    fn answer(&mut self, volume: VolumeId, word: u64, result: Result<(), VolumeError>) {
        self.untold = true;
        // There is room for as many as may be under way.
        let _ = self.answers.push(Answer { volume, word, result });
    }
}
