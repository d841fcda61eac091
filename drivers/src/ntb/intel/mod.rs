//! Intel's non-transparent bridge in Xeons of the Skylake family (the third generation), back to back with another
//! (Linux, `drivers/ntb/hw/intel/ntb_hw_gen3.c`).
//!
//! The first window is used: the peer's memory behind BAR 2. It is translated to memory of ours that begins at a
//! multiple of the BAR's size, as the device wants it, and may be shorter: the limit ends it. Scratchpads 0 to 3 and
//! the first bell are used.
//!
//! Vector 32 of MSI-X does not work in these devices, and the bell of the link comes first after a reset: all bells are
//! sent to vector 0, which is the only one that is routed.
//!
//! Registers are read while the link comes up, every [`LOOK`], and before a halt; not for what is carried.

mod error;
mod registers;

use super::{Bridge, Ntb, NtbDevice, SCRATCHPADS, Side};
use crate::device::{Bus, Device};
use crate::dma::{Carrier, Channel, Dma, Progress, Ticket};
use crate::hal::{Arena, Instant, Interrupt, Platform, Registers, Window};
use crate::pci::{Bar, Function, Msix};
use crate::registry::{Id, OpenError};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::Ordering;
use core::time::Duration;
pub use error::Error;

const INTEL: u16 = 0x8086;
const GEN3: u16 = 0x201c;

const fn pci(device: u16) -> Id {
    Id::Pci(INTEL, device)
}

/// Devices: the third generation, and those before and after it, which are named and refused.
pub static IDS: [Id; 18] = [
    pci(GEN3),
    pci(0x3725),
    pci(0x3726),
    pci(0x3727),
    pci(0x3c0d),
    pci(0x3c0e),
    pci(0x3c0f),
    pci(0x0e0d),
    pci(0x0e0e),
    pci(0x0e0f),
    pci(0x2f0d),
    pci(0x2f0e),
    pci(0x2f0f),
    pci(0x6f0d),
    pci(0x6f0e),
    pci(0x6f0f),
    pci(0x347e),
    pci(0x0db4),
];

/// Memory that is exposed, if the window has so much.
const EXPOSED: u64 = 32 << 20;
/// How often the state of the link is read.
const LOOK: Duration = Duration::from_millis(5);
/// Signals that wait for the engine, at most.
const MOST_WAITING: usize = 16;

/// What is said to the peer beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    Scratchpad(usize, u32),
    Bell,
}

/// One side of the bridge.
struct IntelNtb {
    registers: Box<dyn Registers>,
    function: Function<'static>,
    side: Side,
    window: Window,
    exposed: Window,
    carrier: Carrier,
    /// Signals that are given when the write of that number is complete, in order.
    waiting: VecDeque<(u64, Signal)>,
    link: bool,
    looked: Option<Instant>,
    interrupt: Option<(Interrupt, Msix)>,
    /// Interrupts that were taken note of; and that a bell was rung without one.
    seen: u64,
    was_rung: bool,
}

/// Sets a bridge up. Its link comes up when the peer's side is set up as well.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let opened = IntelNtb::open(function, platform, side);
    if opened.is_err() {
        // Whatever was translated before, the peer reaches nothing.
        function.disable();
    }
    Ok(Box::new(opened?))
}

/// Refuses what is no bridge of the third generation, back to back.
fn check(function: &Function<'_>, side: Option<Side>) -> Result<Side, Error> {
    let name = match function.device() {
        GEN3 => "",
        u16::MAX => return Err(Error::Absent),
        0x347e | 0x0db4 => "Ice Lake and later (the fourth), for which there is no driver yet",
        _ => {
            "Xeon E5 and E7 v1 to v4 (the first), where access to the peer's registers may hang the \
             machine"
        }
    };
    if !name.is_empty() {
        return Err(Error::Generation { name, device: function.device() });
    }
    let port = function.read32(registers::PORT_DEFINITION);
    match port & registers::CONNECTION {
        registers::BACK_TO_BACK => {}
        connection => return Err(Error::NotBackToBack { connection }),
    }
    let downstream = port & registers::DOWNSTREAM != 0;
    let is = if downstream { Side::B } else { Side::A };
    match side {
        Some(wanted) if wanted != is => Err(Error::WrongSide { is: downstream.into() }),
        _ => Ok(is),
    }
}

