//! The services: echo, discard and `mpi-mirror`.

use super::process::Process;
use super::{Peer, Usnic};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use management::status::UsnicCounts;
use net::refusal::Refusal;
use std::collections::VecDeque;
use usnic::ob1::{Refused, Turn};
use usnic::{EndpointId, Engine, Failure, Received, SendError, State, Stripe};

/// This bit is set in the cookies of echoed messages, and clear in those of PUTs.
const ECHO: u64 = 1 << 63;

/// Interval of reclaiming unused reservations while a message waits for memory.
const RECLAIM: Duration = Duration::from_secs(1);

/// Counters and PUTs of a peer.
#[derive(Default)]
pub(super) struct Counts {
    pub counted: UsnicCounts,
    /// The failure of its endpoint was logged.
    failure_logged: bool,
    /// PUTs ordered on the console.
    puts: u64,
    /// Cookie of the last ended PUT, and whether the peer acknowledged it.
    put_ended: Option<(u64, bool)>,
}

impl Counts {
    /// Returns the cookie of a new PUT.
    pub fn next_put(&mut self) -> u64 {
        self.puts += 1;
        self.puts
    }

    /// Returns whether the peer acknowledged a PUT, once it has ended.
    pub fn end_of_put(&self, cookie: u64) -> Option<bool> {
        self.put_ended.filter(|(ended, _)| *ended == cookie).map(|(_, acknowledged)| acknowledged)
    }
}

/// Messages of a process to echo.
#[derive(Default)]
pub(super) struct Inbox {
    /// Queued messages, in order.
    waiting: VecDeque<Received>,
    /// Messages in flight, by cookie, each with its endpoint.
    sent: Vec<Option<(EndpointId, Received)>>,
    free: Vec<usize>,
}

impl Inbox {
    /// Reserves space for `more` messages.
    pub fn reserve(&mut self, more: usize) {
        let (before, all) = (self.sent.len(), self.sent.len() + more);
        self.waiting.reserve(all.saturating_sub(self.waiting.len()));
        self.sent.resize_with(all, || None);
        self.free.reserve(all.saturating_sub(self.free.len()));
        self.free.extend((before..all).rev());
    }

    /// Releases the messages in flight over an endpoint, and the queued ones if it is the last. Called before the
    /// endpoint is removed, and when it has failed.
    pub fn give_up(&mut self, engine: &mut Engine, endpoint: EndpointId, is_last: bool) {
        for (place, slot) in self.sent.iter_mut().enumerate() {
            if let Some((_, message)) = slot.take_if(|(over, _)| *over == endpoint) {
                self.free.push(place);
                engine.release(message);
            }
        }
        if is_last {
            self.waiting.drain(..).for_each(|message| engine.release(message));
        }
    }

    /// Releases a message that was acknowledged, or is lost.
    fn ended(&mut self, engine: &mut Engine, cookie: u64) {
        let place = (cookie & !ECHO) as usize;
        if let Some((_, message)) = self.sent.get_mut(place).and_then(Option::take) {
            self.free.push(place);
            engine.release(message);
        }
    }

    /// Echoes as many messages as possible. Calls `sent` with the endpoint of each.
    fn send_back(
        &mut self,
        engine: &mut Engine,
        paths: &mut Stripe,
        tag: Option<u8>,
        now: Instant,
        mut sent: impl FnMut(EndpointId),
    ) {
        while let Some(message) = self.waiting.pop_front() {
            let Some(endpoint) = paths.choose(engine, message.bytes.len()) else {
                engine.release(message);
                continue;
            };
            let Some(place) = self.free.pop() else {
                self.waiting.push_front(message);
                return;
            };
            let tag = tag.unwrap_or(message.tag);
            let windows = [message.bytes, Window::empty()];
            match engine.send_windows(endpoint, tag, windows, ECHO | place as u64, now) {
                Ok(()) => {
                    if let Some(slot) = self.sent.get_mut(place) {
                        *slot = Some((endpoint, message));
                    }
                    sent(endpoint);
                }
                Err(why) => {
                    self.free.push(place);
                    if why == SendError::Full {
                        // The engine reports the endpoint when there is space.
                        self.waiting.push_front(message);
                        return;
                    }
                    engine.release(message);
                }
            }
        }
    }
}

impl Usnic {
    /// Serves endpoints with events. Returns the number of operations.
    pub(super) fn serve(&mut self, now: Instant) -> usize {
        let mut done = 0;
        let free = self.budget.free();
        self.budget.set_time(now);
        while let Some(endpoint) = self.engine.next_news() {
            let Some(place) = self.place_of_endpoint(endpoint) else { continue };
            if self.ends.handle(&mut self.engine, endpoint) {
                done += 1;
                continue;
            }
            done += self.serve_one(place, endpoint, now);
        }
        let waits = self.budget.take_waits() || self.reclaims.is_some();
        if waits || self.budget.free() > free {
            self.admit_waiting(now);
        }
        done
    }

