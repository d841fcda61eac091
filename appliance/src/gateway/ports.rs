//! Ports: taking frames in, and giving each to whom it is for.

use super::plane::DataPlane;
use super::punt::PuntPort;
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port, Severity};
use management::status::Addresses;
use net::{Class, PortAddresses, classify};
use roce::Verdict;

/// Frames taken from a port in one round.
pub(super) const BATCH: usize = 64;
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

    /// Whether another loop says that the link has changed.
    pub fn has_news(&self) -> bool {
        self.punt_port.as_ref().is_some_and(|punt_port| punt_port.link() != self.link)
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
    pub link: bool,
    pub link_due: Instant,
    /// Datagrams echoed.
    pub echoes: u64,
    /// Echoes are answered.
    pub echo: bool,
    reply: Vec<u8>,
}

impl PlanePort {
    pub fn new(name: String, port: Box<dyn Port>, echo: bool) -> Self {
        // An Ethernet header and a tag stand before the largest packet.
        let reply = vec![0; port.mtu() + 18];
        let local = PortAddresses { mac: port.mac(), ..PortAddresses::default() };
        PlanePort { port, name, local, link: true, link_due: Instant::ZERO, echoes: 0, echo, reply }
    }

    /// Looks after the device and at the link once in a while; whether it did.
    #[inline(always)]
    fn poll_link(&mut self, now: Instant) -> bool {
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

impl DataPlane {
    /// Takes a batch of frames from each port; how many. What is the control plane's goes to
    /// `control`, with the place of its port.
    pub fn receive(&mut self, now: Instant, mut control: impl FnMut(usize, &[u8])) -> usize {
        self.now = now;
        self.has_work = false;
        self.free_sent(now);
        self.poll_transports(now);
        let rapidio = self.poll_rapidio(now);
        self.has_work |= rapidio.leaves_work;
        let mut received = rapidio.done;
        for (i, slot) in self.ports.iter_mut().enumerate() {
            if slot.poll_link(now) {
                self.links_looked_at = true;
                if let Some(rdma_stack) = &mut self.rdma_stack {
                    rdma_stack.providers.roce.set_mac(i, slot.local.mac);
                    rdma_stack.providers.roce.set_link(i, slot.link);
                }
            }
            let (capture, has_work) = (&mut self.capture, &mut self.has_work);
            let udp_engines = &mut self.udp_engines;
            let mut roce =
                self.rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers.roce);
            let mut left = BATCH;
            let PlanePort { port, local, reply, echo, echoes, .. } = slot;
            while left > 0 {
                let mut answer = None;
                left -= port.receive_each(left, &mut |bytes| {
                    capture.received(i, bytes, now);
                    // What it has no use for, it counts.
                    match roce.as_mut().map(|roce| roce.handle_frame(i, bytes, now)) {
                        Some(Verdict::Absorbed) => return true,
                        Some(Verdict::Consumed) => {
                            *has_work = true;
                            return true;
                        }
                        Some(Verdict::NotRoce) | None => *has_work = true,
                    }
                    match classify(bytes) {
                        Class::UdpEcho if *echo => {
                            answer = net::echo::answer(bytes, local, reply);
                        }
                        Class::Roce => (),
                        Class::Udp(to) if udp_engines.receive(i, to, local, bytes, now) => (),
                        _ => control(i, bytes),
                    }
                    answer.is_none()
                });
                let Some(length) = answer else { break };
                let header = &reply[..length];
                let packet = Packet { header, payload: &[], trailer: &[] };
                capture.sent(i, &packet, now);
                // A full port drops the answer, as UDP may.
                *echoes += u64::from(port.transmit(&packet).is_ok());
            }
            received += BATCH - left;
        }
        received
    }

    /// Tells the devices of what was queued.
    pub fn flush(&mut self) {
        self.ports.iter_mut().for_each(|slot| slot.port.flush());
    }
}
