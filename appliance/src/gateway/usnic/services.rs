//! What becomes of messages: they go back to who sent them, or are counted and dropped.

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

/// Cookies of messages that go back begin with this; those of PUTs are numbers below.
const ECHO: u64 = 1 << 63;

/// How often it is looked for memory that is set aside and not used, while somebody waits for some.
const RECLAIM: Duration = Duration::from_secs(1);

/// What is remembered of a peer.
#[derive(Default)]
pub(super) struct Counts {
    pub counted: UsnicCounts,
    /// The endpoint has failed, and that was logged.
    told: bool,
    /// PUTs that were ordered on the console; of the last that has ended its number, and whether the peer has all of
    /// it.
    puts: u64,
    put_ended: Option<(u64, bool)>,
}

impl Counts {
    /// The cookie of a new PUT.
    pub fn next_put(&mut self) -> u64 {
        self.puts += 1;
        self.puts
    }

    /// Whether the peer has all of a PUT, once it has ended.
    pub fn end_of_put(&self, cookie: u64) -> Option<bool> {
        self.put_ended.filter(|(ended, _)| *ended == cookie).map(|(_, acknowledged)| acknowledged)
    }
}

/// Messages of a process that go back.
#[derive(Default)]
pub(super) struct Inbox {
    /// Those that wait, in order.
    waiting: VecDeque<Received>,
    /// Those that are on the way, by cookie, and over which endpoint.
    sent: Vec<Option<(EndpointId, Received)>>,
    free: Vec<usize>,
}

impl Inbox {
    /// Makes room for so many messages more.
    pub fn reserve(&mut self, more: usize) {
        let (before, all) = (self.sent.len(), self.sent.len() + more);
        self.waiting.reserve(all.saturating_sub(self.waiting.len()));
        self.sent.resize_with(all, || None);
        self.free.reserve(all.saturating_sub(self.free.len()));
        self.free.extend((before..all).rev());
    }

    /// An endpoint is about to be removed, or has failed: gives back what was sent over it and, if it is the last, what
    /// waits.
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

    /// What was sent has arrived, or never will.
    fn ended(&mut self, engine: &mut Engine, cookie: u64) {
        let place = (cookie & !ECHO) as usize;
        if let Some((_, message)) = self.sent.get_mut(place).and_then(Option::take) {
            self.free.push(place);
            engine.release(message);
        }
    }

    /// Sends back what can be sent back, and tells over which endpoint each goes.
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
                        // There is news when there is room.
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
    /// Serves endpoints that have news; how much was done.
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
                let found = by_endpoint.binary_search_by_key(&over, |(endpoint, _)| *endpoint);
                let place = found.ok().and_then(|at| by_endpoint.get(at));
                if let Some(peer) = place.and_then(|(_, place)| peers.get_mut(*place)) {
                    peer.counts.counted.echoed += 1;
                }
            });
        }
        // Once: what begins after that over other interfaces is not given up.
        if let Some(State::Failed(why)) = engine.state(endpoint)
            && let Some(peer) = peers.get_mut(place)
            && peer.fail(why)
        {
            process.give_up(engine, endpoint, budget);
            exchanges.end(&peer.origin);
        }
        done
    }

    /// Messages of MPI that come in parts may be asked for which wait for memory, each peer in its turn: one for which there
    /// is too little comes first the next time. What others have set aside and does not use is taken back meanwhile.
    #[cold]
    fn admit_waiting(&mut self, now: Instant) {
        if self.reclaims.is_some_and(|at| at <= now) {
            self.take_back(now);
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

    /// Takes back what peers have set aside and does not go on, while others wait.
    fn take_back(&mut self, now: Instant) {
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

/// Whether messages of a process wait for memory.
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
            asked: format!("a message of MPI from {}", self.config.name.as_str()),
            reason: "mpi_mirror",
            advice: why.to_string().into(),
        }
    }

    /// Its endpoint has failed; whether that is new.
    #[cold]
    fn fail(&mut self, why: Failure) -> bool {
        let is_new = !core::mem::replace(&mut self.counts.told, true);
        if is_new {
            let name = self.config.name.as_str();
            log::warn!("usnic peer {name}: {why}; `usnic reset {name}` begins anew");
        }
        is_new
    }
}
