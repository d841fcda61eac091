//! Ethernet port over a bridge: `ntb_transport` version 4 with `ntb_netdev` (Linux, `drivers/ntb/ntb_transport.c`,
//! `drivers/net/ntb_netdev.c`). The peer is a stock Linux host, or another appliance.
//!
//! Each side advertises the sizes of its windows in scratchpads, makes rings of 64 KiB entries in the memory of the
//! windows, and advertises each queue as up. A frame is one entry: the bytes first, a header at the entry's end. After
//! the entries comes the index of the last consumed entry of the other direction, for flow control.
//!
//! The first queue is used, in the first window. Linux creates a queue for each window; for the other windows a small
//! size is advertised, and their queues stay closed. `tests/metal/suites/ntb_netdev.rs` runs two of these ports against
//! each other, the suite `ntb_hw` one against stock Linux.
//!
//! Difference from Linux: when the queue goes down, entries left in the peer's ring are cleared, so that the peer does
//! not find them when the queue comes up again. After an invalid write of the peer this side reports link down, and
//! both sides restart the queue.

mod error;
mod port;
mod protocol;
mod ring;

use super::NtbDevice;
use crate::dma::Ticket;
use crate::hal::{Arena, Instant, PortCounters, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::time::Duration;
pub use error::{Error, Mismatch};
use protocol::{ENTRY, PAD_LINKS, PAD_QUEUES, PAD_SIZES, PAD_VERSION, PAD_WINDOWS, QUEUE, VERSION};
use ring::{Received, Receiving, Sending};

/// Most bytes of the window that are used: Linux cannot allocate more contiguous memory.
const MOST_WINDOW: usize = 4 << 20;
/// Advertised bytes of the other queues' windows.
const UNUSED_WINDOW: u64 = 4096;
/// Interval of reading the peer's scratchpads while the link comes up (Linux: `NTB_LINK_DOWN_TIMEOUT`).
const EXCHANGE_INTERVAL: Duration = Duration::from_millis(10);
/// Interval of checking the bridge's link while the queue is up.
const LINK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checking for room while a frame waits for it, because the peer sends no event (Linux's `ntb_netdev`
/// waits a millisecond).
const ROOM_INTERVAL: Duration = Duration::from_micros(200);
/// Buffers for received frames that the user has not recycled.
const BUFFERS: usize = 32;
const ETHERNET_HEADER: usize = 14;

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The bridge has no link.
    NoLink,
    /// The peer's software has not advertised its version yet.
    Waiting,
    /// The peer has another version, or other windows or queues.
    Mismatch(Mismatch),
    /// The peer's queue is not up.
    QueueDown,
    /// Both queues are up.
    Up,
}

/// An Ethernet port over a bridge. Polled by one loop, which calls [`NtbNetdev::poll`] in each round.
pub struct NtbNetdev {
    bridge: Box<dyn NtbDevice>,
    mac: [u8; 6],
    mtu: usize,
    /// Number of windows that Linux's driver offers.
    windows: usize,
    window: Window,
    sending: Sending,
    receiving: Option<Receiving>,
    state: State,
    exchanged: Option<Instant>,
    /// The engine's last complete copy.
    done: Ticket,
    /// The engine has copies in flight.
    is_busy: bool,
    /// A frame was refused for want of room, and [`Port::has_room`](crate::hal::Port::has_room) was not true since.
    refused: Cell<bool>,
    /// The last consumed entry, if it was not reported to the peer yet.
    consumed: Option<u32>,
    /// The peer's doorbell has to be rung.
    must_ring: bool,
    /// Buffers for received frames, and the indices of the free ones.
    buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    counters: PortCounters,
    /// Times that the queue went up.
    ups: u64,
    /// Invalid writes of the peer.
    violations: u64,
}

impl NtbNetdev {
    /// A port over `bridge`, with a locally chosen MAC address. A DMA engine must be assigned to the bridge before this
    /// call.
    pub fn new(
        bridge: Box<dyn NtbDevice>,
        mac: [u8; 6],
        mtu: usize,
        arena: &mut Arena,
    ) -> Result<Self, Error> {
        let windows = bridge.windows();
        let (there, wanted) = (bridge.scratchpads(), PAD_SIZES + 2 * windows);
        if there < wanted {
            return Err(Error::Scratchpads { there, wanted });
        }
        let most = protocol::NUMBER - ETHERNET_HEADER;
        if mtu > most {
            return Err(Error::Mtu { most });
        }
        let whole = bridge.window();
        let window = whole.slice(0, whole.len().min(MOST_WINDOW)).unwrap_or(whole);
        let entries =
            protocol::entries(window.len()).ok_or(Error::Window { bytes: window.len() })?;
        let place = (mtu + ETHERNET_HEADER + 16).next_multiple_of(64).min(ENTRY);
        let bytes = place * entries as usize;
        let staging = arena.alloc(bytes, 64).ok_or(Error::NoMemory { bytes })?;
        let sending = Sending::new(window, staging, place);
        let sending = sending.ok_or(Error::Window { bytes: window.len() })?;
        let buffer = || alloc::vec![0; mtu + ETHERNET_HEADER].into_boxed_slice();
        Ok(NtbNetdev {
            bridge,
            mac,
            mtu,
            windows,
            window,
            sending,
            receiving: None,
            state: State::NoLink,
            exchanged: None,
            done: 0,
            is_busy: false,
            refused: Cell::new(false),
            consumed: None,
            must_ring: false,
            buffers: (0..BUFFERS).map(|_| buffer()).collect(),
            free: (0..BUFFERS as u32).collect(),
            counters: PortCounters::default(),
            ups: 0,
            violations: 0,
        })
    }

    /// State of the link.
    pub fn state(&self) -> State {
        self.state
    }

    /// Times that the queue went up.
    pub fn ups(&self) -> u64 {
        self.ups
    }

    /// Number of invalid writes of the peer.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The bridge below the port.
    pub fn bridge(&self) -> &dyn NtbDevice {
        &*self.bridge
    }

    /// Polls the link and the engine; to be called in each round of the loop.
    pub fn poll(&mut self, now: Instant) {
        let progress = self.bridge.complete(now);
        self.done = progress.done;
        self.is_busy = self.bridge.start();
        if !self.bridge.link() || progress.lost {
            if self.state != State::NoLink {
                self.lose_link();
            }
            return;
        }
        if self.state == State::Up
            || self.exchanged.is_some_and(|exchanged| now.since(exchanged) < EXCHANGE_INTERVAL)
        {
            return;
        }
        self.exchanged = Some(now);
        if self.receiving.is_none() {
            self.exchange();
        }
        if self.receiving.is_some() {
            self.bring_queue_up();
        }
        self.is_busy = self.bridge.start();
    }

    /// Time of the next necessary [`NtbNetdev::poll`] if nothing arrives.
    pub fn deadline(&self, now: Instant) -> Instant {
        if self.is_busy {
            // The engine's progress is in memory, and raises no interrupt.
            return now;
        }
        let interval = match self.state {
            State::Up if self.refused.get() => ROOM_INTERVAL,
            State::Up => LINK_INTERVAL,
            _ => EXCHANGE_INTERVAL,
        };
        now + interval
    }

    /// Handles a lost link of the bridge: drops the state of both sides.
    fn lose_link(&mut self) {
        (self.state, self.receiving, self.consumed) = (State::NoLink, None, None);
        self.exchanged = None;
        self.must_ring = false;
        self.bridge.clear_scratchpads();
    }

    /// Advertises this side's windows, and reads the peer's advertisement.
    fn exchange(&mut self) {
        let size = |n: usize| if n == 0 { self.window.len() as u64 } else { UNUSED_WINDOW };
        for n in 0..self.windows {
            let size = size(n);
            self.bridge.set_peer_scratchpad(PAD_SIZES + 2 * n, (size >> 32) as u32);
            self.bridge.set_peer_scratchpad(PAD_SIZES + 2 * n + 1, size as u32);
        }
        // Linux creates as many queues as windows.
        let count = self.windows as u32;
        self.bridge.set_peer_scratchpad(PAD_WINDOWS, count);
        self.bridge.set_peer_scratchpad(PAD_QUEUES, count);
        self.bridge.set_peer_scratchpad(PAD_VERSION, VERSION);
        self.state = match self.bridge.scratchpad(PAD_VERSION) {
            0 => State::Waiting,
            VERSION => match self.fits(count) {
                Ok(()) => State::QueueDown,
                Err(mismatch) => State::Mismatch(mismatch),
            },
            other => State::Mismatch(Mismatch::Version(other)),
        };
    }

    /// Checks the peer's advertisement, and sets up the receive ring if it fits.
    fn fits(&mut self, count: u32) -> Result<(), Mismatch> {
        let queues = self.bridge.scratchpad(PAD_QUEUES);
        if queues != count {
            return Err(Mismatch::Queues(queues));
        }
        let windows = self.bridge.scratchpad(PAD_WINDOWS);
        if windows != count {
            return Err(Mismatch::Windows(windows));
        }
        let half = |n: usize| u64::from(self.bridge.scratchpad(PAD_SIZES + n));
        let size = half(0) << 32 | half(1);
        let exposed = self.bridge.exposed();
        let memory = usize::try_from(size).ok().and_then(|size| exposed.slice(0, size));
        self.receiving = Some(memory.and_then(Receiving::new).ok_or(Mismatch::Size(size))?);
        self.begin_queue();
        Ok(())
    }

    /// Resets both rings.
    fn begin_queue(&mut self) {
        (self.consumed, self.must_ring) = (None, false);
        let Some(receiving) = &mut self.receiving else { return };
        receiving.begin(&self.sending);
        self.sending.begin();
        self.state = State::QueueDown;
        self.exchanged = None;
    }

    /// Restarts the queue after the peer has taken it down. The peer reads its ring from the beginning, so old entries
    /// are cleared.
    fn restart_queue(&mut self) {
        self.begin_queue();
        self.sending.clear(self.bridge.bridge());
    }

    /// Advertises this side's queue as up, and checks the peer's.
    fn bring_queue_up(&mut self) {
        let links = self.bridge.scratchpad(PAD_LINKS);
        // Not those of the peer's further queues, which would then send to a window that leads nowhere.
        self.bridge.set_peer_scratchpad(PAD_LINKS, QUEUE);
        if links & QUEUE != 0 {
            self.state = State::Up;
            self.ups += 1;
        }
    }

    /// Handles an invalid write of the peer: reports link down, so that both sides restart the queue.
    fn refuse(&mut self) {
        self.violations += 1;
        self.counters.rx_errors += 1;
        self.bridge.set_peer_scratchpad(PAD_LINKS, 0);
        self.sending.write_link_down(self.bridge.bridge());
        self.bridge.ring();
        // Entries in the peer's ring are not cleared: the peer reads them before the link-down entry.
        self.begin_queue();
    }

    /// Reports link down to the peer before the machine ends, so that the peer need not detect it by a timeout.
    pub fn leave(&mut self) {
        if self.state == State::Up {
            self.bridge.set_peer_scratchpad(PAD_LINKS, 0);
            self.sending.write_link_down(self.bridge.bridge());
            self.bridge.ring();
        }
    }

    /// Number of free entries. None if the peer's index of consumed entries is invalid.
    fn room(&self) -> Option<u32> {
        self.sending.free(self.receiving.as_ref()?.consumed_by_peer())
    }

    /// Takes the next received frame: its buffer and its length.
    fn take(&mut self) -> Option<(u32, usize)> {
        loop {
            let receiving = self.receiving.as_mut().filter(|_| self.state == State::Up)?;
            match receiving.peek() {
                Received::Nothing => return None,
                Received::LinkDown => {
                    receiving.consume();
                    self.restart_queue();
                    return None;
                }
                Received::Invalid => {
                    self.refuse();
                    return None;
                }
                Received::Frame(length) => {
                    if !(ETHERNET_HEADER..=self.mtu + ETHERNET_HEADER).contains(&length) {
                        self.counters.rx_errors += 1;
                        self.consumed = Some(receiving.consume());
                        continue;
                    }
                    // Without a free buffer the frame stays in the ring, and the peer waits.
                    let buffer = self.free.pop()?;
                    receiving.copy(&mut self.buffers[buffer as usize][..length]);
                    self.consumed = Some(receiving.consume());
                    return Some((buffer, length));
                }
            }
        }
    }
}

impl Drop for NtbNetdev {
    fn drop(&mut self) {
        self.leave();
    }
}
