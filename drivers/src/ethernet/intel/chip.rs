//! What differs from chip to chip: how it is reset, set up, and told to raise interrupts.

use super::Error;
use super::receive::Receiver;
use super::registers::{self as r, ALL_ONES, change};
use super::transmit::{Format, Transmitter};
use crate::ethernet::is_station;
use crate::ethernet::owners::{ENTRIES, queue_of};
use crate::hal::{HashKey, Registers};
use alloc::boxed::Box;
use core::time::Duration;

/// After so long a card that has not read its EEPROM has none, or does not say so (Linux: `igb_get_auto_rd_done`).
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

/// What a queue is to raise interrupts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub received: bool,
    pub sent: bool,
}

impl Wanted {
    pub const NOTHING: Wanted = Wanted { received: false, sent: false };

    pub fn is_nothing(self) -> bool {
        self == Wanted::NOTHING
    }

    /// Those of two bits that are wanted.
    pub fn bits(self, received: u32, sent: u32) -> u32 {
        (if self.received { received } else { 0 }) | if self.sent { sent } else { 0 }
    }
}

/// How interrupts are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By MSI-X. Two vectors for each pair of queues: for what is received, and for what was sent where the chip tells them apart.
    Msix,
    /// By MSI, or not at all.
    Msi,
}

/// A chip. Nothing here waits: each step is asked for again until it is done.
pub trait Chip: Send {
    /// Bytes of registers.
    fn registers(&self) -> usize;

    /// How it wants to be told of packets.
    fn format(&self) -> Format;

    /// The tails of a pair of queues, for receiving and for sending.
    fn tails(&self, _queue: usize) -> [usize; 2] {
        [r::RDT, r::TDT]
    }

    /// Pairs of queues that it has, as far as we have a use for them.
    fn queues(&self) -> usize {
        1
    }

    /// The chip as the owner of another pair of queues than the first knows it: one that raises interrupts.
    fn beside(&self) -> Option<Box<dyn Chip>> {
        None
    }

    /// What a descriptor says of frames that are damaged.
    fn damage(&self) -> u32 {
        r::DAMAGE
    }

    /// Whether its link is up; none if nothing answers.
    fn link(&self, registers: &dyn Registers) -> Option<bool> {
        let status = registers.read32(r::STATUS);
        (status != ALL_ONES).then_some(status & r::STATUS_LINK_UP != 0)
    }

    /// Most bytes of a layer 3 packet.
    fn most_mtu(&self) -> u16;

    /// Stops it and begins a reset.
    fn reset(&mut self, registers: &dyn Registers);

    /// Whether the reset, which was begun so long ago, is over: its MAC address then.
    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        waited: Duration,
    ) -> Result<Option<[u8; 6]>, Error>;

    /// Asks whoever else is in charge of it, for frames of up to `longest` bytes; whether all was said.
    fn agree(&mut self, _registers: &dyn Registers, _longest: usize) -> Result<bool, Error> {
        Ok(true)
    }

    /// Sets it up to receive and send. Rings are empty.
    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>);

    /// Has it raise interrupts for what was received by a queue, and for what was sent, or not.
    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, queue: usize, wanted: Wanted);

    /// Whether it has to be set up anew, because it was reset by somebody else.
    fn is_lost(&mut self, _registers: &dyn Registers) -> bool {
        false
    }

    /// Frames that it could not receive since it was asked last.
    fn missed(&self, registers: &dyn Registers) -> u64;

    /// What is told if it is reset by [`Chip::is_lost`].
    fn why_lost(&self) -> &'static str {
        ""
    }
}

/// What a chip is set up with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// By queue.
    pub rings: &'a [Rings],
    /// Chooses among several.
    pub key: &'a HashKey,
    pub mac: [u8; 6],
    /// Bytes of the longest frame, without FCS.
    pub longest: usize,
    pub mode: Mode,
}

/// Stops a physical function and resets it (82574, 4.6.2; 82576, 4.3).
pub fn reset_physical(registers: &dyn Registers) {
    registers.write32(r::IMC, ALL_ONES);
    registers.write32(r::RCTL, 0);
    registers.write32(r::TCTL, 0);
    reset_bus_master(registers);
}

/// Has a physical function begin no new access to memory, and resets it; what is under way ends within the reset.
pub fn reset_bus_master(registers: &dyn Registers) {
    change(registers, r::CTRL, 0, r::CTRL_MASTER_DISABLE);
    const LOOKS: u32 = 1000;
    let busy = |_: &u32| {
        let status = registers.read32(r::STATUS);
        status != ALL_ONES && status & r::STATUS_MASTER_ENABLED != 0
    };
    _ = (0..LOOKS).take_while(busy).count();
    change(registers, r::CTRL, 0, r::CTRL_RESET);
}

