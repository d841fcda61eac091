//! What carries a bridge: a device, or TCP in its place.

use super::tcp::Tcp;
use drivers::dma::{Carried, Carrier};
use drivers::hal::Interrupt;
use drivers::ntb::{Bridge, Ntb as _, NtbDevice, Side};
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

    /// Interrupts so far.
    pub fn interrupts(&self) -> u64 {
        match self {
            Device::Bridge(_, device, _) => device.interrupts(),
            Device::Tcp(_) => 0,
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

    /// How it is rung.
    pub fn doorbell(&self) -> &'static str {
        match self {
            Device::Bridge(_, device, _) if device.wakes() => "interrupts",
            Device::Bridge(..) => "polled",
            Device::Tcp(_) => "tcp",
        }
    }

    /// What writes through it, if that can be an engine.
    pub fn carrier(&self) -> Option<&Carrier> {
        match self {
            Device::Bridge(_, device, _) => device.carrier(),
            Device::Tcp(_) => None,
        }
    }

    /// Who carries what is written through it.
    pub fn carried_by(&self) -> String {
        match self {
            Device::Bridge(_, device, engine) => carried_by(device.carrier(), engine.as_deref()),
            Device::Tcp(_) => carried_by(None, None),
        }
    }

    /// What a hardware bridge has.
    pub fn hardware(&self) -> Option<Hardware> {
        match self {
            Device::Bridge(_, device, _) => Hardware::of(&**device),
            Device::Tcp(_) => None,
        }
    }

    /// Generation and lanes of a link of PCI Express, while there is one.
    pub fn link_speed(&self) -> Option<String> {
        let Device::Bridge(_, device, _) = self else { return None };
        link_speed(&**device)
    }

    /// Bytes of the peer's memory that can be written.
    pub fn window(&self) -> usize {
        match self {
            Device::Bridge(_, device, _) => device.window().len(),
            Device::Tcp(tcp) => tcp.stream.window().len(),
        }
    }

    /// Bytes of our memory that the peer can.
    pub fn exposed(&self) -> usize {
        match self {
            Device::Bridge(_, device, _) => device.exposed().len(),
            Device::Tcp(tcp) => tcp.stream.exposed().len(),
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

/// What a hardware bridge has, for metrics.
#[derive(Clone, Copy, Debug)]
pub(in crate::gateway) struct Hardware {
    /// Generation of PCI Express and lanes of the link, 0 while there is none.
    pub link: (u8, u8),
    /// Bytes of the peer's memory that can be written, and of ours that the peer can write.
    pub window: u64,
    pub exposed: u64,
    /// Bytes written through it, by the CPU and by the engine.
    pub by_cpu: u64,
    pub by_engine: u64,
    /// Resets of the engine's channel, and completions that it did not tell of as it should.
    pub resets: u64,
    pub missed: u64,
}

impl Hardware {
    /// Nothing of memory that two machines share.
    pub fn of(bridge: &dyn NtbDevice) -> Option<Hardware> {
        let carrier = bridge.carrier()?;
        let counters = carrier.counters();
        Some(Hardware {
            link: bridge.link_speed().unwrap_or_default(),
            window: bridge.window().len() as u64,
            exposed: bridge.exposed().len() as u64,
            by_cpu: carrier.bytes_by_cpu(),
            by_engine: counters.bytes,
            resets: counters.resets,
            missed: counters.missed,
        })
    }
}

/// Who carries what is written through a bridge that had this engine at first.
pub(super) fn carried_by(carrier: Option<&Carrier>, engine: Option<&str>) -> String {
    match carrier.map(Carrier::carried) {
        Some(Carried::Engine(channel)) => {
            format!("{}, channel {channel}", engine.unwrap_or("engine"))
        }
        _ => "cpu".into(),
    }
}

/// Generation and lanes of a bridge's link, while there is one.
pub(super) fn link_speed(bridge: &dyn NtbDevice) -> Option<String> {
    bridge.link_speed().map(|(generation, lanes)| format!("Gen{generation} x{lanes}"))
}
