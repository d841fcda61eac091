//! Bridges to other appliances: the device or TCP connection of each, and the state of its link. Their providers are in
//! [`provider_set::ProviderSet`], beside those of ports. Bridges to stock Linux hosts are ports ([`transport`]).

mod device;
mod engines;
pub(super) mod measures;
pub(super) mod orders;
mod tcp;
mod told;
mod transport;

use super::loop_waker::LoopWaker;
use super::network::Network;
use super::ports::PortSlot;
use super::punt::{self, PuntQueue};
use crate::config::{Config, Ntb, NtbProtocol};
use crate::families::{self, NTB, OfNtb};
use core::time::Duration;
use device::{Device, Place};
use drivers::driver::Device as FoundDevice;
use drivers::hal::{Hold, Instant, Platform, Window};
pub(super) use engines::Engines;
use management::UnclaimedDevice;
use management::status::Addresses;
use ntrdma::{self, Layout, Ntrdma};
use provider_set::ProviderSet;
use rand_core::Rng;
use tcp::Tcp;
pub(super) use transport::{TransportEthernet, TransportPort};

/// Shortest time between two log messages about a peer's violations.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A bridge, and the state that was logged last.
pub(super) struct Bridge {
    /// `ntb` and the number of its `[[ntb]]`.
    pub name: String,
    number: u8,
    /// The core that is to own it.
    pub core: Option<u8>,
    /// MTU of its IP interface, if it has one.
    mtu: Option<u16>,
    pub device: Device,
    state: ntrdma::State,
    taken: bool,
    refused: Option<ntrdma::BadInfo>,
    /// Violations that were logged.
    violations: u64,
    /// When the next ones may be logged.
    violations_due: Instant,
    /// Queue of Ethernet frames to and from the control plane, if the bridge has an interface.
    ethernet: Option<PuntQueue>,
    frame: Vec<u8>,
}

/// Bytes of the ring for frames, with room for several of the largest.
fn ring_of_frames(mtu: u16) -> u32 {
    (4 * (u32::from(mtu) + 32)).next_power_of_two().max(64 << 10)
}

/// Bridges that were opened.
#[derive(Default)]
pub(super) struct Opened {
    /// Bridges with NTRDMA, and their providers.
    pub ntrdma: Vec<(OfNtb<Bridge>, Ntrdma)>,
    /// Bridges to stock Linux hosts.
    pub transports: Vec<(OfNtb<TransportPort>, TransportEthernet)>,
}

/// Creates the provider over a bridge that exposes the memory `exposed`.
#[cold]
fn provider(
    number: usize,
    ntb: &Ntb,
    exposed: Window,
    rng: &mut dyn Rng,
) -> Result<Ntrdma, String> {
    let ends = ntb.ends();
    let (address, peer) =
        ends.ok_or_else(|| format!("ntb.{number}: `address` and `peer` are missing"))?;
    let small = || {
        let mtu =
            if ntb.mtu.is_some() { ", or give the interface over it a smaller `mtu`" } else { "" };
        format!(
            "ntb.{number}: its window of {} bytes is too small for queue pairs: set a larger window{mtu}",
            exposed.len()
        )
    };
    let frames = ntb.mtu.map_or(0, ring_of_frames);
    let rest = exposed.len().saturating_sub(frames as usize);
    let layout = Layout::within(rest).ok_or_else(small)?;
    let lost = ntb.lost();
    let usual = ntrdma::Config::new(rng.next_u64(), address, peer);
    let settings = ntrdma::Config { layout, frames, lost, beat: lost / 10, ..usual };
    Ntrdma::new(settings, exposed, rng)
        .map_err(|why| format!("ntb.{number}: the shared memory cannot be used: {why}"))
}

