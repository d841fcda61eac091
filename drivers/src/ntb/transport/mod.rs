//! `ntb_transport` version 4 with `ntb_netdev` over a bridge: an Ethernet port whose peer is a stock Linux host, or another
//! of these (Linux, `drivers/ntb/ntb_transport.c`, `drivers/net/ntb_netdev.c`).
//!
//! Each side tells the other by scratchpads how large its windows are, makes rings of entries of 64 KiB in memory behind
//! them, and says of each queue that it is up. A frame is one entry: the bytes first, a header at the entry's end. Behind the
//! entries stands which of the other way's entries was consumed last, so that nothing is sent for which there is no room.
//!
//! The first queue is used, which lies in the first window. Linux makes a queue for each window; it hears that the others
//! have some bytes, and nobody opens them. `tests/metal/suites/ntb_netdev.rs` has two of these against each other, the suite
//! `ntb_hw` one against stock Linux.
//!
//! What differs from Linux: entries that are left in the peer's ring when the queue goes down are taken back, so that none
//! of them is found when it comes up again. A peer that writes what cannot be is told that the queue goes down, and begins
//! anew.

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

/// Bytes of our window that are used: Linux has no more memory in one piece than that.
const MOST_WINDOW: usize = 4 << 20;
/// Bytes that the windows of other queues are said to have.
const UNUSED_WINDOW: u64 = 4096;
/// How often the peer is asked while the link comes up (Linux: `NTB_LINK_DOWN_TIMEOUT`).
const ASK: Duration = Duration::from_millis(10);
/// How often somebody wants to look whether the bridge's link is still there.
const WATCH: Duration = Duration::from_millis(100);
/// How often it is looked whether the peer has taken frames, while one waits for room: nobody tells of that (Linux's
/// `ntb_netdev` waits a millisecond).
const ROOM: Duration = Duration::from_micros(200);
/// Frames that were received and are with their user, at most.
const LENT: usize = 32;
const ETHERNET_HEADER: usize = 14;

/// How far the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The bridge has none.
    NoLink,
    /// The peer's software has said nothing yet.
    Waiting,
    /// It speaks another version, or has other windows.
    Mismatch(Mismatch),
    /// Its queue is not up.
    QueueDown,
    /// Frames pass.
    Up,
}

/// An Ethernet port over a bridge. Polled by one loop, which calls [`NtbNetdev::poll`] in each round.
pub struct NtbNetdev {
    bridge: Box<dyn NtbDevice>,
    mac: [u8; 6],
    mtu: usize,
    /// Windows that Linux would use.
    windows: usize,
    window: Window,
    sending: Sending,
    receiving: Option<Receiving>,
    state: State,
    asked: Option<Instant>,
    /// The last copy of the engine that is complete, and whether others are under way.
    done: Ticket,
    is_busy: bool,
    /// A frame found no room, and nobody has looked since.
    refused: Cell<bool>,
    /// The last entry that was consumed, if the peer was not told; and whether the bell is to be rung.
    consumed: Option<u32>,
    unrung: bool,
    /// Memory of frames that were received, and which of them are free.
    buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    counters: PortCounters,
    /// Times that the queue went up, and that the peer wrote what cannot be.
    ups: u64,
    violations: u64,
}

