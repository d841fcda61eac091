//! The server's end of one measured queue pair: keeps receives posted, and sends back what a test
//! of latency wants back.
//!
//! All messages of a session go to and come from the same memory, as in the tools themselves.

use super::session::MAX_MESSAGE;
use super::write_latency::{Arrivals, PAGE, Write, WriteLatency};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use rand_core::RngCore;
use verbs::EngineContext;
use verbs::{
    AddressVector, CompletedOperation, ConnectionId, CqId, GidType, PathMtu, Payload, PdId,
    Provider, QpId, QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest, Region,
    RemoteAddress, SendOperation, SendRequest, SendWith, Status, VerbsError,
};

/// READs and atomics that a peer may have outstanding.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Receives that are kept posted.
const RECEIVES: u32 = 512;
/// Messages of ours that are not acknowledged.
const SENDS: u32 = 16;
/// ACK timeout: 1.07 s. The tools' own 67 ms (14) is less than a busy host takes to look at what it has
/// received; they repeat themselves for ever then (Linux's soft-RoCE takes 7 retries for that), we do not.
const ACK_TIMEOUT: u8 = 18;
/// Completions handled at a time.
const BATCH: usize = 128;
/// How long a first message has to stay alone to be the first of a test of latency.
const ALONE: Duration = Duration::from_millis(4);
/// And so much longer for each KiB of it, which the next takes to arrive.
const ALONE_PER_KIB: Duration = Duration::from_micros(200);
/// A test of latency has one message under way, and perhaps one whose acknowledgement was lost.
const UNANSWERED: u32 = 3;

/// What the peer's messages are answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// Nothing.
    Nothing,
    /// Each SEND with a SEND of the same bytes.
    Sends,
    /// SENDs with SENDs if they come one by one; a burst is a test of bandwidth.
    Guess,
    /// Each WRITE with immediate with such a WRITE of the same bytes.
    WritesWithImmediate,
}

/// The peer's end, as it says it.
#[derive(Clone, Copy, Debug)]
pub struct RemoteEnd {
    /// Number of its queue pair.
    pub qpn: u32,
    /// PSN of its first packet.
    pub psn: u32,
    /// Its address.
    pub ip: IpAddr,
    /// Our address that it is to know us by.
    pub local: IpAddr,
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// Path MTU.
    pub path_mtu: PathMtu,
}

/// What has gone through an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that took a receive, and their bytes.
    pub received: u64,
    pub received_bytes: u64,
    /// Messages sent back, and their bytes.
    pub sent: u64,
    pub sent_bytes: u64,
}

/// How long a first message of so many bytes has to stay alone.
fn alone(length: u32) -> Duration {
    ALONE + ALONE_PER_KIB * (length >> 10)
}

/// One queue pair with its completion queue.
#[derive(Debug)]
pub struct Endpoint {
    pub qp: QpId,
    cq: CqId,
    /// The connection that it belongs to, if the connection manager made it.
    pub connection: Option<ConnectionId>,
    /// Number of the peer's queue pair, as far as it was told.
    pub remote_qpn: u32,
    /// PSN of our first packet.
    pub psn: u32,
    /// Where the peer wants WRITEs.
    pub remote: RemoteAddress,
    pub echo: Echo,
    /// It takes part in a test of the latency of WRITE.
    write_latency: Option<(WriteLatency, Arrivals)>,
    /// The provider does not tell what the peer does.
    is_blind: bool,
    pub traffic: Traffic,
    /// A message that waits for [`ALONE`] to pass: since when, and its length.
    alone: Option<(Instant, u32)>,
    outstanding: u32,
    /// Packets of the peer's that were seen.
    packets: u32,
    /// And how many had been when its WRITEs were looked for.
    looked_at: u32,
}

impl Endpoint {
    /// A queue pair in state Init, its receives posted into `memory`.
    pub fn new<P: Provider + ?Sized>(
        provider: &mut P,
        pd: PdId,
        memory: Window,
        rng: &mut dyn RngCore,
    ) -> Result<Self, VerbsError> {
        let cq = provider.create_cq(RECEIVES + SENDS)?;
        let init = QpInit {
            kind: QpType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 1,
        };
        let made = provider.create_qp(&init, rng);
        let qp = made.inspect_err(|_| {
            let _ = provider.destroy_cq(cq);
        })?;
        let endpoint = Endpoint {
            qp,
            cq,
            connection: None,
            remote_qpn: 0,
            psn: rng.next_u32() & 0xff_ffff,
            remote: RemoteAddress { address: 0, rkey: 0 },
            echo: Echo::Nothing,
            write_latency: None,
            is_blind: provider.requests_seen(qp).is_none(),
            traffic: Traffic::default(),
            alone: None,
            outstanding: 0,
            packets: 0,
            looked_at: 0,
        };
        for _ in 0..RECEIVES {
            if let Err(error) = provider.post_recv(qp, &RecvRequest { id: 0, into: &[memory] }) {
                endpoint.destroy(provider);
                return Err(error);
            }
        }
        Ok(endpoint)
    }

