//! Several pairs of queues for several cores, each with its own doorbell page, event queue and vector. Only the first
//! owner posts commands: it resets the card, creates all pairs again, and publishes the numbers of their objects. The
//! other owners follow (see [`crate::ethernet::owners`]).

use super::card::Card;
use super::error::Error;
use super::objects::PairObjects;
use super::pair::Rings;
use super::port::{Mlx5Port, NOT_BACK, finish};
use super::queue_port::QueuePort;
use super::start;
use crate::ethernet::owners::Owners;
use crate::hal::{Clock, HashKey, Platform, Port, Severity};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Maximum number of pairs.
const MOST: usize = 64;

/// State that the first owner shares with the others. It writes the numbers of objects while all others have confirmed
/// that the card is stopped, and they read them when it is live: the phase orders these accesses.
pub struct SharedState {
    pub owners: Owners,
    /// Numbers of the objects of each further pair.
    objects: Box<[[AtomicU32; 6]]>,
    key: AtomicU32,
    /// A reset has begun, or is about to: owners must not access the card's registers.
    is_quiesced: AtomicBool,
}

impl SharedState {
    fn new(others: usize) -> Self {
        let none = || [const { AtomicU32::new(0) }; 6];
        let objects = (0..others).map(|_| none()).collect();
        let (key, is_quiesced) = (AtomicU32::new(0), AtomicBool::new(false));
        SharedState { owners: Owners::new(others), objects, key, is_quiesced }
    }

    fn set_objects(&self, other: usize, objects: PairObjects) {
        let PairObjects { page, events, receive_completions, send_completions, .. } = objects;
        let PairObjects { send_queue, receive_queue, .. } = objects;
        let all = [page, events, receive_completions, send_completions, send_queue, receive_queue];
        self.objects[other].iter().zip(all).for_each(|(at, one)| at.store(one, Ordering::Relaxed));
    }

    /// Numbers of the objects of an owner's pair.
    pub fn objects(&self, other: usize) -> PairObjects {
        let [page, events, receive_completions, send_completions, send_queue, receive_queue] =
            self.objects[other].each_ref().map(|one| one.load(Ordering::Relaxed));
        PairObjects {
            page,
            events,
            receive_completions,
            send_completions,
            send_queue,
            receive_queue,
        }
    }

    /// Whether the card's registers must not be accessed.
    #[inline]
    pub fn is_quiesced(&self) -> bool {
        self.is_quiesced.load(Ordering::Relaxed)
    }

    /// The key for bus addresses.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }
}

impl Card {
    /// The rings of the first pair.
    pub fn own_rings(&self) -> Option<Rings> {
        let queues = self.queues.as_ref()?;
        Some(Rings::of(&self.events, &queues.receiver, &queues.transmitter))
    }

    /// Keeps the other owners from ringing doorbells while the card is reset.
    pub fn quiesce_others(&self) {
        if let Some(shared) = &self.shared {
            shared.is_quiesced.store(true, Ordering::Relaxed);
        }
    }

    /// Notifies the other owners that the card accesses no memory.
    pub fn publish_stopped(&self) {
        if let Some(shared) = &self.shared {
            shared.owners.stopped();
        }
    }

    /// Whether all other owners have confirmed that.
    pub fn others_follow(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.owners.all_follow(self.others.len()))
    }

    /// Creates the further pairs, and adds their receive queues to `queues`.
    pub async fn create_further_pairs(&mut self, queues: &mut Vec<u32>) -> Result<(), Error> {
        let Some(shared) = self.shared.clone() else { return Ok(()) };
        for other in 0..self.others.len() {
            match self.create_further_pair(other).await {
                Ok(objects) => {
                    shared.set_objects(other, objects);
                    queues.push(objects.receive_queue);
                }
                // The card has run out of some object. The objects created for this pair remain until a reset.
                Err(Error::Status(..)) if self.may_be_fewer => {
                    self.others.truncate(other);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        shared.key.store(self.objects.key, Ordering::Relaxed);
        Ok(())
    }

    async fn create_further_pair(&mut self, other: usize) -> Result<PairObjects, Error> {
        let rings = self.others[other];
        let objects = self.begin_pair(&rings, other as u32 + 1, 0).await?;
        self.create_queues(&rings, objects).await
    }

    /// Publishes the link, and that the card is live.
    pub fn publish_live(&self) {
        self.publish_link();
        if let Some(shared) = &self.shared {
            shared.is_quiesced.store(false, Ordering::Relaxed);
            shared.owners.live();
        }
    }

    /// Publishes the state of the link.
    pub fn publish_link(&self) {
        if let Some(shared) = &self.shared {
            shared.owners.set_link(self.link);
        }
    }

    /// Whether another owner has reported that its queue hangs.
    pub fn other_queue_hangs(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.owners.hangs())
    }
}

impl Mlx5Port {
    /// See [`Port::split`].
    pub(super) fn add_queues(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        let vectors = self.msix.as_ref().map_or(0, |msix| usize::from(msix.entries()));
        let Some(mut card) = self.card.take() else { return Vec::new() };
        let most = (more + 1).min(MOST).min(card.most_pairs).min(vectors).max(1);
        let shared = Arc::new(SharedState::new(most - 1));
        let another = |pair| QueuePort::new(pair, self, &card.function, &shared, platform);
        let mut ports: Vec<QueuePort> = (1..most).map_while(another).collect();
        if ports.is_empty() {
            self.card = Some(card);
            return Vec::new();
        }
        card.others = ports.iter().map(QueuePort::rings).collect();
        (card.shared, card.hash, card.may_be_fewer) = (Some(shared), *key, true);
        let (mut card, mut end) = finish(Box::pin(start::restart(card)), &self.time, clock);
        card.may_be_fewer = false;
        if end.is_err() || card.others.is_empty() {
            card.others.clear();
            card.shared = None;
        }
        if end.is_err() {
            (card, end) = finish(Box::pin(start::restart(card)), &self.time, clock);
        }
        for port in ports.drain(card.others.len()..) {
            port.memory.into_iter().for_each(|window| platform.arena().free(window));
        }
        match end {
            Ok(()) => self.attach(card),
            // The card has failed. There are no further ports in this case.
            Err(_) => self.reset_log.note(Severity::Error, NOT_BACK),
        }
        ports.into_iter().map(|port| Box::new(port) as Box<dyn Port + Send>).collect()
    }
}
