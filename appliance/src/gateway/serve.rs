//! The stages `serve` and `transmit` of a plane: RDMA and its users, and the transmission of packets.

use super::plane::DataPlane;
use drivers::hal::{Instant, TransmitError};
use verbs::{ConnectionEvent, ConnectionManager, Ctx, Provider, RejectReason};

impl DataPlane {
    /// Runs connections, requests and responses of the protocol servers. Returns the amount of work.
    pub fn serve(&mut self, now: Instant) -> usize {
        let mut done = match self.udp_engines.is_empty() {
            true => 0,
            false => self.udp_engines.poll(now),
        };
        let Some(rdma_stack) = &mut self.rdma_stack else { return done };
        for (number, bridge) in self.bridges.iter_mut().enumerate() {
            let (moved, up) = bridge.poll(number, &mut rdma_stack.providers, now);
            done += moved;
            if up {
                self.users.bridge_came_up(now);
            }
        }
        rdma_stack.providers.poll_cards(now);
        while let Some((port, host)) = rdma_stack.providers.next_stranger() {
            rdma_stack.pending_neighbours.add(0, port, host);
        }
        if rdma_stack.providers.poll_timeout().is_some_and(|at| at <= now) {
            rdma_stack.providers.handle_timeout(now);
        }
        // Not needed: servers get the end of a queue pair from its connection, and the control plane reports
        // links.
        while rdma_stack.providers.poll_event().is_some() {}
        if self.ending {
            // The connection manager finishes the disconnects by itself.
            return core::iter::from_fn(|| rdma_stack.providers.poll_connection_event()).count();
        }
        if !self.is_alone {
            self.storage.publish();
            done += usize::from(self.storage.follow(&rdma_stack.providers, now));
        }
        let arena = &mut self.arena;
        let mut ctx = Ctx { provider: &mut rdma_stack.providers, arena, now, rng: &mut *self.rng };
        while let Some(event) = ctx.provider.poll_connection_event() {
            done += 1;
            let storage = self.storage.server.as_mut();
            let taken = storage.is_some_and(|s| s.handle_connection_event(&event, &mut ctx))
                || self.users.on_connection(&event, &mut ctx);
            if let (false, ConnectionEvent::Request { connection, .. }) = (taken, event) {
                // An error means that the connection is gone already.
                let _ = ctx.provider.reject(connection, RejectReason::INVALID_SERVICE_ID, &[]);
            }
        }
        // Without clients, most rounds of a messaging gateway leave it nothing to do.
        let server = self.storage.server.as_mut();
        if let Some(server) = server.filter(|one| one.wants_poll(&self.storage.volumes, now)) {
            done += usize::from(server.poll(&mut self.storage.volumes, &mut ctx));
            while let Some(notice) = server.transport_mut().poll_notice() {
                match notice.is_loss() {
                    true => log::warn!("rnbd: {notice}"),
                    false => log::info!("rnbd: {notice}"),
                }
            }
        }
        done += self.storage.serve_followers();
        done += self.users.poll(&mut self.storage, &mut ctx);
        if done > 0 {
            for (number, bridge) in self.bridges.iter_mut().enumerate() {
                done += bridge.poll(number, &mut rdma_stack.providers, now).0;
            }
        }
        done
    }

    /// When the next timer of the provider expires.
    #[inline]
    pub fn provider_timeout(&self) -> Option<Instant> {
        self.rdma_stack.as_ref().and_then(|stack| stack.providers.poll_timeout())
    }

    /// Passes the packets of the provider, and of UDP engines, to their ports, as many as there is room for. Returns
    /// their number.
    pub fn transmit_fabric(&mut self, now: Instant) -> usize {
        // On most machines this test is all that a round costs.
        let mut sent = match self.udp_engines.is_empty() {
            true => 0,
            false => self.udp_engines.transmit(&mut self.ports, &mut self.capture, now),
        };
        let Some(rdma_stack) = &mut self.rdma_stack else { return sent };
        rdma_stack.providers.flush_cards();
        for (i, (slot, next)) in self.ports.iter_mut().zip(&mut rdma_stack.outgoing).enumerate() {
            while next.waiting || rdma_stack.providers.roce.poll_transmit(i, now, &mut next.tx) {
                let packet = next.tx.packet();
                next.waiting = slot.port.transmit(&packet) == Err(TransmitError::Full);
                if next.waiting {
                    break;
                }
                sent += 1;
                self.capture.sent(i, &packet, now);
            }
        }
        sent
    }
}
