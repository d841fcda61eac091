//! Sets the bridge up.

use super::block_dma::{DataChannel, MaintenanceChannel};
use super::inbound_doorbells::DoorbellQueue;
use super::registers::{
    BOOT_COMPLETE, CHANNELS, DEVICE_CONTROL, DEVICE_ENABLE, EM_ENABLE, EM_PORT_WRITE, MESSAGE_ALL,
    MESSAGE_ENABLE, MESSAGE_ID, MESSAGE_ID_ANY, MESSAGE_INTERRUPT, MESSAGE_LOGS, MESSAGE_TIMEOUT,
    OTHER_ENABLES, PORT_WRITE_CONTROL, PORT_WRITE_DISCARDED, PORT_WRITE_RELIABLE,
    PORT_WRITE_STATUS, PORT_WRITE_VALID, doorbell_control, inbound_channel, outbound_messages,
};
use super::{
    Counters, Error, IdSize, Mailbox, Signal, Tsi721, Tsi721Registers, UNDELIVERED, Watch, Windows,
    block_dma, csr, engine, inbound_messages,
};
use crate::driver::{Bus, Device, OpenError};
use crate::hal::{Clock, Platform};
use crate::pci::reset::SavedConfig;
use crate::pci::{Bars, Function};
use crate::rapidio::port::OpenPort;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

/// Timeout of a response or the next segment of a message, as in Linux.
const TIMEOUT: u32 = 400;

/// Range B of completion timeouts.
const COMPLETION_TIMEOUT: u8 = 2;
/// Longest time in which channels are suspended (Linux: `tsi721_dma_stop`), and register reads without a clock.
const SUSPENDING: Duration = Duration::from_millis(100);
const SUSPEND_READS: u32 = 10_000;

/// Opens a bridge. Its link then comes up by itself. The network is not enumerated.
pub fn open(device: Device, platform: &mut dyn Platform) -> Result<OpenPort, OpenError> {
    let Bus::Pci(function) = device.bus() else {
        return Err(Error::NoRegisters { bar: 0 }.into());
    };
    let bars = function.bars();
    function.prepare();
    // As Linux: requests without completion fail after 1 to 10 ms.
    function.set_completion_timeout(COMPLETION_TIMEOUT);
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
    disable_interrupts(&registers);
    let windows = Windows::new(bars, platform, &registers);
    suspend_all(&registers, platform.clock().as_deref());
    function.enable_bus_master();
    let (maintenance, data, doorbells) = channels(platform, &registers)?;
    set_up(&registers);
    let signal = Signal::open(&function, bars, platform);
    registers.write(EM_ENABLE, EM_PORT_WRITE);
    signal.apply(&registers);
    Ok(Tsi721 {
        function,
        saved: SavedConfig::of(&function),
        own_id: None,
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

/// Disables all interrupts.
pub fn disable_interrupts(registers: &Tsi721Registers) {
    for enable in OTHER_ENABLES.into_iter().chain([DEVICE_ENABLE, EM_ENABLE, MESSAGE_ENABLE]) {
        registers.write(enable, 0);
    }
}

/// Sets port-writes and messages up, and lets the link come up.
pub fn set_up(registers: &Tsi721Registers) {
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
}

/// Suspends all channels and queues that an earlier system may have left running, and waits until they do not run.
fn suspend_all(registers: &Tsi721Registers, clock: Option<&(dyn Clock + Send)>) {
    let mut running = Vec::new();
    for n in 0..CHANNELS {
        let requests = [block_dma::base(n as u16), outbound_messages(n)];
        let requests = requests.map(|base| (base + engine::STATUS, base + engine::CONTROL));
        let inbound = inbound_channel(n);
        let inbound = (inbound + inbound_messages::STATUS, inbound + inbound_messages::CONTROL);
        registers.write(doorbell_control(n), engine::SUSPEND);
        for (status, control) in requests.into_iter().chain([inbound]) {
            if registers.read(status) & engine::RUN != 0 {
                registers.write(control, engine::SUSPEND);
                running.push(status);
            }
        }
    }
    let end = clock.map(|clock| clock.now() + SUSPENDING);
    for _ in 0..SUSPEND_READS {
        running.retain(|status| registers.read(*status) & engine::RUN != 0);
        let is_late = clock.zip(end).is_some_and(|(clock, end)| clock.now() > end);
        if running.is_empty() || is_late {
            break;
        }
        crate::hal::relax();
    }
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
