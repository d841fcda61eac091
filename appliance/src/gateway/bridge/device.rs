//! What carries a bridge: a device, or TCP in its place.

use super::tcp::Tcp;
use drivers::device::Device as FoundDevice;
use drivers::dma::{Carried, Carrier};
use drivers::ntb::{Bridge, Ntb as _, NtbDevice, Side};
use net::refusal::Refusals;

/// One of the two.
pub(in crate::gateway) enum Device {
    Bridge(FoundDevice, Box<dyn NtbDevice>),
    Tcp(Box<Tcp>),
}

impl Device {
    /// As the provider has it.
    pub fn bridge(&mut self) -> &mut dyn Bridge {
        match self {
            Device::Bridge(_, device) => device.bridge(),
            Device::Tcp(tcp) => &mut tcp.stream,
        }
    }

    /// Whether it has something that was not taken yet.
    pub fn pending(&self) -> bool {
        match self {
            Device::Bridge(_, device) => device.pending(),
            Device::Tcp(tcp) => tcp.stream.pending(),
        }
    }

    /// Whether it can end a halt. TCP does so by the network's ports.
    pub fn wakes(&self) -> bool {
        match self {
            Device::Bridge(_, device) => device.wakes(),
            Device::Tcp(_) => true,
        }
    }

    /// Has it raise interrupts, or not.
    pub fn set_interrupts(&mut self, wanted: bool) {
        if let Device::Bridge(_, device) = self {
            device.set_interrupts(wanted);
        }
    }

    /// Interrupts so far.
    pub fn interrupts(&self) -> u64 {
        match self {
            Device::Bridge(_, device) => device.interrupts(),
            Device::Tcp(_) => 0,
        }
    }

    /// Whether another machine has taken our place.
    pub fn is_taken(&self) -> bool {
        matches!(self, Device::Bridge(_, device) if device.is_taken())
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
            Device::Bridge(_, device) => u8::from(device.side() == Side::B),
            Device::Tcp(tcp) => u8::from(!tcp.listens()),
        }
    }

    /// What it is.
    pub fn name(&self) -> String {
        match self {
            Device::Bridge(device, _) => format!("{}, {}", device.driver(), device.location()),
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
            Device::Bridge(_, device) if device.wakes() => "interrupts",
            Device::Bridge(..) => "polled",
            Device::Tcp(_) => "tcp",
        }
    }

    /// What writes through it, if that can be an engine.
    pub fn carrier(&self) -> Option<&Carrier> {
        match self {
            Device::Bridge(_, device) => device.carrier(),
            Device::Tcp(_) => None,
        }
    }

    /// Who carries what is written through it.
    pub fn carried_by(&self) -> String {
        carried_by(self.carrier())
    }

    /// Generation and lanes of a link of PCI Express, while there is one.
    pub fn link_speed(&self) -> Option<String> {
        let Device::Bridge(_, device) = self else { return None };
        link_speed(&**device)
    }

    /// Bytes of the peer's memory that can be written.
    pub fn window(&self) -> usize {
        match self {
            Device::Bridge(_, device) => device.window().len(),
            Device::Tcp(tcp) => tcp.stream.window().len(),
        }
    }

    /// The name of what carries it, and whether it is there, for metrics.
    pub fn connected(&self) -> (&'static str, bool) {
        match self {
            Device::Bridge(device, bridge) => (device.driver(), bridge.link()),
            Device::Tcp(tcp) => ("tcp", tcp.stream.link()),
        }
    }
}

/// Who carries what is written through a bridge.
pub(super) fn carried_by(carrier: Option<&Carrier>) -> String {
    match carrier.map(Carrier::carried) {
        Some(Carried::Engine(channel)) => format!("engine, channel {channel}"),
        _ => "cpu".into(),
    }
}

/// Generation and lanes of a bridge's link, while there is one.
pub(super) fn link_speed(bridge: &dyn NtbDevice) -> Option<String> {
    bridge.link_speed().map(|(generation, lanes)| format!("Gen{generation} x{lanes}"))
}