/// Whether the reset of a physical function is over: its MAC address then.
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

/// The MAC address that was read from the EEPROM at reset, or is read now.
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

/// Two words, of which the second has two bytes more, as an address.
pub fn to_address(low: u32, high: u32) -> [u8; 6] {
    let mac = (u64::from(high & 0xffff) << 32 | u64::from(low)).to_le_bytes();
    core::array::from_fn(|i| mac[i])
}

/// The address in the EEPROM from a word on, which is read by the register at `at`.
pub fn read_address(registers: &dyn Registers, at: usize, word: u32) -> Result<[u8; 6], Error> {
    let mut mac = [0; 6];
    for (word, place) in (word..).zip(mac.chunks_exact_mut(2)) {
        let value = read_eeprom(registers, at, word).ok_or(Error::NoMac)?;
        place.copy_from_slice(&value.to_le_bytes());
    }
    if is_station(mac) { Ok(mac) } else { Err(Error::NoMac) }
}

/// A word of the EEPROM, if it answers.
pub fn read_eeprom(registers: &dyn Registers, at: usize, word: u32) -> Option<u16> {
    const LOOKS: u32 = 10_000;
    registers.write32(at, word << 2 | r::EERD_START);
    (0..LOOKS).find_map(|_| {
        let value = registers.read32(at);
        (value != ALL_ONES && value & r::EERD_DONE != 0).then_some((value >> 16) as u16)
    })
}

/// The part of [`Chip::start`] that physical functions have in common, before queues are enabled.
pub fn start_physical(registers: &dyn Registers, setup: &Setup<'_>) {
    change(registers, r::CTRL, r::CTRL_NEVER | r::CTRL_MASTER_DISABLE, r::CTRL_SET_LINK_UP);
    change(registers, r::CTRL_EXT, 0, r::CTRL_EXT_DRIVER_LOADED);
    // Without a link that nobody forced down: negotiate again.
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

/// Has a chip choose among `setup`'s queues by a hash of both IP addresses: `at` are its redirection table, its key, and the
/// register that switches it on by `mode`. An entry of the table is a queue's number times `unit`.
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
    // Without this there is no hash (82574, 10.2.5.15; 82576, 8.10.9; 82599, 8.2.3.7.5).
    change(registers, r::RXCSUM, 0, r::RXCSUM_NO_PACKET_CHECKSUM);
    registers.write32(control, mode | IPV4_AND_IPV6);
}

/// The rest of it, after queues are enabled: own address, broadcast, all of multicast; no pauses.
pub fn enable_physical(registers: &dyn Registers) {
    registers.write32(r::TCTL, r::TCTL_ENABLE | r::TCTL_PAD | r::TCTL_COLLISIONS);
    // Buffers of 2,048 bytes are the value 0.
    let receive = r::RCTL_ENABLE | r::RCTL_ALL_MULTICAST | r::RCTL_LONG_PACKETS;
    registers.write32(r::RCTL, receive | r::RCTL_BROADCAST | r::RCTL_STRIP_CRC);
}

/// Has the PHY negotiate (IEEE 802.3, 22.2.4.1: register 0, auto-negotiation on, restarted).
fn negotiate(registers: &dyn Registers) {
    const LOOKS: u32 = 10_000;
    const CONTROL: u32 = 0x1340; // 1000 Mbit/s, full duplex, auto-negotiation, restart
    registers.write32(r::MDIC, r::MDIC_WRITE | CONTROL);
    _ = (0..LOOKS).take_while(|_| registers.read32(r::MDIC) & r::MDIC_READY == 0).count();
}

/// Frames that a physical function could not receive.
pub fn missed_by_physical(registers: &dyn Registers) -> u64 {
    count(registers, &[r::DAMAGED[0], r::DAMAGED[1], r::MPC])
}

/// The sum of counters that reading clears.
pub fn count(registers: &dyn Registers, counters: &[usize]) -> u64 {
    let one = |at: &usize| match registers.read32(*at) {
        ALL_ONES => 0,
        count => u64::from(count),
    };
    counters.iter().map(one).sum()
}

/// Interrupts by MSI, of all physical functions: one for both (82574, 7.4.2; 82576, 7.3.2).
pub fn set_physical_causes(registers: &dyn Registers, wanted: Wanted) {
    if wanted.is_nothing() {
        return registers.write32(r::IMC, ALL_ONES);
    }
    let causes = wanted.bits(r::CAUSE_RECEIVED, r::CAUSE_TRANSMITTED);
    // What was before is pending, and the loop looks for it.
    registers.write32(r::ICR, ALL_ONES);
    registers.write32(r::IMS, causes);
}
