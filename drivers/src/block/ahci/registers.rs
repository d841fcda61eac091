//! Registers of a controller and of its ports (AHCI 1.3.1, chapter 3) in BAR 5: little-endian, 32 bits.

use super::Error;
use crate::hal::{Platform, Registers};
use crate::pci::Bar;
use alloc::boxed::Box;

/// Value of a register of an absent device.
pub const ALL_ONES: u32 = u32::MAX;

// Generic host control.
const CAP: usize = 0x00;
const GHC: usize = 0x04;
const IS: usize = 0x08;
const PI: usize = 0x0c;
const VERSION: usize = 0x10;
const CCC_CONTROL: usize = 0x14;
const CAP2: usize = 0x24;
const BOHC: usize = 0x28;
const GENERIC: usize = 0x100;

const GHC_RESET: u32 = 1;
const GHC_INTERRUPTS: u32 = 1 << 1;
const GHC_AHCI: u32 = 1 << 31;

const CAP_COALESCES: u32 = 1 << 7;
const CAP2_HANDOFF: u32 = 1;
/// Version with CAP2 and the handoff.
const VERSION_1_2: u32 = 0x0001_0200;

// BIOS/OS handoff (3.1.11).
const BIOS_OWNS: u32 = 1;
const SYSTEM_OWNS: u32 = 1 << 1;
const BIOS_BUSY: u32 = 1 << 4;

// A port.
const PORT: usize = 0x80;
const CLB: usize = 0x00;
const FB: usize = 0x08;
const PORT_IS: usize = 0x10;
const PORT_IE: usize = 0x14;
const CMD: usize = 0x18;
const TFD: usize = 0x20;
const SIG: usize = 0x24;
const SSTS: usize = 0x28;
const SCTL: usize = 0x2c;
const SERR: usize = 0x30;
const SACT: usize = 0x34;
const CI: usize = 0x38;

const CMD_START: u32 = 1;
const CMD_SPIN_UP: u32 = 1 << 1;
const CMD_POWER_ON: u32 = 1 << 2;
const CMD_RECEIVE: u32 = 1 << 4;
const CMD_RECEIVES: u32 = 1 << 14;
const CMD_RUNS: u32 = 1 << 15;
const CMD_MULTIPLIER: u32 = 1 << 17;
/// Power management by the controller, and a change of the interface's power state.
const CMD_POWER: u32 = 1 << 26 | 1 << 27 | 0xf << 28;
const CMD_ACTIVE: u32 = 1 << 28;

/// SCTL: no power management by partial, slumber, and DevSleep; no limit of speed.
const SCTL_PLAIN: u32 = 7 << 8;
const DET_RESET: u32 = 1;

/// Causes of interrupts of a port: each FIS that ends commands, a change of the link, and errors.
const CAUSES: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 22 | ERRORS;
/// The port's causes that are errors: overflow, interface (not fatal: bit 26), interface, memory, task file.
const ERRORS: u32 = 1 << 24 | 1 << 27 | 1 << 28 | 1 << 29 | 1 << 30;
/// The error causes that the drive has reported itself.
const TASK_FILE: u32 = 1 << 30;
/// Errors (SERR.DIAG) that are changes of the link: PhyRdy, and a new device.
const LINK_DIAGNOSTICS: u32 = 1 << 16 | 1 << 26;
/// The link has changed.
const LINK_CHANGED: u32 = 1 << 6 | 1 << 22;

/// Used fields of CAP (3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u32);

impl Capabilities {
    /// Command slots of each port.
    pub fn slots(self) -> u8 {
        (self.0 >> 8 & 0x1f) as u8 + 1
    }

    /// Native command queuing.
    pub fn queues(self) -> bool {
        self.0 >> 30 & 1 != 0
    }

    /// The controller reaches memory above 4 GiB.
    pub fn has_64_bits(self) -> bool {
        self.0 >> 31 != 0
    }

    /// Drives spin up one after the other.
    pub fn staggers(self) -> bool {
        self.0 >> 27 & 1 != 0
    }

