//! Interface of a master port, and its counters.

use super::{
    Busy, Destination, Doorbell, IdSize, Mailbox, Maintained, Maintenance, Message, OutboundMap,
    PortWrite, SendError, Transfer, Transferred, Undelivered, WindowError,
};
use crate::hal::{Arena, Instant, Notice, Packet, Window};
use alloc::boxed::Box;

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Maintenance requests that were answered.
    pub maintenance: u64,
    /// Maintenance requests that failed.
    pub maintenance_failed: u64,
    /// Doorbells received.
    pub rx_doorbells: u64,
    /// Doorbells sent.
    pub tx_doorbells: u64,
    /// Checks, at most one a second, that found failed outbound doorbells.
    pub tx_doorbells_failed: u64,
    /// Messages received.
    pub rx_messages: u64,
    /// Bytes of received messages.
    pub rx_bytes: u64,
    /// Messages or doorbells that the device delivered with an error or an invalid descriptor.
    pub rx_errors: u64,
    /// Messages delivered to their receivers.
    pub tx_messages: u64,
    /// Bytes handed to the device in messages.
    pub tx_bytes: u64,
    /// Messages that were not delivered.
    pub tx_undelivered: u64,
    /// Messages that were refused because the queue was full.
    pub tx_full: u64,
    /// Transfers completed.
    pub transfers: u64,
    /// Transfers that failed.
    pub transfers_failed: u64,
    /// Port-writes received.
    pub port_writes: u64,
    /// Port-writes that the device had no room for.
    pub port_writes_lost: u64,
    /// Restarts of channels after errors.
    pub restarts: u64,
    /// ECC errors of the device's memory: corrected, uncorrectable.
    pub ecc: [u64; 2],
    /// Losses of the link.
    pub link_losses: u64,
    /// How often the bridge was set up anew after it did not respond.
    pub bridge_resets: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
}

/// A RapidIO master port, owned by one loop. No method blocks. Only [`MasterPort::open_mailbox`] allocates.
///
/// Call [`MasterPort::poll`] in every round: the port's timeouts depend on it.
pub trait MasterPort {
    /// Width of ids on the network.
    fn id_size(&self) -> IdSize;

    /// Own id as read from its register, which a host may have written. [`IdSize::any`] if the port has no id.
    fn own_id(&mut self) -> Destination;

    /// Sets the width of ids, and the own id. Only the enumerating host sets an id; other ports get theirs from the
    /// host.
    fn set_own_id(&mut self, size: IdSize, id: Destination);

    /// Whether the link works, as of the last [`MasterPort::poll`].
    fn link_up(&self) -> bool;

    /// Reads one of the port's own maintenance registers (`offset` below 0x10000, a multiple of 4). All ones if the
    /// device does not respond.
    fn read_own(&mut self, offset: u32) -> u32;

    /// Writes one of the port's own maintenance registers.
    fn write_own(&mut self, offset: u32, value: u32);

    /// Starts a maintenance request. Only one may be in flight.
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy>;

    /// Result of the maintenance request, returned once.
    fn maintained(&mut self) -> Option<Maintained>;

    /// Sends a doorbell. Its delivery is not reported.
    fn ring_doorbell(&mut self, to: Destination, info: u16) -> Result<(), Busy>;

    /// The next doorbell received.
    fn doorbell(&mut self) -> Option<Doorbell>;

    /// Opens a mailbox in both directions. Call it before the loop runs, because it allocates. False if there is no
    /// memory left.
    fn open_mailbox(&mut self, mailbox: Mailbox, arena: &mut Arena) -> bool;

    /// Queues a message: header, payload and trailer are copied in this order, and padded with zeroes to a multiple of
    /// 8 bytes. The next [`MasterPort::flush`] notifies the device. Messages of one mailbox are sent in order.
    fn send(
        &mut self,
        mailbox: Mailbox,
        to: Destination,
        message: &Packet<'_>,
    ) -> Result<(), SendError>;

    /// Whether `messages` messages can be queued now. If not, the port becomes pending, and ends a halt, when messages
    /// have been sent. TX completions wake only callers that wait for room.
    fn has_room(&self, mailbox: Mailbox, messages: usize) -> bool;

    /// The next message that was not delivered.
    fn undelivered(&mut self) -> Option<Undelivered>;

    /// The next message received by a mailbox.
    fn receive(&mut self, mailbox: Mailbox) -> Option<Message>;

    /// Bytes of a received message.
    fn payload(&self, message: &Message) -> Window;

    /// Returns a message's buffer to the device, with the next [`MasterPort::flush`].
    fn recycle(&mut self, message: Message);

    /// Starts a transfer.
    fn transfer(&mut self, transfer: &Transfer) -> Result<(), Busy>;

    /// The next completed or failed transfer.
    fn transferred(&mut self) -> Option<Transferred>;

    /// Lets devices read and write `memory` at `address` of the RapidIO address space. Returns the number of the map.
    /// The size is a power of two of at least 4 KiB, both addresses are multiples of it.
    fn map_inbound(&mut self, address: u64, memory: Window) -> Result<u8, WindowError>;

    /// Removes an inbound map.
    fn unmap_inbound(&mut self, number: u8);

    /// Maps `size` bytes at `address` of a device, for loads and stores of this machine.
    fn map_outbound(
        &mut self,
        device: Destination,
        address: u64,
        size: u64,
    ) -> Result<OutboundMap, WindowError>;

    /// Loads 32 bits through an outbound map, at an offset that is a multiple of 4; all ones outside of the map.
    fn load(&self, map: &OutboundMap, offset: u64) -> u32;

    /// Stores 32 bits through an outbound map.
    fn store(&mut self, map: &OutboundMap, offset: u64, value: u32);

    /// Removes an outbound map.
    fn unmap_outbound(&mut self, map: OutboundMap);

    /// The next port-write received.
    fn port_write(&mut self) -> Option<PortWrite>;

    /// Checks channels, link and errors. Call it in every round.
    fn poll(&mut self, now: Instant);

    /// When [`MasterPort::poll`] must be called again at the latest.
    fn deadline(&self) -> Option<Instant>;

    /// Notifies the device of queued messages and recycled buffers.
    fn flush(&mut self);

    /// Enables interrupts for arrivals and completions, before the loop halts (true), or disables them. After `true`,
    /// check [`MasterPort::pending`] before halting.
    fn set_interrupts(&mut self, wanted: bool);

    /// Whether arrivals or completions wait.
    fn pending(&self) -> bool;

    /// Whether the port can raise interrupts.
    fn wakes(&self) -> bool;

    /// The next event for the operator. Each is returned once.
    fn notice(&mut self) -> Option<Notice>;

    /// Counters since the port was opened.
    fn counters(&self) -> Counters;
}

/// An open port.
pub type OpenPort = Box<dyn MasterPort>;
