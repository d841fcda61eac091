//! Metrics of RapidIO ports.

use super::page::Page;
use crate::appliance::Appliance;
use crate::status::RapidioStatus;
use ::rapidio::enumeration::State as Progress;
use core::fmt::{Display, Error};
use drivers::rapidio::Counters;

/// A counter of a port: metric name, help, and value.
type Family = (&'static str, &'static str, fn(&Counters) -> u64);

const FAMILIES: [Family; 13] = [
    ("isthmus_rapidio_receive_messages_total", "Messages received.", |c| c.rx_messages),
    ("isthmus_rapidio_receive_bytes_total", "Bytes received in messages.", |c| c.rx_bytes),
    (
        "isthmus_rapidio_receive_errors_total",
        "Messages or doorbells that the device delivered with an error.",
        |c| c.rx_errors,
    ),
    ("isthmus_rapidio_transmit_messages_total", "Messages delivered to their destination.", |c| {
        c.tx_messages
    }),
    ("isthmus_rapidio_transmit_bytes_total", "Bytes handed to the device in messages.", |c| {
        c.tx_bytes
    }),
    ("isthmus_rapidio_undelivered_total", "Messages that were not delivered.", |c| {
        c.tx_undelivered
    }),
    ("isthmus_rapidio_receive_doorbells_total", "Doorbells received.", |c| c.rx_doorbells),
    ("isthmus_rapidio_transmit_doorbells_total", "Doorbells sent.", |c| c.tx_doorbells),
    ("isthmus_rapidio_maintenance_total", "Maintenance requests completed.", |c| c.maintenance),
    ("isthmus_rapidio_maintenance_failed_total", "Maintenance requests that failed.", |c| {
        c.maintenance_failed
    }),
    ("isthmus_rapidio_port_writes_total", "Port-writes received.", |c| c.port_writes),
    ("isthmus_rapidio_link_losses_total", "Times that the link was lost.", |c| c.link_losses),
    ("isthmus_rapidio_restarts_total", "Restarts of a channel of the device.", |c| c.restarts),
];

/// Writes nothing without a RapidIO port.
pub(super) fn write(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let all = &appliance.rapidio();
    if all.is_empty() {
        return Ok(());
    }
    let mut gauge = |name, help, value: fn(&RapidioStatus<'_>) -> u64| -> Result<(), Error> {
        let mut family = w.gauge(name, help)?;
        for one in all {
            family.sample(&[("port", &one.name as &dyn Display)], value(one))?;
        }
        Ok(())
    };
    gauge("isthmus_rapidio_up", "Whether the port's link is up.", |one| {
        u64::from(one.end_point.port().borrow().link_up())
    })?;
    gauge("isthmus_rapidio_ready", "Whether the network is enumerated.", |one| {
        u64::from(one.end_point.master().state() == Progress::Ready)
    })?;
    gauge("isthmus_rapidio_boards", "Other end points of the network that respond.", |one| {
        one.end_point.master().network().end_points().count() as u64
    })?;
    gauge("isthmus_rapidio_echo_channels", "Channels of the echo service.", |one| {
        one.end_point.echoed().1 as u64
    })?;
    for (name, help, value) in FAMILIES {
        let mut family = w.counter(name, help)?;
        for one in all {
            let counters = one.end_point.port().borrow().counters();
            family.sample(&[("port", &one.name as &dyn Display)], value(&counters))?;
        }
    }
    let mut echoed = w.counter("isthmus_rapidio_echoed_total", "Messages echoed.")?;
    for one in all {
        echoed.sample(&[("port", &one.name as &dyn Display)], one.end_point.echoed().0)?;
    }
    Ok(())
}