    fn ports(self) -> u32 {
        (self.0 & 0x1f) + 1
    }
}

/// Registers of the controller as a whole.
pub struct HostRegisters {
    registers: Box<dyn Registers>,
    pub capabilities: Capabilities,
    bar: Bar,
}

impl HostRegisters {
    /// Maps the registers.
    pub fn map(bar: Bar, platform: &mut dyn Platform) -> Result<Self, Error> {
        let address = bar.range(0, GENERIC as u64).ok_or(Error::NoRegisters)?;
        let registers = platform.map_registers(address, GENERIC).ok_or(Error::NoRegisters)?;
        let capabilities = Capabilities(registers.read32(CAP));
        if matches!(capabilities.0, 0 | ALL_ONES) || registers.read32(VERSION) == ALL_ONES {
            return Err(Error::Absent);
        }
        Ok(HostRegisters { registers, capabilities, bar })
    }

    /// Whether the device is absent.
    pub fn is_absent(&self) -> bool {
        matches!(self.registers.read32(CAP), 0 | ALL_ONES)
    }

    /// Asks the firmware for the controller. True while it has it.
    pub fn take_from_firmware(&self) -> Owner {
        let has_handoff = self.registers.read32(VERSION) >= VERSION_1_2
            && self.registers.read32(CAP2) & CAP2_HANDOFF != 0;
        if !has_handoff {
            return Owner::System;
        }
        let control = self.registers.read32(BOHC);
        if control & SYSTEM_OWNS == 0 {
            self.registers.write32(BOHC, control | SYSTEM_OWNS);
        }
        match self.registers.read32(BOHC) {
            control if control & BIOS_OWNS == 0 => Owner::System,
            control if control & BIOS_BUSY != 0 => Owner::BusyFirmware,
            _ => Owner::Firmware,
        }
    }

    /// Selects AHCI, without interrupts, and without coalesced completions.
    pub fn select(&self) {
        self.registers.write32(GHC, GHC_AHCI);
        if self.capabilities.0 & CAP_COALESCES != 0 {
            self.registers.write32(CCC_CONTROL, self.registers.read32(CCC_CONTROL) & !1);
        }
    }

    /// Begins a reset of the controller.
    pub fn reset(&self) {
        self.registers.write32(GHC, GHC_AHCI);
        self.registers.write32(GHC, GHC_AHCI | GHC_RESET);
    }

    /// Whether the reset is over.
    pub fn is_reset(&self) -> bool {
        let control = self.registers.read32(GHC);
        control != ALL_ONES && control & GHC_RESET == 0
    }

    /// Lets enabled interrupts of ports be raised.
    pub fn allow_interrupts(&self) {
        self.registers.write32(IS, ALL_ONES);
        self.registers.write32(GHC, GHC_AHCI | GHC_INTERRUPTS);
    }

    /// Numbers of the ports.
    pub fn ports(&self) -> impl Iterator<Item = u8> + use<> {
        let mut implemented = self.registers.read32(PI);
        if implemented == 0 {
            // Some controllers leave the register empty (Linux: `ahci_save_initial_config`).
            implemented = ALL_ONES.checked_shr(32 - self.capabilities.ports()).unwrap_or(ALL_ONES);
        }
        let fit = self.bar.size.saturating_sub(GENERIC as u64) / PORT as u64;
        (0..32u8).filter(move |&n| implemented >> n & 1 != 0 && u64::from(n) < fit)
    }

    /// Maps the registers of a port, with those of the controller.
    pub fn port(&self, number: u8, platform: &mut dyn Platform) -> Option<PortRegisters> {
        let offset = GENERIC + PORT * usize::from(number);
        let address = self.bar.range(offset as u64, PORT as u64)?;
        let host = platform.map_registers(self.bar.range(0, GENERIC as u64)?, GENERIC)?;
        let registers = platform.map_registers(address, PORT)?;
        Some(PortRegisters { registers, host, number })
    }
}

/// Owner of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    System,
    Firmware,
    /// The firmware ends its commands first.
    BusyFirmware,
}

