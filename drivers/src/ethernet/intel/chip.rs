//! The interface of a chip: reset, setup, and interrupts. Helpers that several chips share.

use super::Error;
use super::receive::Receiver;
use super::registers::{self as r, ALL_ONES, change};
use super::transmit::{Format, Transmitter};
use crate::ethernet::is_station;
use crate::ethernet::owners::{ENTRIES, queue_of};
use crate::hal::{HashKey, Registers};
use alloc::boxed::Box;
use core::time::Duration;

/// Time after which a card that has not reported the end of its EEPROM read is used anyway: it may have no EEPROM
/// (Linux: `igb_get_auto_rd_done`).
pub const EEPROM_TIMEOUT: Duration = Duration::from_millis(100);

/// Bus address and length in bytes of both rings.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    pub receive: (u64, u32),
    pub transmit: (u64, u32),
}

impl Rings {
    pub fn of(receiver: &Receiver, transmitter: &Transmitter) -> Self {
        Rings { receive: receiver.ring(), transmit: transmitter.ring() }
    }
}

/// Interrupt causes to enable for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes {
    pub received: bool,
    pub sent: bool,
}

impl Causes {
    pub const NONE: Causes = Causes { received: false, sent: false };

    pub fn is_none(self) -> bool {
        self == Causes::NONE
    }

    /// The bits of the enabled causes.
    pub fn bits(self, received: u32, sent: u32) -> u32 {
        (if self.received { received } else { 0 }) | if self.sent { sent } else { 0 }
    }
}

/// Kind of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// MSI-X. Two vectors for each pair of queues: receive, and transmit if the chip distinguishes them.
    Msix,
    /// MSI, or no interrupts.
    Msi,
}

/// A chip. Only short register polls wait for it: the caller repeats a step until it is done.
pub trait Chip: Send {
    /// Bytes of registers.
    fn registers(&self) -> usize;

    /// Format of transmit descriptors.
    fn format(&self) -> Format;

    /// Tail registers of a pair of queues: receive, transmit.
    fn tails(&self, _queue: usize) -> [usize; 2] {
        [r::RDT, r::TDT]
    }

    /// Number of pairs of queues that the driver can use.
    fn queues(&self) -> usize {
        1
    }

    /// An object of the chip for the owner of a further pair of queues, which only uses its interrupts. None if the
    /// chip does not support several pairs.
    fn for_further_queue(&self) -> Option<Box<dyn Chip>> {
        None
    }

    /// Error bits of receive descriptors.
    fn damage(&self) -> u32 {
        r::DAMAGE
    }

    /// Whether the link is up; None if the chip is absent.
    fn link(&self, registers: &dyn Registers) -> Option<bool> {
        let status = registers.read32(r::STATUS);
        (status != ALL_ONES).then_some(status & r::STATUS_LINK_UP != 0)
    }

    /// Whether the chip may have no other interrupt than its legacy line.
    fn may_need_line(&self) -> bool {
        false
    }

    /// Maximum length of a layer 3 packet.
    fn most_mtu(&self) -> u16;

    /// Stops the chip and begins a reset.
    fn reset(&mut self, registers: &dyn Registers) {
        reset_physical(registers);
    }

    /// The MAC address, once a reset that began `waited` ago is over.
    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        waited: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        is_physical_reset(registers, waited)
    }

    /// For a virtual function: negotiates with the physical function's driver, for frames of up to `longest` bytes.
    /// True once this is done.
    fn agree(&mut self, _registers: &dyn Registers, _longest: usize) -> Result<bool, Error> {
        Ok(true)
    }

    /// Sets the chip up to receive and send, with empty rings.
    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>);

    /// Enables the interrupts of a queue for these causes, and disables others.
    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, queue: usize, causes: Causes);

    /// Whether a virtual function must be set up again, because the physical function's driver has reset or dropped it.
    fn needs_setup(&mut self, _registers: &dyn Registers) -> bool {
        false
    }

    /// Number of frames that the chip has missed since the last call.
    fn missed(&self, registers: &dyn Registers) -> u64;

    /// Notice of a reset because of [`Chip::needs_setup`].
    fn setup_reason(&self) -> &'static str {
        ""
    }
}

