//! What carries a bridge: a device, or TCP in its place.

use super::tcp::Tcp;
use drivers::dma::{Carried, Carrier};
use drivers::hal::Interrupt;
use drivers::ntb::{Bridge, Ntb as _, NtbDevice, Side};
use management::status::{CarrierStatus, Hardware};
use net::refusal::Refusals;

/// One of the two.
pub(in crate::gateway) enum Device {
    /// A device, and the engine that carries for it.
    Bridge(Place, Box<dyn NtbDevice>, Option<String>),
    Tcp(Box<Tcp>),
}

/// A device's driver, and where it is.
pub(in crate::gateway) struct Place {
    pub driver: &'static str,
    pub location: String,
}

impl Device {
    /// As the provider has it.
    pub fn bridge(&mut self) -> &mut dyn Bridge {
        match self {
            Device::Bridge(_, device, _) => device.bridge(),
            Device::Tcp(tcp) => &mut tcp.stream,
        }
    }

    /// Whether it has something that was not taken yet.
    pub fn pending(&self) -> bool {
        match self {
            Device::Bridge(_, device, _) => device.pending(),
            Device::Tcp(tcp) => tcp.stream.pending(),
        }
    }

    /// Whether something waits for a DMA engine.
    pub fn is_busy(&self) -> bool {
        matches!(self, Device::Bridge(_, device, _) if device.is_busy())
    }

    /// Whether it can end a halt. TCP does so by the network's ports.
    pub fn wakes(&self) -> bool {
        match self {
            Device::Bridge(_, device, _) => device.wakes(),
            Device::Tcp(_) => true,
        }
    }

    /// Has it raise interrupts, or not.
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

    /// Whether another machine has taken our place.
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

    /// Connections that the peer has broken off by a mistake.
    pub fn violations(&self) -> u64 {
        match self {
            Device::Bridge(..) => 0,
            Device::Tcp(tcp) => tcp.violations,
        }
    }

    /// Which of the two machines this is, 0 or 1: of TCP, the one that listens is 0.
    pub fn side(&self) -> u8 {
        match self {
            Device::Bridge(_, device, _) => u8::from(device.side() == Side::B),
            Device::Tcp(tcp) => u8::from(!tcp.listens()),
        }
    }

    /// What it is.
    pub fn name(&self) -> String {
        match self {
            Device::Bridge(Place { driver, location }, ..) => format!("{driver}, {location}"),
            Device::Tcp(_) => "tcp".into(),
        }
    }

    /// How the connection of a bridge over TCP stands.
    pub fn connection(&self) -> Option<&'static str> {
        match self {
            Device::Bridge(..) => None,
            Device::Tcp(tcp) => Some(tcp.report()),
        }
    }

    /// What is told of what carries its bytes.
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

    /// The name of what carries it, and whether it is there, for metrics.
    pub fn connected(&self) -> (&'static str, bool) {
        match self {
            Device::Bridge(device, bridge, _) => (device.driver, bridge.link()),
            Device::Tcp(tcp) => ("tcp", tcp.stream.link()),
        }
    }
}

/// What is told of what carries bytes over a device that had this engine at first.
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
        // Nothing of memory that two machines share.
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
