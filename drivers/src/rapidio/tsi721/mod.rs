//! The Tsi721, a bridge from PCI Express to serial RapidIO (IDT, later Renesas; registers as in Linux
//! `drivers/rapidio/devices/tsi721.h`, procedures as in `tsi721.c`).
//!
//! Maintenance requests use block DMA channel 7, data uses channel 0, and each mailbox has a message channel per
//! direction. The device reports arrivals and completions in memory, without register reads. An error stops a channel:
//! it is restarted, the failed descriptor is reported, and the remaining ones are executed again. A halt costs a write
//! for each channel with arrivals or completions since the last halt, and a read. Atomics, 34-bit strides and message
//! letters other than 0 are not used.

mod block_dma;
mod engine;
mod error;
mod inbound_doorbells;
mod inbound_messages;
mod open;
mod outbound_messages;
mod registers;
mod signal;
mod watch;
mod windows;

pub use error::Error;
pub use open::open;

use super::{
    Busy, Counters, Destination, Doorbell, IdSize, Mailbox, Maintained, Maintenance,
    MaintenanceError, MasterPort, Message, OutboundMap, PortWrite, SendError, Transfer,
    Transferred, Undelivered, WindowError, csr,
};
use crate::hal::{Arena, Instant, Notice, Packet, Window};
use crate::pci::Function;
use crate::pci::reset::SavedConfig;
use alloc::collections::VecDeque;
use block_dma::{DataChannel, MaintenanceChannel};
use inbound_doorbells::DoorbellQueue;
use inbound_messages::InboundMailbox;
use outbound_messages::OutboundMailbox;
use registers::{SERIAL, Tsi721Registers};
use signal::Signal;
use watch::Watch;
use windows::Windows;

/// PCI vendor ID.
pub const VENDOR: u16 = 0x111d;
/// PCI device ID.
pub const DEVICE: u16 = 0x80ab;

/// Size of the port's own maintenance space in bytes.
const OWN_SPACE: u32 = 0x10000;
/// Maximum number of undelivered messages that are kept for the user: all that can be in flight.
const UNDELIVERED: usize = Mailbox::COUNT * outbound_messages::ENTRIES;

/// The bridge.
pub struct Tsi721 {
    function: Function<'static>,
    /// Configuration registers as at the opening.
    saved: SavedConfig,
    registers: Tsi721Registers,
    /// The register with the port's own id, as the user has set it.
    own_id: Option<u32>,
    signal: Signal,
    size: IdSize,
    maintenance: MaintenanceChannel,
    /// A maintenance request was made while the link was down; its failure waits to be returned.
    refused: bool,
    data: DataChannel,
    doorbells: DoorbellQueue,
    inbound: [Option<InboundMailbox>; Mailbox::COUNT],
    outbound: [Option<OutboundMailbox>; Mailbox::COUNT],
    windows: Windows,
    undelivered: VecDeque<Undelivered>,
    watch: Watch,
    counters: Counters,
}

impl Tsi721 {
    fn mailbox(&mut self, mailbox: Mailbox) -> Option<&mut OutboundMailbox> {
        self.outbound[mailbox.index()].as_mut()
    }

    /// Whether the port can send.
    fn is_connected(&self) -> bool {
        self.watch.link && !self.watch.gone
    }

    /// Whether the device has reported arrivals or completions in memory. Outbound messages do not count.
    fn has_arrivals(&self) -> bool {
        for inbound in self.inbound.iter().flatten() {
            if inbound.pending() {
                return true;
            }
        }
        self.doorbells.pending() || self.maintenance.engine().pending() || self.data.pending()
    }

    /// Whether outbound messages have completed while the user waits for room.
    fn has_room_again(&self) -> bool {
        for outbound in self.outbound.iter().flatten() {
            if outbound.pending() {
                return true;
            }
        }
        false
    }

    fn collect_delivered(&mut self) {
        for outbound in self.outbound.iter_mut().flatten() {
            self.counters.tx_messages += outbound.delivered(&self.registers);
        }
    }
}

