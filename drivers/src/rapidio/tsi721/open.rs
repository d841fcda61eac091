//! Sets the bridge up.

use super::block_dma::{DataChannel, MaintenanceChannel};
use super::inbound_doorbells::DoorbellQueue;
use super::registers::{
    BOOT_COMPLETE, DEVICE_CONTROL, DEVICE_ENABLE, EM_ENABLE, EM_PORT_WRITE, MESSAGE_ALL,
    MESSAGE_ENABLE, MESSAGE_ID, MESSAGE_ID_ANY, MESSAGE_INTERRUPT, MESSAGE_LOGS, MESSAGE_TIMEOUT,
    OTHER_ENABLES, PORT_WRITE_CONTROL, PORT_WRITE_DISCARDED, PORT_WRITE_RELIABLE,
    PORT_WRITE_STATUS, PORT_WRITE_VALID,
};
use super::{
    Counters, Error, IdSize, Mailbox, Signal, Tsi721, Tsi721Registers, UNDELIVERED, Watch, Windows,
    csr,
};
use crate::driver::{Bus, Device, OpenError};
use crate::hal::Platform;
use crate::pci::{Bars, Function};
use crate::rapidio::port::OpenPort;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Timeout of a response or the next segment of a message, as in Linux.
const TIMEOUT: u32 = 400;

/// Opens a bridge. Its link then comes up by itself. The network is not enumerated.
pub fn open(device: Device, platform: &mut dyn Platform) -> Result<OpenPort, OpenError> {
    let Bus::Pci(function) = device.bus() else {
        return Err(Error::NoRegisters { bar: 0 }.into());
    };
    let bars = function.bars();
    function.enable();
    let port = attach(function, &bars, platform);
    match port {
        Ok(port) => Ok(Box::new(port)),
        Err(error) => {
            function.disable();
            Err(error.into())
        }
    }
}

fn attach(
    function: Function<'static>,
    bars: &Bars,
    platform: &mut dyn Platform,
) -> Result<Tsi721, Error> {
    let registers = Tsi721Registers::map(bars, platform)?;
    if registers.read(csr::DEVICE_IDENTITY as usize) == u32::MAX {
        return Err(Error::Absent);
    }
    for enable in OTHER_ENABLES.into_iter().chain([DEVICE_ENABLE, EM_ENABLE, MESSAGE_ENABLE]) {
        registers.write(enable, 0);
    }
    let windows = Windows::new(bars, platform, &registers);
    let (maintenance, data, doorbells) = channels(platform, &registers)?;
    registers.write(PORT_WRITE_CONTROL, PORT_WRITE_RELIABLE);
    registers.write(PORT_WRITE_STATUS, PORT_WRITE_VALID | PORT_WRITE_DISCARDED);
    for log in MESSAGE_LOGS {
        registers.write(log, 0);
    }
    registers.write(MESSAGE_INTERRUPT, MESSAGE_ALL);
    registers.write(MESSAGE_TIMEOUT, TIMEOUT);
    registers.write(MESSAGE_ID, MESSAGE_ID_ANY);
    let control = registers.read(DEVICE_CONTROL);
    registers.write(DEVICE_CONTROL, control | BOOT_COMPLETE);
    let signal = Signal::open(&function, bars, platform);
    registers.write(EM_ENABLE, EM_PORT_WRITE);
    signal.apply(&registers);
    Ok(Tsi721 {
        function,
        registers,
        signal,
        size: IdSize::Small,
        maintenance,
        refused: false,
        data,
        doorbells,
        inbound: [const { None }; Mailbox::COUNT],
        outbound: [const { None }; Mailbox::COUNT],
        windows,
        undelivered: VecDeque::with_capacity(UNDELIVERED),
        watch: Watch::new(),
        counters: Counters::default(),
    })
}

/// The channels that every port has. If memory runs out, allocated channels are freed again.
fn channels(
    platform: &mut dyn Platform,
    registers: &Tsi721Registers,
) -> Result<(MaintenanceChannel, DataChannel, DoorbellQueue), Error> {
    let arena = platform.arena();
    let maintenance = MaintenanceChannel::new(arena, registers)?;
    let data = match DataChannel::new(arena, registers) {
        Ok(data) => data,
        Err(error) => {
            maintenance.free(arena);
            return Err(error);
        }
    };
    match DoorbellQueue::new(arena, registers) {
        Ok(doorbells) => Ok((maintenance, data, doorbells)),
        Err(error) => {
            maintenance.free(arena);
            data.free(arena);
            Err(error)
        }
    }
}
