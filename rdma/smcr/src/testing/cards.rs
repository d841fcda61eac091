//! Device of a test host: software RoCE over all its ports, or one card per port with its own protection domain, keys
//! and queue pairs. RoCE checks that a key of one card is not used at the other.

use core::net::IpAddr;
use core::ops::{Deref, DerefMut};
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use roce::Roce;
use std::collections::HashMap;
use verbs::*;

/// Kind of a host's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One device with receive buffers on demand.
    OneDevice,
    /// Cards without receive buffers on demand.
    Cards,
    /// Cards, the first of which has receive buffers on demand.
    CardsOnDemand,
}

/// The device.
#[derive(Debug)]
pub struct Cards {
    roce: Roce,
    kind: Kind,
    /// Address of the second card.
    second: IpAddr,
    /// Protection domains of the second card, by those of the first.
    beside: HashMap<u32, PdId>,
    /// Number of registrations before one fails.
    pub refuse: Option<usize>,
    /// Current registrations.
    pub regions: usize,
}

impl Cards {
    pub fn new(roce: Roce, kind: Kind, second: IpAddr) -> Self {
        Cards { roce, kind, second, beside: HashMap::new(), refuse: None, regions: 0 }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl Deref for Cards {
    type Target = Roce;
    fn deref(&self) -> &Roce {
        &self.roce
    }
}

impl DerefMut for Cards {
    fn deref_mut(&mut self) -> &mut Roce {
        &mut self.roce
    }
}

/// Forwards verbs to RoCE.
macro_rules! of_roce {
    (
        $of:ident
        reads { $(fn $r:ident($($ra:ident: $rt:ty),*) -> $rr:ty;)* }
        does { $(fn $d:ident($($da:ident: $dt:ty),*) -> $dr:ty;)* }
    ) => {
        $(fn $r(&self, $($ra: $rt),*) -> $rr {
            $of::$r(&self.roce, $($ra),*)
        })*
        $(fn $d(&mut self, $($da: $dt),*) -> $dr {
            $of::$d(&mut self.roce, $($da),*)
        })*
    };
}

type Done<T> = Result<T, VerbsError>;

impl MemoryVerbs for Cards {
    fn alloc_pd(&mut self) -> Done<PdId> {
        let pd = self.roce.alloc_pd()?;
        if self.kind != Kind::OneDevice {
            let beside = self.roce.alloc_pd()?;
            self.beside.insert(pd.0, beside);
        }
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Done<()> {
        if let Some(beside) = self.beside.remove(&pd.0) {
            self.roce.dealloc_pd(beside)?;
        }
        self.roce.dealloc_pd(pd)
    }

    fn pd_on(&self, pd: PdId, local: IpAddr) -> PdId {
        let beside = self.beside.get(&pd.0).filter(|_| local == self.second);
        beside.copied().unwrap_or(pd)
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Done<Region> {
        if let Some(left) = self.refuse {
            self.refuse = left.checked_sub(1);
            if left == 0 {
                return Err(VerbsError::NoRoom);
            }
        }
        let region = self.roce.register(pd, memory, access, rng)?;
        self.regions += 1;
        Ok(region)
    }

    fn deregister(&mut self, region: MrId) -> Done<()> {
        self.roce.deregister(region)?;
        self.regions -= 1;
        Ok(())
    }

    of_roce! {
        MemoryVerbs
        reads {}
        does {
            fn rotate_key(region: MrId, rng: &mut dyn Rng) -> Done<u32>;
            fn remap(region: MrId, memory: Window, rng: &mut dyn Rng) -> Done<Region>;
            fn revoke_key(region: MrId) -> Done<()>;
            fn register_chunks(pd: PdId, count: u16, size: u32, memory: Option<Window>, rng: &mut dyn Rng) -> Done<ChunkedRegion>;
            fn chunk_key(region: MrId, chunk: u16) -> Done<u32>;
            fn rotate_chunk_key(region: MrId, chunk: u16, request: KeyRequest, rng: &mut dyn Rng) -> Done<KeyChange<u32>>;
        }
    }
}

impl RegionsOnDemand for Cards {
    fn register_on_demand(&mut self, pd: PdId, length: usize, rng: &mut dyn Rng) -> Done<Region> {
        match self.kind {
            Kind::Cards => Err(VerbsError::Invalid),
            Kind::OneDevice | Kind::CardsOnDemand => {
                let region = self.roce.register_on_demand(pd, length, rng)?;
                self.regions += 1;
                Ok(region)
            }
        }
    }

    of_roce! {
        RegionsOnDemand
        reads {
            fn odp_pool(length: usize) -> usize;
            fn on_demand_memory(region: MrId) -> Option<(Window, u64)>;
        }
        does {
            fn add_to_odp_pool(memory: Window) -> ();
            fn take_on_demand_memory(region: MrId) -> Option<Window>;
        }
    }
}

impl Provider for Cards {
    of_roce! {
        Provider
        reads {
            fn attributes() -> DeviceAttributes;
            fn qp_number(qp: QpId) -> Done<u32>;
            fn qp_state(qp: QpId) -> Done<QpState>;
            fn path_mtu_to(local: IpAddr, remote: IpAddr, now: Instant) -> PathMtu;
            fn failed_by_itself(qp: QpId) -> bool;
            fn poll_timeout() -> Option<Instant>;
        }
        does {
            fn create_cq(depth: u32) -> Done<CqId>;
            fn destroy_cq(cq: CqId) -> Done<()>;
            fn poll_cq(cq: CqId) -> Option<Completion>;
            fn watch_cq(cq: CqId, number: u32) -> ();
            fn next_watched() -> Option<u32>;
            fn create_qp(init: &QpInit, rng: &mut dyn Rng) -> Done<QpId>;
            fn ready_to_receive(qp: QpId, peer: &ReadyToReceive) -> Done<()>;
            fn ready_to_send(qp: QpId, to: &ReadyToSend) -> Done<()>;
            fn fail_qp(qp: QpId) -> Done<()>;
            fn destroy_qp(qp: QpId) -> Done<()>;
            fn post_send(qp: QpId, request: &SendRequest<'_>) -> Done<()>;
            fn post_recv(qp: QpId, request: &RecvRequest<'_>) -> Done<()>;
            fn post_announced(qp: QpId, write: &SendRequest<'_>, send: &SendRequest<'_>) -> Done<()>;
            fn repost_recv(qp: QpId, id: u64) -> bool;
            fn post_empty_recvs(qp: QpId, id: u64, count: u32) -> Done<()>;
            fn coalesce_acks(qp: QpId) -> ();
            fn writes_precede_send(qp: QpId) -> ();
            fn poll_event() -> Option<AsyncEvent>;
            fn handle_timeout(now: Instant) -> ();
        }
    }
}