impl NtbNetdev {
    /// Over `bridge`, with a MAC address that is made up. An engine that is to carry must be the bridge's before.
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
            asked: None,
            done: 0,
            is_busy: false,
            refused: Cell::new(false),
            consumed: None,
            unrung: false,
            buffers: (0..LENT).map(|_| buffer()).collect(),
            free: (0..LENT as u32).collect(),
            counters: PortCounters::default(),
            ups: 0,
            violations: 0,
        })
    }

    /// How far the link is.
    pub fn state(&self) -> State {
        self.state
    }

    /// Times that the queue went up.
    pub fn ups(&self) -> u64 {
        self.ups
    }

    /// Times that the peer wrote what cannot be.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The bridge beneath.
    pub fn bridge(&self) -> &dyn NtbDevice {
        &*self.bridge
    }

    /// Looks after link and engine; to be called in each round.
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
        if self.state == State::Up || self.asked.is_some_and(|asked| now.since(asked) < ASK) {
            return;
        }
        self.asked = Some(now);
        if self.receiving.is_none() {
            self.exchange();
        }
        if self.receiving.is_some() {
            self.bring_queue_up();
        }
        self.is_busy = self.bridge.start();
    }

    /// When [`NtbNetdev::poll`] wants to be called though nothing arrives.
    pub fn deadline(&self, now: Instant) -> Instant {
        if self.is_busy {
            // The engine says by memory alone how far it is.
            return now;
        }
        let patience = match self.state {
            State::Up if self.refused.get() => ROOM,
            State::Up => WATCH,
            _ => ASK,
        };
        now + patience
    }

    /// The bridge's link is gone, and with it what both sides know of each other.
    fn lose_link(&mut self) {
        (self.state, self.receiving, self.consumed) = (State::NoLink, None, None);
        self.asked = None;
        self.unrung = false;
        self.bridge.clear_scratchpads();
    }

    /// Tells the peer of our windows, and hears of its.
    fn exchange(&mut self) {
        let size = |n: usize| if n == 0 { self.window.len() as u64 } else { UNUSED_WINDOW };
        for n in 0..self.windows {
            let size = size(n);
            self.bridge.set_peer_scratchpad(PAD_SIZES + 2 * n, (size >> 32) as u32);
            self.bridge.set_peer_scratchpad(PAD_SIZES + 2 * n + 1, size as u32);
        }
        // Linux has as many queues as windows.
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

    /// Whether what the peer has said fits: then there is a ring for what it sends.
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

    /// Both rings are as at the beginning.
    fn begin_queue(&mut self) {
        (self.consumed, self.unrung) = (None, false);
        let Some(receiving) = &mut self.receiving else { return };
        receiving.begin(&self.sending);
        self.sending.begin();
        self.state = State::QueueDown;
        self.asked = None;
    }

    /// The peer has taken its queue down, and reads its ring from the beginning: nothing of before is left in it.
    fn restart_queue(&mut self) {
        self.begin_queue();
        self.sending.clear(self.bridge.bridge());
    }

    /// Says that our queue is up, and asks whether the peer's is.
    fn bring_queue_up(&mut self) {
        let links = self.bridge.scratchpad(PAD_LINKS);
        self.bridge.set_peer_scratchpad(PAD_LINKS, links | QUEUE);
        if links & QUEUE != 0 {
            self.state = State::Up;
            self.ups += 1;
        }
    }

    /// The peer has written what cannot be: it is told that the queue goes down, and both begin anew.
    fn refuse(&mut self) {
        self.violations += 1;
        self.counters.rx_errors += 1;
        let links = self.bridge.scratchpad(PAD_LINKS);
        self.bridge.set_peer_scratchpad(PAD_LINKS, links & !QUEUE);
        self.sending.write_link_down(self.bridge.bridge());
        self.bridge.ring();
        // What stands in the peer's ring stays: it reads that before it reads this.
        self.begin_queue();
    }

    /// Tells the peer that its queue goes down, at once, and not when it notices that nobody answers: the machine is about
    /// to end.
    pub fn leave(&mut self) {
        if self.state == State::Up {
            self.bridge.set_peer_scratchpad(PAD_LINKS, 0);
            self.sending.write_link_down(self.bridge.bridge());
            self.bridge.ring();
        }
    }

    /// Room for a frame: None if the peer says that it has consumed what it was never sent.
    fn room(&self) -> Option<u32> {
        self.sending.free(self.receiving.as_ref()?.consumed_by_peer())
    }

    /// Takes what stands in the next entry.
    fn take(&mut self) -> Option<(u32, usize)> {
        loop {
            let receiving = self.receiving.as_mut().filter(|_| self.state == State::Up)?;
            match receiving.look() {
                Received::Nothing => return None,
                Received::LinkDown => {
                    receiving.consume();
                    self.restart_queue();
                    return None;
                }
                Received::Nonsense => {
                    self.refuse();
                    return None;
                }
                Received::Frame(length) => {
                    if !(ETHERNET_HEADER..=self.mtu + ETHERNET_HEADER).contains(&length) {
                        self.counters.rx_errors += 1;
                        self.consumed = Some(receiving.consume());
                        continue;
                    }
                    // Without memory it waits in the ring, and the peer with it.
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
