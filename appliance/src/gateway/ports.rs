//! State of a port: [`PortSlot`] in the control plane, [`PlanePort`] in the plane that owns it.

use super::punt::PuntPort;
use core::time::Duration;
use drivers::hal::{Instant, Port, Severity};
use management::status::Addresses;
use net::PortAddresses;
use net::vlan::Vlan;

/// Poll interval of the link.
const LINK_INTERVAL: Duration = Duration::from_secs(1);

/// A port in the control plane.
pub(super) struct PortSlot {
    pub name: String,
    pub location: String,
    /// Name of its driver; empty if it has none.
    pub driver: &'static str,
    pub mac: [u8; 6],
    /// Largest layer 3 packet in bytes.
    pub mtu: usize,
    pub addresses: Addresses,
    /// Whether the link was up at the last poll.
    pub link: bool,
    /// Whether it has ever been seen up.
    pub had_link: bool,
    /// Core of the loop that owns it.
    pub core: usize,
    /// Index among the ports of that loop.
    pub place: usize,
    /// Connection to it, if another loop owns it.
    pub punt_port: Option<PuntPort>,
    /// Index of the port by which UDP engines reach it, if another loop owns it.
    pub forwarding: Option<usize>,
    /// Further cores with queues of the port. All frames of a host go to the same core.
    pub others: Vec<usize>,
}

/// A further pair of queues of a port's device, on another core than the port, in the control plane.
pub(super) struct QueueSlot {
    /// Number of the port.
    pub port: usize,
    pub core: usize,
    /// Index among the ports of that loop.
    pub place: usize,
    /// Control-plane frames arrive by this port. None are sent.
    pub punt_port: PuntPort,
}

impl PortSlot {
    /// Index of an interface over a bridge, which has no port.
    pub const NO_PORT: usize = usize::MAX;

    /// Creates the slot of a port of the first loop.
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

    /// Whether the first loop receives all frames of the port.
    pub fn is_first_alone(&self) -> bool {
        self.punt_port.is_none() && self.others.is_empty()
    }

    /// Whether another loop reports a changed link, or requests neighbours.
    pub fn has_news(&self) -> bool {
        let is_news = |port: &PuntPort| port.link() != self.link || port.has_requests();
        self.punt_port.as_ref().is_some_and(is_news)
    }

    /// Records and logs the state of the link. True if it came up. No link at the start is not a warning, because cards
    /// negotiate it after the driver's reset.
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

/// A port in the plane that owns it.
pub(super) struct PlanePort {
    pub port: Box<dyn Port>,
    /// Name in the log.
    pub name: String,
    /// Own addresses.
    pub local: PortAddresses,
    pub vlan: Vlan,
    /// Frames with the tag of another VLAN, or without our tag.
    pub of_other_vlans: u64,
    pub link: bool,
    pub link_due: Instant,
    /// Datagrams echoed.
    pub echoes: u64,
    /// UDP echo is enabled.
    pub echo: bool,
    /// Buffer for the reply to a datagram.
    pub reply: Vec<u8>,
    /// Buffer for a frame without its tag.
    pub untagged: Vec<u8>,
}

impl PlanePort {
    pub fn new(name: String, port: Box<dyn Port>, echo: bool) -> Self {
        // The largest packet, behind an Ethernet header and a tag.
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

    /// Polls device and link when due. Returns whether it did.
    #[inline]
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
        self.log_notices();
        self.link = self.port.link_up();
        self.local.mac = self.port.mac();
    }

    /// Logs the notices of the device.
    fn log_notices(&mut self) {
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