impl IntelNtb {
    fn open(
        function: Function<'static>,
        platform: &mut dyn Platform,
        side: Option<Side>,
    ) -> Result<Self, Error> {
        let side = check(&function, side)?;
        let bars = function.bars();
        let bar = bars.get(2).ok_or(Error::NoWindow)?;
        function.enable();
        let at = bars.get(0).and_then(|bar| bar.range(0, registers::SIZE as u64));
        let own = at.and_then(|at| platform.map_registers(at, registers::SIZE));
        let own = own.ok_or(Error::NoRegisters)?;
        if own.read32(registers::CONTROL) == u32::MAX {
            return Err(Error::Absent);
        }
        // Until all is set up nobody reaches anything here.
        let control = own.read32(registers::CONTROL);
        own.write32(registers::CONTROL, control | registers::CONTROL_DISABLE);
        own.write64(registers::BELLS_MASKED, registers::ALL_BELLS);
        let len = usize::try_from(bar.size).map_err(|_| Error::NotMapped { bytes: bar.size })?;
        let window = platform.map_window(bar.address, len);
        let window = window.ok_or(Error::NotMapped { bytes: bar.size })?;
        let bytes = bar.size.min(EXPOSED) as usize;
        let exposed = platform.arena().alloc(bytes, len);
        let exposed = exposed.ok_or(Error::NoMemory { window: bar.size, bytes })?;
        exposed.fill(0);
        if let Err(error) = translate(&*own, &bar, &exposed) {
            platform.arena().free(exposed);
            return Err(error);
        }
        for bell in 0..registers::BELL_COUNT {
            own.write8(registers::VECTORS + bell, 0);
        }
        for n in 0..registers::SCRATCHPAD_COUNT {
            own.write32(registers::SCRATCHPADS + 4 * n, 0);
        }
        own.write64(registers::BELLS, registers::ALL_BELLS | registers::LINK_BELL);
        let interrupt = Msix::open(&function, &bars, platform).and_then(|mut msix| {
            let interrupt = platform.allocate_interrupt().filter(|one| msix.route(0, one))?;
            Some((interrupt, msix))
        });
        own.write16(registers::OUTER_COMMAND, registers::OUTER_ENABLE);
        let off = registers::CONTROL_DISABLE | registers::CONTROL_LOCK;
        own.write32(registers::CONTROL, control & !off | registers::CONTROL_SNOOP);
        Ok(IntelNtb {
            registers: own,
            function,
            side,
            window,
            exposed,
            carrier: Carrier::new(),
            waiting: VecDeque::with_capacity(MOST_WAITING),
            link: false,
            looked: None,
            interrupt,
            seen: 0,
            was_rung: false,
        })
    }

    fn raised(&self) -> u64 {
        self.interrupt.as_ref().map_or(0, |(one, _)| one.raised().load(Ordering::Relaxed))
    }

    /// Takes note of a bell that was rung, and clears it.
    fn take_bell(&mut self) {
        let bells = self.registers.read64(registers::BELLS);
        if bells != u64::MAX && bells & (registers::BELL | registers::LINK_BELL) != 0 {
            self.registers.write64(registers::BELLS, bells);
            self.was_rung |= bells & registers::BELL != 0;
        }
    }

    fn send(&self, signal: Signal) {
        match signal {
            Signal::Scratchpad(n, value) => {
                self.registers.write32(registers::PEER_SCRATCHPADS + 4 * n, value);
            }
            Signal::Bell => self.registers.write32(registers::PEER_BELL, 1),
        }
    }

    /// Gives a signal behind all that was written so far.
    fn signal(&mut self, signal: Signal) {
        self.carrier.start();
        if self.carrier.is_idle() && self.waiting.is_empty() {
            // What the CPU has written leaves before it.
            self.carrier.order();
            return self.send(signal);
        }
        // The same said twice is said once, later.
        self.waiting.retain(|(_, other)| match (other, signal) {
            (Signal::Scratchpad(n, _), Signal::Scratchpad(m, _)) => *n != m,
            (other, signal) => *other != signal,
        });
        self.waiting.push_back((self.carrier.reached().0, signal));
    }

    /// Gives signals that have waited for the engine.
    #[inline]
    fn signal_completed(&mut self) {
        while let Some(&(after, signal)) = self.waiting.front() {
            if self.carrier.reached().1 < after {
                return;
            }
            self.waiting.pop_front();
            self.send(signal);
        }
    }
}

