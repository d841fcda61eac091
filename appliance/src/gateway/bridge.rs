//! The bridge to another appliance: what carries it, and how its link stands. The provider over it
//! is beside the ports' in [`provider_set::ProviderSet`]. Bridges to stock Linux hosts are ports ([`transport`]).

mod device;
mod engines;
pub(super) mod ntb_perf;
mod tcp;
mod transport;

use super::loop_waker::LoopWaker;
use super::network::Network;
use super::plane::DataPlane;
use super::ports::{Addresses, PortSlot};
use super::punt::{self, PuntQueue};
use super::service::{Service, Surroundings};
use super::state::State;
use super::unclaimed_devices::UnclaimedDevice;
use crate::config::{Config, Ntb, NtbProtocol};
use crate::families::{self, NTB, OfMeasure, OfNtb};
use crate::report::Value;
use core::net::{IpAddr, Ipv4Addr};
use device::Device;
use drivers::device::Device as FoundDevice;
use drivers::dma::Carrier;
use drivers::hal::{Hold, Instant, Platform, Window};
pub(super) use engines::Engines;
use ntrdma::{self, Layout, Ntrdma};
use perf_responders::ntb_perf::NtbPerf;
use provider_set::ProviderSet;
use rand_core::RngCore;
use tcp::Tcp;
pub(super) use transport::{TransportEthernet, TransportPort};

/// The bridge, and what the log was told of it.
pub(super) struct Bridge {
    pub device: Device,
    /// Both ends of what is measured.
    pub measure: Option<OfMeasure<NtbPerf>>,
    /// The console waits for what is measured.
    measuring: bool,
    state: ntrdma::State,
    taken: bool,
    refused: Option<ntrdma::BadInfo>,
    /// The way of Ethernet frames to the control plane and from it, if they are wanted.
    ethernet: Option<PuntQueue>,
    frame: Vec<u8>,
}

/// Bytes of the ring for frames of so large packets: some of the largest.
fn ring_of_frames(mtu: u16) -> u32 {
    (4 * (u32::from(mtu) + 32)).next_power_of_two().max(64 << 10)
}

/// Bridges that were opened.
#[derive(Default)]
pub(super) struct Opened {
    /// The one over which NTRDMA goes, with its provider.
    pub ntrdma: Option<(OfNtb<Bridge>, Ntrdma)>,
    /// Those to stock Linux hosts.
    pub transports: Vec<(OfNtb<TransportPort>, TransportEthernet)>,
}

/// The provider over a bridge that exposes this memory.
#[cold]
fn provider(ntb: &Ntb, exposed: Window, rng: &mut dyn RngCore) -> Result<Ntrdma, String> {
    let (address, peer) = ntb.ends().ok_or("ntb.0: `address` and `peer` are missing")?;
    let small = || format!("ntb.0: {} bytes to expose are too few", exposed.len());
    let frames = ntb.mtu.map_or(0, ring_of_frames);
    let rest = exposed.len().saturating_sub(frames as usize);
    let layout = Layout::within(rest).ok_or_else(small)?;
    let lost = ntb.lost();
    let usual = ntrdma::Config::new(rng.next_u64(), address, peer);
    let settings = ntrdma::Config { layout, frames, lost, beat: lost / 10, ..usual };
    Ntrdma::new(settings, exposed, rng)
        .map_err(|why| format!("ntb.0: the shared memory cannot be used: {why}"))
}

