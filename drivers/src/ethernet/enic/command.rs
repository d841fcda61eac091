//! Commands to the firmware (Linux: `vnic_devcmd.h`), one at a time: by a ring in memory with a ring of results
//! (devcmd2), or if the device has none, by a mailbox in registers. Only [`Commands::open`] waits for the device.

use super::error::Error;
use super::registers::{self, ALL_ONES, FETCHED, POSTED, Ring, WORK_ERROR};
use super::resources::Resources;
use crate::hal::{Clock, Registers, Window};
use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;

/// Timeout of a command.
pub const TIMEOUT: Duration = Duration::from_secs(3);

/// A command: its word, and its name. Bits of the word: 31 it has results, 30 it has arguments, 24 no wait for the
/// result; then kinds of vNIC (10 bits) and number (14 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u32, pub &'static str);

pub const DEV_SPEC: Command = Command(0xc001_c002, "DEV_SPEC");
pub const STATS_DUMP: Command = Command(0x4001_c004, "STATS_DUMP");
pub const PACKET_FILTER: Command = Command(0x4100_4007, "PACKET_FILTER");
pub const GET_MAC_ADDR: Command = Command(0x8000_c009, "GET_MAC_ADDR");
pub const ADDR_ADD: Command = Command(0x4100_c00c, "ADDR_ADD");
pub const NIC_CFG: Command = Command(0x4101_c010, "NIC_CFG");
pub const SOFT_RESET: Command = Command(0x0101_c013, "SOFT_RESET");
pub const SOFT_RESET_STATUS: Command = Command(0x8001_c014, "SOFT_RESET_STATUS");
pub const NOTIFY: Command = Command(0xc001_c015, "NOTIFY");
pub const OPEN: Command = Command(0x4101_c017, "OPEN");
pub const OPEN_STATUS: Command = Command(0x8001_c018, "OPEN_STATUS");
pub const ENABLE: Command = Command(0x4101_c01c, "ENABLE");
pub const ENABLE_WAIT: Command = Command(0x4001_c01c, "ENABLE_WAIT");
pub const DISABLE: Command = Command(0x0001_c01d, "DISABLE");
pub const INIT: Command = Command(0x4101_c023, "INIT");
pub const CAPABILITY: Command = Command(0xc001_c024, "CAPABILITY");
pub const IG_VLAN_REWRITE_MODE: Command = Command(0xc000_4029, "IG_VLAN_REWRITE_MODE");
const INITIALIZE_DEVCMD2: Command = Command(0x4001_c039, "INITIALIZE_DEVCMD2");
pub const ADD_FILTER: Command = Command(0xc000_403a, "ADD_FILTER");
pub const DEL_FILTER: Command = Command(0x4000_403b, "DEL_FILTER");
pub const CQ_ENTRY_SIZE_SET: Command = Command(0x4000_405a, "CQ_ENTRY_SIZE_SET");

const NO_WAIT: u32 = 1 << 24;
/// Error code of an unknown command.
const UNKNOWN: u32 = 5;

/// Registers of the mailbox: status, command, 15 arguments of 64 bits.
const STATUS: usize = 0;
const COMMAND: usize = 4;
const ARGUMENTS: usize = 8;
const BUSY: u32 = 1;
const ERROR: u32 = 2;

/// Entries of the ring of commands, and of the ring of results behind it.
const ENTRIES: u32 = 32;
/// Bytes of an entry. A command: 16 bits, flags (16 bits), word, arguments. A result: 15 values of 64 bits, 32 bits,
/// index of the command (16 bits), error (8 bits), colour (8 bits).
const ENTRY: usize = 128;
/// Bytes of both rings.
pub const BYTES: usize = 2 * ENTRIES as usize * ENTRY;
const RESULTS: usize = ENTRIES as usize * ENTRY;
const NO_RESULT: u32 = 1 << 16;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The registers read as all ones.
    Absent,
    /// The command timed out.
    Late,
    /// The firmware refused the command, with this error (Linux: `enum vnic_devcmd_error`).
    Refused(u32),
    /// A register has an invalid value.
    Garbled,
}

