//! Ethernet over a bridge to a stock Linux host (`ntb_transport`, `ntb_netdev`). It is a port of the first core's plane
//! like any other, which the loop flushes, arms and polls through `Port`. This file has the additional work of each
//! round.

use super::device;
use super::engines::Engines;
use crate::config::Ntb;
use crate::gateway::ports::{PlanePort, PortSlot};
use core::cell::RefCell;
use core::time::Duration;
use drivers::driver::Device as FoundDevice;
use drivers::hal::{
    Frame, Instant, Packet, Platform, Port, PortCounters, TransmitError, TransmitProgress,
};
use drivers::ntb::Side;
use drivers::ntb::transport::{NtbNetdev, State};
use management::ntb::standing;
use management::status::TransportStatus;
use std::rc::Rc;

/// Shortest time between two reports of the link to log and control plane, because a peer can make the link flap.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// A bridge with such a port, in its plane.
pub(in crate::gateway) struct TransportPort {
    /// `ntb` and the number of its `[[ntb]]`.
    pub name: String,
    location: String,
    driver: &'static str,
    /// Name of its DMA engine.
    engine: Option<String>,
    netdev: Rc<RefCell<NtbNetdev>>,
    /// Index of its port in the plane.
    place: usize,
    /// State of the link.
    state: State,
    /// Time of the next report.
    report_at: Instant,
    /// The state was not reported yet.
    unreported: bool,
}

/// The Ethernet port over a bridge.
pub(in crate::gateway) struct TransportEthernet {
    netdev: Rc<RefCell<NtbNetdev>>,
    /// The frame that `receive` returned last.
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
    let describe = |error: &dyn core::fmt::Display| format!("ntb.{number}: {error}");
    let (name, location) = (format!("ntb{number}"), device.location().to_string());
    let driver = device.driver();
    let bridge = device.open_bridge(platform, ntb.side(), ntb.trusts_peer());
    let mut bridge = bridge.map_err(|error| describe(&error))?;
    let engine = engines.serve(&name, &mut *bridge, platform);
    // Locally administered, and the same after a restart, because the peer caches it.
    let mac = [2, b'N', b'T', b'B', number as u8, u8::from(bridge.side() == Side::B)];
    let netdev = NtbNetdev::new(bridge, mac, ntb.transport_mtu().into(), platform.arena());
    let netdev = Rc::new(RefCell::new(netdev.map_err(|error| describe(&error))?));
    let state = State::NoLink;
    let ethernet = TransportEthernet { netdev: netdev.clone(), frame: Vec::new() };
    let (place, report_at) = (usize::MAX, Instant::ZERO);
    let unreported = false;
    let port = TransportPort {
        name,
        location,
        driver,
        engine,
        netdev,
        place,
        state,
        report_at,
        unreported,
    };
    Ok((port, ethernet))
}

impl TransportPort {
    /// Sets the index of its port in the plane.
    pub fn set_place(&mut self, place: usize) {
        self.place = place;
    }

    pub fn poll(&mut self, ports: &mut [PlanePort], now: Instant) {
        let mut netdev = self.netdev.borrow_mut();
        netdev.poll(now);
        self.unreported |= netdev.state() != self.state;
        self.state = netdev.state();
        if self.unreported && now >= self.report_at {
            (self.unreported, self.report_at) = (false, now + REPORT_INTERVAL);
            log_state(&self.name, self.state);
            if let Some(slot) = ports.get_mut(self.place) {
                slot.link_due = now;
            }
        }
    }

    /// When its next timer expires.
    pub fn deadline(&self, now: Instant) -> Instant {
        let deadline = self.netdev.borrow().deadline(now);
        if self.unreported { deadline.min(self.report_at) } else { deadline }
    }

    /// Location of the bridge.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Name of its driver.
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// Notifies the peer that this machine shuts down.
    pub fn leave(&mut self) {
        self.netdev.borrow_mut().leave();
    }

    /// Status for reports. Its interface is one of `ports`.
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

/// Logs the state of the link. The interface logs whether frames pass.
#[cold]
fn log_state(name: &str, state: State) {
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

    /// Passes frames without a copy.
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
