//! Ethernet over a bridge to a stock Linux host (`ntb_transport`, `ntb_netdev`): a port of the first core's plane like any
//! other, by which the device is told of what was queued, asked for interrupts and looked at before a halt. Here is what
//! has to be done beside that in each round.

use super::device;
use super::engines::Engines;
use crate::config::Ntb;
use crate::gateway::ports::{PlanePort, PortSlot};
use core::cell::RefCell;
use core::time::Duration;
use drivers::device::Device as FoundDevice;
use drivers::hal::{
    Frame, Instant, Packet, Platform, Port, PortCounters, TransmitError, TransmitProgress,
};
use drivers::ntb::Side;
use drivers::ntb::transport::{NtbNetdev, State};
use management::ntb::standing;
use management::status::TransportStatus;
use std::rc::Rc;

/// How often log and control plane are told of the link at most: a peer may have it go up and down as it likes.
const TELL: Duration = Duration::from_millis(100);

/// A bridge with such a port, as its plane has it.
pub(in crate::gateway) struct TransportPort {
    /// `ntb` and the number of its `[[ntb]]`.
    pub name: String,
    location: String,
    driver: &'static str,
    /// The engine that carries for it.
    engine: Option<String>,
    netdev: Rc<RefCell<NtbNetdev>>,
    /// The place of its port among the plane's.
    place: usize,
    /// How the link is; when log and control plane may be told of it; and whether they have to be.
    state: State,
    tell_at: Instant,
    is_untold: bool,
}

/// Its port.
pub(in crate::gateway) struct TransportEthernet {
    netdev: Rc<RefCell<NtbNetdev>>,
    /// A frame that was received one by one.
    frame: Vec<u8>,
}

/// Opens a bridge for `[[ntb]]` number `number`.
#[cold]
pub(in crate::gateway) fn open(
    number: usize,
    ntb: &Ntb,
    device: FoundDevice,
    engines: &mut Engines<'_>,
    platform: &mut dyn Platform,
) -> Result<(TransportPort, TransportEthernet), String> {
    let told = |error: &dyn core::fmt::Display| format!("ntb.{number}: {error}");
    let (name, location) = (format!("ntb{number}"), device.location().to_string());
    let driver = device.driver();
    let bridge = device.open_bridge(platform, ntb.side(), ntb.trusts_peer());
    let mut bridge = bridge.map_err(|error| told(&error))?;
    let engine = engines.serve(&name, &mut *bridge, platform);
    // Locally administered, and the same in each life: the peer remembers it.
    let mac = [2, b'N', b'T', b'B', number as u8, u8::from(bridge.side() == Side::B)];
    let netdev = NtbNetdev::new(bridge, mac, ntb.transport_mtu().into(), platform.arena());
    let netdev = Rc::new(RefCell::new(netdev.map_err(|error| told(&error))?));
    let state = State::NoLink;
    let ethernet = TransportEthernet { netdev: netdev.clone(), frame: Vec::new() };
    let (place, tell_at) = (usize::MAX, Instant::ZERO);
    let is_untold = false;
    let port =
        TransportPort { name, location, driver, engine, netdev, place, state, tell_at, is_untold };
    Ok((port, ethernet))
}

impl TransportPort {
    /// Its port has this place among the plane's.
    pub fn stands_at(&mut self, place: usize) {
        self.place = place;
    }

    pub fn poll(&mut self, ports: &mut [PlanePort], now: Instant) {
        let mut netdev = self.netdev.borrow_mut();
        netdev.poll(now);
        self.is_untold |= netdev.state() != self.state;
        self.state = netdev.state();
        if self.is_untold && now >= self.tell_at {
            (self.is_untold, self.tell_at) = (false, now + TELL);
            tell(&self.name, self.state);
            if let Some(slot) = ports.get_mut(self.place) {
                slot.link_due = now;
            }
        }
    }

    /// When it has something to do though nothing arrives.
    pub fn deadline(&self, now: Instant) -> Instant {
        let deadline = self.netdev.borrow().deadline(now);
        if self.is_untold { deadline.min(self.tell_at) } else { deadline }
    }

    /// Where the bridge is.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// What drives it.
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// Tells the peer that nobody is here any more.
    pub fn leave(&mut self) {
        self.netdev.borrow_mut().leave();
    }

    /// What is told of it; its interface is one of `ports`.
    pub fn status<'a>(&'a self, ports: &'a [PortSlot]) -> TransportStatus<'a> {
        let netdev = self.netdev.borrow();
        let bridge = netdev.bridge();
        let mut ports = ports.iter();
        let interface = ports.find(|slot| slot.core == 0 && slot.place == self.place);
        TransportStatus {
            name: &self.name,
            state: self.state,
            interface: interface.map(|slot| &*slot.name),
            device: (self.driver, &self.location),
            side: u8::from(bridge.side() == Side::B),
            carrier: device::carrier_status(bridge, self.engine.as_deref()),
            ups: netdev.ups(),
            counters: netdev.counters(),
            violations: netdev.violations(),
        }
    }
}

/// What has become of the link; whether frames pass, the interface says.
#[cold]
fn tell(name: &str, state: State) {
    match state {
        State::Mismatch(why) => log::error!("{name}: {why}"),
        other => log::info!("{name}: {}", standing(other)),
    }
}

impl Port for TransportEthernet {
    fn mac(&self) -> [u8; 6] {
        self.netdev.borrow().mac()
    }

    fn mtu(&self) -> usize {
        self.netdev.borrow().mtu()
    }

    fn link_up(&mut self) -> bool {
        self.netdev.borrow_mut().link_up()
    }

    fn receive(&mut self) -> Option<Frame> {
        let netdev = &mut *self.netdev.borrow_mut();
        let frame = netdev.receive()?;
        self.frame.clear();
        self.frame.extend_from_slice(netdev.bytes(&frame));
        netdev.recycle(frame);
        Some(Frame { buffer: 0, len: self.frame.len() as u32 })
    }

    fn bytes(&self, _: &Frame) -> &[u8] {
        &self.frame
    }

    fn recycle(&mut self, _: Frame) {}

    /// From where they lie.
    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.netdev.borrow_mut().receive_each(most, take)
    }

    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.netdev.borrow_mut().transmit(packet)
    }

    fn flush(&mut self) {
        self.netdev.borrow_mut().flush();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.netdev.borrow_mut().set_interrupts(wanted);
    }

    fn pending(&self) -> bool {
        self.netdev.borrow().pending()
    }

    fn has_room(&self) -> bool {
        self.netdev.borrow().has_room()
    }

    fn progress(&mut self) -> TransmitProgress {
        self.netdev.borrow_mut().progress()
    }

    fn is_sending(&mut self) -> bool {
        self.netdev.borrow_mut().is_sending()
    }

    fn wakes(&self) -> bool {
        self.netdev.borrow().wakes()
    }

    fn counters(&self) -> PortCounters {
        self.netdev.borrow().counters()
    }
}
