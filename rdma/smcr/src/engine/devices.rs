//! Receive buffers at several devices. The links of a group may be over two cards, each of which has a key of its own for a
//! buffer, and its own address: peers are told the ones of the link that they are to use them on.

use super::table::Socket;
use super::{Engine, EngineContext};
use crate::wire::llc::Token;
use verbs::{Access, PdId, Provider, Region};

/// A receive buffer as another device has it than that of the link which its connection began on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    pub pd: PdId,
    pub region: Region,
}

impl Socket {
    /// The receive buffer as the device of a domain has it.
    pub(super) fn rmb_on(&self, pd: PdId) -> Option<Region> {
        let first = self.rmb.filter(|_| self.rmb_pd == pd);
        let found = || self.elsewhere.iter().find(|one| one.pd == pd);
        first.or_else(|| found().map(|one| one.region))
    }

    /// All keys of its receive buffer, with the domains of the devices.
    pub(super) fn rmb_keys(&self) -> impl Iterator<Item = (PdId, u32)> + '_ {
        let first = self.rmb.iter().map(|region| (self.rmb_pd, region.rkey));
        first.chain(self.elsewhere.iter().map(|one| (one.pd, one.region.rkey)))
    }
}

impl Engine {
    /// Registers the receive buffers of a group at the device of its link `new`, if that of `at` is another one. False if
    /// that cannot be done.
    pub(super) fn register_further<P: Provider + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        new: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        match [at, new].map(|link| self.pd_of(group, link)) {
            [Some(here), Some(there)] if here == there => true,
            [Some(_), Some(there)] => {
                let members = self.members(group);
                members.into_iter().all(|key| self.register_one_further(key, there, ctx))
            }
            _ => false,
        }
    }

    /// Registers the receive buffer of a socket at the devices of all links of its group. False if that cannot be done.
    pub(super) fn register_on_links<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        group: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let links = self.groups.get(group).map(|group| &group.links);
        let pds = links.into_iter().flatten().flatten().map(|link| link.pd);
        let own = self.sockets.get(key).map(|socket| socket.rmb_pd);
        let others: alloc::vec::Vec<PdId> = pds.filter(|pd| Some(*pd) != own).collect();
        others.into_iter().all(|pd| self.register_one_further(key, pd, ctx))
    }

    /// With a fresh key, if the device has it already: it may have lost all keys meanwhile.
    fn register_one_further<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        pd: PdId,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let Some(socket) = self.sockets.get_mut(key) else { return true };
        let Some(rmb) = &mut socket.rmb else { return true };
        let found = socket.elsewhere.iter_mut().find(|one| one.pd == pd);
        let region = match found {
            _ if socket.rmb_pd == pd => rmb,
            Some(one) => &mut one.region,
            None => {
                // What has memory only when it is written to has it at one device.
                if rmb.memory.is_empty() || ctx.provider.on_demand_memory(rmb.id).is_some() {
                    return false;
                }
                let made = ctx.provider.register(pd, rmb.memory, Access::REMOTE_WRITE, ctx.rng);
                let Ok(region) = made else { return false };
                socket.elsewhere.push(Elsewhere { pd, region });
                return true;
            }
        };
        match ctx.provider.rotate_key(region.id, ctx.rng) {
            Ok(rkey) => {
                region.rkey = rkey;
                true
            }
            Err(_) => false,
        }
    }

    /// The domain of the device of a link.
    pub(super) fn pd_of(&self, group: usize, link: usize) -> Option<PdId> {
        Some(self.groups.get(group)?.links.get(link)?.as_ref()?.pd)
    }

    /// The receive buffer of a socket as peers name it on a link of its group.
    pub(super) fn token_on(&self, key: usize, group: usize, link: usize) -> Option<Token> {
        // Nobody is told of another host's buffer.
        let socket = self.sockets.get(key).filter(|socket| socket.group == Some(group))?;
        let region = socket.rmb_on(self.pd_of(group, link)?)?;
        Some(Token { rkey: region.rkey, address: region.address })
    }
}