/// State of a port's link (SSTS.DET).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The controller does not answer.
    NoController,
    /// No drive.
    Nothing,
    /// A drive, without communication.
    Silent,
    /// A drive, with communication.
    Up,
}

/// Kind of device, by the signature that it sends after a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Disk,
    /// A drive with packets: CD, DVD, tape.
    Packets,
    Multiplier,
    Other(u32),
}

/// Registers of a port.
pub struct PortRegisters {
    registers: Box<dyn Registers>,
    /// Registers of the controller, for the port's own bit.
    host: Box<dyn Registers>,
    number: u8,
}

/// Pending causes of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Causes(u32);

impl Causes {
    /// An error stopped the port.
    pub fn has_error(self) -> bool {
        self.0 & ERRORS != 0
    }

    /// The drive has reported the error itself.
    pub fn is_of_drive(self) -> bool {
        self.0 & ERRORS == TASK_FILE
    }

    /// The link has changed.
    pub fn has_link_change(self) -> bool {
        self.0 & LINK_CHANGED != 0
    }

    /// The controller does not answer.
    pub fn is_absent(self) -> bool {
        self.0 == ALL_ONES
    }
}

impl PortRegisters {
    pub fn number(&self) -> u8 {
        self.number
    }

    fn change(&self, at: usize, clear: u32, set: u32) {
        self.registers.write32(at, self.registers.read32(at) & !clear | set);
    }

    /// Whether the controller has AHCI selected; it loses that in a reset.
    pub fn is_selected(&self) -> bool {
        let control = self.host.read32(GHC);
        control != ALL_ONES && control & GHC_AHCI != 0
    }

    /// Selects AHCI again, with interrupts.
    pub fn select(&self) {
        self.host.write32(GHC, GHC_AHCI);
        self.host.write32(GHC, GHC_AHCI | GHC_INTERRUPTS);
    }

    /// Begins a reset of the controller, which stops all of its ports (10.4.3).
    pub fn reset_controller(&self) {
        self.host.write32(GHC, GHC_AHCI);
        self.host.write32(GHC, GHC_AHCI | GHC_RESET);
    }

    /// Whether a reset of the controller is under way.
    pub fn is_resetting(&self) -> bool {
        self.host.read32(GHC) & GHC_RESET != 0
    }

    /// Stops the command list, without interrupts. A controller may raise its one message only when the first port has a
    /// cause, so none is left.
    pub fn stop(&self) {
        self.registers.write32(PORT_IE, 0);
        self.host.write32(IS, 1 << self.number);
        self.change(CMD, CMD_START, 0);
    }

    /// Whether the command list stands still, so that the controller touches no memory of commands.
    pub fn is_stopped(&self) -> bool {
        let command = self.registers.read32(CMD);
        command != ALL_ONES && command & (CMD_START | CMD_RUNS) == 0
    }

    /// Whether the command list runs. It does not any more if the controller was reset, or is absent.
    pub fn is_running(&self) -> bool {
        let command = self.registers.read32(CMD);
        command != ALL_ONES && command & CMD_START != 0
    }

    /// Stops the reception of FISes as well. The command list stands still.
    pub fn stop_receiving(&self) {
        self.change(CMD, CMD_RECEIVE, 0);
    }

    /// Whether the port touches no memory.
    pub fn is_quiet(&self) -> bool {
        self.is_stopped() && self.registers.read32(CMD) & CMD_RECEIVES == 0
    }

    /// Whether the drive was told to spin up. Always so without staggered spin-up.
    pub fn is_spun_up(&self) -> bool {
        self.registers.read32(CMD) & CMD_SPIN_UP != 0
    }

    /// Gives the port its command list and the memory for received FISes, powers the drive on, and receives.
    pub fn set_up(&self, list: u64, received: u64) {
        for (at, address) in [(CLB, list), (FB, received)] {
            self.registers.write32(at, address as u32);
            self.registers.write32(at + 4, (address >> 32) as u32);
        }
        let set = CMD_SPIN_UP | CMD_POWER_ON | CMD_RECEIVE | CMD_ACTIVE;
        self.change(CMD, CMD_MULTIPLIER | CMD_POWER, set);
    }

