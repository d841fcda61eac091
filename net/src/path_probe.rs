//! Finds out by echo requests whether packets of the link's MTU reach a host: RDMA and jumbo frames fail silently where
//! a switch or a tunnel on the path drops large packets. All packets have DF set.
//!
//! First a small and a full request are sent, twice each. If only the small one is answered, requests of common MTUs
//! find the largest one that passes.

use crate::Interface;
use crate::ping::{Event, Options, Ping, StartError};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Requests of each size.
const COUNT: u16 = 2;
/// Time between two requests of a size, and time limit of a reply.
const INTERVAL: Duration = Duration::from_millis(250);
const TIMEOUT: Duration = Duration::from_millis(750);
/// Bytes of data in a small request.
const SMALL: u16 = 56;
/// Bytes of an ICMP echo header.
const HEADER: u16 = 8;
/// Common MTUs: jumbo frames, FDDI, wireless, Ethernet, PPPoE, tunnels, the minima of IPv6 and IPv4.
const COMMON: [u16; 11] = [9000, 8000, 4352, 2304, 1500, 1492, 1450, 1400, 1280, 1006, 576];
/// Sizes that are tried at a time.
const TRIED: usize = 6;

/// What a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The host.
    pub target: IpAddr,
    /// Bytes of the full packet, with its IP header.
    pub size: u16,
    /// Whether small packets are answered. Hosts may ignore echo requests.
    pub small: bool,
    /// Whether full packets are answered.
    pub full: bool,
    /// If only small packets are answered: the largest common MTU that passes.
    pub passes: Option<u16>,
    /// Why no request was sent.
    pub error: Option<StartError>,
}

impl Outcome {
    /// Small packets pass and full ones do not.
    pub fn is_broken(&self) -> bool {
        self.small && !self.full
    }
}

/// A probe in progress.
#[derive(Debug)]
pub struct PathProbe {
    outcome: Outcome,
    identifier: u16,
    /// Requests in flight, by the size of their packets.
    pings: Vec<(u16, Ping)>,
    /// The largest size that was answered so far.
    best: u16,
    /// Common MTUs are being tried.
    searches: bool,
}

impl PathProbe {
    /// Starts to probe the path to a host. Uses the identifiers from `identifier` to `identifier` + 7.
    pub fn start(interface: &mut Interface, target: IpAddr, identifier: u16, now: Instant) -> Self {
        let size = u16::try_from(interface.path_mtu(target, now)).unwrap_or(u16::MAX);
        let (small, full, passes, error) = (false, false, None, None);
        let mut probe = PathProbe {
            outcome: Outcome { target, size, small, full, passes, error },
            identifier,
            pings: Vec::new(),
            best: 0,
            searches: false,
        };
        let small = probe.overhead() + SMALL;
        probe.add(interface, small, now);
        probe.add(interface, size, now);
        probe
    }

    /// Bytes around the data of a request.
    fn overhead(&self) -> u16 {
        HEADER + if self.outcome.target.is_ipv4() { 20 } else { 40 }
    }

    fn add(&mut self, interface: &mut Interface, size: u16, now: Instant) {
        let data = size.saturating_sub(self.overhead());
        let options = Options { count: COUNT, interval: INTERVAL, timeout: TIMEOUT, size: data };
        self.identifier = self.identifier.wrapping_add(1);
        match Ping::start(interface, self.outcome.target, self.identifier, options, now) {
            Ok(ping) => self.pings.push((size, ping)),
            Err(error) => self.outcome.error = Some(error),
        }
    }

    /// Sends requests that are due. Returns what was found, at the end. `interface` must be the one passed to `start`.
    pub fn poll(&mut self, interface: &mut Interface, now: Instant) -> Option<Outcome> {
        let mut at = 0;
        while let Some((size, ping)) = self.pings.get_mut(at) {
            let size = *size;
            let mut ended = false;
            while let Some(event) = ping.poll(interface, now) {
                match event {
                    // One reply is enough.
                    Event::Reply { .. } => {
                        self.best = self.best.max(size);
                        ended = true;
                        break;
                    }
                    Event::Timeout { .. } => {}
                    Event::Finished(_) => ended = true,
                }
            }
            match ended {
                true => {
                    let _ = self.pings.remove(at).1.stop(interface);
                }
                false => at += 1,
            }
        }
        if !self.pings.is_empty() {
            return None;
        }
        let size = self.outcome.size;
        if self.searches {
            self.outcome.passes = Some(self.best);
            return Some(self.outcome);
        }
        (self.outcome.small, self.outcome.full) = (self.best > 0, self.best >= size);
        if !self.outcome.is_broken() || self.outcome.error.is_some() {
            return Some(self.outcome);
        }
        self.searches = true;
        let overhead = self.overhead();
        let smaller = COMMON.into_iter().filter(|&mtu| mtu < size && mtu > overhead + SMALL);
        for mtu in smaller.take(TRIED).collect::<Vec<_>>() {
            self.add(interface, mtu, now);
        }
        if self.pings.is_empty() {
            self.outcome.passes = Some(self.best);
            return Some(self.outcome);
        }
        None
    }

    /// When [`PathProbe::poll`] is due without a reply.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.pings.iter().filter_map(|(_, ping)| ping.poll_timeout()).min()
    }

    /// Ends the probe, and frees its sockets.
    pub fn stop(self, interface: &mut Interface) {
        for (_, ping) in self.pings {
            let _ = ping.stop(interface);
        }
    }
}
