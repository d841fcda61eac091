//! A card: all that is had of it, and how its firmware is asked. A sequence of commands is an `async` function that owns
//! the card; between two steps it waits for nothing but to be polled again.

use super::error::Error;
use super::events::{Event, Events, PairEvent};
use super::fields::word;
use super::firmware::{Command, Doorbells, Firmware, Slot};
use super::health::Watch;
use super::objects::Objects;
use super::pages::Pages;
use super::pair::Rings;
use super::receive::Receiver;
use super::split::Told;
use super::transmit::Transmitter;
use crate::hal::{Arena, HashKey, Instant, Window};
use crate::pci::{Function, reset};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use core::time::Duration;

const MANAGE_PAGES: Command = Command(0x108, "MANAGE_PAGES");
/// How often it is looked whether the card is still there while a command is waited for.
const LOOK: Duration = Duration::from_secs(1);
/// Events that are taken in at a time.
const MOST_EVENTS: usize = 128;
/// Events that are kept of each kind for a verbs provider: more than it has queues, unless the card tells what is not so.
const MOST_KEPT: usize = 65_536;

/// The present, for who is polled without being told of it.
#[derive(Clone, Debug)]
pub struct Present(Arc<AtomicU64>);

impl Present {
    pub fn new(now: Instant) -> Self {
        Present(Arc::new(AtomicU64::new(now.as_nanos())))
    }

