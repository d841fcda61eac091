//! The state of a card, and commands to its firmware. A sequence of commands is an `async` function that owns the card.
//! Between two steps it only waits to be polled again.

use super::error::Error;
use super::events::{Event, Events, PairEvent};
use super::fields::word;
use super::firmware::{Command, Doorbells, Firmware, Slot};
use super::health::HealthMonitor;
use super::objects::Objects;
use super::pages::Pages;
use super::pair::Rings;
use super::receive::Receiver;
use super::split::SharedState;
use super::transmit::Transmitter;
use crate::hal::{Arena, HashKey, Instant, Window};
use crate::pci::Function;
use crate::pci::reset::{self, FunctionReset, Progress, SavedConfig};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use core::time::Duration;

const MANAGE_PAGES: Command = Command(0x108, "MANAGE_PAGES");
/// Interval at which a card is checked for removal while a command is in flight.
const PRESENCE_CHECK: Duration = Duration::from_secs(1);
/// Time for which registers may read as all ones: a reset by the machine, or by the physical function.
const ABSENCE: Duration = Duration::from_secs(5);
/// Maximum number of events that are processed at a time.
const MOST_EVENTS: usize = 128;
/// Maximum number of events of each kind that are kept for a verbs provider. It has fewer queues, so only a faulty card
/// exceeds this.
const MOST_KEPT: usize = 65_536;

/// The current time, shared with `async` functions, which get no argument when they are polled.
#[derive(Clone, Debug)]
pub struct SharedTime(Arc<AtomicU64>);

impl SharedTime {
    pub fn new(now: Instant) -> Self {
        SharedTime(Arc::new(AtomicU64::new(now.as_nanos())))
    }

