//! The list of users of verbs in a data plane. A new one implements [`PlaneUser`] and gets a line at the end of this
//! file. The storage server is not among them: a round serves it first. All calls are static.

use super::bridge::measures::Measures;
use super::network::Network;
use super::perf_responders::PerfResponders;
use super::plane_user::{PlaneUser, Setup};
use super::ports::PortSlot;
use super::remote_storage::RemoteStorage;
use super::rping::Rping;
use super::storage::Storage;
use crate::families::OfMeasure;
use drivers::hal::{Hold, Instant};
use provider_set::ProviderSet;
use verbs::{ConnectionEvent, Ctx};

macro_rules! plane_users {
    ($($(#[$doc:meta])* $name:ident: $held:ty,)*) => {
        /// The users of verbs, in the order of a round.
        #[derive(Default)]
        pub(super) struct PlaneUsers {
            $($(#[$doc])* pub $name: Option<$held>,)*
        }

        impl PlaneUsers {
            /// Creates the configured ones.
            pub fn of(setup: &mut Setup<'_>) -> Self {
                PlaneUsers { $($name: held(setup),)* }
            }

            /// As [`PlaneUser::on_connection`]. False if the event belongs to none.
            #[inline]
            pub fn on_connection(
                &mut self,
                event: &ConnectionEvent,
                ctx: &mut Ctx<'_, ProviderSet>,
            ) -> bool {
                false $(|| self.$name.as_mut().is_some_and(|user| user.on_connection(event, ctx)))*
            }

            /// Polls all. Returns the amount of work.
            #[inline]
            pub fn poll(
                &mut self,
                storage: &mut Storage,
                ctx: &mut Ctx<'_, ProviderSet>,
            ) -> usize {
                0 $(+ self.$name.as_mut().map_or(0, |user| user.poll(storage, ctx)))*
            }

            /// When the next timer expires.
            #[inline]
            pub fn deadline(&self) -> Option<Instant> {
                Instant::first([$(self.$name.as_ref().and_then(|user| user.deadline()),)*])
            }

            /// Whether there is none.
            #[inline]
            pub fn is_empty(&self) -> bool {
                true $(&& self.$name.is_none())*
            }

            /// As [`PlaneUser::is_idle`], of all.
            #[inline]
            pub fn are_idle(&self) -> bool {
                true $(&& self.$name.as_ref().is_none_or(|user| user.is_idle()))*
            }

            /// As [`PlaneUser::wants_control`], of any.
            #[inline]
            pub fn want_control(&self, now: Instant) -> bool {
                false $(|| self.$name.as_ref().is_some_and(|user| user.wants_control(now)))*
            }

            /// As [`PlaneUser::resolve`], of all.
            pub fn resolve(
                &mut self,
                ports: &[PortSlot],
                networks: &mut [Network],
                ctx: &mut Ctx<'_, ProviderSet>,
            ) {
                $(if let Some(user) = &mut self.$name {
                    user.resolve(ports, networks, ctx);
                })*
            }

            /// As [`PlaneUser::bridge_came_up`], of all.
            pub fn bridge_came_up(&mut self, now: Instant) {
                $(if let Some(user) = &mut self.$name {
                    user.bridge_came_up(now);
                })*
            }
        }
    };
}

/// Creates a user, if it is configured and the image includes it.
fn held<U: PlaneUser, H: Hold<U>>(setup: &mut Setup<'_>) -> Option<H> {
    U::of(setup).and_then(|user| H::hold(|| user))
}

plane_users! {
    /// Remote volumes and mirrors.
    remote_storage: Box<RemoteStorage>,
    /// Servers of measuring tools.
    perf_responders: OfMeasure<PerfResponders>,
    /// The console's rping.
    rping: OfMeasure<Rping>,
    /// The measuring tool of bridges.
    bridge_measures: OfMeasure<Measures>,
}