    pub fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub fn get(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The queues that everything goes through.
pub struct Queues {
    pub receiver: Receiver,
    pub transmitter: Transmitter,
}

impl Queues {
    /// Takes note that completions were told of; false if they are of another queue.
    pub fn has_told(&mut self, number: u32) -> bool {
        let mut own = false;
        for queue in [&mut self.receiver.completions, &mut self.transmitter.completions] {
            if queue.number() == number {
                queue.has_told();
                own = true;
            }
        }
        own
    }
}

/// A card.
pub struct Card {
    pub function: Function<'static>,
    pub firmware: Firmware,
    pub present: Present,
    pub arena: Arena,
    pub pages: Pages,
    pub events: Events,
    /// Whether the event queue is the device's.
    pub has_events: bool,
    /// None until it is known how large they may be.
    pub queues: Option<Queues>,
    pub objects: Objects,
    pub health: Watch,
    pub is_virtual: bool,
    pub mac: [u8; 6],
    pub mtu: u16,
    /// Largest layer 3 packet of the port.
    pub port_mtu: u16,
    pub link: bool,
    /// Multicast comes as far as addresses were told, because the function is not trusted.
    pub is_distrusted: bool,
    /// An event said that a queue has failed.
    pub has_failed: bool,
    /// Atomic operations are carried out, in the byte order of the CPU.
    pub atomics: bool,
    /// What has happened to queue pairs of a verbs provider, of each of which there are two events at most; and
    /// completion queues of it that an event has told of.
    pub pairs: VecDeque<PairEvent>,
    pub completed: VecDeque<u32>,
    /// Pages that the firmware wants, or, negative, offers; whether a command for some is under way, and in which
    /// direction.
    wanted: i32,
    moving: Option<bool>,
    pub memory: Vec<Window>,
    /// Pairs of queues that there can be; further ones, their owners, and the key of the hash that chooses.
    pub most_pairs: usize,
    pub others: Vec<Rings>,
    pub told: Option<Arc<Told>>,
    pub hash: HashKey,
    /// There may be fewer of them than were wanted.
    pub may_be_fewer: bool,
}

impl Card {
    pub fn new(
        function: Function<'static>,
        firmware: Firmware,
        present: Present,
        arena: Arena,
        events: Events,
        memory: Vec<Window>,
        is_virtual: bool,
    ) -> Self {
        Card {
            function,
            firmware,
            present,
            arena,
            pages: Pages::default(),
            events,
            has_events: false,
            queues: None,
            objects: Objects::default(),
            health: Watch::default(),
            is_virtual,
            mac: [0; 6],
            mtu: 0,
            port_mtu: 0,
            link: false,
            is_distrusted: false,
            has_failed: false,
            atomics: false,
            pairs: VecDeque::new(),
            completed: VecDeque::new(),
            wanted: 0,
            moving: None,
            memory,
            most_pairs: 1,
            others: Vec::new(),
            told: None,
            hash: HashKey::default(),
            may_be_fewer: false,
        }
    }

    /// Its doorbell page.
    #[inline(always)]
    pub fn doorbells(&self) -> Doorbells<'_> {
        self.firmware.doorbells(self.objects.pair.page)
    }

    /// What a reset makes of it.
    pub fn forget(&mut self) {
        self.pages.forget();
        (self.wanted, self.moving) = (0, None);
        (self.has_events, self.has_failed, self.link) = (false, false, false);
        self.health = Watch::default();
        self.pairs.clear();
        self.completed.clear();
        if let Some(queues) = &mut self.queues {
            queues.receiver.stop();
            queues.transmitter.stop();
        }
    }

    /// Waits so long.
    pub async fn wait(&mut self, time: Duration) {
        let until = self.present.get() + time;
        while self.present.get() < until {
            pause().await;
        }
    }

    /// Gives a command, and waits for its answer. `input` begins at byte 8; the answer at its status.
    pub async fn command(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<Vec<u8>, Error> {
        self.firmware.give(Slot::Ordinary, command, operation, input, output)?;
        let mut look_at = self.present.get() + LOOK;
        let late_at = Firmware::late_at(self.present.get());
        loop {
            if let Some(answer) = self.firmware.answer(Slot::Ordinary) {
                return answer;
            }
            // The firmware may want memory for what it is asked to do.
            self.mind()?;
            let now = self.present.get();
            if now >= look_at {
                look_at = now + LOOK;
                self.firmware.is_ready()?;
            }
            if now >= late_at {
                return Err(Error::Late(command.1));
            }
            pause().await;
        }
    }

    /// Gives the firmware so many pages, and waits until it has them.
    pub async fn give_pages(&mut self, count: i32) -> Result<(), Error> {
        self.wanted += count.max(0);
        let late_at = Firmware::late_at(self.present.get());
        while self.wanted > 0 || self.moving.is_some() {
            self.mind()?;
            if self.present.get() >= late_at {
                return Err(Error::Late(MANAGE_PAGES.1));
            }
            pause().await;
        }
        Ok(())
    }

    /// Takes in events, and moves pages as the firmware wants. Waits for nothing.
    #[inline]
    pub fn mind(&mut self) -> Result<(), Error> {
        if self.has_events && self.events.pending() {
            self.take_events();
        }
        self.move_pages()
    }

    fn take_events(&mut self) {
        for _ in 0..MOST_EVENTS {
            let Some(event) = self.events.poll() else { break };
            match event {
                Event::Pages(count) => self.wanted = self.wanted.saturating_add(count),
                Event::Link(up) => self.link = up,
                Event::Failed => self.has_failed = true,
                Event::Completion(number) => {
                    let Some(queues) = &mut self.queues else { continue };
                    if !queues.has_told(number) && self.completed.len() < MOST_KEPT {
                        self.completed.push_back(number);
                    }
                }
                Event::Pair(event) if self.pairs.len() < MOST_KEPT => self.pairs.push_back(event),
                Event::Pair(_) | Event::Other => {}
            }
        }
        self.events.tell_some(self.firmware.doorbells(self.objects.pair.page));
    }

    /// Asks for an interrupt at what comes next, or has come and was not taken in.
    #[inline]
    pub fn arm(&mut self) {
        let doorbells = self.firmware.doorbells(self.objects.pair.page);
        if let Some(queues) = &mut self.queues {
            queues.receiver.completions.arm(doorbells);
            if queues.transmitter.is_starved() {
                queues.transmitter.completions.arm(doorbells);
            }
        }
        self.events.arm(doorbells);
    }

    #[inline]
    fn move_pages(&mut self) -> Result<(), Error> {
        if self.moving.is_none() && self.wanted == 0 {
            return Ok(());
        }
        self.go_on_moving()
    }

    #[cold]
    fn go_on_moving(&mut self) -> Result<(), Error> {
        if let Some(giving) = self.moving {
            let Some(answer) = self.firmware.answer(Slot::Pages) else { return Ok(()) };
            self.moving = None;
            let answer = answer?;
            if !giving {
                let taken = self.pages.take_back(&answer).ok_or(Error::Answer(MANAGE_PAGES.1))?;
                // Nothing came though something was offered: it was a mistake.
                self.wanted = if taken == 0 { 0 } else { self.wanted + taken as i32 };
            }
        }
        match self.wanted {
            0 => Ok(()),
            wanted @ 1.. => {
                let wanted = wanted as usize;
                let provided = self.pages.provide(wanted.min(512), &mut self.arena);
                if let Err(error) = provided {
                    // Said, so that the firmware does not wait for ever.
                    self.wanted = 0;
                    let _ = self.firmware.give(Slot::Pages, MANAGE_PAGES, 0, &[0; 8], 16);
                    return Err(error);
                }
                let (input, count) = self.pages.give(wanted);
                self.wanted -= count as i32;
                self.moving = Some(true);
                self.firmware.give(Slot::Pages, MANAGE_PAGES, 1, &input, 16)
            }
            wanted => {
                let count = wanted.unsigned_abs().min(super::pages::AT_A_TIME as u32);
                let mut input = [0; 8];
                input[4..].copy_from_slice(&count.to_be_bytes());
                self.moving = Some(false);
                let output = 16 + 8 * count as usize;
                self.firmware.give(Slot::Pages, MANAGE_PAGES, 2, &input, output)
            }
        }
    }

    /// The number of an object in the answer of the command that made it.
    pub fn number(answer: &[u8]) -> u32 {
        word(answer, 8) & 0xff_ffff
    }
}

/// Lets somebody else have a turn.
pub async fn pause() {
    let mut paused = false;
    poll_fn(|_| match core::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl Drop for Card {
    fn drop(&mut self) {
        self.hush_others();
        // It does not reach memory any more; and a reset makes it forget what it was to do.
        let _ = reset::begin(&self.function);
        self.function.disable();
        self.stop_others();
        let pages = core::mem::take(&mut self.pages);
        let taken = pages.memory().iter().copied().chain(self.memory.drain(..));
        taken.for_each(|window| self.arena.free(window));
    }
}
