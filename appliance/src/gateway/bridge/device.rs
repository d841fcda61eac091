//! The carrier of a bridge: an NTB device, or a TCP connection in its place.

use super::tcp::Tcp;
use drivers::dma::{Carried, Carrier};
use drivers::hal::Interrupt;
use drivers::ntb::{Bridge, Ntb as _, NtbDevice, Side};
use management::status::{CarrierStatus, Hardware};
use net::refusal::Refusals;

/// The carrier of a bridge.
pub(in crate::gateway) enum Device {
    /// A device, and the name of its DMA engine.
    Bridge(Place, Box<dyn NtbDevice>, Option<String>),
    Tcp(Box<Tcp>),
}

/// Driver and location of a device.
pub(in crate::gateway) struct Place {
    pub driver: &'static str,
    pub location: String,
}

impl Device {
    /// The carrier, for the provider.
    pub fn bridge(&mut self) -> &mut dyn Bridge {
        match self {
            Device::Bridge(_, device, _) => device.bridge(),
            Device::Tcp(tcp) => &mut tcp.stream,
        }
    }

    /// Whether work is pending.
    pub fn pending(&self) -> bool {
        match self {
            Device::Bridge(_, device, _) => device.pending(),
            Device::Tcp(tcp) => tcp.stream.pending(),
        }
    }

    /// Whether a copy by a DMA engine is in progress.
    pub fn is_busy(&self) -> bool {
        matches!(self, Device::Bridge(_, device, _) if device.is_busy())
    }

    /// Whether it can end a halt. For TCP the network's ports do.
    pub fn wakes(&self) -> bool {
        match self {
            Device::Bridge(_, device, _) => device.wakes(),
            Device::Tcp(_) => true,
        }
    }

    /// Enables or disables interrupts.
    pub fn set_interrupts(&mut self, wanted: bool) {
        if let Device::Bridge(_, device, _) = self {
            device.set_interrupts(wanted);
        }
    }

    /// Sends its interrupts to another core; false if it has none.
    pub fn route(&mut self, interrupt: Interrupt) -> bool {
        match self {
            Device::Bridge(_, device, _) => device.route(interrupt),
            Device::Tcp(_) => false,
        }
    }

    /// Whether another machine uses the same side.
    pub fn is_taken(&self) -> bool {
        matches!(self, Device::Bridge(_, device, _) if device.is_taken())
    }

    /// Connections that were refused.
    pub fn refusals(&mut self) -> Option<&mut Refusals> {
        match self {
            Device::Bridge(..) => None,
            Device::Tcp(tcp) => Some(&mut tcp.refusals),
        }
    }

    /// Connections that ended by a violation of the peer.
    pub fn violations(&self) -> u64 {
        match self {
            Device::Bridge(..) => 0,
            Device::Tcp(tcp) => tcp.violations,
        }
    }

    /// Side of this machine, 0 or 1. Over TCP the listening machine is 0.
    pub fn side(&self) -> u8 {
        match self {
            Device::Bridge(_, device, _) => u8::from(device.side() == Side::B),
            Device::Tcp(tcp) => u8::from(!tcp.listens()),
        }
    }

    /// Driver and location, or `tcp`.
    pub fn name(&self) -> String {
        match self {
            Device::Bridge(Place { driver, location }, ..) => format!("{driver}, {location}"),
            Device::Tcp(_) => "tcp".into(),
        }
    }

    /// State of the connection of a bridge over TCP.
    pub fn connection(&self) -> Option<&'static str> {
        match self {
            Device::Bridge(..) => None,
            Device::Tcp(tcp) => Some(tcp.report()),
        }
    }

    /// Status of the carrier.
    pub fn carrier_status(&self) -> CarrierStatus {
        match self {
            Device::Bridge(_, device, engine) => carrier_status(&**device, engine.as_deref()),
            Device::Tcp(tcp) => CarrierStatus {
                doorbell: "tcp",
                link_speed: None,
                carried_by: "cpu".into(),
                by_cpu: None,
                engine: None,
                window: tcp.stream.window().len(),
                exposed: tcp.stream.exposed().len(),
                interrupts: 0,
                hardware: None,
            },
        }
    }

    /// Driver name or `tcp`, and whether it is connected, for metrics.
    pub fn connected(&self) -> (&'static str, bool) {
        match self {
            Device::Bridge(device, bridge, _) => (device.driver, bridge.link()),
            Device::Tcp(tcp) => ("tcp", tcp.stream.link()),
        }
    }
}

/// Status of a device as carrier. `engine` is the DMA engine that it started with.
pub(super) fn carrier_status(bridge: &dyn NtbDevice, engine: Option<&str>) -> CarrierStatus {
    let carrier = bridge.carrier();
    let counters = carrier.map(Carrier::counters);
    let (window, exposed) = (bridge.window().len(), bridge.exposed().len());
    CarrierStatus {
        doorbell: if bridge.wakes() { "interrupts" } else { "polled" },
        link_speed: bridge
            .link_speed()
            .map(|(generation, lanes)| format!("Gen{generation} x{lanes}")),
        carried_by: match carrier.map(Carrier::carried) {
            Some(Carried::Engine(channel)) => {
                format!("{}, channel {channel}", engine.unwrap_or("engine"))
            }
            _ => "cpu".into(),
        },
        by_cpu: carrier.map(Carrier::bytes_by_cpu),
        engine: counters,
        window,
        exposed,
        interrupts: bridge.interrupts(),
        // None for memory that two machines share.
        hardware: carrier.zip(counters).map(|(carrier, counters)| Hardware {
            link: bridge.link_speed().unwrap_or_default(),
            window: window as u64,
            exposed: exposed as u64,
            by_cpu: carrier.bytes_by_cpu(),
            by_engine: counters.bytes,
            resets: counters.resets,
            missed: counters.missed,
        }),
    }
}