    /// Gives queue pair and completion queue back.
    pub fn destroy<P: Provider + ?Sized>(&self, provider: &mut P) {
        // They are ours, and nobody else uses the completion queue.
        let _ = provider.destroy_qp(self.qp);
        let _ = provider.destroy_cq(self.cq);
    }

    /// Connects it as the tools do without the connection manager: 7 retries, for ever where the peer
    /// is not ready; but for [`ACK_TIMEOUT`].
    pub fn connect<P: Provider + ?Sized>(
        &mut self,
        provider: &mut P,
        peer: &RemoteEnd,
    ) -> Result<(), VerbsError> {
        let address = AddressVector {
            local: peer.local,
            remote: peer.ip,
            gid_type: GidType::RoceV2,
            remote_mac: peer.mac,
            source_port: 0xc000 | peer.qpn as u16 & 0x3fff,
            traffic_class: 0,
            hop_limit: 64,
        };
        let receive = ReadyToReceive {
            remote_qpn: peer.qpn,
            rq_psn: peer.psn,
            path_mtu: peer.path_mtu,
            address,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            min_rnr_timer: 12,
        };
        let send = ReadyToSend {
            sq_psn: self.psn,
            max_rd_atomic: MAX_RD_ATOMIC,
            ack_timeout: ACK_TIMEOUT,
            retry_count: 7,
            rnr_retry: 7,
        };
        self.remote_qpn = peer.qpn;
        provider.ready_to_receive(self.qp, &receive)?;
        provider.ready_to_send(self.qp, &send)
    }

