//! The list of services of the first loop. A new one implements [`Service`] and gets a line at the end of this file.

use super::nvme::Nvme;
use super::plane::DataPlane;
use super::plane_services::{LinxStage, TcpCarrier};
use super::rendezvous::Rendezvous;
use super::service::{Service, ServiceContext};
use super::smc::Smc;
use super::tcp_remotes::TcpRemoteService;
use super::upgrade::Upgrade;
use crate::families::OfSmc;
use drivers::hal::Instant;

macro_rules! services {
    ($($(#[$doc:meta])* $name:ident: $held:ty,)*) => {
        /// The services, in the order of a round.
        pub(super) struct Services {
            $($(#[$doc])* pub $name: Option<$held>,)*
        }

        impl Services {
            /// Polls all. Returns the amount of work.
            #[inline]
            pub fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
                0 $(+ self.$name.as_mut().map_or(0, |service| Service::poll(&mut **service, around)))*
            }

            /// When the next timer expires.
            pub fn deadline(&self, plane: &DataPlane) -> Option<Instant> {
                Instant::first([$(self.$name.as_ref().and_then(|service| service.deadline(plane)),)*])
            }

            /// As [`Service::allows_brief_rounds`], of all.
            pub fn allow_brief_rounds(&self) -> bool {
                true $(&& self.$name.as_ref().is_none_or(|service| service.allows_brief_rounds()))*
            }

            /// Makes all disconnect their peers.
            pub fn shut_down(&mut self, around: &mut ServiceContext<'_>) {
                $(if let Some(service) = &mut self.$name {
                    service.shut_down(around);
                })*
            }

            /// Whether all their peers are disconnected.
            pub fn are_shut_down(&self) -> bool {
                true $(&& self.$name.as_ref().is_none_or(|service| service.is_shut_down()))*
            }
        }
    };
}

services! {
    /// SMC-R and its users; None if the configuration does not use it.
    smc: OfSmc<Smc>,
    /// None without bridges.
    tcp_carrier: Box<TcpCarrier>,
    /// None without links to LINX nodes.
    linx: Box<LinxStage>,
    /// Rendezvous of UDP engines with their peers; None if not configured.
    rendezvous: Box<Rendezvous>,
    /// The NVMe-oF target; None without a subsystem.
    nvme: Box<Nvme>,
    /// Volumes of other servers over TCP. Behind the users of volumes, so that their requests are sent in the same round.
    tcp_remotes: Box<TcpRemoteService>,
    /// The slots for releases, if the boot disk has slots.
    upgrade: Box<Upgrade>,
}
