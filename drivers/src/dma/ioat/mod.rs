//! Intel I/OAT (Crystal Beach DMA) 3.2 to 3.4, in Xeon E5 to Ice Lake (Linux, `drivers/dma/ioat`). Copies only: no XOR,
//! no interrupts; completions are polled in memory.

mod channel;
mod registers;

use super::Channel;
use crate::driver::{Bus, Device, Id, OpenError};
use crate::hal::{Clock, Platform, Registers};
use crate::pci::{Bar, Function};
use alloc::boxed::Box;
use alloc::vec::Vec;
use channel::IoatChannel;
use core::fmt;
use registers::{
    CHANNEL, CHANNEL_COUNT, INTERRUPT_CONTROL, LTR_ACTIVE, LTR_ACTIVE_VALUE, LTR_IDLE,
    LTR_IDLE_VALUE, LTR_SELECT, TRANSFER_CAP, VERSION,
};

const INTEL: u16 = 0x8086;

/// Devices: Ivy Bridge, Haswell, Broadwell (16 functions each), Skylake, Ice Lake.
pub static IDS: [Id; 50] = ids();

const fn ids() -> [Id; 50] {
    let mut all = [Id::Pci(INTEL, 0x2021); 50];
    let mut at = 0;
    while at < 16 {
        all[at] = Id::Pci(INTEL, 0x0e20 + at as u16);
        all[16 + at] = Id::Pci(INTEL, 0x2f20 + at as u16);
        all[32 + at] = Id::Pci(INTEL, 0x6f20 + at as u16);
        at += 1;
    }
    all[49] = Id::Pci(INTEL, 0x0b00);
    all
}

/// First version with Latency Tolerance Reporting: 3.4.
const LTR_VERSION: u8 = 0x34;
/// Most channels that are opened.
const MOST_CHANNELS: u8 = 8;

/// Why an engine cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device is not on PCI, or its registers cannot be mapped.
    NoRegisters,
    /// The device does not answer.
    Absent,
    /// The version is unknown to this driver.
    Version(u8),
    /// The device reports impossible capabilities.
    Sizes {
        /// Channels.
        channels: u8,
        /// log2 of the most bytes of a descriptor.
        transfer_cap: u8,
    },
    /// There is no memory for descriptors.
    NoMemory,
    /// A channel does not come up.
    Stuck {
        /// The channel.
        channel: u8,
        /// The channel's status.
        status: u64,
        /// The channel's errors.
        errors: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoRegisters => {
                f.write_str("the DMA engine's registers (BAR 0) cannot be mapped")
            }
            Error::Absent => f.write_str("the DMA engine does not answer: check the machine"),
            Error::Version(version) => write!(
                f,
                "the DMA engine is of version {}.{}; 3.2 to 3.4 are known: the CPU copies",
                version >> 4,
                version & 15
            ),
            Error::Sizes { channels, transfer_cap } => write!(
                f,
                "the DMA engine reports {channels} channels and copies up to 2^{transfer_cap} \
                 bytes: it is broken"
            ),
            Error::NoMemory => f.write_str(
                "there is no memory for the DMA engine's descriptors: give the machine more memory",
            ),
            Error::Stuck { channel, status, errors } => write!(
                f,
                "channel {channel} of the DMA engine does not come up (status {status:#x}, errors \
                 {errors:#x}: {}): reset the machine, or replace it",
                registers::error_name(errors)
            ),
        }
    }
}

impl core::error::Error for Error {}

/// Sets an engine up, and returns its channels. May wait for the device for some milliseconds.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Vec<Box<dyn Channel>>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    let bar = function.bars().get(0).filter(|bar| bar.size >= 2 * CHANNEL as u64);
    let bar = bar.ok_or(Error::NoRegisters)?;
    function.prepare();
    let size = bar.size.min(0x4000) as usize;
    let registers = platform.map_registers(bar.address, size).ok_or(Error::NoRegisters)?;
    let made = channels(&*registers, &bar, function, platform, clock);
    if made.is_err() {
        function.disable();
    }
    Ok(made?.into_iter().map(|channel| Box::new(channel) as Box<dyn Channel>).collect())
}

fn channels(
    registers: &dyn Registers,
    bar: &Bar,
    function: Function<'static>,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Vec<IoatChannel>, Error> {
    let version = registers.read8(VERSION);
    match version {
        0xff => return Err(Error::Absent),
        0x32..=0x34 => {}
        _ => return Err(Error::Version(version)),
    }
    let (count, transfer_cap) =
        (registers.read8(CHANNEL_COUNT), registers.read8(TRANSFER_CAP) & 31);
    let fits = (usize::from(count) + 1) * CHANNEL <= registers.len();
    if count == 0 || !fits || transfer_cap < 12 {
        return Err(Error::Sizes { channels: count, transfer_cap });
    }
    registers.write8(INTERRUPT_CONTROL, 0);
    let mut channels: Vec<IoatChannel> = Vec::new();
    let mut open = || {
        for number in 0..count.min(MOST_CHANNELS) {
            let settings = channel::Settings { number, version, longest: 1 << transfer_cap };
            let at = bar.address + (CHANNEL * (usize::from(number) + 1)) as u64;
            let own = platform.map_registers(at, CHANNEL).ok_or(Error::NoRegisters)?;
            let arena = platform.arena();
            channels.push(IoatChannel::open(own, function, settings, arena, clock)?);
        }
        // An earlier system may have left any of them running, so all are reset by now.
        function.enable_bus_master();
        if version >= LTR_VERSION {
            (0..channels.len()).for_each(|number| set_latency(registers, number));
        }
        channels.iter_mut().try_for_each(|channel| channel.bring_up(clock))
    };
    match open() {
        Ok(()) => Ok(channels),
        Err(error) => {
            function.disable();
            channels.into_iter().for_each(|channel| channel.free(platform.arena()));
            Err(error)
        }
    }
}

/// Sets the latency that a channel tolerates, for the power management of the processor.
fn set_latency(registers: &dyn Registers, number: usize) {
    let base = CHANNEL * (number + 1);
    registers.write32(base + LTR_ACTIVE, LTR_ACTIVE_VALUE);
    registers.write32(base + LTR_IDLE, LTR_IDLE_VALUE);
    registers.write8(base + LTR_SELECT, 0);
}
