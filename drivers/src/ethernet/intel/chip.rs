//! What differs from chip to chip: how it is reset, set up, and told to raise interrupts.

use super::Error;
use super::registers::{self as r, ALL_ONES, change};
use super::transmit::Format;
use crate::hal::Registers;
use core::time::Duration;

/// After so long a card that has not read its EEPROM has none, or does not say so (Linux: `igb_get_auto_rd_done`).
const EEPROM_TIMEOUT: Duration = Duration::from_millis(100);

/// Bus address and length in bytes of both rings.
#[derive(Clone, Copy, Debug)]
pub struct Rings {
    pub receive: (u64, u32),
    pub transmit: (u64, u32),
}

/// How interrupts are raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// By MSI-X: vector 0 for what is received, 1 for what was sent where the chip tells them apart.
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
    fn start(&mut self, registers: &dyn Registers, setup: &Setup);

    /// Has it raise interrupts for what was received, and for what was sent, or not.
    fn set_interrupts(&self, registers: &dyn Registers, mode: Mode, received: bool, sent: bool);

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
pub struct Setup {
    pub rings: Rings,
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
    // It begins no new access to memory; what is under way ends within the reset.
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
    let (low, high) = (registers.read32(r::RAL), registers.read32(r::RAH));
    let mac = (u64::from(high & 0xffff) << 32 | u64::from(low)).to_le_bytes();
    let mac = core::array::from_fn(|i| mac[i]);
    if high & r::RAH_VALID != 0 && crate::ethernet::is_station(mac) {
        return Ok(mac);
    }
    let mut mac = [0; 6];
    for (word, place) in (0..).zip(mac.chunks_exact_mut(2)) {
        let value = read_eeprom(registers, word).ok_or(Error::NoMac)?;
        place.copy_from_slice(&value.to_le_bytes());
    }
    if crate::ethernet::is_station(mac) { Ok(mac) } else { Err(Error::NoMac) }
}

/// A word of the EEPROM, if it answers.
fn read_eeprom(registers: &dyn Registers, word: u32) -> Option<u16> {
    const LOOKS: u32 = 10_000;
    registers.write32(r::EERD, word << 2 | r::EERD_START);
    (0..LOOKS).find_map(|_| {
        let value = registers.read32(r::EERD);
        (value != ALL_ONES && value & r::EERD_DONE != 0).then_some((value >> 16) as u16)
    })
}

/// The part of [`Chip::start`] that physical functions have in common, before queues are enabled.
pub fn start_physical(registers: &dyn Registers, setup: &Setup) {
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
    give_rings(registers, &setup.rings);
}

/// Gives a chip both rings.
pub fn give_rings(registers: &dyn Registers, rings: &Rings) {
    r::give_ring(registers, r::RDBAL, rings.receive.0, rings.receive.1);
    r::give_ring(registers, r::TDBAL, rings.transmit.0, rings.transmit.1);
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
    let count = |at| match registers.read32(at) {
        ALL_ONES => 0,
        count => u64::from(count),
    };
    r::DAMAGED.into_iter().map(count).sum::<u64>() + count(r::MPC)
}

/// Interrupts by MSI, of all physical functions: one for both (82574, 7.4.2; 82576, 7.3.2).
pub fn set_physical_causes(registers: &dyn Registers, received: bool, sent: bool) {
    if !received && !sent {
        return registers.write32(r::IMC, ALL_ONES);
    }
    let mut causes = 0;
    if received {
        causes |= r::CAUSE_RECEIVED;
    }
    if sent {
        causes |= r::CAUSE_TRANSMITTED;
    }
    // What was before is pending, and the loop looks for it.
    registers.write32(r::ICR, ALL_ONES);
    registers.write32(r::IMS, causes);
}
