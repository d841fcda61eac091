//! What tests do in the place of a host or of the network: CLC messages are carried by hand, and LLC messages forged, or
//! read off the wire.

use super::World;
use crate::engine::SocketId;
use crate::wire::cdc::{self, Cdc};
use crate::wire::llc::{Body, LEN, Llc, Order};
use core::time::Duration;
use std::vec::Vec;
use verbs::{Payload, Provider, SendOperation, SendRequest, SendWith};

impl World {
    /// Opens a TCP connection on which nobody carries anything; its sockets, by host.
    pub fn by_hand(&mut self, client: usize) -> [SocketId; 2] {
        let at = self.connect_from(client);
        self.tcp.remove(at).ends.map(Option::unwrap)
    }

    /// What a socket of host `n` has to say on its TCP connection.
    pub fn say(&mut self, n: usize, id: SocketId) -> Vec<u8> {
        let mut bytes = [0; 1024];
        let count = self.hosts[n].engine.poll_clc_bytes(id, &mut bytes);
        bytes[..count].to_vec()
    }

    /// Gives a socket of host `n` bytes of its TCP connection, again as long as it does not take all; a quarter of a
    /// second passes.
    pub fn hear(&mut self, n: usize, id: SocketId, bytes: &[u8]) {
        let mut taken = 0;
        for _ in 0..5 {
            let rest = &bytes[taken..];
            taken +=
                self.with_engine(n, |engine, ctx, way| engine.handle_clc_bytes(id, rest, ctx, way));
            self.wait(Duration::from_millis(50));
        }
    }

    /// A handshake by hand, as far as to its Accept: that of host `1 - client`.
    pub fn accept_by_hand(&mut self, client: usize) -> ([SocketId; 2], Vec<u8>) {
        let ids = self.by_hand(client);
        let proposal = self.say(client, ids[client]);
        self.hear(1 - client, ids[1 - client], &proposal);
        let accept = self.say(1 - client, ids[1 - client]);
        (ids, accept)
    }

    /// Host `n` sends an LLC message on a link of one of its groups.
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

    /// From here on frames are kept for [`World::llc_heard`].
    pub fn listen(&mut self) {
        self.network.record = Some(Vec::new());
    }

    /// The LLC messages that went over the wire, in order, and who sent each.
    pub fn llc_heard(&mut self) -> Vec<(usize, Llc)> {
        let heard = self.heard();
        let parsed = |(n, bytes): &(usize, Vec<u8>)| {
            let llc = Llc::parse(bytes.get(..LEN)?).or_else(|_| Llc::parse(bytes)).ok()?;
            (bytes[0] != cdc::TYPE).then_some((*n, llc))
        };
        heard.iter().filter_map(parsed).collect()
    }

    /// Likewise, the CDC messages that host `n` sent.
    pub fn cdc_heard(&mut self, n: usize) -> Vec<Cdc> {
        let heard = self.heard();
        let sent = heard.iter().filter(|(from, _)| *from == n);
        sent.filter_map(|(_, bytes)| Cdc::parse(bytes.get(..LEN)?.try_into().ok()?)).collect()
    }

    /// What SENDs carried.
    fn heard(&mut self) -> Vec<(usize, Vec<u8>)> {
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

    /// Bytes of a host's memory that are free, or in stock for receive buffers.
    pub fn free(&self, n: usize) -> usize {
        let size = 16 << 10 << self.hosts[n].engine.config().rmb_size;
        self.hosts[n].arena.available() + self.hosts[n].roce.odp_pool() * size
    }
}