    /// Handles what has completed; how much. An error is the end of the queue pair.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        region: &Region,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, VerbsError> {
        let mut handled = 0;
        while handled < BATCH
            && let Some(completion) = ctx.provider.poll_cq(self.cq)
        {
            handled += 1;
            if completion.status != Status::Success {
                return Err(VerbsError::WrongState);
            }
            let length = match completion.operation {
                CompletedOperation::Send => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    continue;
                }
                // Nobody here asks for that.
                CompletedOperation::KeyChanged { .. } => continue,
                CompletedOperation::Recv { length, .. }
                | CompletedOperation::RecvWriteImmediate { length, .. } => length,
            };
            let into = &[region.memory];
            ctx.provider.post_recv(self.qp, &RecvRequest { id: 0, into })?;
            self.traffic.received += 1;
            self.traffic.received_bytes += u64::from(length);
            match (self.echo, completion.operation) {
                (Echo::Sends, CompletedOperation::Recv { .. }) => {
                    self.send_back(length, region, ctx.provider)?;
                }
                (Echo::Guess, CompletedOperation::Recv { .. }) => {
                    let burst = self.alone.is_some() || self.outstanding >= UNANSWERED;
                    if burst {
                        self.echo = Echo::Nothing;
                        self.alone = None;
                    } else if self.traffic.sent > 0 {
                        self.send_back(length, region, ctx.provider)?;
                    } else {
                        self.alone = Some((ctx.now, length));
                    }
                }
                (
                    Echo::WritesWithImmediate,
                    CompletedOperation::RecvWriteImmediate { immediate, .. },
                ) => {
                    let from = region.memory.slice(0, length as usize);
                    self.write_back(from, Some(immediate), ctx.provider)?;
                }
                _ => {}
            }
        }
        if let Some((since, length)) = self.alone
            && ctx.now >= since + alone(length)
        {
            self.alone = None;
            self.send_back(length, region, ctx.provider)?;
        }
        Ok(handled + self.poll_writes(region, ctx)?)
    }

    /// Whether anything is under way since this was asked last, though nothing need have completed: on a
    /// slow host a message of 8 MiB takes many seconds.
    pub fn is_moving<P: Provider + ?Sized>(&mut self, provider: &P) -> bool {
        let packets = self.packets_seen(provider);
        let before = core::mem::replace(&mut self.packets, packets);
        // A message of ours arrives, or fails by the timers of the queue pair.
        packets != before || self.outstanding > 0
    }

    /// The peer may be waiting for us to begin a test of the latency of WRITE.
    pub fn expect_write_latency<P: Provider + ?Sized>(&mut self, ctx: &EngineContext<'_, P>) {
        if self.packets_seen(ctx.provider) == 0 {
            self.write_latency = Some((WriteLatency::new(ctx.now), Arrivals::new(ctx.now)));
        }
    }

    /// Packets that the peer has sent, or messages at least, as far as can be seen.
    fn packets_seen<P: Provider + ?Sized>(&self, provider: &P) -> u32 {
        provider.requests_seen(self.qp).unwrap_or(self.traffic.received as u32)
    }

    /// Goes on with a test of the latency of WRITE.
    fn poll_writes<P: Provider + ?Sized>(
        &mut self,
        region: &Region,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, VerbsError> {
        let Some((mut test, mut arrivals)) = self.write_latency.take() else { return Ok(0) };
        if !test.has_begun() && self.packets_seen(ctx.provider) > 0 {
            return Ok(0);
        }
        let mut handled = 0;
        while self.outstanding < SENDS
            && let Some(write) = test.poll(ctx.now)
        {
            handled += 1;
            match write {
                Write::Page => {
                    arrivals = Arrivals::new(ctx.now);
                    let page = region.memory.slice(MAX_MESSAGE, PAGE);
                    page.ok_or(VerbsError::Invalid)?.fill(1);
                    self.write_back(page, None, ctx.provider)?;
                }
                Write::One(offset) => {
                    let address = self.remote.address.wrapping_add(offset);
                    let to = RemoteAddress { address, ..self.remote };
                    let payload = Payload::Inline(&[1]);
                    let one = SendOperation::Write { payload, to, immediate: None };
                    self.post(one, 1, ctx.provider)?;
                }
            }
        }
        let is_due = match ctx.provider.requests_seen(self.qp) {
            Some(seen) => core::mem::replace(&mut self.looked_at, seen) != seen,
            None => arrivals.next_look() <= ctx.now,
        };
        if test.has_begun()
            && is_due
            && let Some((size, round)) = arrivals.look(&region.memory, ctx.now)
        {
            test.answered(size);
            // The number of the next round is in the last byte, where no message of the peer reaches.
            let noted = region.memory.write(MAX_MESSAGE, &[round.wrapping_add(1)]);
            noted.map_err(|_| VerbsError::Invalid)?;
            let from = region.memory.slice(MAX_MESSAGE + 1 - size as usize, size as usize);
            self.write_back(from, None, ctx.provider)?;
            handled += 1;
        }
        self.write_latency = Some((test, arrivals));
        Ok(handled)
    }

    /// When [`Endpoint::poll`] has something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.alone.map(|(since, length)| since + alone(length));
        let Some((test, arrivals)) = &self.write_latency else { return alone };
        let look = (self.is_blind && test.has_begun()).then(|| arrivals.next_look());
        Instant::first([alone, test.poll_timeout(), look])
    }

    /// Whether another message of ours can be sent.
    pub fn has_room(&self) -> bool {
        self.outstanding < SENDS
    }

    /// Messages of ours that have completed.
    pub fn completed(&self) -> u64 {
        self.traffic.sent.saturating_sub(self.outstanding.into())
    }

    fn send_back<P: Provider + ?Sized>(
        &mut self,
        length: u32,
        region: &Region,
        provider: &mut P,
    ) -> Result<(), VerbsError> {
        let from = region.memory.slice(0, length as usize).ok_or(VerbsError::Invalid)?;
        let payload = Payload::Windows(core::slice::from_ref(&from));
        self.post(SendOperation::Send { payload, with: SendWith::Nothing }, length, provider)
    }

    fn write_back<P: Provider + ?Sized>(
        &mut self,
        from: Option<Window>,
        immediate: Option<u32>,
        provider: &mut P,
    ) -> Result<(), VerbsError> {
        let from = from.ok_or(VerbsError::Invalid)?;
        let payload = Payload::Windows(core::slice::from_ref(&from));
        let write = SendOperation::Write { payload, to: self.remote, immediate };
        self.post(write, from.len() as u32, provider)
    }

    /// Sends a message of so many bytes.
    #[inline(never)]
    pub fn post<P: Provider + ?Sized>(
        &mut self,
        operation: SendOperation<'_>,
        length: u32,
        provider: &mut P,
    ) -> Result<(), VerbsError> {
        let request = SendRequest {
            id: 0,
            operation,
            signaled: true,
            solicited: false,
            datagram: None,
            carries: None,
            ack_lazily: false,
        };
        provider.post_send(self.qp, &request)?;
        self.outstanding += 1;
        self.traffic.sent += 1;
        self.traffic.sent_bytes += u64::from(length);
        Ok(())
    }
}
