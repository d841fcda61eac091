//! The interface of a user of verbs to its data plane.

use super::network::Network;
use super::ports::PortSlot;
use super::storage::Storage;
use crate::config::Config;
use drivers::hal::Instant;
use provider_set::ProviderSet;
use verbs::{ConnectionEvent, Ctx};

/// Parts of a plane from which its users are created.
pub(super) struct Setup<'a> {
    pub config: &'a Config,
    /// The plane is the first loop's, which has the control plane.
    pub is_first: bool,
    pub storage: &'a mut Storage,
    pub ctx: Ctx<'a, ProviderSet>,
}

/// A user of verbs. It has a line in [`super::plane_users`].
pub(super) trait PlaneUser: Sized {
    /// Creates it as configured. None if the plane needs none, or an order creates it. Failures are logged.
    fn of(setup: &mut Setup<'_>) -> Option<Self>;

    /// Handles an event of the connection manager. False if it belongs to another user.
    fn on_connection(&mut self, event: &ConnectionEvent, ctx: &mut Ctx<'_, ProviderSet>) -> bool;

    /// Handles completions and timers. Returns the amount of work. `storage` has the volumes of the plane.
    fn poll(&mut self, storage: &mut Storage, ctx: &mut Ctx<'_, ProviderSet>) -> usize;

    /// When the next timer expires.
    fn deadline(&self) -> Option<Instant>;

    /// Whether it needs no rounds between events and timers. A user that polls its memory does, and so does one whose
    /// connections are over TCP.
    fn is_idle(&self) -> bool;

    /// Whether [`PlaneUser::resolve`] is due.
    fn wants_control(&self, _now: Instant) -> bool {
        !self.is_idle()
    }

    /// Resolves its peers on the IP interfaces, in the stage `control`.
    fn resolve(
        &mut self,
        _ports: &[PortSlot],
        _networks: &mut [Network],
        _ctx: &mut Ctx<'_, ProviderSet>,
    ) {
    }

    /// The link of a bridge came up.
    fn bridge_came_up(&mut self, _now: Instant) {}
}
