//! Intel DSA, in Xeons since Sapphire Rapids (Linux, `drivers/dma/idxd`): each queue has an engine of its own. Copies
//! only, in batches; completions are polled in memory, no interrupts.
//!
//! A descriptor is submitted by one write of 64 bytes, for which the CPU needs the instruction MOVDIR64B
//! ([`Registers::write_64_bytes`]).

mod queue;
mod registers;

use super::{Channel, LONGEST};
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform, Registers};
use crate::pci::reset::{FunctionReset, Progress, SavedConfig};
use crate::pci::{Bar, Function};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use queue::Queue;

const INTEL: u16 = 0x8086;

/// Devices: Sapphire and Emerald Rapids, Granite Rapids D, Diamond Rapids.
pub static IDS: [Id; 3] = [Id::Pci(INTEL, 0x0b25), Id::Pci(INTEL, 0x11fb), Id::Pci(INTEL, 0x1212)];

/// Most queues that are set up, and entries of each.
const MOST_QUEUES: u64 = 4;
const MOST_ENTRIES: u64 = 16;
/// Longest time for a command.
const COMMAND_TIME: Duration = Duration::from_millis(500);
/// Priority of a queue in its group, whose only queue it is.
const PRIORITY: u32 = 10;

/// Why an engine cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// The version is unknown to this driver.
    Version(u32),
    /// The CPU has no instruction to write 64 bytes at once.
    NoInstruction,
    /// The firmware has locked the device's tables.
    Locked,
    /// The device is halted.
    Halted,
    /// The device lacks this required feature.
    Lacks(&'static str),
    /// The device reports impossible capabilities.
    Sizes,
    /// There is no memory for descriptors.
    NoMemory,
    /// The device refuses a command.
    Refused {
        /// The command.
        command: u32,
        /// The error code.
        error: u32,
    },
    /// The device does not complete a command.
    Stuck {
        /// The command.
        command: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => {
                f.write_str("the DMA engine's registers (BARs 0 and 2) cannot be mapped")
            }
            Error::Absent => f.write_str("the DMA engine does not answer: check the machine"),
            Error::Version(version) => write!(
                f,
                "the DMA engine is of version {}; 1 and 2 are known: the CPU copies",
                version >> 8
            ),
            Error::NoInstruction => f.write_str(
                "the CPU lacks MOVDIR64B, which the DMA engine needs: the CPU copies; for a virtual machine choose a \
                 CPU model that has it",
            ),
            Error::Locked => f.write_str(
                "firmware has locked the DMA engine's configuration: let the operating system configure it in \
                 the BIOS",
            ),
            Error::Halted => f.write_str(
                "the DMA engine is halted, and asks for a reset of the machine: power it off and on",
            ),
            Error::Lacks(what) => write!(f, "the DMA engine has no {what}: the CPU copies"),
            Error::Sizes => f.write_str(
                "the DMA engine reports no queues, or tables outside of its registers: it is \
                 broken",
            ),
            Error::NoMemory => f.write_str(
                "there is no memory for the DMA engine's descriptors: give the machine more memory",
            ),
            Error::Refused { command, error } => write!(
                f,
                "the DMA engine refuses command {command} with error {error:#x}: reset the machine, or replace it"
            ),
            Error::Stuck { command } => write!(
                f,
                "the DMA engine does not complete command {command}: reset the machine, or replace it"
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Sets an engine up, and returns its queues. May wait for the device for some milliseconds.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Vec<Box<dyn Channel>>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let bars = function.bars();
    let bars = bars.get(0).zip(bars.get(2)).ok_or(Error::NoRegisters)?;
    function.prepare();
    let made = set_up(function, bars, platform, clock);
    if made.is_err() {
        function.disable();
    }
    Ok(made?.into_iter().map(|queue| Box::new(queue) as Box<dyn Channel>).collect())
}

/// Executes a command, and polls for its end.
fn command(
    registers: &dyn Registers,
    command: u32,
    operand: u32,
    clock: &dyn Clock,
) -> Result<(), Error> {
    registers.write32(registers::COMMAND, command << registers::COMMAND_SHIFT | operand);
    let end = clock.now() + COMMAND_TIME;
    loop {
        let status = registers.read32(registers::COMMAND_STATUS);
        if status == u32::MAX {
            return Err(Error::Absent);
        }
        match status & registers::COMMAND_ERROR {
            _ if status & registers::ACTIVE != 0 => {}
            0 => return Ok(()),
            error => return Err(Error::Refused { command, error }),
        }
        if clock.now() >= end {
            return Err(Error::Stuck { command });
        }
    }
}

/// Number of queues, entries of each, and offsets of the device's tables.
struct Plan {
    queues: u64,
    entries: u64,
    groups_at: usize,
    queues_at: usize,
    queue_entry: usize,
    /// Number of read buffers, from GROUPS.
    read_buffers: u64,
    /// log2 of the descriptors of a batch.
    batch: u32,
    translates: bool,
    limits_operations: bool,
}

fn plan(registers: &dyn Registers) -> Result<Plan, Error> {
    match registers.read32(registers::VERSION) {
        u32::MAX => return Err(Error::Absent),
        // Version 3 (Diamond Rapids) has further capabilities, which are not used.
        0x100..=0x3ff => {}
        version => return Err(Error::Version(version)),
    }
    let general = registers.read64(registers::GENERAL);
    let queues = registers.read64(registers::QUEUES);
    let groups = registers.read64(registers::GROUPS);
    let engines = registers.read64(registers::ENGINES) & 0xff;
    let operations = registers.read64(registers::OPERATIONS);
    if general & registers::CONFIGURABLE == 0 {
        return Err(Error::Locked);
    }
    if operations & 1 << registers::COPY == 0 || operations & 1 << registers::BATCH == 0 {
        return Err(Error::Lacks("copies in batches"));
    }
    if queues & registers::DEDICATED == 0 {
        return Err(Error::Lacks("dedicated queues"));
    }
    if (general >> registers::LONGEST_SHIFT & 31) < u64::from(LONGEST.ilog2()) {
        return Err(Error::Lacks("copies of 1 MiB"));
    }
    let batch = (general >> registers::BATCH_SHIFT & 15) as u32;
    if batch == 0 {
        return Err(Error::Lacks("batches of two"));
    }
    let (entries, count) = (queues & 0xffff, queues >> registers::QUEUE_COUNT_SHIFT & 0xff);
    let count = count.min(engines).min(groups & 0xff).min(entries).min(MOST_QUEUES);
    let tables = registers.read64(registers::TABLES);
    let table = |at: u32| (tables >> at & 0xffff) as usize * registers::TABLE_UNIT;
    let (groups_at, queues_at) = (table(0), table(16));
    let queue_entry = 1 << ((queues >> registers::QUEUE_ENTRY_SHIFT & 15) + 5);
    let fits = |at: usize, entry: usize| at > 0 && at + count as usize * entry <= registers.len();
    if count == 0 || !fits(groups_at, registers::GROUP_ENTRY) || !fits(queues_at, queue_entry) {
        return Err(Error::Sizes);
    }
    Ok(Plan {
        queues: count,
        entries: (entries / count).min(MOST_ENTRIES),
        groups_at,
        queues_at,
        queue_entry,
        read_buffers: groups >> 8 & 0xff,
        batch: batch.min(queue::BATCH.ilog2()),
        translates: queues & registers::TRANSLATES != 0,
        limits_operations: queues & registers::LIMITS_OPERATIONS != 0 && queue_entry >= 64,
    })
}

/// Revives a device that an earlier system has left halted, by the reset that it asks for: a command, which follows
/// anyway, or a function-level reset (Linux 7.3: `idxd_halt`).
fn revive(
    registers: &dyn Registers,
    function: &Function<'static>,
    clock: &dyn Clock,
) -> Result<(), Error> {
    let state = registers.read32(registers::STATE);
    if state == u32::MAX || state & registers::STATE_BITS != registers::HALTED {
        return Ok(());
    }
    match state >> registers::RESET_SHIFT & registers::RESET_BITS {
        registers::RESET_BY_COMMAND => return Ok(()),
        registers::RESET_OF_FUNCTION if FunctionReset::is_supported(function) => {}
        _ => return Err(Error::Halted),
    }
    let mut reset = FunctionReset::begin(function, SavedConfig::of(function), clock.now());
    loop {
        match reset.step(function, clock.now()) {
            Progress::Done => return Ok(()),
            Progress::NoAnswer => return Err(Error::Absent),
            Progress::Waiting => crate::hal::relax(),
        }
    }
}

/// Writes the tables: each queue alone in a group, with an engine.
fn configure(registers: &dyn Registers, plan: &Plan) {
    for n in 0..plan.queues as usize {
        let group = plan.groups_at + n * registers::GROUP_ENTRY;
        registers.write64(group, 1 << n);
        (1..4).for_each(|word| registers.write64(group + 8 * word, 0));
        registers.write64(group + registers::GROUP_ENGINES, 1 << n);
        let flags = plan.read_buffers << registers::READ_BUFFERS_SHIFT;
        registers.write64(group + registers::GROUP_FLAGS, flags);
        let queue = plan.queues_at + n * plan.queue_entry;
        (0..plan.queue_entry / 4).for_each(|word| registers.write32(queue + 4 * word, 0));
        registers.write32(queue + registers::QUEUE_SIZE, plan.entries as u32);
        let addresses = if plan.translates { registers::MODE_NO_TRANSLATION } else { 0 };
        let mode = registers::MODE_DEDICATED | addresses | PRIORITY << registers::PRIORITY_SHIFT;
        registers.write32(queue + registers::QUEUE_MODE, mode);
        let limits = LONGEST.ilog2() | plan.batch << registers::QUEUE_BATCH_SHIFT;
        registers.write32(queue + registers::QUEUE_LIMITS, limits);
        if plan.limits_operations {
            let operations = 1 << registers::COPY | 1 << registers::BATCH;
            registers.write32(queue + registers::QUEUE_OPERATIONS, operations);
        }
    }
}

fn set_up(
    function: Function<'static>,
    (control, portals): (Bar, Bar),
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Vec<Queue>, Error> {
    let size = control.size.min(0x1_0000) as usize;
    let map = |platform: &mut dyn Platform| {
        platform.map_registers(control.address, size).ok_or(Error::NoRegisters)
    };
    let own = map(platform)?;
    revive(&*own, &function, clock)?;
    let plan = plan(&*own)?;
    command(&*own, registers::RESET_DEVICE, 0, clock)?;
    function.enable_bus_master();
    own.write32(registers::CONTROL, 0);
    configure(&*own, &plan);
    command(&*own, registers::ENABLE_DEVICE, 0, clock)?;
    let mut queues: Vec<Queue> = Vec::new();
    for n in 0..plan.queues {
        let made = portal(&portals, n, platform).and_then(|portal| {
            command(&*own, registers::ENABLE_QUEUE, n as u32, clock)?;
            let settings = queue::Settings { number: n as u8, batch: 1 << plan.batch };
            Queue::open([map(platform)?, portal], function, settings, platform.arena())
        });
        match made {
            Ok(queue) => queues.push(queue),
            Err(error) => {
                function.disable();
                queues.into_iter().for_each(|queue| queue.free(platform.arena()));
                return Err(error);
            }
        }
    }
    Ok(queues)
}

/// Maps the portal of queue number `n`, to which descriptors are written.
fn portal(bar: &Bar, n: u64, platform: &mut dyn Platform) -> Result<Box<dyn Registers>, Error> {
    let at = bar.range(n * registers::PORTALS + registers::PORTAL, registers::PORTAL);
    let portal = at.and_then(|at| platform.map_registers(at, registers::PORTAL as usize));
    let portal = portal.ok_or(Error::NoRegisters)?;
    if portal.writes_64_bytes() { Ok(portal) } else { Err(Error::NoInstruction) }
}