impl Failure {
    /// Whether the command is unknown to the firmware.
    pub fn is_unknown(self) -> bool {
        self == Failure::Refused(UNKNOWN)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = match *self {
            Failure::Absent => "no answer: the adapter was removed",
            Failure::Late => "no answer within 3 s; reset the adapter, or update its firmware",
            Failure::Garbled => {
                "invalid register values; reset the adapter, or update its firmware"
            }
            Failure::Refused(1) => "an argument is invalid (error 1)",
            Failure::Refused(2) => "it cannot access memory (error 2): check the IOMMU",
            Failure::Refused(3) => "not permitted (error 3)",
            Failure::Refused(UNKNOWN) => "unknown command (error 5): update the adapter's firmware",
            Failure::Refused(6) => "wrong state (error 6)",
            Failure::Refused(10) => "no room left (error 10)",
            Failure::Refused(11) => "not supported (error 11)",
            Failure::Refused(error) => return write!(f, "error {error}"),
        };
        f.write_str(known)
    }
}

/// The first two results of a command.
pub type Answer = [u64; 2];

/// Transport of commands.
enum Transport {
    Mailbox(Box<dyn Registers>),
    Ring(CommandRing),
}

struct CommandRing {
    registers: Box<dyn Registers>,
    memory: Window,
    posted: u32,
    /// Index of the next result.
    next: u32,
    /// Colour of the next result.
    colour: u8,
    /// Index of the last command.
    last: u32,
}

/// The firmware's command interface.
pub struct Commands {
    transport: Transport,
    /// Word of the last command.
    word: u32,
}

impl Commands {
    /// Opens the command interface that the device has. A ring uses `memory`: [`BYTES`] bytes, aligned to 512.
    pub fn open(
        resources: &mut Resources,
        memory: Window,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let mailbox = resources.mailbox.take();
        let Some(registers) = resources.ring.take() else {
            let mailbox = mailbox.ok_or(Error::TooFew("command interfaces"))?;
            return Ok(Commands { transport: Transport::Mailbox(mailbox), word: 0 });
        };
        let ring = CommandRing { registers, memory, posted: 0, next: 0, colour: 1, last: 0 };
        let mut commands = Commands { transport: Transport::Ring(ring), word: 0 };
        match (commands.initialise(clock), mailbox) {
            (Ok(()), _) => Ok(commands),
            // As in Linux.
            (Err(_), Some(mailbox)) => {
                Ok(Commands { transport: Transport::Mailbox(mailbox), word: 0 })
            }
            (Err(failure), None) => Err(Error::Command(INITIALIZE_DEVCMD2.1, failure)),
        }
    }

    fn initialise(&mut self, clock: &dyn Clock) -> Result<(), Failure> {
        let Transport::Ring(ring) = &mut self.transport else { return Ok(()) };
        ring.start()?;
        let results = ring.memory.bus_address() + RESULTS as u64;
        self.begin(INITIALIZE_DEVCMD2, [results, ENTRIES.into()])?;
        let deadline = clock.now() + TIMEOUT;
        loop {
            match self.poll() {
                Ok(Some(_)) => return Ok(()),
                Ok(None) if clock.now() > deadline => {
                    self.stop();
                    return Err(Failure::Late);
                }
                Ok(None) => crate::hal::relax(),
                Err(failure) => {
                    self.stop();
                    return Err(failure);
                }
            }
        }
    }

    /// Stops the ring: the device does not read it any more.
    pub fn stop(&self) {
        if let Transport::Ring(ring) = &self.transport {
            registers::stop(&*ring.registers);
        }
    }

