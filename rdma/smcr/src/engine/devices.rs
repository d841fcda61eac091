//! Registrations of receive buffers at several devices. The links of a group may use two cards, each of which has its
//! own key and address for a buffer. A peer gets the key and address that belong to each link.

use super::table::Socket;
use super::{Ctx, Engine};
use crate::SmcDevice;
use crate::wire::llc::Token;
use verbs::{Access, PdId, Region};

/// Registration of a receive buffer at a device other than that of the connection's first link.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecondaryRegion {
    pub pd: PdId,
    pub region: Region,
}

impl Socket {
    /// The registration of the receive buffer in a protection domain.
    pub(super) fn rmb_on(&self, pd: PdId) -> Option<Region> {
        let first = self.rmb.filter(|_| self.rmb_pd == pd);
        let found = || self.secondary_regions.iter().find(|one| one.pd == pd);
        first.or_else(|| found().map(|one| one.region))
    }

    /// All keys of the receive buffer, with the protection domains of the devices.
    pub(super) fn rmb_keys(&self) -> impl Iterator<Item = (PdId, u32)> + '_ {
        let first = self.rmb.iter().map(|region| (self.rmb_pd, region.rkey));
        first.chain(self.secondary_regions.iter().map(|one| (one.pd, one.region.rkey)))
    }
}

impl Engine {
    /// Registers the receive buffers of a group at the device of its link `new`, if that is not the device of link
    /// `at`. Returns false on failure.
    pub(super) fn register_further<P: SmcDevice + ?Sized>(
        &mut self,
        group: usize,
        at: usize,
        new: usize,
        ctx: &mut Ctx<'_, P>,
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

    /// Registers the receive buffer of a socket at the devices of all links of its group. Returns false on failure.
    pub(super) fn register_on_links<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        group: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let links = self.groups.get(group).map(|group| &group.links);
        let pds = links.into_iter().flatten().flatten().map(|link| link.pd);
        let own = self.sockets.get(key).map(|socket| socket.rmb_pd);
        let others: alloc::vec::Vec<PdId> = pds.filter(|pd| Some(*pd) != own).collect();
        others.into_iter().all(|pd| self.register_one_further(key, pd, ctx))
    }

    /// Registers the receive buffer of a socket in a domain. Rotates the key if it is registered there already, because
    /// the device may have lost all keys meanwhile.
    fn register_one_further<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        pd: PdId,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Some(socket) = self.sockets.get_mut(key) else { return true };
        let Some(rmb) = &mut socket.rmb else { return true };
        let found = socket.secondary_regions.iter_mut().find(|one| one.pd == pd);
        let region = match found {
            _ if socket.rmb_pd == pd => rmb,
            Some(one) => &mut one.region,
            None => {
                // Memory on demand exists at one device only.
                if rmb.memory.is_empty() || ctx.provider.on_demand_memory(rmb.id).is_some() {
                    return false;
                }
                let made = ctx.provider.register(pd, rmb.memory, Access::REMOTE_WRITE, ctx.rng);
                let Ok(region) = made else { return false };
                socket.secondary_regions.push(SecondaryRegion { pd, region });
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

    /// The protection domain of a link's device.
    pub(super) fn pd_of(&self, group: usize, link: usize) -> Option<PdId> {
        Some(self.groups.get(group)?.links.get(link)?.as_ref()?.pd)
    }

    /// Key and address of a socket's receive buffer on a link of its group.
    pub(super) fn token_on(&self, key: usize, group: usize, link: usize) -> Option<Token> {
        // Only sockets of this group: a peer must not get the key of another host's buffer.
        let socket = self.sockets.get(key).filter(|socket| socket.group == Some(group))?;
        let region = socket.rmb_on(self.pd_of(group, link)?)?;
        Some(Token { rkey: region.rkey, address: region.address })
    }
}