/// Parameters of a chip's setup.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Rings of each pair of queues.
    pub rings: &'a [Rings],
    /// Key of the hash that chooses among several pairs.
    pub key: &'a HashKey,
    pub mac: [u8; 6],
    /// Length of the longest frame, without FCS.
    pub longest: usize,
    pub mode: Mode,
}

/// A kind of chip, in the state before its first reset.
pub trait Model: Chip + Default + 'static {
    const IS_VIRTUAL: bool;
}

/// Stops a physical function and resets it (82574, 4.6.2; 82576, 4.3).
pub fn reset_physical(registers: &dyn Registers) {
    registers.write32(r::IMC, ALL_ONES);
    registers.write32(r::RCTL, 0);
    registers.write32(r::TCTL, 0);
    reset_bus_master(registers);
}

/// Disables a physical function's bus mastering, waits for accesses in flight, and resets it.
pub fn reset_bus_master(registers: &dyn Registers) {
    change(registers, r::CTRL, 0, r::CTRL_MASTER_DISABLE);
    const POLLS: u32 = 1000;
    let busy = |_: &u32| {
        let status = registers.read32(r::STATUS);
        status != ALL_ONES && status & r::STATUS_MASTER_ENABLED != 0
    };
    _ = (0..POLLS).take_while(busy).count();
    change(registers, r::CTRL, 0, r::CTRL_RESET);
}

/// The MAC address of a physical function, once its reset is over.
pub fn is_physical_reset(
    registers: &dyn Registers,
    waited: Duration,
) -> Result<Option<[u8; 6]>, Error> {
    let control = registers.read32(r::CTRL);
    if control == ALL_ONES {
        return Err(Error::Absent);
    }
    let has_read = registers.read32(r::EECD) & r::EECD_AUTO_READ != 0;
    if control & r::CTRL_RESET != 0 || !has_read && waited < EEPROM_TIMEOUT {
        return Ok(None);
    }
    registers.write32(r::IMC, ALL_ONES);
    registers.write32(r::ICR, ALL_ONES);
    address(registers).map(Some)
}

/// The MAC address that the chip has read from the EEPROM at reset; otherwise it is read now.
fn address(registers: &dyn Registers) -> Result<[u8; 6], Error> {
    match received_address(registers, r::RAL) {
        Some(mac) => Ok(mac),
        None => read_address(registers, r::EERD, 0),
    }
}

/// The address in the receive address registers at `at`, if it is valid.
pub fn received_address(registers: &dyn Registers, at: usize) -> Option<[u8; 6]> {
    let (low, high) = (registers.read32(at), registers.read32(at + 4));
    (high & r::RAH_VALID != 0).then(|| to_address(low, high)).filter(|&mac| is_station(mac))
}

/// The MAC address in the four bytes of `low` and the lower two of `high`.
pub fn to_address(low: u32, high: u32) -> [u8; 6] {
    let mac = (u64::from(high & 0xffff) << 32 | u64::from(low)).to_le_bytes();
    core::array::from_fn(|i| mac[i])
}

/// Reads the MAC address from the EEPROM, from `word` on, by the read register at `at`.
pub fn read_address(registers: &dyn Registers, at: usize, word: u32) -> Result<[u8; 6], Error> {
    let mut mac = [0; 6];
    for (word, place) in (word..).zip(mac.chunks_exact_mut(2)) {
        let value = read_eeprom(registers, at, word).ok_or(Error::NoMac)?;
        place.copy_from_slice(&value.to_le_bytes());
    }
    if is_station(mac) { Ok(mac) } else { Err(Error::NoMac) }
}

/// Reads a word of the EEPROM; None if the EEPROM does not respond.
pub fn read_eeprom(registers: &dyn Registers, at: usize, word: u32) -> Option<u16> {
    const POLLS: u32 = 10_000;
    registers.write32(at, word << 2 | r::EERD_START);
    (0..POLLS).find_map(|_| {
        let value = registers.read32(at);
        (value != ALL_ONES && value & r::EERD_DONE != 0).then_some((value >> 16) as u16)
    })
}

/// The part of [`Chip::start`] that is common to physical functions, before queues are enabled.
pub fn start_physical(registers: &dyn Registers, setup: &Setup<'_>) {
    change(registers, r::CTRL_EXT, 0, r::CTRL_EXT_DRIVER_LOADED);
    start_link_and_filters(registers, setup, r::CTRL_MASTER_DISABLE);
}