    /// Posts a command; false if there is no room for it now, because an earlier one is not done.
    pub fn begin(&mut self, command: Command, arguments: [u64; 2]) -> Result<bool, Failure> {
        self.word = command.0;
        match &mut self.transport {
            Transport::Mailbox(mailbox) => {
                match mailbox.read32(STATUS) {
                    ALL_ONES => return Err(Failure::Absent),
                    status if status & BUSY != 0 => return Ok(false),
                    _ => {}
                }
                for (n, argument) in arguments.into_iter().enumerate() {
                    mailbox.write64(ARGUMENTS + 8 * n, argument);
                }
                fence(Ordering::SeqCst);
                mailbox.write32(COMMAND, command.0);
                Ok(true)
            }
            Transport::Ring(ring) => ring.begin(command.0, arguments),
        }
    }

    /// The result of the command, when it is done.
    pub fn poll(&mut self) -> Result<Option<Answer>, Failure> {
        match &mut self.transport {
            Transport::Mailbox(mailbox) => match mailbox.read32(STATUS) {
                ALL_ONES => Err(Failure::Absent),
                status if status & BUSY != 0 => Ok(None),
                status => {
                    fence(Ordering::Acquire);
                    let answer = [0, 1].map(|n| mailbox.read64(ARGUMENTS + 8 * n));
                    match status & ERROR {
                        0 => Ok(Some(answer)),
                        _ => Err(Failure::Refused(answer[0] as u32)),
                    }
                }
            },
            Transport::Ring(ring) => ring.poll(self.word),
        }
    }
}

impl CommandRing {
    /// Starts the ring at the firmware's fetch index.
    fn start(&mut self) -> Result<(), Failure> {
        registers::stop(&*self.registers);
        let fetched = self.registers.read32(FETCHED);
        if fetched == ALL_ONES {
            return Err(Failure::Absent);
        }
        if fetched >= ENTRIES {
            return Err(Failure::Garbled);
        }
        self.memory.fill(0);
        let ring = Ring { address: self.memory.bus_address(), entries: ENTRIES };
        registers::start(&*self.registers, 0, WORK_ERROR, ring, 0, fetched);
        self.posted = fetched;
        Ok(())
    }

    fn begin(&mut self, word: u32, arguments: [u64; 2]) -> Result<bool, Failure> {
        match self.registers.read32(FETCHED) {
            ALL_ONES => return Err(Failure::Absent),
            fetched if fetched == (self.posted + 1) % ENTRIES => return Ok(false),
            _ => {}
        }
        let at = self.posted as usize * ENTRY;
        let flags = if word & NO_WAIT != 0 { NO_RESULT } else { 0 };
        self.memory.slice(at, ENTRY).expect("an entry of the ring").fill(0);
        self.memory.store32(at, flags);
        self.memory.store32(at + 4, word);
        for (n, argument) in arguments.into_iter().enumerate() {
            self.memory.store64(at + 8 + 8 * n, argument);
        }
        self.last = self.posted;
        self.posted = (self.posted + 1) % ENTRIES;
        fence(Ordering::Release);
        self.registers.write32(POSTED, self.posted);
        Ok(true)
    }

    fn poll(&mut self, word: u32) -> Result<Option<Answer>, Failure> {
        let fetched = self.registers.read32(FETCHED);
        if fetched == ALL_ONES {
            return Err(Failure::Absent);
        }
        if word & NO_WAIT != 0 {
            return Ok((fetched == self.posted).then_some([0; 2]));
        }
        let at = RESULTS + self.next as usize * ENTRY;
        let [low, high, error, colour] = self.memory.load32(at + ENTRY - 4).to_le_bytes();
        if colour != self.colour {
            return Ok(None);
        }
        fence(Ordering::Acquire);
        self.next += 1;
        if self.next == ENTRIES {
            (self.next, self.colour) = (0, self.colour ^ 1);
        }
        // The result of an earlier command, which has timed out.
        if u32::from(u16::from_le_bytes([low, high])) != self.last {
            return Ok(None);
        }
        match error {
            0 => Ok(Some([0, 8].map(|n| self.memory.load64(at + n)))),
            error => Err(Failure::Refused(error.into())),
        }
    }
}
