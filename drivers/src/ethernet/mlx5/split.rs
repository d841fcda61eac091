//! Several pairs of queues, each with a doorbell page, an event queue and a vector of its own, for a core of its own. All
//! commands are the first owner's, who resets the card and makes all pairs anew; what they are called then it tells the
//! others, who follow (see [`crate::ethernet::owners`]).

use super::card::Card;
use super::error::Error;
use super::objects::Named;
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

/// Most pairs.
const MOST: usize = 64;

/// What the first owner tells the others. What is named is written while all of them know that the card is stopped, and read
/// when it is live: the phase orders it.
pub struct Told {
    pub owners: Owners,
    named: Box<[[AtomicU32; 6]]>,
    key: AtomicU32,
    /// A reset has begun, or is about to: its registers are left alone.
    is_hushed: AtomicBool,
}

impl Told {
    fn new(others: usize) -> Self {
        let none = || [const { AtomicU32::new(0) }; 6];
        let named = (0..others).map(|_| none()).collect();
        let (key, is_hushed) = (AtomicU32::new(0), AtomicBool::new(false));
        Told { owners: Owners::new(others), named, key, is_hushed }
    }

    fn name(&self, other: usize, named: Named) {
        let Named { page, events, receive_completions, send_completions, .. } = named;
        let Named { send_queue, receive_queue, .. } = named;
        let all = [page, events, receive_completions, send_completions, send_queue, receive_queue];
        self.named[other].iter().zip(all).for_each(|(at, one)| at.store(one, Ordering::Relaxed));
    }

    /// How the card calls what is of an owner.
    pub fn named(&self, other: usize) -> Named {
        let [page, events, receive_completions, send_completions, send_queue, receive_queue] =
            self.named[other].each_ref().map(|one| one.load(Ordering::Relaxed));
        Named { page, events, receive_completions, send_completions, send_queue, receive_queue }
    }

    /// Whether the card's registers are to be left alone.
    #[inline(always)]
    pub fn is_hushed(&self) -> bool {
        self.is_hushed.load(Ordering::Relaxed)
    }

    /// The key of bus addresses.
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

    /// The other owners ring no doorbells while the card is reset.
    pub fn hush_others(&self) {
        if let Some(told) = &self.told {
            told.is_hushed.store(true, Ordering::Relaxed);
        }
    }

    /// The other owners hear that the card reaches no memory.
    pub fn stop_others(&self) {
        if let Some(told) = &self.told {
            told.owners.stopped();
        }
    }

    /// Whether all of them know.
    pub fn others_follow(&self) -> bool {
        self.told.as_ref().is_none_or(|told| told.owners.all_follow(self.others.len()))
    }

    /// Makes their pairs; `queues` are those in which frames can be received.
    pub async fn make_others(&mut self, queues: &mut Vec<u32>) -> Result<(), Error> {
        let Some(told) = self.told.clone() else { return Ok(()) };
        for other in 0..self.others.len() {
            match self.make_other(other).await {
                Ok(named) => {
                    told.name(other, named);
                    queues.push(named.receive_queue);
                }
                // It has no more of something. What was made of this one stays until a reset.
                Err(Error::Status(..)) if self.may_be_fewer => {
                    self.others.truncate(other);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        told.key.store(self.objects.key, Ordering::Relaxed);
        Ok(())
    }

    async fn make_other(&mut self, other: usize) -> Result<Named, Error> {
        let rings = self.others[other];
        let named = self.begin_pair(&rings, other as u32 + 1, 0).await?;
        self.make_pair(&rings, named).await
    }

    /// The others may go on.
    pub fn tell_others(&self) {
        self.tell_link();
        if let Some(told) = &self.told {
            told.is_hushed.store(false, Ordering::Relaxed);
            told.owners.live();
        }
    }

    /// They hear of the link.
    pub fn tell_link(&self) {
        if let Some(told) = &self.told {
            told.owners.set_link(self.link);
        }
    }

    /// Whether a queue of theirs hangs.
    pub fn others_hang(&self) -> bool {
        self.told.as_ref().is_some_and(|told| told.owners.hangs())
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
        let told = Arc::new(Told::new(most - 1));
        let another = |pair| QueuePort::new(pair, self, &card.function, &told, platform);
        let mut ports: Vec<QueuePort> = (1..most).map_while(another).collect();
        if ports.is_empty() {
            self.card = Some(card);
            return Vec::new();
        }
        card.others = ports.iter().map(QueuePort::rings).collect();
        (card.told, card.hash, card.may_be_fewer) = (Some(told), *key, true);
        let (mut card, mut end) = finish(Box::pin(start::again(card)), &self.present, clock);
        card.may_be_fewer = false;
        if end.is_err() || card.others.is_empty() {
            card.others.clear();
            card.told = None;
        }
        if end.is_err() {
            (card, end) = finish(Box::pin(start::again(card)), &self.present, clock);
        }
        for port in ports.drain(card.others.len()..) {
            port.memory.into_iter().for_each(|window| platform.arena().free(window));
        }
        match end {
            Ok(()) => self.is_back(card),
            // It works no more, and neither do the others, of which there are none.
            Err(_) => self.keeper.note(Severity::Error, NOT_BACK),
        }
        ports.into_iter().map(|port| Box::new(port) as Box<dyn Port + Send>).collect()
    }
}