/// Sets the link up, and the filter of addresses. `never`: further bits of CTRL that must be 0.
pub fn start_link_and_filters(registers: &dyn Registers, setup: &Setup<'_>, never: u32) {
    change(registers, r::CTRL, r::CTRL_NEVER | never, r::CTRL_SET_LINK_UP);
    // Without a link, restart auto-negotiation.
    if registers.read32(r::STATUS) & r::STATUS_LINK_UP == 0 {
        negotiate(registers);
    }
    let [a, b, c, d, e, f] = setup.mac;
    registers.write32(r::RAL, u32::from_le_bytes([a, b, c, d]));
    registers.write32(r::RAH, u32::from_le_bytes([e, f, 0, 0]) | r::RAH_VALID);
    for n in 0..128 {
        registers.write32(r::MTA + 4 * n, 0);
    }
    registers.write32(r::RXCSUM, 0);
}

/// Makes a chip choose among `setup`'s queues by a hash of both IP addresses. `at`: redirection table, key, and the
/// register that `mode` enables it in. A table entry is a queue's number times `unit`.
pub fn hash_addresses(
    registers: &dyn Registers,
    setup: &Setup<'_>,
    at: [usize; 3],
    mode: u32,
    unit: u8,
) {
    const IPV4_AND_IPV6: u32 = 1 << 17 | 1 << 20;
    let [table, key, control] = at;
    let queues = setup.rings.len();
    if queues == 1 {
        return registers.write32(control, 0);
    }
    for n in (0..ENTRIES).step_by(4) {
        let four = core::array::from_fn(|i| queue_of(n + i, queues) as u8 * unit);
        registers.write32(table + n, u32::from_le_bytes(four));
    }
    (key..).step_by(4).zip(setup.key).for_each(|(at, word)| registers.write32(at, *word));
    // Required for the hash (82574, 10.2.5.15; 82576, 8.10.9; 82599, 8.2.3.7.5).
    change(registers, r::RXCSUM, 0, r::RXCSUM_NO_PACKET_CHECKSUM);
    registers.write32(control, mode | IPV4_AND_IPV6);
}

/// The part of [`Chip::start`] that is common to physical functions, after queues are enabled: receives the own
/// address, broadcast, and all multicast; no flow control.
pub fn enable_physical(registers: &dyn Registers) {
    registers.write32(r::TCTL, r::TCTL_ENABLE | r::TCTL_PAD | r::TCTL_COLLISIONS);
    // Buffers of 2,048 bytes are the value 0.
    let receive = r::RCTL_ENABLE | r::RCTL_ALL_MULTICAST | r::RCTL_LONG_PACKETS;
    registers.write32(r::RCTL, receive | r::RCTL_BROADCAST | r::RCTL_STRIP_CRC);
}

/// Restarts auto-negotiation of the PHY (IEEE 802.3, 22.2.4.1: register 0).
fn negotiate(registers: &dyn Registers) {
    const POLLS: u32 = 10_000;
    const CONTROL: u32 = 0x1340; // 1000 Mbit/s, full duplex, auto-negotiation, restart
    registers.write32(r::MDIC, r::MDIC_WRITE | CONTROL);
    _ = (0..POLLS).take_while(|_| registers.read32(r::MDIC) & r::MDIC_READY == 0).count();
}

/// Number of frames that a physical function has missed.
pub fn missed_by_physical(registers: &dyn Registers) -> u64 {
    count(registers, &[r::DAMAGED[0], r::DAMAGED[1], r::MPC])
}

/// The sum of counters, which are cleared by reading.
pub fn count(registers: &dyn Registers, counters: &[usize]) -> u64 {
    let one = |at: &usize| match registers.read32(*at) {
        ALL_ONES => 0,
        count => u64::from(count),
    };
    counters.iter().map(one).sum()
}

/// Enables causes of the single MSI of a physical function (82574, 7.4.2; 82576, 7.3.2).
pub fn set_physical_causes(registers: &dyn Registers, causes: Causes) {
    if causes.is_none() {
        return registers.write32(r::IMC, ALL_ONES);
    }
    let bits = causes.bits(r::CAUSE_RECEIVED, r::CAUSE_TRANSMITTED);
    // Clears earlier causes: the loop checks for their events itself.
    registers.write32(r::ICR, ALL_ONES);
    registers.write32(r::IMS, bits);
}