impl Bridge {
    /// Opens the configured bridges over devices and TCP. Unused devices go to `unclaimed`, with the reason. Bridges
    /// over TCP use only the interfaces in `networks`.
    pub fn open(
        config: &Config,
        found: Vec<FoundDevice>,
        mut engines: Engines<'_>,
        platform: &mut dyn Platform,
        networks: &mut [Network],
        rng: &mut dyn Rng,
        unclaimed: &mut Vec<UnclaimedDevice>,
    ) -> Opened {
        let mut opened = Opened::default();
        if !NTB {
            if !config.ntb.is_empty() {
                log::error!("ntb: {}", families::missing("ntb"));
            }
            return opened;
        }
        let mut wanted: Vec<usize> = (0..config.ntb.len()).collect();
        let over_tcp = config.ntrdma().find_map(|(number, ntb)| Some((number, ntb, ntb.tcp?)));
        if let Some((number, ntb, peer)) = over_tcp {
            wanted.retain(|other| *other != number);
            let exposed = platform.arena().alloc(ntb.memory.0 as usize, 4096);
            let exposed = exposed.unwrap_or(Window::empty());
            match provider(number, ntb, exposed, rng) {
                Ok(ntrdma) => {
                    let tcp = Box::new(Tcp::new(ntb, peer, exposed, networks, rng));
                    let bridge = OfNtb::hold(|| Self::new(number, Device::Tcp(tcp), ntb));
                    opened.ntrdma.extend(bridge.map(|bridge| (bridge, ntrdma)));
                }
                Err(why) => log::error!("{why}"),
            }
        }
        for (index, device) in found.into_iter().enumerate() {
            let location = device.location().to_string();
            let made = match config.bridge(index, &location) {
                Some((number, ntb)) => {
                    wanted.retain(|other| *other != number);
                    match ntb.protocol {
                        NtbProtocol::Ntrdma if opened.ntrdma.len() >= ProviderSet::BRIDGES => {
                            Err(format!(
                                "ntb.{number}: an image with ConnectX has NTRDMA over one bridge"
                            ))
                        }
                        NtbProtocol::Ntrdma => {
                            Self::set_up(number, ntb, device, &mut engines, platform, rng).map(
                                |(bridge, ntrdma)| {
                                    let bridge = OfNtb::hold(|| bridge);
                                    opened.ntrdma.extend(bridge.map(|bridge| (bridge, ntrdma)));
                                },
                            )
                        }
                        NtbProtocol::NtbTransport => {
                            transport::open(number, ntb, device, &mut engines, platform).map(
                                |(port, ethernet)| {
                                    let port = OfNtb::hold(|| port);
                                    opened.transports.extend(port.map(|port| (port, ethernet)));
                                },
                            )
                        }
                    }
                }
                None => {
                    device.keep_from_memory();
                    Err("a bridge that no [[ntb]] is for".into())
                }
            };
            if let Err(why) = made {
                log::error!("{location}: {why}");
                unclaimed.push(UnclaimedDevice::closed_bridge(location, why));
            }
        }
        for number in wanted {
            log::error!("ntb.{number}: the machine has no such device");
        }
        opened
    }

    fn set_up(
        number: usize,
        ntb: &Ntb,
        device: FoundDevice,
        engines: &mut Engines<'_>,
        platform: &mut dyn Platform,
        rng: &mut dyn Rng,
    ) -> Result<(Self, Ntrdma), String> {
        let opened = device.open_bridge(platform, ntb.side(), ntb.trusts_peer());
        let mut opened = opened.map_err(|error| format!("ntb.{number}: {error}"))?;
        let ntrdma = provider(number, ntb, opened.exposed(), rng)?;
        let engine = engines.serve(&format!("ntb{number}"), &mut *opened, platform);
        let place = Place { driver: device.driver(), location: device.location().to_string() };
        Ok((Self::new(number, Device::Bridge(place, opened, engine), ntb), ntrdma))
    }

    fn new(number: usize, device: Device, ntb: &Ntb) -> Self {
        let state = ntrdma::State::Down;
        let (taken, refused, ethernet) = (false, None, None);
        Bridge {
            name: format!("ntb{number}"),
            number: number as u8,
            core: ntb.core,
            mtu: ntb.mtu,
            device,
            state,
            taken,
            refused,
            violations: 0,
            violations_due: Instant::ZERO,
            ethernet,
            frame: Vec::new(),
        }
    }

    /// Creates the control plane's IP interface over the bridge, number `index`, if it is to have one. It connects the
    /// first loop (`control`) and the loop of core `core` (`plane`).
    pub fn interface(
        &mut self,
        index: usize,
        core: usize,
        control: &LoopWaker,
        plane: &LoopWaker,
    ) -> Option<PortSlot> {
        let mtu = self.mtu?;
        // Locally administered, and the same after a restart, because the peer caches it.
        let mac = [2, b'N', b'T', b'B', self.number, self.device.side()];
        let (punt_port, punt_queue) = punt::connect(mac, mtu.into(), punt::RING, control, plane);
        self.ethernet = Some(punt_queue);
        Some(PortSlot {
            name: format!("net{index}"),
            driver: "",
            location: self.name.clone(),
            mac,
            mtu: mtu.into(),
            addresses: Addresses::default(),
            link: false,
            had_link: false,
            core,
            place: PortSlot::NO_PORT,
            others: Vec::new(),
            punt_port: Some(punt_port),
            forwarding: None,
        })
    }