    fn serve_one(&mut self, place: usize, endpoint: EndpointId, now: Instant) -> usize {
        let Usnic { engine, peers, processes, exchanges, budget, refusals, by_endpoint, .. } = self;
        let Some(peer) = peers.get_mut(place) else { return 0 };
        let process = peer.process.and_then(|place| processes.get_mut(place)?.as_mut());
        let Some(process) = process else { return 0 };
        let mut done = 0;
        while let Some(message) = engine.take_message(endpoint) {
            done += 1;
            peer.counts.counted.messages += 1;
            peer.counts.counted.bytes += message.bytes.len() as u64;
            if let Some(mirror) = &mut process.mirror {
                if let Err(why) = mirror.take(engine, message, budget) {
                    refusals.push(peer.refusal(why));
                }
            } else if process.echoes() {
                process.inbox.waiting.push_back(message);
            } else {
                peer.counts.counted.unserved += u64::from(!process.discards());
                engine.release(message);
            }
        }
        let tag = process.tag();
        let Process { mirror, inbox, paths, .. } = process;
        if let Some(mirror) = mirror {
            done += mirror.hear(engine, endpoint, budget) + mirror.send(engine, paths, now);
        } else {
            while let Some(end) = engine.next_completion(endpoint) {
                done += 1;
                match end.cookie & ECHO {
                    0 => peer.counts.put_ended = Some((end.cookie, end.acknowledged)),
                    _ => inbox.ended(engine, end.cookie),
                }
            }
            inbox.send_back(engine, paths, tag, now, |over| {
                done += 1;
                let place = by_endpoint.get(&over);
                if let Some(peer) = place.and_then(|place| peers.get_mut(*place)) {
                    peer.counts.counted.echoed += 1;
                }
            });
        }
        // Only once: messages sent later over other interfaces stay.
        if let Some(State::Failed(why)) = engine.state(endpoint)
            && let Some(peer) = peers.get_mut(place)
            && peer.fail(why)
        {
            process.give_up(engine, endpoint, budget);
            exchanges.end(&peer.origin);
        }
        done
    }

    /// Requests the fragments of MPI messages that waited for memory, round-robin over the processes. One for which
    /// there is too little memory is first the next time. Unused reservations of others are reclaimed meanwhile.
    #[cold]
    fn admit_waiting(&mut self, now: Instant) {
        if self.reclaims.is_some_and(|at| at <= now) {
            self.reclaim(now);
        }
        let Usnic { engine, processes, budget, turn, .. } = self;
        let (count, first) = (processes.len(), *turn);
        for place in (0..count).map(|n| (first + n) % count) {
            let Some(Process { mirror: Some(mirror), paths, .. }) =
                processes.get_mut(place).and_then(Option::as_mut)
            else {
                continue;
            };
            let before = mirror.under_way().1;
            let came = if before > 0 { mirror.admit(budget) } else { Turn::Done };
            if before > mirror.under_way().1 {
                mirror.send(engine, paths, now);
                *turn = place + 1;
            }
            if came == Turn::Waits {
                *turn = place;
                break;
            }
        }
        let waits = processes.iter().any(waits);
        self.budget.set_contended(waits);
        let next = self.reclaims.filter(|at| *at > now).unwrap_or(now + RECLAIM);
        self.reclaims = waits.then_some(next);
    }

    /// Reclaims the reservations of stalled messages while others wait.
    fn reclaim(&mut self, now: Instant) {
        let Usnic { engine, processes, budget, peers, refusals, .. } = self;
        let waiting = processes.iter().filter(|it| waits(it)).count();
        for (place, process) in processes.iter_mut().enumerate() {
            let others = waiting - usize::from(waits(process));
            if let Some(Process { mirror: Some(mirror), paths, .. }) = process
                && others > 0
                && mirror.give_up_overdue(budget) > 0
            {
                mirror.send(engine, paths, now);
                let peer = peers.iter().find(|peer| peer.process == Some(place));
                if let Some(peer) = peer {
                    refusals.push(peer.refusal(Refused::Overdue));
                }
            }
        }
    }
}

/// Returns whether messages of a process wait for memory.
fn waits(process: &Option<Process>) -> bool {
    let mirror = process.as_ref().and_then(|process| process.mirror.as_ref());
    mirror.is_some_and(|mirror| mirror.under_way().1 > 0)
}

impl Peer {
    #[cold]
    fn refusal(&self, why: Refused) -> Refusal {
        Refusal {
            who: self.modex.map(|modex| IpAddr::V4(modex.address)),
            what: "usnic",
            asked: format!("an MPI message from {}", self.config.name.as_str()),
            reason: "mpi_mirror",
            advice: why.to_string().into(),
        }
    }

    /// Records that its endpoint has failed. Returns whether that is new.
    #[cold]
    fn fail(&mut self, why: Failure) -> bool {
        let is_new = !core::mem::replace(&mut self.counts.failure_logged, true);
        if is_new {
            let name = self.config.name.as_str();
            log::warn!("usnic peer {name}: {why}; reset it with `usnic reset {name}`");
        }
        is_new
    }
}
