//! Manual steps of tests in place of a host or of the network: carrying CLC messages, forging LLC messages, and reading
//! recorded ones.

use super::World;
use crate::engine::SocketId;
use crate::wire::cdc::{self, Cdc};
use crate::wire::llc::{Body, LEN, Llc, Order};
use core::time::Duration;
use std::vec::Vec;
use verbs::{Payload, Provider, RegionsOnDemand, SendOperation, SendRequest, SendWith};

impl World {
    /// Opens a TCP connection that the test carries. Returns its sockets, by host.
    pub fn by_hand(&mut self, client: usize) -> [SocketId; 2] {
        let at = self.connect_from(client);
        self.tcp.remove(at).ends.map(Option::unwrap)
    }

    /// Takes the CLC bytes that a socket of host `n` sends.
    pub fn take_clc(&mut self, n: usize, id: SocketId) -> Vec<u8> {
        let mut bytes = [0; 1024];
        let count = self.hosts[n].engine.poll_clc_bytes(id, &mut bytes);
        bytes[..count].to_vec()
    }

    /// Passes CLC bytes to a socket of host `n`, repeatedly until it has taken all. A quarter of a second passes.
    pub fn feed_clc(&mut self, n: usize, id: SocketId, bytes: &[u8]) {
        let mut taken = 0;
        for _ in 0..5 {
            let rest = &bytes[taken..];
            taken += self.with_engine(n, |engine, ctx, neighbours| {
                engine.handle_clc_bytes(id, rest, ctx, neighbours)
            });
            self.wait(Duration::from_millis(50));
        }
    }

    /// Carries a handshake up to the Accept of host `1 - client`.
    pub fn accept_by_hand(&mut self, client: usize) -> ([SocketId; 2], Vec<u8>) {
        let ids = self.by_hand(client);
        let proposal = self.take_clc(client, ids[client]);
        self.feed_clc(1 - client, ids[1 - client], &proposal);
        let accept = self.take_clc(1 - client, ids[1 - client]);
        (ids, accept)
    }

    /// Sends an LLC message from host `n` on a link of one of its groups.
    pub fn forge_llc(
        &mut self,
        n: usize,
        (group, link): (usize, usize),
        response: bool,
        body: Body,
    ) {
        let status = self.hosts[n].engine.groups().next().expect("there is a group");
        let bytes = Llc { version: status.version, response, order: Order::Big, body }.emit();
        let payload = Payload::Inline(&bytes);
        let request = SendRequest {
            id: 0,
            operation: SendOperation::Send { payload, with: SendWith::Nothing },
            signaled: true,
            solicited: true,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        let qp = self.hosts[n].engine.queue_pair(group, link).expect("there is a link");
        self.hosts[n].roce.post_send(qp, &request).unwrap();
        self.wait(Duration::from_millis(1));
    }

    /// Starts recording frames for [`World::recorded_llc`].
    pub fn record_frames(&mut self) {
        self.network.record = Some(Vec::new());
    }

    /// The recorded LLC messages in order, with their senders.
    pub fn recorded_llc(&mut self) -> Vec<(usize, Llc)> {
        let recorded_sends = self.recorded_sends();
        let parsed = |(n, bytes): &(usize, Vec<u8>)| {
            let llc = Llc::parse(bytes.get(..LEN)?).or_else(|_| Llc::parse(bytes)).ok()?;
            (bytes[0] != cdc::TYPE).then_some((*n, llc))
        };
        recorded_sends.iter().filter_map(parsed).collect()
    }

    /// The recorded CDC messages of host `n`.
    pub fn recorded_cdc(&mut self, n: usize) -> Vec<Cdc> {
        let recorded_sends = self.recorded_sends();
        let sent = recorded_sends.iter().filter(|(from, _)| *from == n);
        sent.filter_map(|(_, bytes)| Cdc::parse(bytes.get(..LEN)?.try_into().ok()?)).collect()
    }

    /// The recorded SENDs, with their senders.
    fn recorded_sends(&mut self) -> Vec<(usize, Vec<u8>)> {
        let frames = self.network.record.replace(Vec::new()).unwrap_or_default();
        let messages = frames.iter().filter_map(|(n, frame)| {
            // Before the BTH: a GRH (RoCEv1), or IPv4 and UDP.
            let bth = 14 + if frame[12..14] == [0x89, 0x15] { 40 } else { 28 };
            let padded = usize::from(*frame.get(bth + 1)? >> 4 & 3);
            let message = frame.get(bth + 12..frame.len() - 4 - padded)?;
            (frame[bth] == 0x04).then(|| (*n, message.to_vec()))
        });
        messages.collect()
    }

    /// Bytes of a host's memory that are free, or in the receive buffer pool.
    pub fn free(&self, n: usize) -> usize {
        let size = 16 << 10 << self.hosts[n].engine.config().rmb_size;
        self.hosts[n].arena.available() + self.hosts[n].roce.odp_pool(size) * size
    }
}
