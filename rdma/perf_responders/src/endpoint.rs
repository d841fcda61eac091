//! The local end of one measured queue pair: keeps receives posted, and echoes messages if the test measures latency.
//!
//! All messages of a session share one buffer, as in the tools themselves.

use super::write_latency::{Arrivals, MAX_MESSAGE, PAGE, Write, WriteLatency};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use verbs::{
    AddressVector, CompletedOperation, ConnectionId, CqId, Ctx, GidType, PathMtu, Payload, PdId,
    Provider, QpId, QpInit, QpType, ReadyToReceive, ReadyToSend, RecvRequest, Region,
    RemoteAddress, SendOperation, SendRequest, SendWith, Status, VerbsError,
};

/// READs and atomics that a peer may have outstanding.
pub const MAX_RD_ATOMIC: u8 = 16;
/// Receives kept posted.
const RECEIVES: u32 = 512;
/// Local sends that may be outstanding.
const SENDS: u32 = 16;
/// ACK timeout: 1.07 s. The tools' own 67 ms (14) is shorter than a busy host may take to process a received packet.
/// The tools then retransmit without end (Linux's soft-RoCE treats 7 retries as unlimited); this endpoint does not.
const ACK_TIMEOUT: u8 = 18;
/// Completions handled per poll.
const BATCH: usize = 128;
/// A first message without a second for this long starts a latency test; a second one before means a bandwidth test.
const ECHO_DELAY: Duration = Duration::from_millis(4);
/// Added to [`ECHO_DELAY`] for each KiB of the first message: the second message takes that long to arrive.
const ECHO_DELAY_PER_KIB: Duration = Duration::from_micros(200);
/// Outstanding sends from which the test is one of bandwidth: a latency test has one message in flight, and perhaps one
/// whose acknowledgement was lost.
const BURST: u32 = 3;

/// Which messages of the peer are echoed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// None.
    Nothing,
    /// Each SEND, by a SEND of the same bytes.
    Sends,
    /// SENDs, by SENDs, if they arrive one by one; a burst is a bandwidth test and is not echoed.
    Guess,
    /// Each WRITE with immediate, by such a WRITE of the same bytes.
    WritesWithImmediate,
}

/// The peer's end, from its control message.
#[derive(Clone, Copy, Debug)]
pub struct RemoteEnd {
    /// Number of its queue pair.
    pub qpn: u32,
    /// PSN of its first packet.
    pub psn: u32,
    /// Its address.
    pub ip: IpAddr,
    /// Local address that the peer sends to.
    pub local: IpAddr,
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// Path MTU.
    pub path_mtu: PathMtu,
}

/// Messages and bytes of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages that consumed a receive.
    pub received: u64,
    /// Bytes of these messages.
    pub received_bytes: u64,
    /// Messages sent.
    pub sent: u64,
    /// Bytes of these messages.
    pub sent_bytes: u64,
}

/// How long the endpoint waits for a second message after a first one of `length` bytes.
fn echo_delay(length: u32) -> Duration {
    ECHO_DELAY + ECHO_DELAY_PER_KIB * (length >> 10)
}

/// One queue pair with its completion queue.
#[derive(Debug)]
pub struct Endpoint {
    pub qp: QpId,
    cq: CqId,
    /// The connection of the queue pair, if the connection manager set it up.
    pub connection: Option<ConnectionId>,
    /// Number of the peer's queue pair; 0 until the peer sent it.
    pub remote_qpn: u32,
    /// PSN of the first packet sent.
    pub psn: u32,
    /// Address and key for WRITEs to the peer.
    pub remote: RemoteAddress,
    pub echo: Echo,
    /// State of a WRITE latency test, while one may run.
    write_latency: Option<(WriteLatency, Arrivals)>,
    /// The provider does not count received requests: memory has to be polled for WRITEs.
    must_poll_memory: bool,
    pub traffic: Traffic,
    /// The first message, while its echo is delayed: its time and its length.
    delayed_echo: Option<(Instant, u32)>,
    outstanding: u32,
    /// Packets received when [`Endpoint::has_progress`] was last called.
    packets: u32,
    /// Packets received when the memory was last searched for the peer's WRITEs.
    searched_at: u32,
}

