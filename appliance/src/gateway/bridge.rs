//! The bridge to another appliance: the device, and how its link stands. The provider over it is
//! beside the ports' in [`rdma::devices::Devices`].

use super::state::State;
use crate::config::{Config, Ntb};
use crate::report::Value;
use core::time::Duration;
use drivers::hal::Instant;
use drivers::ntb::ivshmem::{Device, Ivshmem};
use drivers::ntb::{Ntb as _, Side};
use rand_core::RngCore;
use rdma::devices::Devices;
use rdma::ntrdma::{self, Layout, Ntrdma};

/// The bridge, and what the log was told of it.
pub(super) struct Bridge {
    pub device: Ivshmem,
    state: ntrdma::State,
    taken: bool,
    refused: Option<ntrdma::BadInfo>,
}

impl Bridge {
    /// The first of the devices as the configuration has it, and the provider over it; what is not
    /// used, and why, goes to `unclaimed`.
    pub fn open(
        config: &Config,
        found: Vec<Device>,
        rng: &mut dyn RngCore,
        unclaimed: &mut Vec<String>,
    ) -> Option<(Self, Ntrdma)> {
        let mut opened = None;
        let mut settings = config.ntb.iter();
        for device in found {
            let location = format!("pci {}", device.address());
            let made = match settings.next() {
                Some(ntb) => Self::set_up(ntb, device, rng),
                None => Err("a bridge that no [[ntb]] is for".into()),
            };
            match made {
                Ok(made) => opened = Some(made),
                Err(why) => {
                    log::error!("{location}: {why}");
                    unclaimed.push(format!("{location}: {why}"));
                }
            }
        }
        if settings.next().is_some() {
            log::error!("ntb.0: the machine has no such device");
        }
        opened
    }

    fn set_up(ntb: &Ntb, device: Device, rng: &mut dyn RngCore) -> Result<(Self, Ntrdma), String> {
        let side = ntb.side.map(|side| if side == 0 { Side::A } else { Side::B });
        let device = device.into_bridge(side).map_err(|error| format!("ntb.0: {error}"))?;
        let exposed = device.exposed();
        let small = || format!("ntb.0: {} bytes of memory are too few", 2 * exposed.len());
        let layout = Layout::within(exposed.len()).ok_or_else(small)?;
        let lost = Duration::from_millis(ntb.lost_ms.into());
        let usual = ntrdma::Config::new(rng.next_u64(), ntb.address, ntb.peer);
        let settings = ntrdma::Config { layout, lost, beat: lost / 10, ..usual };
        let ntrdma = Ntrdma::new(settings, exposed, rng)
            .map_err(|why| format!("ntb.0: the memory does not do: {why:?}"))?;
        let (state, taken, refused) = (ntrdma::State::Down, false, None);
        Ok((Bridge { device, state, taken, refused }, ntrdma))
    }

    /// Takes what the peer has written, and writes what is due. How much there was, and whether the
    /// link came up.
    pub fn poll(&mut self, devices: &mut Devices, now: Instant) -> (usize, bool) {
        let rung = self.device.rung();
        let more = devices.poll_bridge(&mut self.device, now);
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
        (usize::from(rung) + usize::from(more), up)
    }

    fn tell(&mut self, before: ntrdma::State, devices: &Devices) {
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

/// What `show ntb` tells.
pub(super) fn report(state: &State) -> Value {
    let plane = &state.plane;
    let ntrdma = plane.fabric.as_ref().and_then(|fabric| fabric.devices.ntrdma());
    let rows = plane.bridge.iter().zip(ntrdma).map(|(bridge, ntrdma)| {
        let (used, free) = ntrdma.queue_pairs();
        let counters = ntrdma.counters();
        let device = &bridge.device;
        Value::object([
            ("name", "ntb0".into()),
            ("link", state_name(ntrdma.link()).into()),
            ("address", Value::display(ntrdma.local())),
            ("peer", Value::display(ntrdma.remote())),
            ("device", format!("ivshmem, pci {}", device.address()).into()),
            ("side", if device.side() == Side::A { 0u8 } else { 1 }.into()),
            ("doorbell", if device.wakes() { "interrupts" } else { "polled" }.into()),
            ("window", Value::Bytes(device.window().len() as u64)),
            ("queue_pairs", used.into()),
            ("queue_pairs_free", free.into()),
            ("connections", ntrdma.connections().into()),
            ("link_up", counters.link_up.into()),
            ("link_down", counters.link_down.into()),
            ("entries_sent", counters.entries_sent.into()),
            ("entries_received", counters.entries_received.into()),
            ("batches", counters.batches.into()),
            ("bytes_staged", counters.bytes_staged.into()),
            ("not_ready", counters.not_ready.into()),
            ("qp_errors", counters.qp_errors.into()),
            ("violations", counters.violations.into()),
            ("interrupts", device.interrupts().into()),
        ])
    });
    Value::list(rows.collect::<Vec<_>>())
}
