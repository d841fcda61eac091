//! Virtio network device (virtio 1.2, 5.1) as a [`Port`]: one receive and one transmit queue, whole frames. No checksum
//! or segmentation offload, no mergeable buffers, no control queue.

mod receive;
#[cfg(test)]
mod tests;
mod transmit;

use super::{ETHERNET, LEAST_MTU, MOST_MTU, OVERHEAD, PLAIN_MTU, WantedMtu};
use crate::driver::{Device, OpenError};
use crate::hal::{
    Arena, Clock, Frame, Instant, Interrupt, Notice, Packet, Platform, Port, PortCounters,
    TransmitError, TransmitProgress,
};
use crate::virtio::{self, Error, Live, Setup, Transport, Vigil, read_config};
use alloc::boxed::Box;
use receive::Receiver;
use transmit::Transmitter;

const FEATURE_MTU: u64 = 1 << 3;
const FEATURE_MAC: u64 = 1 << 5;
const FEATURE_STATUS: u64 = 1 << 16;
/// The device accepts a frame in the descriptor of its virtio header. Always so since virtio 1.0.
const FEATURE_ANY_LAYOUT: u64 = 1 << 27;

const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Maximum number of entries of a queue.
const MOST_ENTRIES: u16 = 1024;
/// The same with a small arena.
const MODEST_ENTRIES: u16 = 256;
const SMALL_ARENA: usize = 16 << 20;

// struct virtio_net_config (5.1.4).
const CONFIG_MAC: usize = 0;
const CONFIG_STATUS: usize = 6;
const CONFIG_MTU: usize = 10;
const LINK_UP: u16 = 1;

/// Opens a device.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    _: &dyn Clock,
) -> Result<Box<dyn Port + Send>, OpenError> {
    let transport = virtio::attach(device, platform)?;
    Ok(Box::new(VirtioNet::open(transport, platform.arena(), wanted_mtu)?))
}

/// A virtio network device.
struct VirtioNet {
    transport: Live,
    receiver: Receiver,
    transmitter: Transmitter,
    mac: [u8; 6],
    mtu: u16,
    has_status: bool,
    vigil: Vigil,
}

impl VirtioNet {
    /// Sets the device up with memory of `arena`. Receive buffers get an eighth of its free memory, up to the size of
    /// the queue.
    fn open(
        mut transport: Box<dyn Transport>,
        arena: &mut Arena,
        wanted_mtu: WantedMtu<'_>,
    ) -> Result<Self, Error> {
        let wanted = FEATURE_MTU | FEATURE_MAC | FEATURE_STATUS | FEATURE_ANY_LAYOUT;
        let mut setup = Setup::begin(&mut *transport, arena, wanted)?;
        let agreed = setup.agreed();
        setup.need(FEATURE_MAC)?;
        if agreed.legacy {
            setup.need(FEATURE_ANY_LAYOUT)?;
        }
        let (mac, device_mtu) = read_config(setup.transport(), |config| {
            let mac = core::array::from_fn(|i| config.read8(CONFIG_MAC + i));
            (mac, agreed.has(FEATURE_MTU).then(|| config.read16(CONFIG_MTU)))
        })
        .ok_or(Error::Config("generation"))?;
        if !super::is_station(mac) {
            return Err(Error::Config("MAC address"));
        }
        let dialect = setup.transport().dialect();
        let mac = dialect.mac(mac);
        let mtu = dialect.mtu(agree_mtu(wanted_mtu(mac), device_mtu)?);
        let header = if agreed.legacy { 10 } else { 12 };
        let longest = OVERHEAD + usize::from(mtu);
        let receiver = Receiver::new(&mut setup, header, longest)?;
        let transmitter = Transmitter::new(&mut setup, header, longest)?;
        setup.finish();
        let has_status = agreed.has(FEATURE_STATUS);
        let transport = Live::new(transport);
        let vigil = Vigil::default();
        let mut net = VirtioNet { transport, receiver, transmitter, mac, mtu, has_status, vigil };
        net.flush();
        Ok(net)
    }

    /// Number of receive buffers, and their length in bytes.
    #[cfg(test)]
    fn receive_buffers(&self) -> (usize, usize) {
        self.receiver.buffers()
    }
}

/// Maximum number of entries of a queue, depending on free memory.
fn entries(setup: &Setup<'_>) -> u16 {
    if setup.available() < SMALL_ARENA { MODEST_ENTRIES } else { MOST_ENTRIES }
}

/// The MTU to use: the configured one, limited by the device's.
fn agree_mtu(asked: Option<u16>, device: Option<u16>) -> Result<u16, Error> {
    if device.is_some_and(|m| m < LEAST_MTU) {
        return Err(Error::Config("MTU"));
    }
    let device = device.map(|m| m.min(MOST_MTU));
    let asked = asked.map(|m| m.clamp(LEAST_MTU, MOST_MTU));
    Ok(match (asked, device) {
        (Some(asked), Some(device)) => asked.min(device),
        (one, other) => one.or(other).unwrap_or(PLAIN_MTU),
    })
}

impl Port for VirtioNet {
    fn route(&mut self, interrupt: &Interrupt) -> bool {
        self.transport.route(interrupt)
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        let broken = self.receiver.is_dead() || self.transmitter.is_dead();
        let config = self.transport.config();
        !broken && (!self.has_status || config.read16(CONFIG_STATUS) & LINK_UP != 0)
    }

    #[inline]
    fn receive(&mut self) -> Option<Frame> {
        self.receiver.receive()
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.receiver.bytes(frame)
    }

    #[inline]
    fn recycle(&mut self, frame: Frame) {
        self.receiver.recycle(frame);
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.receiver.receive_each(most, take)
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.transmitter.transmit(packet)
    }

    #[inline]
    fn flush(&mut self) {
        self.transmitter.reclaim_some();
        if self.transmitter.publish() {
            self.transport.notify(TRANSMIT);
        }
        if self.receiver.publish() {
            self.transport.notify(RECEIVE);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.transport.acknowledge();
        self.receiver.set_interrupts(wanted);
        self.transmitter.set_interrupts(wanted);
    }

    fn interrupt_at(&mut self, frame: usize) {
        self.transport.acknowledge();
        self.receiver.interrupt_at(frame);
        self.transmitter.set_interrupts(true);
    }

    fn pending(&self) -> bool {
        self.receiver.pending() || self.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.transmitter.has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.transmitter.progress()
    }

    /// Resets a device whose rings are invalid, so that it reads no memory. Notifies a stalled device again.
    fn watch(&mut self, _: Instant) {
        let broken = self.receiver.is_dead() || self.transmitter.is_dead();
        if broken && !self.transmitter.is_stopped && virtio::reset(&mut *self.transport).is_ok() {
            self.transmitter.stop();
        }
        if broken {
            return self.vigil.broke();
        }
        let still = self.transmitter.stands_still();
        if still {
            self.transport.notify(TRANSMIT);
        }
        self.vigil.see(still);
        if self.receiver.stands_still() {
            self.transport.notify(RECEIVE);
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.vigil.notice()
    }

    fn wakes(&self) -> bool {
        self.transport.wakes()
    }

    fn counters(&self) -> PortCounters {
        PortCounters {
            rx_frames: self.receiver.frames,
            rx_bytes: self.receiver.bytes,
            rx_errors: self.receiver.errors + self.transmitter.errors,
            tx_frames: self.transmitter.frames,
            tx_bytes: self.transmitter.bytes,
            tx_full: self.transmitter.full,
            interrupts: self.transport.interrupts(),
            ..PortCounters::default()
        }
    }
}