impl Bridge {
    /// The devices, and TCP, as the configuration has them; what is not used, and why, goes to `unclaimed`. Only these
    /// interfaces carry TCP.
    pub fn open(
        config: &Config,
        found: Vec<FoundDevice>,
        mut engines: Engines<'_>,
        platform: &mut dyn Platform,
        networks: &mut [Network],
        rng: &mut dyn RngCore,
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
        if let Some((ntb, peer)) = config.ntrdma().and_then(|ntb| Some((ntb, ntb.tcp?))) {
            wanted.retain(|number| *number > 0);
            let exposed = platform.arena().alloc(ntb.memory.0 as usize, 4096);
            let exposed = exposed.unwrap_or(Window::empty());
            match provider(ntb, exposed, rng) {
                Ok(ntrdma) => {
                    let tcp = Box::new(Tcp::new(ntb, peer, exposed, networks, rng));
                    let bridge = OfNtb::hold(|| Self::new(Device::Tcp(tcp), ntb));
                    opened.ntrdma = bridge.map(|bridge| (bridge, ntrdma));
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
                        NtbProtocol::Ntrdma => {
                            Self::set_up(ntb, device, &mut engines, platform, rng).map(
                                |(bridge, ntrdma)| {
                                    let bridge = OfNtb::hold(|| bridge);
                                    opened.ntrdma = bridge.map(|bridge| (bridge, ntrdma));
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
                None => Err("a bridge that no [[ntb]] is for".into()),
            };
            if let Err(why) = made {
                log::error!("{location}: {why}");
                unclaimed.push(UnclaimedDevice::failed(location, why));
            }
        }
        for number in wanted {
            log::error!("ntb.{number}: the machine has no such device");
        }
        opened
    }

    fn set_up(
        ntb: &Ntb,
        device: FoundDevice,
        engines: &mut Engines<'_>,
        platform: &mut dyn Platform,
        rng: &mut dyn RngCore,
    ) -> Result<(Self, Ntrdma), String> {
        let mut opened =
            device.open_bridge(platform, ntb.side()).map_err(|error| format!("ntb.0: {error}"))?;
        let ntrdma = provider(ntb, opened.exposed(), rng)?;
        engines.serve("ntb0", &mut *opened, platform);
        Ok((Self::new(Device::Bridge(device, opened), ntb), ntrdma))
    }

    fn new(device: Device, ntb: &Ntb) -> Self {
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let (address, peer) = ntb.ends().unwrap_or((unspecified, unspecified));
        let measure = OfMeasure::hold(|| NtbPerf::new(address, peer));
        let state = ntrdma::State::Down;
        let (measuring, taken, refused, ethernet) = (false, false, None, None);
        Bridge { device, measure, measuring, state, taken, refused, ethernet, frame: Vec::new() }
    }

    /// Makes an interface of the control plane's over the bridge, number `index`.
    pub fn interface(&mut self, mtu: u16, index: usize, waker: &LoopWaker) -> PortSlot {
        // Locally administered, and the same in each life: the peer remembers it.
        let mac = [2, b'N', b'T', b'B', 0, self.device.side()];
        let (punt_port, punt_queue) = punt::connect(mac, mtu.into(), punt::RING, waker, waker);
        self.ethernet = Some(punt_queue);
        PortSlot {
            name: format!("net{index}"),
            driver: "",
            location: "ntb0".into(),
            mac,
            mtu: mtu.into(),
            addresses: Addresses::default(),
            link: false,
            had_link: false,
            core: 0,
            place: PortSlot::NO_PORT,
            punt_port: Some(punt_port),
            forwarding: None,
        }
    }

    /// Whether the peer, or the control plane, has something that was not taken yet. A frame that waits for room
    /// in the peer's ring waits for its doorbell: the peer rings when it has taken frames.
    pub fn pending(&self) -> bool {
        self.device.pending() || self.ethernet.as_ref().is_some_and(|queue| queue.pending(false))
    }

    /// Carries frames between the peer and the control plane; how many.
    fn carry(&mut self, devices: &mut ProviderSet) -> usize {
        let Bridge { device, ethernet: Some(punt_queue), frame, state, .. } = self else {
            return 0;
        };
        let Some(ntrdma) = devices.ntrdma_mut() else { return 0 };
        punt_queue.set_link(*state == ntrdma::State::Up);
        let mut count = 0;
        // A control plane that is behind drops no frame: what it does not take stays in the ring.
        while punt_queue.has_room() && ntrdma.receive_frame(frame) {
            punt_queue.push(frame);
            count += 1;
        }
        count +=
            punt_queue.transmit(|packet| ntrdma.transmit_frame(device.bridge(), packet.header));
        punt_queue.flush();
        count
    }

    /// Takes what the peer has written, and writes what is due. How much there was, and whether the
    /// link came up.
    pub fn poll(&mut self, devices: &mut ProviderSet, now: Instant) -> (usize, bool) {
        let rung = self.device.bridge().rung();
        let frames = self.carry(devices);
        let more = devices.poll_bridge(self.device.bridge(), now);
        let before = self.state;
        let up = match devices.ntrdma().map(Ntrdma::link) {
            Some(state)
                if state != before
                    || state != ntrdma::State::Up && self.device.is_taken() != self.taken =>
            {
                self.state = state;
                self.tell(before, devices);
                state != before && state == ntrdma::State::Up
            }
            _ => false,
        };
        (usize::from(rung) + frames + usize::from(more), up)
    }

    /// Carries bytes between a bridge over TCP and its connection; how many, and more if there was
    /// anything to do.
    pub fn poll_tcp(&mut self, networks: &mut [Network], now: Instant) -> usize {
        match &mut self.device {
            Device::Tcp(tcp) => tcp.poll(networks, self.state, now),
            Device::Bridge(..) => 0,
        }
    }

    fn tell(&mut self, before: ntrdma::State, devices: &ProviderSet) {
        if before == ntrdma::State::Up {
            log::warn!("ntb0: link down");
        }
        if self.state == ntrdma::State::Up {
            log::info!("ntb0: link up");
        }
        let taken = self.device.is_taken();
        if taken && !self.taken {
            log::error!("ntb0: the other machine has the same side: set `ntb.0.side` on both");
        }
        self.taken = taken;
        let refused = devices.ntrdma().and_then(Ntrdma::refused);
        if let Some(why) = refused.filter(|_| refused != self.refused) {
            log::error!("ntb0: the other machine's introduction is refused: {why:?}");
        }
        self.refused = refused;
    }
}

/// How the link stands, in a word.
fn state_name(state: ntrdma::State) -> &'static str {
    match state {
        ntrdma::State::Down => "down",
        ntrdma::State::Greeting => "waits for the peer",
        ntrdma::State::Clearing | ntrdma::State::Introducing => "coming up",
        ntrdma::State::Up => "up",
    }
}

/// Takes the link down at the operator's word; requests under way wait until it is back.
#[cold]
pub(super) fn reset(state: &mut State) -> Result<(), String> {
    let rdma_stack = state.plane.rdma_stack.as_mut().filter(|_| state.plane.bridge.is_some());
    let ntrdma = rdma_stack
        .and_then(|rdma_stack| rdma_stack.providers.ntrdma_mut())
        .ok_or("there is no bridge")?;
    ntrdma.reset_link().then_some(()).ok_or_else(|| "the link is not up".into())
}

/// What `show ntb` tells.
pub(super) fn report(state: &State) -> Value {
    let plane = &state.plane;
    let ntrdma = plane.rdma_stack.as_ref().and_then(|rdma_stack| rdma_stack.providers.ntrdma());
    let rows = plane.bridge.iter().zip(ntrdma).map(|(bridge, ntrdma)| {
        let (used, free) = ntrdma.queue_pairs();
        let counters = ntrdma.counters();
        let device = &bridge.device;
        let engine = device.carrier().map(Carrier::counters);
        Value::object([
            ("name", "ntb0".into()),
            ("link", state_name(ntrdma.link()).into()),
            ("address", Value::display(ntrdma.local())),
            ("peer", Value::display(ntrdma.remote())),
            ("device", device.name().into()),
            ("connection", device.connection().into()),
            ("side", device.side().into()),
            ("doorbell", device.doorbell().into()),
            ("link_speed", device.link_speed().into()),
            ("carried_by", device.carried_by().into()),
            ("bytes_by_cpu", device.carrier().map(Carrier::bytes_by_cpu).into()),
            ("bytes_by_engine", engine.map(|counters| counters.bytes).into()),
            ("engine_resets", engine.map(|counters| counters.resets).into()),
            ("engines_lost", counters.engines_lost.into()),
            ("window", Value::Bytes(device.window() as u64)),
            ("queue_pairs", used.into()),
            ("queue_pairs_free", free.into()),
            ("connections", ntrdma.connections().into()),
            ("link_up", counters.link_up.into()),
            ("link_down", counters.link_down.into()),
            ("entries_sent", counters.entries_sent.into()),
            ("entries_received", counters.entries_received.into()),
            ("frames_sent", counters.frames_sent.into()),
            ("frames_received", counters.frames_received.into()),
            ("frames_lost", counters.frames_lost.into()),
            ("batches", counters.batches.into()),
            ("bytes_staged", counters.bytes_staged.into()),
            ("not_ready", counters.not_ready.into()),
            ("qp_errors", counters.qp_errors.into()),
            ("violations", (counters.violations + device.violations()).into()),
            ("interrupts", device.interrupts().into()),
            ("measured", bridge.measure.as_ref().map_or(Value::None, |m| ntb_perf::table(m))),
        ])
    });
    let transports = plane.transports.iter().map(|transport| {
        let slot = state.ports.iter().find(|slot| transport.is_of(slot));
        transport.report(slot.map(|slot| slot.name.clone()))
    });
    Value::list(rows.chain(transports).collect::<Vec<_>>())
}

/// What carries the bytes of a bridge over TCP, as a service.
pub(super) struct TcpCarrier;

impl Service for TcpCarrier {
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        let Surroundings { networks, plane, now, .. } = around;
        plane.bridge.as_mut().map_or(0, |bridge| bridge.poll_tcp(networks, *now))
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        // The bridge's own is the data plane's.
        None
    }
}
