//! A provider that wraps another one and replaces some verbs.

use core::net::{IpAddr, SocketAddr};
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use verbs::*;

/// A wrapper around a provider: verbs that it does not implement itself are the inner provider's. [`Over`] makes it an
/// [`RdmaDevice`].
#[derive(Debug)]
pub struct Over<T>(pub T);

/// Defines [`Overlay`] and the traits of a provider by lists of their methods.
macro_rules! overlay {
    ($($of:ident:
        reads { $(fn $r:ident($($ra:ident: $rt:ty),*) -> $rr:ty;)* }
        does { $(fn $d:ident($($da:ident: $dt:ty),*) -> $dr:ty;)* }
    )*) => {
        /// The verbs of a wrapper. By default they call the inner provider.
        #[allow(missing_docs, clippy::too_many_arguments)]
        pub trait Overlay {
            type Inner: RdmaDevice;
            fn inner(&self) -> &Self::Inner;
            fn inner_mut(&mut self) -> &mut Self::Inner;
            $(
                $(fn $r(&self, $($ra: $rt),*) -> $rr {
                    $of::$r(self.inner(), $($ra),*)
                })*
                $(fn $d(&mut self, $($da: $dt),*) -> $dr {
                    $of::$d(self.inner_mut(), $($da),*)
                })*
            )*
        }

        $(impl<T: Overlay> $of for Over<T> {
            $(fn $r(&self, $($ra: $rt),*) -> $rr {
                self.0.$r($($ra),*)
            })*
            $(fn $d(&mut self, $($da: $dt),*) -> $dr {
                self.0.$d($($da),*)
            })*
        })*
    };
}

overlay! {
    MemoryVerbs:
        reads {
            fn pd_on(pd: PdId, local: IpAddr) -> PdId;
        }
        does {
            fn alloc_pd() -> Result<PdId, VerbsError>;
            fn dealloc_pd(pd: PdId) -> Result<(), VerbsError>;
            fn register(pd: PdId, memory: Window, access: Access, rng: &mut dyn Rng) -> Result<Region, VerbsError>;
            fn rotate_key(region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError>;
            fn remap(region: MrId, memory: Window, rng: &mut dyn Rng) -> Result<Region, VerbsError>;
            fn revoke_key(region: MrId) -> Result<(), VerbsError>;
            fn revoke_key_by(region: MrId, request: KeyRequest) -> Result<KeyChange<()>, VerbsError>;
            fn deregister(region: MrId) -> Result<(), VerbsError>;
            fn register_chunks(pd: PdId, count: u16, size: u32, memory: Option<Window>, rng: &mut dyn Rng) -> Result<ChunkedRegion, VerbsError>;
            fn chunk_key(region: MrId, chunk: u16) -> Result<u32, VerbsError>;
            fn rotate_chunk_key(region: MrId, chunk: u16, request: KeyRequest, rng: &mut dyn Rng) -> Result<KeyChange<u32>, VerbsError>;
        }
    Provider:
        reads {
            fn attributes() -> DeviceAttributes;
            fn qp_number(qp: QpId) -> Result<u32, VerbsError>;
            fn qp_state(qp: QpId) -> Result<QpState, VerbsError>;
            fn failed_by_itself(qp: QpId) -> bool;
            fn requests_seen(qp: QpId) -> Option<u32>;
            fn under_way() -> UnderWay;
            fn is_done(under_way: &mut UnderWay) -> bool;
            fn poll_timeout() -> Option<Instant>;
        }
        does {
            fn create_cq(depth: u32) -> Result<CqId, VerbsError>;
            fn destroy_cq(cq: CqId) -> Result<(), VerbsError>;
            fn poll_cq(cq: CqId) -> Option<Completion>;
            fn watch_cq(cq: CqId, number: u32) -> ();
            fn next_watched() -> Option<u32>;
            fn create_qp(init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError>;
            fn ready_to_receive(qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError>;
            fn ready_to_send(qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError>;
            fn fail_qp(qp: QpId) -> Result<(), VerbsError>;
            fn destroy_qp(qp: QpId) -> Result<(), VerbsError>;
            fn post_send(qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError>;
            fn post_recv(qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError>;
            fn post_announced(qp: QpId, write: &SendRequest<'_>, send: &SendRequest<'_>) -> Result<(), VerbsError>;
            fn repost_recv(qp: QpId, id: u64) -> bool;
            fn post_empty_recvs(qp: QpId, id: u64, count: u32) -> Result<(), VerbsError>;
            fn coalesce_acks(qp: QpId) -> ();
            fn writes_precede_send(qp: QpId) -> ();
            fn poll_event() -> Option<AsyncEvent>;
            fn handle_timeout(now: Instant) -> ();
        }
    ConnectionManager:
        reads {
            fn peer_id(connection: ConnectionId) -> Option<u32>;
        }
        does {
            fn listen(port: u16) -> Result<(), VerbsError>;
            fn unlisten(port: u16) -> ();
            fn connect(qp: QpId, from: IpAddr, to: SocketAddr, parameters: &ConnectionParameters, private_data: &[u8], now: Instant, rng: &mut dyn Rng) -> Result<ConnectionId, VerbsError>;
            fn accept(connection: ConnectionId, qp: QpId, parameters: &ConnectionParameters, private_data: &[u8], now: Instant) -> Result<(), VerbsError>;
            fn reject(connection: ConnectionId, reason: RejectReason, private_data: &[u8]) -> Result<(), VerbsError>;
            fn disconnect(connection: ConnectionId, now: Instant) -> Result<(), VerbsError>;
            fn poll_connection_event() -> Option<ConnectionEvent>;
        }
}
