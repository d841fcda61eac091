//! Transport of frames between the ends, and the ends' work.

use super::*;

impl World {
    pub(super) fn collect(&mut self) {
        for (n, node) in [&mut self.gateway, &mut self.attacker].into_iter().enumerate() {
            while self.wire.len() < 128 && node.roce.poll_transmit(0, self.now, &mut node.tx) {
                self.wire.push_back((1 - n, netsim::bytes(&node.tx.packet())));
            }
        }
    }

    pub(super) fn deliver(&mut self, to: usize, frame: &[u8]) {
        let node = if to == GATEWAY { &mut self.gateway } else { &mut self.attacker };
        node.roce.handle_frame(0, frame, self.now);
        self.work();
    }

    /// Polls both ends.
    pub(super) fn work(&mut self) {
        for node in [&mut self.gateway, &mut self.attacker] {
            if node.roce.poll_timeout().is_some_and(|at| at <= self.now) {
                node.roce.handle_timeout(self.now);
            }
        }
        let Node { roce, arena, rng, .. } = &mut self.gateway;
        let mut context = Ctx { provider: roce, arena, now: self.now, rng };
        while let Some(event) = context.provider.poll_connection_event() {
            self.server.handle_connection_event(&event, &mut context);
        }
        while self.server.poll(&mut self.volumes, &mut context) {}
        while self.server.transport_mut().poll_notice().is_some() {}
        while let Some(event) = self.attacker.roce.poll_connection_event() {
            if let ConnectionEvent::Request { connection, .. } = event {
                let reason = verbs::RejectReason::CONSUMER;
                let _ = self.attacker.roce.reject(connection, reason, b"");
            }
        }
        while let Some(done) = self.attacker.roce.poll_cq(self.cq) {
            let Some(line) = self.lines.iter().position(|line| line.qp == done.qp) else {
                continue;
            };
            let length = match done.operation {
                CompletedOperation::Recv { length, .. } => length as usize,
                CompletedOperation::RecvWriteImmediate { .. } => 0,
                CompletedOperation::Send | CompletedOperation::KeyChanged { .. } => continue,
            };
            let n = done.id as usize;
            let mut bytes = vec![0; length];
            let got = World::receive(&self.lines[line], n).read(0, &mut bytes).is_ok();
            if got {
                self.learn(&bytes);
            }
            self.post_receive(line, n);
        }
    }

    /// Stores chunks and keys from a received message.
    pub(super) fn learn(&mut self, message: &[u8]) {
        if let Ok(key) = RkeyResponse::parse(message) {
            if let Some(chunk) = self.chunks.get_mut(usize::from(key.buffer)) {
                chunk.key = key.rkey;
            }
        } else if InfoResponse::parse(message).is_ok() {
            self.chunks.clear();
            for all in InfoResponse::descriptors(message) {
                for n in 0..(all.length / CHUNK).min(u32::from(DEPTH)) {
                    let address = all.address + u64::from(n * CHUNK);
                    self.chunks.push(Descriptor { address, length: CHUNK, ..all });
                }
            }
        }
    }

    /// Carries frames until none is in flight.
    pub(super) fn settle(&mut self) {
        self.work();
        for _ in 0..200 {
            self.collect();
            let Some((to, frame)) = self.wire.pop_front() else { break };
            self.deliver(to, &frame);
        }
    }
}