    /// Whether the port still has these addresses. It loses them if the controller is reset.
    pub fn is_set_up(&self, list: u64, received: u64) -> bool {
        let address = |at: usize| {
            u64::from(self.registers.read32(at + 4)) << 32 | u64::from(self.registers.read32(at))
        };
        self.is_selected() && address(CLB) == list && address(FB) == received
    }

    /// Powers the drive on.
    pub fn spin_up(&self) {
        self.change(CMD, CMD_POWER, CMD_SPIN_UP | CMD_POWER_ON | CMD_ACTIVE);
    }

    /// Starts the command list. The drive must be ready.
    pub fn start(&self) {
        self.change(CMD, 0, CMD_START);
    }

    /// Begins to reset the link: COMRESET, for a millisecond at least.
    pub fn begin_link_reset(&self) {
        self.registers.write32(SCTL, SCTL_PLAIN | DET_RESET);
    }

    /// Ends the reset of the link.
    pub fn end_link_reset(&self) {
        self.registers.write32(SCTL, SCTL_PLAIN);
    }

    /// Whether the port is offline, or its link is being reset.
    pub fn is_offline(&self) -> bool {
        self.registers.read32(SCTL) & 0xf != 0
    }

    /// State of the link.
    pub fn link(&self) -> Link {
        match self.registers.read32(SSTS) {
            ALL_ONES => Link::NoController,
            status => match status & 0xf {
                3 => Link::Up,
                1 => Link::Silent,
                _ => Link::Nothing,
            },
        }
    }

    /// Whether the drive is ready for commands: not busy, and wants no data.
    pub fn is_ready(&self) -> bool {
        const BUSY_OR_DATA: u32 = 0x88;
        self.registers.read32(TFD) & BUSY_OR_DATA == 0
    }

    /// The drive's error register, if its status has an error.
    pub fn error(&self) -> Option<u8> {
        const ERROR_OR_FAULT: u32 = 0x21;
        let task_file = self.registers.read32(TFD);
        (task_file & ERROR_OR_FAULT != 0).then_some((task_file >> 8) as u8)
    }

    /// Kind of the drive.
    pub fn kind(&self) -> Kind {
        match self.registers.read32(SIG) {
            0x0000_0101 => Kind::Disk,
            0xeb14_0101 => Kind::Packets,
            0x9669_0101 => Kind::Multiplier,
            other => Kind::Other(other),
        }
    }

    /// Issues commands, those of `queued` in the native queue. All earlier stores are visible to the device first.
    #[inline]
    pub fn issue(&self, queued: u32, all: u32) {
        if queued != 0 {
            self.registers.write32(SACT, queued);
        }
        self.registers.write32(CI, all);
    }

    /// Queued commands that the drive has not completed.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.registers.read32(SACT)
    }

    /// Commands by themselves that the drive has not completed.
    pub fn issued(&self) -> u32 {
        self.registers.read32(CI)
    }

    /// Pending causes.
    pub fn causes(&self) -> Causes {
        Causes(self.registers.read32(PORT_IS))
    }

    /// Clears causes and errors, except a change of the link.
    pub fn clear_errors(&self) {
        self.registers.write32(SERR, !LINK_DIAGNOSTICS);
        self.registers.write32(PORT_IS, !LINK_CHANGED);
    }

    /// Clears causes and errors, and the changes of the link that its reset has caused.
    pub fn clear(&self) {
        self.registers.write32(SERR, ALL_ONES);
        self.registers.write32(PORT_IS, ALL_ONES);
    }

    /// Enables the port's interrupt, or disables it. Earlier causes are cleared, except those of errors.
    pub fn set_interrupts(&self, wanted: bool) {
        if !wanted {
            return self.registers.write32(PORT_IE, 0);
        }
        self.registers.write32(PORT_IS, !(ERRORS | LINK_CHANGED));
        self.host.write32(IS, 1 << self.number);
        self.registers.write32(PORT_IE, CAUSES);
    }
}
