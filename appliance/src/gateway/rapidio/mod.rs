//! RapidIO: each configured port is an end point of its network, with an IP interface (rionet). A port without a
//! `[[rapidio]]` is left alone: it is not enumerated and answers no messages.
//!
//! The interface is a port of the plane like any other, which the loop flushes, arms and polls through `Port`. This
//! file has the additional work of each round.

use super::ports::{PlanePort, PortSlot};
use crate::config::{Config, Rapidio as Settings, RapidioRole};
use ::rapidio::end_point::{self, EndPoint, Polled};
use ::rapidio::enumeration::{Event, Master, Role};
use ::rapidio::rionet::Rionet;
use drivers::driver::Device;
use drivers::hal::{Instant, Platform, Severity};
use drivers::rapidio::IdSize;
use management::UnclaimedDevice;
use management::rapidio::cause;
use management::status::RapidioStatus;
use messaging::rio_cm::{RioCmEnds, RioCmPort};
use net::capture::Capture;

/// An end point in its plane.
pub(super) struct RapidioPort {
    /// `rio0` and so on, in the order of discovery.
    pub name: String,
    pub location: String,
    pub driver: &'static str,
    /// Number of its `[[rapidio]]`.
    pub number: usize,
    pub end_point: EndPoint,
    /// Listeners, connections and events of rules.
    ends: RioCmEnds,
    /// Index of its interface among the plane's ports.
    place: usize,
}

/// A port that was opened, and its interface.
pub(super) struct Opened {
    pub port: RapidioPort,
    pub rionet: Rionet,
}

/// Opens the configured ports. Unused devices go to `unclaimed`, with the reason.
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
    /// Sets the index of its interface among the plane's ports.
    pub fn at(self, place: usize) -> Self {
        RapidioPort { place, ..self }
    }

    /// Polls the end point and the rules' channels.
    fn poll(&mut self, ports: &mut [PlanePort], now: Instant) -> Polled {
        let name = &self.name;
        let mut has_changed = false;
        let mut polled = self.end_point.poll(now, |master, event| {
            has_changed = true;
            log_event(name, master, event);
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
            // Link and address of the interface depend on the network: poll them now.
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

/// Logs an event of the network.
#[cold]
fn log_event(name: &str, master: &Master, event: Event) {
    let network = master.network();
    match event {
        Event::Changed => {
            let boards = network.end_points().count();
            let switches = network.devices.iter().filter(|device| device.is_switch()).count();
            log::info!("{name}: id {}, boards: {boards}, switches: {switches}", network.own_id);
        }
        Event::Lost => log::warn!("{name}: the network is unreachable"),
        Event::Retreated => log::warn!(
            "{name}: another host enumerates this network; this one is an agent until its next start"
        ),
        Event::Failed(why) => log::error!("{name}: enumeration failed: {}; retrying", cause(why)),
    }
}

impl RapidioPort {
    /// Status for reports. Its interface is one of `ports`.
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

/// Polls the networks of a plane. Their messages also go to its capture, with numbers after those of its ports.
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