    pub fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub fn get(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The first pair of queues.
pub struct Queues {
    pub receiver: Receiver,
    pub transmitter: Transmitter,
}

impl Queues {
    /// Handles an event of completion queue `number`; false if it is not one of these.
    pub fn has_told(&mut self, number: u32) -> bool {
        let mut own = false;
        for queue in [&mut self.receiver.queue.completions, &mut self.transmitter.queue.completions]
        {
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
    /// Configuration registers as at the opening.
    pub saved: SavedConfig,
    pub firmware: Firmware,
    pub time: SharedTime,
    pub arena: Arena,
    pub pages: Pages,
    pub events: Events,
    /// The device has the event queue.
    pub has_events: bool,
    /// None until the MTU is known.
    pub queues: Option<Queues>,
    pub objects: Objects,
    pub health: HealthMonitor,
    pub is_virtual: bool,
    pub mac: [u8; 6],
    pub mtu: u16,
    /// Largest layer 3 packet that the port supports.
    pub port_mtu: u16,
    pub link: bool,
    /// The function is not trusted, so it receives only the multicast that the host allows.
    pub is_distrusted: bool,
    /// An event has reported the failure of a queue.
    pub has_failed: bool,
    /// The function manages the switch of physical functions.
    pub manages_switch: bool,
    /// Local loopback of multicast and of unicast can be disabled.
    pub local_loopback: [bool; 2],
    /// The card executes atomic operations, in the byte order of the CPU.
    pub atomics: bool,
    /// Events of a verbs provider's queue pairs, at most two for each.
    pub pairs: VecDeque<PairEvent>,
    /// Completion queues of a verbs provider that events have named.
    pub completed: VecDeque<u32>,
    /// Pages that the firmware wants, or offers if negative.
    wanted: i32,
    /// A page command is in flight: true if it gives pages, false if it takes them back.
    moving: Option<bool>,
    pub memory: Vec<Window>,
    /// Maximum number of pairs of queues.
    pub most_pairs: usize,
    /// Rings of the further pairs.
    pub others: Vec<Rings>,
    /// State shared with the owners of further pairs.
    pub shared: Option<Arc<SharedState>>,
    /// Key of the hash that chooses a pair.
    pub hash: HashKey,
    /// A start may create fewer further pairs than wanted.
    pub may_be_fewer: bool,
}

impl Card {
    pub fn new(
        function: Function<'static>,
        firmware: Firmware,
        time: SharedTime,
        arena: Arena,
        events: Events,
        memory: Vec<Window>,
        is_virtual: bool,
    ) -> Self {
        Card {
            function,
            saved: SavedConfig::of(&function),
            firmware,
            time,
            arena,
            pages: Pages::default(),
            events,
            has_events: false,
            queues: None,
            objects: Objects::default(),
            health: HealthMonitor::default(),
            is_virtual,
            mac: [0; 6],
            mtu: 0,
            port_mtu: 0,
            link: false,
            is_distrusted: false,
            has_failed: false,
            manages_switch: false,
            local_loopback: [false; 2],
            atomics: false,
            pairs: VecDeque::new(),
            completed: VecDeque::new(),
            wanted: 0,
            moving: None,
            memory,
            most_pairs: 1,
            others: Vec::new(),
            shared: None,
            hash: HashKey::default(),
            may_be_fewer: false,
        }
    }

    /// The doorbell page of the first pair.
    #[inline]
    pub fn doorbells(&self) -> Doorbells<'_> {
        self.firmware.doorbells(self.objects.pair.page)
    }

    /// Resets the driver's state, after a reset of the card.
    pub fn reset_state(&mut self) {
        self.pages.reclaim_all();
        (self.wanted, self.moving) = (0, None);
        (self.has_events, self.has_failed, self.link) = (false, false, false);
        self.health = HealthMonitor::default();
        self.pairs.clear();
        self.completed.clear();
        if let Some(queues) = &mut self.queues {
            queues.receiver.stop();
            queues.transmitter.stop();
        }
    }

    /// Resets the function, and waits until it answers again.
    pub async fn reset_function(&mut self) -> Result<(), Error> {
        // After a reset by the machine the function has lost its registers, and its capabilities are as before.
        if !self.saved.restore_lost(&self.function) {
            return Err(Error::Absent);
        }
        if !FunctionReset::is_supported(&self.function) {
            return Err(Error::NoReset);
        }
        let mut reset = FunctionReset::begin(&self.function, self.saved, self.time.get());
        loop {
            match reset.step(&self.function, self.time.get()) {
                Progress::Done => return Ok(()),
                Progress::NoAnswer => return Err(Error::NoReturn),
                Progress::Waiting => pause().await,
            }
        }
    }

    /// Waits until the firmware is up, for `most`. Registers that read as all ones are waited for, too, but not as long.
    pub async fn await_firmware(&mut self, most: Duration) -> Result<(), Error> {
        let since = self.time.get();
        let mut seen = since;
        loop {
            let now = self.time.get();
            match self.firmware.is_ready() {
                Ok(true) => return Ok(()),
                Ok(false) => seen = now,
                Err(absent) if now.since(seen) > ABSENCE => return Err(absent),
                Err(_) => {}
            }
            if now.since(since) > most {
                return Err(Error::NotReady);
            }
            pause().await;
        }
    }

    /// Posts a command, and waits for its answer. `input` begins at byte 8, the answer at its status.
    pub async fn command(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<Vec<u8>, Error> {
        self.firmware.post(Slot::Ordinary, command, operation, input, output)?;
        let mut check_at = self.time.get() + PRESENCE_CHECK;
        let mut seen = self.time.get();
        let late_at = Firmware::late_at(self.time.get());
        loop {
            if let Some(answer) = self.firmware.answer(Slot::Ordinary) {
                return answer;
            }
            // The firmware may request memory for the command.
            self.process_events()?;
            let now = self.time.get();
            if now >= check_at {
                check_at = now + PRESENCE_CHECK;
                match self.firmware.is_ready() {
                    Ok(_) => seen = now,
                    Err(absent) if now.since(seen) > ABSENCE => return Err(absent),
                    Err(_) => {}
                }
            }
            if now >= late_at {
                return Err(Error::Late(command.1));
            }
            pause().await;
        }
    }

    /// Gives the firmware `count` pages, and waits until it has them.
    pub async fn give_pages(&mut self, count: i32) -> Result<(), Error> {
        self.wanted += count.max(0);
        let late_at = Firmware::late_at(self.time.get());
        while self.wanted > 0 || self.moving.is_some() {
            self.process_events()?;
            if self.time.get() >= late_at {
                return Err(Error::Late(MANAGE_PAGES.1));
            }
            pause().await;
        }
        Ok(())
    }

    /// Processes events, and moves pages as the firmware requests. Does not wait.
    #[inline]
    pub fn process_events(&mut self) -> Result<(), Error> {
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
        self.events.notify_batch(self.firmware.doorbells(self.objects.pair.page));
    }

    /// Enables the interrupt for the next event, and for events that were not processed yet.
    #[inline]
    pub fn arm(&mut self) {
        let doorbells = self.firmware.doorbells(self.objects.pair.page);
        if let Some(queues) = &mut self.queues {
            queues.receiver.queue.completions.arm(doorbells);
            if queues.transmitter.is_starved() {
                queues.transmitter.queue.completions.arm(doorbells);
            }
        }
        self.events.arm(doorbells);
    }

    #[inline]
    fn move_pages(&mut self) -> Result<(), Error> {
        if self.moving.is_none() && self.wanted == 0 {
            return Ok(());
        }
        self.continue_moving_pages()
    }

    #[cold]
    fn continue_moving_pages(&mut self) -> Result<(), Error> {
        if let Some(giving) = self.moving {
            let Some(answer) = self.firmware.answer(Slot::Pages) else { return Ok(()) };
            self.moving = None;
            let answer = answer?;
            if !giving {
                let taken = self.pages.take_back(&answer).ok_or(Error::Answer(MANAGE_PAGES.1))?;
                // The firmware has offered pages but returned none: its offer is dropped.
                self.wanted = if taken == 0 { 0 } else { self.wanted + taken as i32 };
            }
        }
        match self.wanted {
            0 => Ok(()),
            wanted @ 1.. => {
                let wanted = wanted as usize;
                let provided = self.pages.provide(wanted.min(512), &mut self.arena);
                if let Err(error) = provided {
                    // Notifies the firmware of the failure, so that it does not wait for ever.
                    self.wanted = 0;
                    let _ = self.firmware.post(Slot::Pages, MANAGE_PAGES, 0, &[0; 8], 16);
                    return Err(error);
                }
                let (input, count) = self.pages.give(wanted);
                self.wanted -= count as i32;
                self.moving = Some(true);
                self.firmware.post(Slot::Pages, MANAGE_PAGES, 1, &input, 16)
            }
            wanted => {
                let count = wanted.unsigned_abs().min(super::pages::AT_A_TIME as u32);
                let mut input = [0; 8];
                input[4..].copy_from_slice(&count.to_be_bytes());
                self.moving = Some(false);
                let output = 16 + 8 * count as usize;
                self.firmware.post(Slot::Pages, MANAGE_PAGES, 2, &input, output)
            }
        }
    }

    /// The number of an object, from the answer of the command that created it.
    pub fn number(answer: &[u8]) -> u32 {
        word(answer, 8) & 0xff_ffff
    }
}

/// Returns to the caller of the poll once.
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
        self.quiesce_others();
        // The card must not access memory any more, and a reset discards its work.
        reset::abandon(&self.function);
        self.publish_stopped();
        let pages = core::mem::take(&mut self.pages);
        let taken = pages.memory().iter().copied().chain(self.memory.drain(..));
        taken.for_each(|window| self.arena.free(window));
    }
}
