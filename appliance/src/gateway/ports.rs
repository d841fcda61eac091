//! Ports: taking frames in, and giving each to whom it is for.

use super::network::Network;
use super::state::State;
use core::time::Duration;
use drivers::hal::{Instant, Packet, Port};
use net::{Class, classify};

/// Frames taken from a port in one round.
const BATCH: usize = 64;
/// How often the link is looked at.
const LINK_INTERVAL: Duration = Duration::from_secs(1);

/// What is shown of a port's IP interface.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses {
    pub list: Vec<String>,
    pub gateways: Vec<String>,
    pub lease: bool,
    pub counters: net::Counters,
}

/// A port and what is known of it.
pub(super) struct PortSlot {
    pub name: String,
    pub location: String,
    pub port: Box<dyn Port>,
    pub addresses: Addresses,
    pub link: bool,
    pub link_due: Instant,
    /// Datagrams echoed.
    pub echoes: u64,
    /// Echoes are answered.
    pub echo: bool,
    reply: Vec<u8>,
}

impl PortSlot {
    pub fn new(name: String, location: String, port: Box<dyn Port>, echo: bool) -> Self {
        // An Ethernet header and a tag stand before the largest packet.
        let reply = vec![0; port.mtu() + 18];
        PortSlot {
            name,
            location,
            port,
            addresses: Addresses::default(),
            link: true,
            link_due: Instant::ZERO,
            echoes: 0,
            echo,
            reply,
        }
    }

    /// Looks at the link once in a while; true if it came up.
    pub fn poll_link(&mut self, now: Instant) -> bool {
        if now < self.link_due {
            return false;
        }
        self.link_due = now + LINK_INTERVAL;
        let was = core::mem::replace(&mut self.link, self.port.link_up());
        if was != self.link {
            log::warn!("{}: link {}", self.name, if self.link { "up" } else { "down" });
        }
        self.link && !was
    }
}

impl State {
    /// Takes a batch of frames from each port; how many.
    pub fn receive(&mut self, networks: &mut [Network], now: Instant) -> usize {
        self.now = now;
        let mut received = 0;
        for (i, (slot, network)) in self.ports.iter_mut().zip(networks).enumerate() {
            for _ in 0..BATCH {
                let Some(frame) = slot.port.receive() else { break };
                received += 1;
                let bytes = slot.port.bytes(&frame);
                self.capture.received(i, bytes, now);
                let mut answer = None;
                match classify(bytes) {
                    Class::UdpEcho if slot.echo => {
                        let local = network.interface.local();
                        answer = net::echo::answer(bytes, local, &mut slot.reply);
                    }
                    Class::Roce => {
                        if let Some(fabric) = &mut self.fabric {
                            // What it has no use for, it counts.
                            let _ = fabric.roce.handle_frame(i, bytes, now);
                        }
                    }
                    _ => network.interface.handle_frame(bytes, now),
                }
                slot.port.recycle(frame);
                if let Some(length) = answer {
                    let header = &slot.reply[..length];
                    let packet = Packet { header, payload: &[], trailer: &[] };
                    self.capture.sent(i, &packet, now);
                    // A full port drops the answer, as UDP may.
                    slot.echoes += u64::from(slot.port.transmit(&packet).is_ok());
                }
            }
        }
        received
    }

    /// Hands what is to be sent to the ports, and tells the devices; how many frames.
    pub fn transmit(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut sent = self.transmit_fabric(now);
        for (i, (slot, network)) in self.ports.iter_mut().zip(networks).enumerate() {
            let capture = &mut self.capture;
            network.interface.transmit(&mut *slot.port, |packet| {
                sent += 1;
                capture.sent(i, packet, now);
            });
            slot.port.flush();
        }
        sent
    }
}