impl MasterPort for Tsi721 {
    fn id_size(&self) -> IdSize {
        self.size
    }

    fn own_id(&mut self) -> Destination {
        let register = self.registers.read(csr::BASE_ID as usize);
        match self.size {
            IdSize::Small => (register >> 16) as u16 & 0xff,
            IdSize::Large => register as u16,
        }
    }

    fn set_own_id(&mut self, size: IdSize, id: Destination) {
        self.size = size;
        let register = match size {
            IdSize::Small => u32::from(id) << 16,
            IdSize::Large => 0x00ff_0000 | u32::from(id),
        };
        self.own_id = Some(register);
        self.registers.write(csr::BASE_ID as usize, register);
    }

    fn link_up(&self) -> bool {
        self.is_connected()
    }

    fn read_own(&mut self, offset: u32) -> u32 {
        match offset < OWN_SPACE {
            true => self.registers.read(offset as usize),
            false => u32::MAX,
        }
    }

    fn write_own(&mut self, offset: u32, value: u32) {
        if offset < OWN_SPACE {
            self.registers.write(offset as usize, value);
        }
    }

    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy> {
        if self.refused {
            return Err(Busy);
        }
        if !self.is_connected() && self.maintenance.engine().is_idle() {
            self.refused = true;
            return Ok(());
        }
        self.maintenance.start(self.size, request, &self.registers)
    }

    fn maintained(&mut self) -> Option<Maintained> {
        let ended = match core::mem::take(&mut self.refused) {
            true => Some(Err(MaintenanceError::PortDown)),
            false => self.maintenance.take(&self.registers),
        }?;
        match ended {
            Ok(_) => self.counters.maintenance += 1,
            Err(_) => self.counters.maintenance_failed += 1,
        }
        Some(ended)
    }

    fn ring_doorbell(&mut self, to: Destination, info: u16) -> Result<(), Busy> {
        if !self.is_connected() {
            return Err(Busy);
        }
        self.counters.tx_doorbells += 1;
        self.registers.ring(self.size.code(), to, info);
        Ok(())
    }

    fn doorbell(&mut self) -> Option<Doorbell> {
        let doorbell = self.doorbells.take(&self.registers)?;
        self.counters.rx_doorbells += 1;
        Some(doorbell)
    }

    fn open_mailbox(&mut self, mailbox: Mailbox, arena: &mut Arena) -> bool {
        let at = mailbox.index();
        if self.inbound[at].is_none() {
            self.inbound[at] = InboundMailbox::new(mailbox, arena, &self.registers).ok();
        }
        if self.outbound[at].is_none() {
            self.outbound[at] = OutboundMailbox::new(mailbox, arena, &self.registers).ok();
        }
        self.inbound[at].is_some() && self.outbound[at].is_some()
    }

    fn send(
        &mut self,
        mailbox: Mailbox,
        to: Destination,
        message: &Packet<'_>,
    ) -> Result<(), SendError> {
        if !self.is_connected() {
            return Err(SendError::Closed);
        }
        let size = self.size;
        if self.mailbox(mailbox).is_some_and(|outbound| outbound.engine().room() == 0) {
            self.collect_delivered();
        }
        let outbound = self.mailbox(mailbox).ok_or(SendError::Closed)?;
        match outbound.push(size, to, message) {
            Ok(bytes) => {
                self.counters.tx_bytes += u64::from(bytes);
                Ok(())
            }
            Err(error) => {
                self.counters.tx_full += u64::from(error == SendError::Full);
                Err(error)
            }
        }
    }

    fn has_room(&self, mailbox: Mailbox, messages: usize) -> bool {
        self.outbound[mailbox.index()].as_ref().is_some_and(|outbound| outbound.has_room(messages))
    }

    fn undelivered(&mut self) -> Option<Undelivered> {
        self.undelivered.pop_front()
    }