impl Endpoint {
    /// Creates a queue pair in state Init, with receives posted into `memory`.
    pub fn new<P: Provider + ?Sized>(
        provider: &mut P,
        pd: PdId,
        memory: Window,
        rng: &mut dyn Rng,
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
        let created = provider.create_qp(&init, rng);
        let qp = created.inspect_err(|_| {
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
            must_poll_memory: provider.requests_seen(qp).is_none(),
            traffic: Traffic::default(),
            delayed_echo: None,
            outstanding: 0,
            packets: 0,
            searched_at: 0,
        };
        for _ in 0..RECEIVES {
            if let Err(error) = provider.post_recv(qp, &RecvRequest { id: 0, into: &[memory] }) {
                endpoint.destroy(provider);
                return Err(error);
            }
        }
        Ok(endpoint)
    }

    /// Destroys queue pair and completion queue.
    pub fn destroy<P: Provider + ?Sized>(&self, provider: &mut P) {
        // Cannot fail: only this endpoint uses them.
        let _ = provider.destroy_qp(self.qp);
        let _ = provider.destroy_cq(self.cq);
    }

    /// Connects the queue pair with the attributes of the tools without the connection manager: 7 retries, unlimited
    /// RNR retries. Only the ACK timeout differs ([`ACK_TIMEOUT`]).
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

    /// Handles completions and returns how many. An error ends the queue pair.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        region: &Region,
        ctx: &mut Ctx<'_, P>,
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
                // No endpoint posts operations that change keys.
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
                    let burst = self.delayed_echo.is_some() || self.outstanding >= BURST;
                    if burst {
                        self.echo = Echo::Nothing;
                        self.delayed_echo = None;
                    } else if self.traffic.sent > 0 {
                        self.send_back(length, region, ctx.provider)?;
                    } else {
                        self.delayed_echo = Some((ctx.now, length));
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
        if let Some((since, length)) = self.delayed_echo
            && ctx.now >= since + echo_delay(length)
        {
            self.delayed_echo = None;
            self.send_back(length, region, ctx.provider)?;
        }
        Ok(handled + self.poll_writes(region, ctx)?)
    }

    /// Whether packets arrived since the last call, or sends are outstanding, even without completions: on a slow host
    /// a message of 8 MiB takes many seconds.
    pub fn has_progress<P: Provider + ?Sized>(&mut self, provider: &P) -> bool {
        let packets = self.packets_seen(provider);
        let before = core::mem::replace(&mut self.packets, packets);
        // An outstanding send completes, or fails by the timers of the queue pair.
        packets != before || self.outstanding > 0
    }

    /// Expects a WRITE latency test if the peer has sent nothing yet: there the server has to begin.
    pub fn expect_write_latency<P: Provider + ?Sized>(&mut self, ctx: &Ctx<'_, P>) {
        if self.packets_seen(ctx.provider) == 0 {
            self.write_latency = Some((WriteLatency::new(ctx.now), Arrivals::new(ctx.now)));
        }
    }

    /// Packets received from the peer, or only messages if the provider does not count packets.
    fn packets_seen<P: Provider + ?Sized>(&self, provider: &P) -> u32 {
        provider.requests_seen(self.qp).unwrap_or(self.traffic.received as u32)
    }

    /// Advances a WRITE latency test; returns how many writes were handled.
    fn poll_writes<P: Provider + ?Sized>(
        &mut self,
        region: &Region,
        ctx: &mut Ctx<'_, P>,
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
            Some(seen) => core::mem::replace(&mut self.searched_at, seen) != seen,
            None => arrivals.next_search() <= ctx.now,
        };
        if test.has_begun()
            && is_due
            && let Some((size, round)) = arrivals.search(&region.memory, ctx.now)
        {
            test.record_answer(size);
            // The number of the next round is in the last byte of the message. This byte is beyond the peer's messages.
            let stored = region.memory.write(MAX_MESSAGE, &[round.wrapping_add(1)]);
            stored.map_err(|_| VerbsError::Invalid)?;
            let from = region.memory.slice(MAX_MESSAGE + 1 - size as usize, size as usize);
            self.write_back(from, None, ctx.provider)?;
            handled += 1;
        }
        self.write_latency = Some((test, arrivals));
        Ok(handled)
    }

    /// When [`Endpoint::poll`] is due without a completion.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let echo = self.delayed_echo.map(|(since, length)| since + echo_delay(length));
        let Some((test, arrivals)) = &self.write_latency else { return echo };
        let search = (self.must_poll_memory && test.has_begun()).then(|| arrivals.next_search());
        Instant::first([echo, test.poll_timeout(), search])
    }

    /// Whether another send can be posted.
    pub fn has_room(&self) -> bool {
        self.outstanding < SENDS
    }

    /// Sends that have completed.
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

    /// Posts a send request of `length` bytes.
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
