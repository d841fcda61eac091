//! RapidIO: each port that a `[[rapidio]]` is for is an end point of its network, and an interface (rionet) over it.
//! A port that none is for is left as it is: nobody enumerates it, and it answers nobody.
//!
//! The interface is a port of the plane like any other. By it the device is told of what was queued, asked for
//! interrupts and looked at before a halt; here is what has to be done beside that in each round.

use super::ports::{PlanePort, PortSlot};
use crate::config::{Config, Rapidio as Settings, RapidioRole};
use ::rapidio::end_point::{self, EndPoint, Polled};
use ::rapidio::enumeration::{Event, Master, Role};
use ::rapidio::rionet::Rionet;
use drivers::device::Device;
use drivers::hal::{Instant, Platform, Severity};
use drivers::rapidio::IdSize;
use management::UnclaimedDevice;
use management::rapidio::cause;
use management::status::RapidioStatus;
use messaging::rio_cm::{RioCmEnds, RioCmPort};
use net::capture::Capture;

/// An end point, as its plane has it.
pub(super) struct RapidioPort {
    /// `rio0` and so on, in the order of discovery.
    pub name: String,
    pub location: String,
    pub driver: &'static str,
    /// Of its `[[rapidio]]`.
    pub number: usize,
    pub end_point: EndPoint,
    /// What rules have of it.
    ends: RioCmEnds,
    /// The place of its interface among the plane's ports.
    place: usize,
}

/// A port that was opened, and its interface.
pub(super) struct Opened {
    pub port: RapidioPort,
    pub rionet: Rionet,
}

/// Opens the ports that the configuration is for; what is not used, and why, goes to `unclaimed`.
#[cold]
pub(super) fn open(
    config: &Config,
    found: Vec<Device>,
    platform: &mut dyn Platform,
    unclaimed: &mut Vec<UnclaimedDevice>,
) -> Vec<Opened> {
    let mut opened = Vec::new();
    let count = found.len();
    for (index, device) in found.into_iter().enumerate() {
        let location = device.location().to_string();
        let Some((number, wanted)) = config.rapidio_port(index, &location) else {
            unclaimed.push(UnclaimedDevice::failed(location, "no [[rapidio]] is for it".into()));
            continue;
        };
        match open_one((index, number), device, wanted, platform) {
            Ok(one) => opened.push(one),
            Err(why) => {
                log::error!("{location}: rapidio.{number}: {why}");
                unclaimed.push(UnclaimedDevice::failed(location, why));
            }
        }
    }
    if config.rapidio.len() > count {
        let wanted = config.rapidio.len();
        log::error!("rapidio: {wanted} ports are configured, and the machine has {count}");
    }
    opened
}

fn open_one(
    (index, number): (usize, usize),
    device: Device,
    wanted: &Settings,
    platform: &mut dyn Platform,
) -> Result<Opened, String> {
    let (location, driver) = (device.location().to_string(), device.driver());
    let port = device.open_rapidio(platform).map_err(|error| error.to_string())?;
    let role = match (wanted.role, wanted.id) {
        (RapidioRole::Host, Some(id)) => Role::Host(id),
        (RapidioRole::Host | RapidioRole::Agent, _) => Role::Agent,
    };
    let size = if wanted.id_size == 16 { IdSize::Large } else { IdSize::Small };
    let echo = wanted.echoes().then_some(wanted.echo_channel);
    let settings = end_point::Config { role, size, echo };
    let made = EndPoint::new(port, settings, platform.arena());
    let (end_point, rionet) = made.map_err(|error| error.to_string())?;
    let name = format!("rio{index}");
    let (ends, place) = (RioCmEnds::default(), usize::MAX);
    let port = RapidioPort { name, location, driver, number, end_point, ends, place };
    Ok(Opened { port, rionet })
}

impl RapidioPort {
    /// Its interface has this place among the plane's ports.
    pub fn at(self, place: usize) -> Self {
        RapidioPort { place, ..self }
    }

    /// Goes on.
    fn poll(&mut self, ports: &mut [PlanePort], now: Instant) -> Polled {
        let name = &self.name;
        let mut has_changed = false;
        let mut polled = self.end_point.poll(now, |master, event| {
            has_changed = true;
            tell(name, master, event);
        });
        while let Some(notice) = { self.end_point.port().borrow_mut().notice() } {
            match notice.severity {
                Severity::Information => log::info!("{name}: {notice}"),
                Severity::Warning => log::warn!("{name}: {notice}"),
                Severity::Error => log::error!("{name}: {notice}"),
            }
        }
        let of_rules = self.ends.poll(&mut self.end_point, now);
        polled.done += of_rules;
        polled.leaves_work |= of_rules > 0;
        if has_changed && let Some(slot) = ports.get_mut(self.place) {
            // The interface's link and its address stand and fall with the network.
            slot.link_due = now;
        }
        polled
    }
}

impl RioCmPort for RapidioPort {
    fn ends(&mut self) -> (&mut EndPoint, &mut RioCmEnds) {
        (&mut self.end_point, &mut self.ends)
    }

    fn end_point(&self) -> &EndPoint {
        &self.end_point
    }
}

/// Writes down what has happened to the network.
#[cold]
fn tell(name: &str, master: &Master, event: Event) {
    let network = master.network();
    match event {
        Event::Changed => {
            let boards = network.end_points().count();
            let switches = network.devices.iter().filter(|device| device.is_switch()).count();
            log::info!("{name}: id {}, boards: {boards}, switches: {switches}", network.own_id);
        }
        Event::Lost => log::warn!("{name}: the network is not reached any more"),
        Event::Retreated => log::warn!(
            "{name}: another host enumerates this network; this one is an agent until it is started again"
        ),
        Event::Failed(why) => log::error!("{name}: enumeration: {}; it is tried again", cause(why)),
    }
}

impl RapidioPort {
    /// What is told of it; its interface is one of `ports`.
    pub fn status<'a>(&'a self, ports: &'a [PortSlot]) -> RapidioStatus<'a> {
        let mut ports = ports.iter();
        let interface = ports.find(|slot| slot.core == 0 && slot.place == self.place);
        RapidioStatus {
            name: &self.name,
            device: (self.driver, &self.location),
            number: self.number,
            interface: interface.map(|slot| &*slot.name),
            end_point: &self.end_point,
        }
    }
}

/// Goes on with the networks of a plane. What crosses them is shown to its capture, behind the frames of its ports.
pub(super) fn poll(
    all: &mut [RapidioPort],
    ports: &mut [PlanePort],
    capture: &mut Capture,
    now: Instant,
) -> Polled {
    let mut sum = Polled::default();
    for (number, one) in all.iter_mut().enumerate() {
        let Polled { done, leaves_work } = one.poll(ports, now);
        sum.done += done;
        sum.leaves_work |= leaves_work;
        let tap = one.end_point.tap();
        tap.set_wanted(capture.running());
        while let Some(message) = tap.next() {
            let place = ports.len() + number;
            let ids = (message.ids, message.mailbox.number());
            capture.message(place, message.is_sent, ids, &message.bytes, message.at);
        }
    }
    sum
}
