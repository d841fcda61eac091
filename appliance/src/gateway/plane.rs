//! The data plane of one loop: its share of the ports, with all that answers on them without the
//! control plane. Nothing of it is touched by another loop.

use super::fabric::Fabric;
use super::ports::PlanePort;
use super::services::Services;
use super::storage::Storage;
use crate::loops::Pace;
use drivers::hal::{Arena, Instant};
use net::Local;
use net::capture::Capture;
use rand_core::RngCore;

/// One loop's data plane.
pub(super) struct Plane {
    /// The present of this round.
    pub now: Instant,
    pub ports: Vec<PlanePort>,
    /// Where the memory of sessions comes from: all planes share it.
    pub arena: Arena,
    pub rng: Box<dyn RngCore>,
    /// None if there are no ports, or RoCE is switched off.
    pub fabric: Option<Fabric>,
    pub storage: Storage,
    /// The peers of measuring tools, if they are switched on.
    pub services: Option<Services>,
    pub capture: Capture,
    pub pace: Pace,
}

impl Plane {
    /// Interrupts that ports have raised so far.
    pub fn interrupts(&self) -> u64 {
        self.ports.iter().map(|slot| slot.port.interrupts()).sum()
    }

    /// Whether a port has something that was not taken yet.
    pub fn pending(&self) -> bool {
        self.ports.iter().any(|slot| slot.port.pending())
    }

    /// Whether every port can end a halt.
    pub fn wakes(&self) -> bool {
        self.ports.iter().all(|slot| slot.port.wakes())
    }

    /// Has ports raise interrupts, or not.
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.ports.iter_mut().for_each(|slot| slot.port.set_interrupts(wanted));
    }

    /// When something here is due though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = self.ports.iter().map(|slot| slot.link_due).min();
        [link, self.fabric_timeout()].into_iter().flatten().min()
    }

    /// Takes note of the addresses that a port has now.
    pub fn set_addresses(&mut self, place: usize, local: &Local) {
        self.ports[place].local = local.clone();
        if let Some(fabric) = &mut self.fabric {
            let v4 = local.v4.iter().map(|&ip| ip.into());
            let v6 = local.v6.iter().map(|&ip| ip.into());
            fabric.roce.set_addresses(place, v4.chain(v6).collect());
        }
    }
}