    fn receive(&mut self, mailbox: Mailbox) -> Option<Message> {
        let inbound = self.inbound[mailbox.index()].as_mut()?;
        let message = inbound.receive(&self.registers)?;
        self.counters.rx_messages += 1;
        self.counters.rx_bytes += u64::from(message.len);
        Some(message)
    }

    fn payload(&self, message: &Message) -> Window {
        let inbound = self.inbound[message.mailbox.index()].as_ref();
        inbound.map_or(Window::empty(), |inbound| inbound.payload(message))
    }

    fn recycle(&mut self, message: Message) {
        if let Some(inbound) = &mut self.inbound[message.mailbox.index()] {
            inbound.recycle(message.buffer);
        }
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), Busy> {
        if !self.is_connected() {
            return Err(Busy);
        }
        self.data.start(self.size, transfer)
    }

    fn transferred(&mut self) -> Option<Transferred> {
        let ended = self.data.take(&self.registers)?;
        match ended.result {
            Ok(()) => self.counters.transfers += 1,
            Err(_) => self.counters.transfers_failed += 1,
        }
        Some(ended)
    }

    fn map_inbound(&mut self, address: u64, memory: Window) -> Result<u8, WindowError> {
        self.windows.map_inbound(address, &memory, &self.registers)
    }

    fn unmap_inbound(&mut self, number: u8) {
        self.windows.unmap_inbound(number, &self.registers);
    }

    fn map_outbound(
        &mut self,
        device: Destination,
        address: u64,
        size: u64,
    ) -> Result<OutboundMap, WindowError> {
        self.windows.map_outbound(self.size, device, address, size, &self.registers)
    }

    fn load(&self, map: &OutboundMap, offset: u64) -> u32 {
        self.windows.load(map, offset)
    }

    fn store(&mut self, map: &OutboundMap, offset: u64, value: u32) {
        self.windows.store(map, offset, value);
    }

    fn unmap_outbound(&mut self, map: OutboundMap) {
        self.windows.unmap_outbound(&map, &self.registers);
    }

    fn port_write(&mut self) -> Option<PortWrite> {
        self.watch.port_writes.pop_front()
    }

    fn poll(&mut self, now: Instant) {
        let has_error = self.has_error_interrupt();
        self.collect_delivered();
        self.check(now, has_error);
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_check()
    }

    fn flush(&mut self) {
        self.data.notify(&self.registers);
        self.doorbells.notify(&self.registers);
        for outbound in self.outbound.iter_mut().flatten() {
            outbound.notify(&self.registers);
        }
        for inbound in self.inbound.iter_mut().flatten() {
            inbound.flush(&self.registers);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let registers = &self.registers;
        if !wanted {
            return self.signal.disarm(registers);
        }
        let mut armed = self.maintenance.arm(registers);
        armed |= self.data.arm(registers);
        armed |= self.doorbells.arm(registers);
        for outbound in self.outbound.iter_mut().flatten() {
            armed |= outbound.arm(registers);
        }
        for inbound in self.inbound.iter_mut().flatten() {
            armed |= inbound.arm(registers);
        }
        self.signal.arm(armed, registers);
    }

    fn pending(&self) -> bool {
        self.has_arrivals()
            || self.refused
            || self.maintenance.pending()
            || !self.undelivered.is_empty()
            || !self.watch.port_writes.is_empty()
            || self.has_room_again()
    }

    fn wakes(&self) -> bool {
        self.signal.wakes()
    }

    fn notice(&mut self) -> Option<Notice> {
        self.watch.notices.pop_front()
    }

    fn counters(&self) -> Counters {
        let inbound = self.inbound.iter().flatten();
        let outbound = self.outbound.iter().flatten();
        let (mut rx_errors, mut restarts) = (0, self.data.engine().restarts);
        restarts += self.maintenance.engine().restarts;
        inbound.for_each(|one| {
            rx_errors += one.errors;
            restarts += one.restarts;
        });
        outbound.for_each(|one| restarts += one.engine().restarts);
        Counters { rx_errors, restarts, interrupts: self.signal.count(), ..self.counters }
    }
}
