//! What becomes of messages: they go back to who sent them, or are counted and dropped.

use super::{MESSAGES, Peer, Usnic};
use crate::config::usnic::Service;
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use net::refusal::Refusal;
use std::collections::VecDeque;
use usnic::ob1::{Budget, Refused};
use usnic::{EndpointId, Engine, Failure, Received, SendError, State};

/// The cookie of messages that go back; PUTs have others.
const ECHO: u64 = 0;

/// Messages of a peer.
#[derive(Default)]
pub(super) struct Inbox {
    /// Those that go back, in order: the first `sent` of them are on the way.
    back: VecDeque<Received>,
    sent: usize,
    /// Messages that came, and their bytes; those that went back.
    pub messages: u64,
    pub bytes: u64,
    pub echoed: u64,
    /// Messages for which there is no service.
    pub unserved: u64,
    /// The endpoint has failed, and that was logged.
    told: bool,
    /// PUTs that were ordered on the console; of the last that has ended its number, and whether the peer has all of
    /// it.
    puts: u64,
    put_ended: Option<(u64, bool)>,
}

impl Inbox {
    pub fn reserve(&mut self) {
        self.back.reserve(MESSAGES);
    }

    /// The cookie of a new PUT.
    pub fn next_put(&mut self) -> u64 {
        self.puts += 1;
        ECHO + self.puts
    }

    /// Whether the peer has all of a PUT, once it has ended.
    pub fn end_of_put(&self, cookie: u64) -> Option<bool> {
        self.put_ended.filter(|(ended, _)| *ended == cookie).map(|(_, acknowledged)| acknowledged)
    }

    /// Gives all back to the engine.
    pub fn clear(&mut self, engine: &mut Engine) {
        self.sent = 0;
        self.back.drain(..).for_each(|message| engine.release(message));
    }

    /// Sends back what can be sent back; how much that was.
    fn send_back(
        &mut self,
        engine: &mut Engine,
        endpoint: EndpointId,
        tag: Option<u8>,
        now: Instant,
    ) -> usize {
        let mut done = 0;
        while let Some(end) = engine.next_completion(endpoint) {
            if end.cookie != ECHO {
                self.put_ended = Some((end.cookie, end.acknowledged));
                continue;
            }
            // They end in the order in which they were sent.
            if let Some(message) = self.back.pop_front() {
                engine.release(message);
            }
            self.sent = self.sent.saturating_sub(1);
            done += 1;
        }
        while let Some(message) = self.back.get(self.sent) {
            let tag = tag.unwrap_or(message.tag);
            match engine.send_windows(endpoint, tag, [message.bytes, Window::empty()], ECHO, now) {
                Ok(()) => {
                    self.sent += 1;
                    self.echoed += 1;
                    done += 1;
                }
                // There is news when there is room.
                Err(SendError::Full) => break,
                Err(_) => {
                    if let Some(message) = self.back.remove(self.sent) {
                        engine.release(message);
                    }
                }
            }
        }
        done
    }
}

impl Usnic {
    /// Serves endpoints that have news; how much was done.
    pub(super) fn serve(&mut self, now: Instant) -> usize {
        let mut done = 0;
        let free = self.budget.free();
        while let Some(endpoint) = self.engine.next_news() {
            let Some(place) = self.place_of_endpoint(endpoint) else { continue };
            let Usnic { engine, interfaces, peers, ends, exchanges, budget, refusals, .. } = self;
            if ends.handle(engine, endpoint) {
                done += 1;
                continue;
            }
            let Some(peer) = peers.get_mut(place) else { continue };
            let Some(interface) = interfaces.get(peer.interface) else { continue };
            let services = &interface.config.services;
            let echoes = services.contains(&Service::Echo);
            let discards = services.contains(&Service::Discard);
            while let Some(message) = engine.take_message(endpoint) {
                done += 1;
                peer.inbox.messages += 1;
                peer.inbox.bytes += message.bytes.len() as u64;
                if let Some(mirror) = &mut peer.mirror {
                    if let Err(why) = mirror.take(engine, message, budget) {
                        refusals.push(peer.refusal(why));
                    }
                } else if echoes {
                    peer.inbox.back.push_back(message);
                } else {
                    peer.inbox.unserved += u64::from(!discards);
                    engine.release(message);
                }
            }
            done += match &mut peer.mirror {
                Some(mirror) => mirror.send(engine, endpoint, budget, now),
                None => peer.inbox.send_back(engine, endpoint, interface.config.tag, now),
            };
            if let Some(State::Failed(why)) = engine.state(endpoint) {
                if peer.fail(engine, budget, why) {
                    exchanges.end(&peer.origin);
                }
            }
        }
        if self.budget.free() > free {
            self.admit_waiting(now);
        }
        done
    }

    /// There is memory again for messages of MPI that come in parts: those that wait for it are asked for.
    #[cold]
    fn admit_waiting(&mut self, now: Instant) {
        let Usnic { engine, peers, budget, .. } = self;
        for peer in peers {
            if let (Some(mirror), Some(endpoint)) = (&mut peer.mirror, peer.endpoint)
                && mirror.under_way().1 > 0
            {
                mirror.admit(budget);
                mirror.send(engine, endpoint, budget, now);
            }
        }
    }
}

impl Peer {
    /// Gives everything of it back to the engine.
    pub(super) fn clear(&mut self, engine: &mut Engine, budget: &mut Budget) {
        self.inbox.clear(engine);
        if let Some(mirror) = &mut self.mirror {
            mirror.clear(engine, budget);
        }
    }

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
    fn fail(&mut self, engine: &mut Engine, budget: &mut Budget, why: Failure) -> bool {
        self.clear(engine, budget);
        let is_new = !core::mem::replace(&mut self.inbox.told, true);
        if is_new {
            let name = self.config.name.as_str();
            log::warn!("usnic peer {name}: {why}; `usnic reset {name}` begins anew");
        }
        is_new
    }
}
