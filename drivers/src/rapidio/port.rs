//! A master port as its users see it.

use super::{
    Busy, Destination, Doorbell, IdSize, Mailbox, Maintained, Maintenance, Message, OutboundMap,
    PortWrite, SendError, Transfer, Transferred, Undelivered, WindowError,
};
use crate::hal::{Arena, Instant, Notice, Packet, Window};
use alloc::boxed::Box;

/// What a port counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Maintenance requests that were answered.
    pub maintenance: u64,
    /// Maintenance requests that were not.
    pub maintenance_failed: u64,
    /// Doorbells received.
    pub rx_doorbells: u64,
    /// Doorbells sent.
    pub tx_doorbells: u64,
    /// Times, once a second at most, that doorbells sent were found not to have arrived.
    pub tx_doorbells_failed: u64,
    /// Messages received.
    pub rx_messages: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Messages or doorbells that the device delivered with an error or an impossible description.
    pub rx_errors: u64,
    /// Messages that arrived at the other end.
    pub tx_messages: u64,
    /// Bytes handed to the device in messages.
    pub tx_bytes: u64,
    /// Messages that did not arrive.
    pub tx_undelivered: u64,
    /// Times a message found no room.
    pub tx_full: u64,
    /// Transfers that ended well.
    pub transfers: u64,
    /// Transfers that did not.
    pub transfers_failed: u64,
    /// Port-writes received.
    pub port_writes: u64,
    /// Port-writes that the device had no room for.
    pub port_writes_lost: u64,
    /// Times that a channel was started anew after an error.
    pub restarts: u64,
    /// Errors of the device's memory that it corrected, and that it could not.
    pub ecc: [u64; 2],
    /// Times that the link was lost.
    pub link_losses: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
}

/// A RapidIO master port, owned by one loop. Nothing here blocks, and after [`MasterPort::open_mailbox`] nothing
/// allocates.
///
/// [`MasterPort::poll`] has to be called in every round: it is where time passes for the port.
pub trait MasterPort {
    /// How wide ids are on its network.
    fn id_size(&self) -> IdSize;

    /// Own id, as its register has it: a host may have written it. [`IdSize::any`] if it has none.
    fn own_id(&mut self) -> Destination;

    /// Takes an id, and says how wide ids are. For whoever enumerates; else the host gives it one.
    fn set_own_id(&mut self, size: IdSize, id: Destination);

    /// Whether the link works, as of the last [`MasterPort::poll`].
    fn link_up(&self) -> bool;

    /// Reads a register of its own, of those that maintenance requests reach (`offset` below 0x10000, a multiple of
    /// 4). All ones where nothing answers.
    fn read_own(&mut self, offset: u32) -> u32;

    /// Writes one.
    fn write_own(&mut self, offset: u32, value: u32);

    /// Starts a maintenance request; there is one at a time.
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy>;

    /// How the request ended, once.
    fn maintained(&mut self) -> Option<Maintained>;

    /// Rings a doorbell. Whether it arrives is not told.
    fn ring_doorbell(&mut self, to: Destination, info: u16) -> Result<(), Busy>;

    /// The next doorbell that was rung here.
    fn doorbell(&mut self) -> Option<Doorbell>;

    /// Has a mailbox receive, and send; to be called before the loop runs, as it takes memory. False if there is
    /// none left.
    fn open_mailbox(&mut self, mailbox: Mailbox, arena: &mut Arena) -> bool;

    /// Queues a message: header, payload and trailer in order, which are copied, and zeroes up to a multiple of 8
    /// bytes. The device is told with the next [`MasterPort::flush`]. Messages of one mailbox leave in order.
    fn send(
        &mut self,
        mailbox: Mailbox,
        to: Destination,
        message: &Packet<'_>,
    ) -> Result<(), SendError>;

    /// Whether so many messages can be queued now. If not, the port is pending when some have left, and ends a halt for
    /// it: nobody else is told that messages have left.
    fn has_room(&self, mailbox: Mailbox, messages: usize) -> bool;

    /// The next message that did not arrive.
    fn undelivered(&mut self) -> Option<Undelivered>;

    /// The next message of a mailbox.
    fn receive(&mut self, mailbox: Mailbox) -> Option<Message>;

    /// Where its bytes lie.
    fn payload(&self, message: &Message) -> Window;

    /// Gives its buffer back to the device (told with the next [`MasterPort::flush`]).
    fn recycle(&mut self, message: Message);

    /// Starts a transfer.
    fn transfer(&mut self, transfer: &Transfer) -> Result<(), Busy>;

    /// The next transfer that has ended.
    fn transferred(&mut self) -> Option<Transferred>;

    /// Lets devices read and write `memory` at `address` of their RapidIO address space, from now on; a number that
    /// names the map. Sizes and addresses: a power of two of at least 4 KiB, and multiples of it.
    fn map_inbound(&mut self, address: u64, memory: Window) -> Result<u8, WindowError>;

    /// Ends that.
    fn unmap_inbound(&mut self, number: u8);

    /// Has loads and stores of this machine go to `size` bytes from `address` on of a device.
    fn map_outbound(
        &mut self,
        device: Destination,
        address: u64,
        size: u64,
    ) -> Result<OutboundMap, WindowError>;

    /// Loads 32 bits of what is behind such a map, at an offset that is a multiple of 4; all ones outside of it.
    fn load(&self, map: &OutboundMap, offset: u64) -> u32;

    /// Stores 32 bits there.
    fn store(&mut self, map: &OutboundMap, offset: u64, value: u32);

    /// Ends it.
    fn unmap_outbound(&mut self, map: OutboundMap);

    /// The next port-write.
    fn port_write(&mut self) -> Option<PortWrite>;

    /// Looks after channels, link and errors. To be called in every round.
    fn poll(&mut self, now: Instant);

    /// When [`MasterPort::poll`] wants to be called again though nothing arrives.
    fn deadline(&self) -> Option<Instant>;

    /// Tells the device of what was queued and recycled.
    fn flush(&mut self);

    /// Asks for an interrupt when anything arrives or ends, before the loop halts (true), or for none. After `true`,
    /// look at [`MasterPort::pending`] before halting.
    fn set_interrupts(&mut self, wanted: bool);

    /// Whether something has arrived or ended.
    fn pending(&self) -> bool;

    /// Whether it can end a halt of the machine.
    fn wakes(&self) -> bool;

    /// What the operator should know, once each.
    fn notice(&mut self) -> Option<Notice>;

    /// What was counted.
    fn counters(&self) -> Counters;
}

/// A port that was set up.
pub type OpenPort = Box<dyn MasterPort>;