/// Lets the peer reach `exposed`, and nothing else.
fn translate(own: &dyn Registers, bar: &Bar, exposed: &Window) -> Result<(), Error> {
    let write = |name, register, value| {
        own.write64(register, value);
        let reads = own.read64(register);
        let same = reads == value;
        same.then_some(()).ok_or(Error::Locked { register: name, wrote: value, reads })
    };
    own.write64(registers::SECOND_TRANSLATION, 0);
    own.write64(registers::SECOND_LIMIT, 0);
    own.write64(registers::LIMIT, bar.address);
    let outer = own.read64(registers::OUTER_BAR) & !0xf;
    let len = exposed.len() as u64;
    let set = write("translation (IMBAR1XBASE)", registers::TRANSLATION, exposed.bus_address())
        .and_then(|()| write("limit (IMBAR1XLMT)", registers::LIMIT, bar.address + len))
        .and_then(|()| write("outer limit (EMBAR1XLMT)", registers::OUTER_LIMIT, outer + len));
    if set.is_err() {
        own.write64(registers::TRANSLATION, 0);
        own.write64(registers::LIMIT, bar.address);
    }
    set
}

impl Drop for IntelNtb {
    fn drop(&mut self) {
        // The peer finds the link down.
        let control = self.registers.read32(registers::CONTROL);
        self.registers.write32(registers::CONTROL, control | registers::CONTROL_DISABLE);
    }
}

impl NtbDevice for IntelNtb {
    fn bridge(&mut self) -> &mut dyn Bridge {
        self
    }

    fn side(&self) -> Side {
        self.side
    }

    fn is_taken(&self) -> bool {
        false
    }

    fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted {
            self.take_bell();
        }
        let masked =
            if wanted { registers::ALL_BELLS & !registers::BELL } else { registers::ALL_BELLS };
        self.registers.write64(registers::BELLS_MASKED, masked);
    }

    fn interrupts(&self) -> u64 {
        self.raised()
    }

    fn pending(&self) -> bool {
        let bells = self.registers.read64(registers::BELLS);
        self.was_rung || bells != u64::MAX && bells & registers::BELL != 0
    }

    fn use_engine(&mut self, channel: Box<dyn Channel>, arena: &mut Arena) -> bool {
        self.carrier.use_channel(channel, self.window, arena)
    }

    fn carrier(&self) -> Option<&Carrier> {
        Some(&self.carrier)
    }

    fn link_speed(&self) -> Option<(u8, u8)> {
        let status = self.function.read32(registers::LINK_STATUS) >> 16;
        let width = (status & registers::LINK_WIDTH) >> 4;
        self.link.then_some(((status & registers::LINK_SPEED) as u8, width as u8))
    }
}

impl Ntb for IntelNtb {
    #[inline]
    fn link(&self) -> bool {
        self.link
    }

    #[inline]
    fn window(&self) -> Window {
        self.window
    }

    #[inline]
    fn exposed(&self) -> Window {
        self.exposed
    }

    /// Each would cost a round trip.
    #[inline]
    fn loads(&self) -> bool {
        false
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.registers.read32(registers::SCRATCHPADS + 4 * n.min(SCRATCHPADS - 1))
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.signal(Signal::Scratchpad(n.min(SCRATCHPADS - 1), value));
    }

    fn ring(&mut self) {
        self.signal(Signal::Bell);
    }

    fn rung(&mut self) -> bool {
        let raised = self.raised();
        let interrupted = core::mem::replace(&mut self.seen, raised) != raised;
        core::mem::take(&mut self.was_rung) || interrupted
    }
}

impl Dma for IntelNtb {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        self.carrier.submit(to, from);
    }

    /// The link and signals want to be looked after, whoever carries.
    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submitted(&self) -> Ticket {
        self.carrier.submitted()
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        self.carrier.put(to, words);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        self.carrier.put32(to, value);
    }

    #[inline]
    fn order(&mut self) {
        self.carrier.order();
    }

    #[inline]
    fn start(&mut self) -> bool {
        self.carrier.start() || !self.waiting.is_empty()
    }

    #[inline]
    fn complete(&mut self, now: Instant) -> Progress {
        if self.looked.is_none_or(|looked| now.since(looked) >= LOOK) {
            self.looked = Some(now);
            let status = self.function.read32(registers::LINK_STATUS);
            self.link = status != u32::MAX && status >> 16 & registers::LINK_ACTIVE != 0;
        }
        let progress = self.carrier.complete(now);
        self.signal_completed();
        progress
    }

    fn settled(&mut self) -> bool {
        let settled = self.carrier.settled() && self.waiting.is_empty();
        if settled {
            // A read pushes ahead of it what was written to the peer: it is there when the answer is.
            self.registers.read32(registers::PEER_SCRATCHPADS);
        }
        settled
    }

    fn has_room(&self) -> bool {
        self.carrier.has_room()
    }
}
