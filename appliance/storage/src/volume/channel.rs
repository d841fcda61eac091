//! Channel from a loop to the volumes that the loop of another core owns: a ring of requests and a ring of responses.
//! The loop that fills a ring wakes the other loop; neither takes a lock.

use super::check;
use super::reservation::Access;
use super::{Completion, Operation, Request, Submitted, Tag, User, VolumeError, VolumeId, Volumes};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use drivers::hal::Geometry;
use rtrb::{Consumer, Producer, RingBuffer};

/// Most requests in flight on a channel.
const DEPTH: usize = 4096;
/// Most requests in flight on one volume of a channel, so that a volume that does not respond leaves room for others.
pub(super) const VOLUME_DEPTH: u32 = 128;

/// Wakes a loop so that it polls its rings.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// A request to the owner.
#[derive(Clone, Copy, Debug)]
struct ChannelRequest {
    volume: VolumeId,
    request: Request,
}

/// The owner's response to a request.
#[derive(Clone, Copy, Debug)]
struct ChannelResponse {
    volume: VolumeId,
    word: u64,
    result: Result<(), VolumeError>,
}

/// The requesting loop's end.
pub struct Channel {
    requests: Producer<ChannelRequest>,
    responses: Consumer<ChannelResponse>,
    in_flight: usize,
    /// A request was pushed since the other loop was woken.
    wake_pending: bool,
    /// A request was refused because the channel was full.
    pub(super) starved: bool,
    wake: Wake,
}

/// The owner's end.
pub struct Served {
    /// User of the volumes that stands for the requesting loop.
    user: User,
    requests: Consumer<ChannelRequest>,
    responses: Producer<ChannelResponse>,
    /// By volume: requests that the volume refused as busy, in order of arrival.
    waiting: Vec<VecDeque<ChannelRequest>>,
    /// Volumes with requests in `waiting`.
    full: Vec<VolumeId>,
    /// A response was pushed since the other loop was woken.
    wake_pending: bool,
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

/// Both ends of a channel from the loop on core number `core` to the loop that owns the volumes. `owner` wakes the
/// owner, `requester` the loop on `core`.
pub fn channel(core: u16, owner: Wake, requester: Wake) -> (Channel, Served) {
    let (requests_in, requests) = RingBuffer::new(DEPTH);
    let (responses_in, responses) = RingBuffer::new(DEPTH);
    let (in_flight, wake_pending, starved) = (0, false, false);
    let channel =
        Channel { requests: requests_in, responses, in_flight, wake_pending, starved, wake: owner };
    let (user, waiting, full) = (User::core(core), Vec::new(), Vec::new());
    let (responses, wake) = (responses_in, requester);
    (channel, Served { user, requests, responses, waiting, full, wake_pending, wake })
}

impl Channel {
    /// Sends a request to the owner; its response follows.
    pub(super) fn submit(
        &mut self,
        volume: VolumeId,
        geometry: &Geometry,
        request: &Request,
    ) -> Result<Submitted, VolumeError> {
        check(geometry, request)?;
        // The ring of responses has this capacity.
        if self.in_flight == DEPTH {
            self.starved = true;
            return Err(VolumeError::Busy);
        }
        let request = ChannelRequest { volume, request: *request };
        self.requests.push(request).map_err(|_| VolumeError::Busy)?;
        self.in_flight += 1;
        self.wake_pending = true;
        Ok(Submitted::Pending)
    }

    /// Wakes the owner if requests were sent since the last call.
    pub(super) fn flush(&mut self) {
        if core::mem::take(&mut self.wake_pending) {
            (self.wake)();
        }
    }

    /// Whether a response has arrived.
    pub(super) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    pub(super) fn poll(&mut self) -> Option<(VolumeId, Completion)> {
        let ChannelResponse { volume, word, result } = self.responses.pop().ok()?;
        self.in_flight -= 1;
        Some((volume, Completion { tag: Tag::new(User::SERVER, word), result }))
    }
}

impl Served {
    /// Whether requests have arrived that were not polled yet.
    pub fn pending(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Submits the requests that arrived to their volumes, and sends responses for completions. Returns the number of
    /// requests submitted and completed.
    pub fn poll(&mut self, volumes: &mut Volumes) -> usize {
        let mut moved = 0;
        while let Ok(request) = self.requests.pop() {
            moved += 1;
            // Requests that wait for the same volume go first.
            if self.waiting_for(request.volume).is_empty() && self.submit(&request, volumes) {
                continue;
            }
            if self.waiting_for(request.volume).is_empty() {
                self.full.push(request.volume);
            }
            self.waiting_for(request.volume).push_back(request);
        }
        let mut from = VolumeId(0);
        let mut ended = 0;
        while let Some((id, completion)) = volumes.poll(self.user, from) {
            from = id;
            ended += 1;
            self.respond(id, completion.tag.word, completion.result);
        }
        moved += self.retry(volumes);
        if moved > 0 {
            volumes.flush_queues();
        }
        if core::mem::take(&mut self.wake_pending) {
            (self.wake)();
        }
        moved + ended
    }

    fn waiting_for(&mut self, volume: VolumeId) -> &mut VecDeque<ChannelRequest> {
        let index = volume.index();
        if index >= self.waiting.len() {
            self.waiting.resize_with(index + 1, VecDeque::new);
        }
        &mut self.waiting[index]
    }

    /// Submits waiting requests again; returns the number that the volumes accepted.
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

    /// Submits a request to its volume; false if the volume is busy.
    fn submit(&mut self, request: &ChannelRequest, volumes: &mut Volumes) -> bool {
        let ChannelRequest { volume, request } = *request;
        let word = request.tag.word;
        // The client's loop has checked it, but the request may have waited here while a host reserved the volume.
        let access = match request.operation {
            Operation::Read => Access::Read,
            _ => Access::Write,
        };
        if volumes.open_counts(volume).is_some_and(|counts| counts.excludes(access)) {
            self.respond(volume, word, Err(VolumeError::Reserved));
            return true;
        }
        let renamed = Request { tag: Tag::new(self.user, word), ..request };
        let result = match volumes.submit(volume, &renamed) {
            Some(Ok(Submitted::Pending)) => return true,
            Some(Err(VolumeError::Busy)) => return false,
            Some(Ok(Submitted::Done)) => Ok(()),
            // Only the loop that owns the volume may keep a lent window.
            Some(Ok(Submitted::Lent(lent))) if request.operation == Operation::Read => {
                request.data.write_window(0, &lent).map_err(|_| VolumeError::Io)
            }
            Some(Ok(Submitted::Lent(_))) | None => Err(VolumeError::Io),
            Some(Err(error)) => Err(error),
        };
        self.respond(volume, word, result);
        true
    }

    fn respond(&mut self, volume: VolumeId, word: u64, result: Result<(), VolumeError>) {
        self.wake_pending = true;
        // The ring has room for all requests in flight.
        let _ = self.responses.push(ChannelResponse { volume, word, result });
    }
}
