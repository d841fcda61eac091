//! Ports: what the control plane knows of each, and what the plane that has it keeps.

use super::punt::PuntPort;
use core::time::Duration;
use drivers::hal::{Instant, Port, Severity};
use management::status::Addresses;
use net::PortAddresses;
use net::vlan::Vlan;

/// How often the link is looked at.
const LINK_INTERVAL: Duration = Duration::from_secs(1);

/// What the control plane knows of a port.
pub(super) struct PortSlot {
    pub name: String,
    pub location: String,
    /// Name of its driver; empty if it has none.
    pub driver: &'static str,
    pub mac: [u8; 6],
    /// Largest layer 3 packet in bytes.
    pub mtu: usize,
    pub addresses: Addresses,
    /// Whether the link was up when it was last looked at.
    pub link: bool,
    /// Whether it has ever been seen up.
    pub had_link: bool,
    /// Number of the core whose loop takes its frames.
    pub core: usize,
    /// Its place among the ports of that loop.
    pub place: usize,
    /// The way to it, if the loop is not this one.
    pub punt_port: Option<PuntPort>,
    /// The place of the port by which engines over UDP reach it then.
    pub forwarding: Option<usize>,
    /// Cores beside that one which have queues of it: what one of its hosts says comes to any of them, always the same.
    pub others: Vec<usize>,
}

/// A further pair of queues of a port's device, on another core than the port, as the control plane sees it.
pub(super) struct QueueSlot {
    /// Number of the port.
    pub port: usize,
    pub core: usize,
    /// Its place among the ports of that loop.
    pub place: usize,
    /// What is the control plane's comes by this, and nothing goes.
    pub punt_port: PuntPort,
}

impl PortSlot {
    /// The place of an interface over a bridge, which is no port.
    pub const NO_PORT: usize = usize::MAX;

    /// A port of the first loop.
    pub fn new(name: String, location: String, port: &dyn Port, place: usize) -> Self {
        PortSlot {
            name,
            location,
            driver: "",
            mac: port.mac(),
            mtu: port.mtu(),
            addresses: Addresses::default(),
            link: true,
            had_link: false,
            core: 0,
            place,
            punt_port: None,
            forwarding: None,
            others: Vec::new(),
        }
    }

    /// Whether the first loop hears all that is said to it there.
    pub fn is_first_alone(&self) -> bool {
        self.punt_port.is_none() && self.others.is_empty()
    }

    /// Whether another loop says that the link has changed, or asks for hosts.
    pub fn has_news(&self) -> bool {
        let is_news = |port: &PuntPort| port.link() != self.link || port.has_strangers();
        self.punt_port.as_ref().is_some_and(is_news)
    }

    /// Takes note of the state of the link; true if it came up. Cards negotiate it after the reset of a driver: that
    /// it is not up from the first moment is nothing to warn of.
    pub fn note_link(&mut self, up: bool) -> bool {
        let was = core::mem::replace(&mut self.link, up);
        let name = &self.name;
        match (was != up, up, self.had_link) {
            (false, ..) => {}
            (true, false, false) => log::info!("{name}: no link yet"),
            (true, true, false) => log::info!("{name}: link up"),
            (true, false, true) => log::warn!("{name}: link down"),
            (true, true, true) => log::warn!("{name}: link up"),
        }
        self.had_link |= up;
        up && !was
    }
}

/// A port, and what its plane keeps of it.
pub(super) struct PlanePort {
    pub port: Box<dyn Port>,
    /// What it is called in the log.
    pub name: String,
    /// What is ours on it.
    pub local: PortAddresses,
    pub vlan: Vlan,
    /// Frames with the tag of another VLAN, or without the one of ours.
    pub of_other_vlans: u64,
    pub link: bool,
    pub link_due: Instant,
    /// Datagrams echoed.
    pub echoes: u64,
    /// Echoes are answered.
    pub echo: bool,
    /// Room for the answer to one.
    pub reply: Vec<u8>,
    /// Room for a frame without its tag.
    pub untagged: Vec<u8>,
}

impl PlanePort {
    pub fn new(name: String, port: Box<dyn Port>, echo: bool) -> Self {
        // An Ethernet header and a tag stand before the largest packet.
        let reply = vec![0; port.mtu() + 18];
        let local = PortAddresses { mac: port.mac(), ..PortAddresses::default() };
        PlanePort {
            vlan: Vlan::new(port.vlan()),
            of_other_vlans: 0,
            untagged: vec![0; port.mtu() + 18],
            port,
            name,
            local,
            link: true,
            link_due: Instant::ZERO,
            echoes: 0,
            echo,
            reply,
        }
    }

    /// Looks after the device and at the link once in a while; whether it did.
    #[inline(always)]
    pub fn poll_link(&mut self, now: Instant) -> bool {
        let due = now >= self.link_due;
        if due {
            self.look_after(now);
        }
        due
    }

    fn look_after(&mut self, now: Instant) {
        self.link_due = now + LINK_INTERVAL;
        self.port.watch(now);
        self.tell_notices();
        self.link = self.port.link_up();
        self.local.mac = self.port.mac();
    }

    /// Writes down what has happened to the device.
    fn tell_notices(&mut self) {
        while let Some(notice) = self.port.notice() {
            let name = &self.name;
            match notice.severity {
                Severity::Information => log::info!("{name}: {notice}"),
                Severity::Warning => log::warn!("{name}: {notice}"),
                Severity::Error => log::error!("{name}: {notice}"),
            }
        }
    }
}
