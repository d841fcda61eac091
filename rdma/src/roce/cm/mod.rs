//! stub
use super::wire::frame::Frame;
use super::{Limits, PortConfig, Roce, TxBuffer};
use crate::verbs::ConnectionId;
use drivers::hal::Instant;
use rand_core::RngCore;
#[derive(Debug)]
pub struct Cm;
impl Cm {
    pub fn new(_: &PortConfig, _: &Limits, _: &mut dyn RngCore) -> Self {
        Cm
    }
    pub fn communication_established(&mut self, _: ConnectionId) {}
    pub fn qp_failed(&mut self, _: ConnectionId) {}
    pub fn qp_destroyed(&mut self, _: ConnectionId) {}
    pub fn deadline(&self) -> Option<Instant> {
        None
    }
}
impl Roce {
    pub(super) fn poll_mad(&mut self, _: Instant, _: &mut TxBuffer) -> bool {
        false
    }
    pub(super) fn handle_mad(&mut self, _: &Frame<'_>, _: &[u8], _: Instant) {}
    pub(super) fn run_connection_timers(&mut self, _: Instant) {}
}
