//! Memory and queue pairs of a session, with which its tool measures.

use super::endpoint::{Endpoint, RemoteEnd};
use super::gid;
use alloc::format;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::Neighbours;
use net::Resolution;
use net::refusal::Refusal;
use verbs::{Access, Ctx, PathMtu, PdId, Provider, Region, VerbsError};

/// Queue pairs of a session (`--qp`).
const MAX_ENDPOINTS: usize = 16;

/// The session ends: the peer violates the protocol, or requests a feature that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl From<VerbsError> for Refused {
    fn from(_: VerbsError) -> Self {
        Refused
    }
}

/// Result of one step of a control protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many bytes were consumed; another step may be possible.
    Took(usize),
    /// The step needs more input, a resolved neighbour, or a timeout.
    Wait,
}

/// The peer's queue pair, from the tool's control message.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub qpn: u32,
    pub psn: u32,
    pub gid: [u8; 16],
    pub path_mtu: PathMtu,
}

/// Memory and queue pairs of a session.
#[derive(Debug)]
pub struct Bench {
    pub pd: PdId,
    pub region: Region,
    pub endpoints: Vec<Endpoint>,
    /// The peer's address on the control connection.
    pub peer: IpAddr,
    /// The local address on the control connection.
    pub local: IpAddr,
    /// The peer will connect queue pairs through the connection manager.
    pub expects_connections: bool,
    /// The peer connects its queue pairs through the connection manager.
    pub managed: bool,
    /// Why the session ends, if the operator should know.
    pub refusal: Option<Refusal>,
}

impl Bench {
    /// Allocates a protection domain, and registers `length` bytes of memory.
    #[inline(never)]
    pub fn new<P: Provider + ?Sized>(
        length: usize,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, VerbsError> {
        let memory = ctx.arena.alloc(length, 4096).ok_or(VerbsError::NoRoom)?;
        // The peer must not read data that an earlier user left there.
        memory.fill(0);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let pd = ctx.provider.alloc_pd();
        let registered = pd.and_then(|pd| {
            let local_pd = ctx.provider.pd_on(pd, local);
            let region = ctx.provider.register(local_pd, memory, access, ctx.rng);
            region.map(|region| (pd, region)).inspect_err(|_| {
                let _ = ctx.provider.dealloc_pd(pd);
            })
        });
        let (pd, region) = registered.inspect_err(|_| ctx.arena.free(memory))?;
        let endpoints = Vec::with_capacity(MAX_ENDPOINTS);
        Ok(Bench {
            pd,
            region,
            endpoints,
            peer,
            local,
            expects_connections: false,
            managed: false,
            refusal: None,
        })
    }

    /// Creates an endpoint in state Init.
    pub fn add<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<&mut Endpoint, VerbsError> {
        if self.endpoints.len() >= MAX_ENDPOINTS {
            return Err(VerbsError::NoRoom);
        }
        let pd = ctx.provider.pd_on(self.pd, self.local);
        let endpoint = Endpoint::new(ctx.provider, pd, self.region.memory, ctx.rng)?;
        Ok(self.endpoints.push_mut(endpoint))
    }

    /// Creates an endpoint and connects it to the peer's queue pair; returns it with the local address. None while the
    /// neighbour is being resolved.
    pub fn connect<P: Provider + ?Sized>(
        &mut self,
        peer: &Peer,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Option<(IpAddr, &mut Endpoint)>, Refused> {
        let ip = gid::address(peer.gid);
        let local = neighbours.address_towards(ip, self.local).ok_or(Refused)?;
        let mac = match neighbours.resolve(ip, ctx.now) {
            Resolution::Known(mac) => mac,
            Resolution::Pending => return Ok(None),
            Resolution::Unreachable | Resolution::NoRoute => return Err(Refused),
        };
        match self.is_of_peer(ip, mac, ctx.now, neighbours) {
            Some(true) => {}
            None => return Ok(None),
            Some(false) => return Err(self.refuse_address(ip)),
        }
        let (qpn, psn, path_mtu) = (peer.qpn, peer.psn, peer.path_mtu);
        let endpoint = self.add(ctx)?;
        endpoint.connect(ctx.provider, &RemoteEnd { qpn, psn, ip, local, mac, path_mtu })?;
        Ok(Some((local, endpoint)))
    }

    /// Whether `ip`, whose next hop is at `mac`, is an address of the peer of the control connection: that of the
    /// connection, or another one at the same station. None while the peer is being resolved.
    fn is_of_peer(
        &self,
        ip: IpAddr,
        mac: [u8; 6],
        now: Instant,
        neighbours: &mut dyn Neighbours,
    ) -> Option<bool> {
        if ip == self.peer {
            return Some(true);
        }
        // Behind a router all hosts have its MAC address.
        if !neighbours.is_direct(ip) || !neighbours.is_direct(self.peer) {
            return Some(false);
        }
        match neighbours.resolve(self.peer, now) {
            Resolution::Known(own) => Some(own == mac),
            Resolution::Pending => None,
            Resolution::Unreachable | Resolution::NoRoute => Some(false),
        }
    }

    /// A client must not direct packets to a host other than itself.
    #[cold]
    fn refuse_address(&mut self, ip: IpAddr) -> Refused {
        let advice = format!(
            "the tool's GID is {ip}, which is neither the address of its TCP connection nor one of the same MAC address: let \
             the client use a GID of the card over which it reaches this appliance (perftest `-x`, ibv_rc_pingpong `-g`)"
        );
        self.refusal = Some(Refusal {
            who: Some(self.peer),
            what: "measurement",
            asked: format!("GID {ip}"),
            reason: "gid_of_another_host",
            advice: advice.into(),
        });
        Refused
    }

    /// Handles completions and returns how many. An error ends a queue pair.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<usize, VerbsError> {
        let mut handled = 0;
        for endpoint in &mut self.endpoints {
            handled += endpoint.poll(&self.region, ctx)?;
        }
        Ok(handled)
    }

    /// Frees all resources.
    #[inline(never)]
    pub fn give_back<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        for endpoint in self.endpoints.drain(..) {
            endpoint.destroy(ctx.provider);
        }
        // Cannot fail: all queue pairs are destroyed.
        let _ = ctx.provider.deregister(self.region.id);
        let _ = ctx.provider.dealloc_pd(self.pd);
        ctx.arena.free(self.region.memory);
    }
}