    /// Whether work of the peer or the control plane is pending. A frame that waits for room in the peer's ring is not:
    /// the peer rings the doorbell when it has taken frames.
    pub fn pending(&self) -> bool {
        self.device.pending() || self.ethernet.as_ref().is_some_and(|queue| queue.pending(false))
    }

    /// Carries frames between the peer and the control plane. Returns their number.
    fn carry(&mut self, number: usize, devices: &mut ProviderSet) -> usize {
        let Bridge { device, ethernet: Some(punt_queue), frame, state, .. } = self else {
            return 0;
        };
        let Some(ntrdma) = devices.ntrdma_mut(number) else { return 0 };
        punt_queue.set_link(*state == ntrdma::State::Up);
        let mut count = 0;
        // If the control plane is slow, frames stay in the ring instead of being dropped.
        while punt_queue.has_room() && ntrdma.receive_frame(frame) {
            punt_queue.push(frame);
            count += 1;
        }
        count +=
            punt_queue.transmit(|packet| ntrdma.transmit_frame(device.bridge(), packet.header));
        punt_queue.flush();
        count
    }

    /// Handles the peer's writes, and writes what is due. `number` is the number of the bridge's provider. Returns the
    /// amount of work, and whether the link came up.
    pub fn poll(
        &mut self,
        number: usize,
        devices: &mut ProviderSet,
        now: Instant,
    ) -> (usize, bool) {
        let rung = self.device.bridge().rung();
        let frames = self.carry(number, devices);
        let more = devices.poll_bridge(number, self.device.bridge(), now);
        let before = self.state;
        let ntrdma = devices.ntrdma(number);
        if let Some(counters) = ntrdma.map(Ntrdma::counters)
            && counters.violations != self.violations
            && now >= self.violations_due
        {
            self.log_violation(counters, now);
        }
        let up = match ntrdma.map(Ntrdma::link) {
            Some(state)
                if state != before
                    || state != ntrdma::State::Up && self.device.is_taken() != self.taken =>
            {
                self.state = state;
                self.log_link(before, ntrdma.and_then(Ntrdma::refused));
                state != before && state == ntrdma::State::Up
            }
            _ => false,
        };
        (usize::from(rung) + frames + usize::from(more), up)
    }

    /// Carries bytes between a bridge over TCP and its connection. Returns the amount of work.
    pub fn poll_tcp(&mut self, networks: &mut [Network], now: Instant) -> usize {
        match &mut self.device {
            Device::Tcp(tcp) => tcp.poll(networks, self.state, now),
            Device::Bridge(..) => 0,
        }
    }

    /// Logs protocol violations of the peer, at most once in [`LOG_INTERVAL`].
    #[cold]
    fn log_violation(&mut self, counters: &ntrdma::Counters, now: Instant) {
        let more = counters.violations - self.violations;
        (self.violations, self.violations_due) = (counters.violations, now + LOG_INTERVAL);
        if let Some(what) = counters.last_violation {
            log::warn!("{}: the peer wrote {what}: {more} new violations, refused", self.name);
        }
    }

    fn log_link(&mut self, before: ntrdma::State, refused: Option<ntrdma::BadInfo>) {
        let name = &self.name;
        if before == ntrdma::State::Up {
            log::warn!("{name}: link down");
        }
        if self.state == ntrdma::State::Up {
            log::info!("{name}: link up");
        }
        let taken = self.device.is_taken();
        if taken && !self.taken {
            let number = self.number;
            log::error!(
                "{name}: the other machine has the same side: set `ntb.{number}.side` on both"
            );
        }
        self.taken = taken;
        if let Some(why) = refused.filter(|_| refused != self.refused) {
            log::error!("{name}: the other machine's greeting was refused: {why}");
        }
        self.refused = refused;
    }
}

/// Index of the bridge `name`, or of the first one if `name` is None.
#[cold]
fn place(bridges: &[OfNtb<Bridge>], name: Option<&str>) -> Result<usize, String> {
    let found = match name {
        Some(name) => bridges.iter().position(|bridge| bridge.name == name),
        None => (!bridges.is_empty()).then_some(0),
    };
    found.ok_or_else(|| match name {
        Some(name) if !bridges.is_empty() => {
            format!("there is no bridge {name} to another appliance: `show ntb` lists them")
        }
        _ => "there is no bridge".into(),
    })
}
