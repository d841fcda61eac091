//! Places: who may have how many queues and controllers.
//!
//! A connection is accounted to its host's address ([`accountable`]: an IPv6 host to its /64, because it may use all
//! addresses of it) until its Connect has succeeded and its authentication, if one is demanded. From then on it is
//! accounted to its host's NQN, if the subsystem lists that NQN: all hosts of a storage network may be in one /64.
//! Without a secret an NQN is a claim. A host that makes it can use the other's namespaces, and gets its share of
//! places, from any number of addresses. With `hosts = ["*"]` a host may invent its NQN, so its address counts.
//!
//! Discovery proves nothing, so a station could take the places of a host whose NQN it claims. A host that any
//! subsystem lists is accounted to its own address, all others to their /64, and a quarter of all places is the most
//! for discovery. Authentications are slowed by /64 in any case (`sources`).

use crate::controller::{Controller, Of};
use crate::queue::{Ends, Queue, QueueId, Role};
use crate::subsystem::{HostList, Subsystem};
use crate::target::{Context, Target};
use alloc::format;
use core::net::IpAddr;
use net::hosts::accountable;
use net::refusal::Refusal;
use nvme_tcp::target::Cause;

/// Who a queue or a controller is accounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account<'a> {
    /// As [`accountable`] has it.
    Address(IpAddr),
    /// This address alone.
    Exact(IpAddr),
    Nqn(&'a str),
}

impl Target {
    /// Opens a queue for a new connection. None if the host has too many, or there is no memory.
    pub fn open_queue(&mut self, ends: Ends, ctx: &mut Context<'_>) -> Option<QueueId> {
        let host = Account::Address(accountable(ends.host));
        let is_full = self.queues.len() >= self.settings.queues && !self.make_place(ctx.now);
        let of_host = || self.queues.iter().filter(|(_, one)| self.account(one) == host);
        let reason = if is_full {
            Some(("queues", "the target has its most queues"))
        } else if of_host().filter(|(_, one)| one.is_fresh()).count()
            >= self.settings.fresh_per_host
        {
            let advice = "the host has its most connections without a Connect";
            Some(("fresh_per_host", advice))
        } else if of_host().count() >= self.settings.queues_per_host {
            Some(("queues_per_host", "the host's address has its most queues"))
        } else {
            None
        };
        if let Some((reason, advice)) = reason {
            self.refuse(&ends, "queue", reason, advice);
            return None;
        }
        self.generation = self.generation.wrapping_add(1);
        let index = self.queues.vacant_key() as u16;
        let id = QueueId { index, generation: self.generation };
        let Some(queue) = Queue::new(id, ends, ctx.arena, ctx.now) else {
            self.refuse(&ends, "queue", "memory", "there is no memory for another queue");
            return None;
        };
        self.queues.insert(queue);
        self.check_soon(ctx.now);
        Some(id)
    }

    pub(crate) fn refuse(
        &mut self,
        ends: &Ends,
        asked: &str,
        reason: &'static str,
        advice: &'static str,
    ) {
        let who = Some(ends.host);
        self.refusals.push(Refusal {
            who,
            what: "nvme",
            asked: asked.into(),
            reason,
            advice: advice.into(),
        });
    }

    /// Records a connection for which there was no place.
    pub fn refuse_connection(&mut self, host: IpAddr, port: u16) {
        self.refusals.push(Refusal {
            who: Some(host),
            what: "nvme",
            asked: format!("a connection to port {port}"),
            reason: "connections",
            advice: "the interface has its most connections to this port".into(),
        });
    }

    /// Records the end of a connection by an invalid PDU, or by a report of the host that one of ours was.
    pub(crate) fn refuse_pdu(&mut self, id: QueueId, cause: Option<Cause>) {
        let Some(cause) = cause else { return };
        let of = self.controller_of(id).and_then(|index| self.controllers.get(index));
        let nqn = of.map_or("a host without a Connect", |one| one.host.nqn.as_str());
        let asked = format!("queue of {nqn}");
        let Some(ends) = self.queue(id).map(|queue| queue.ends) else { return };
        let (reason, advice) = match cause {
            Cause::Host(fatal) => (
                "invalid_pdu",
                format!(
                    "the host sent an invalid PDU (FES {}, {:#x}), and its connection was closed; it is \
                     defective, or does not speak NVMe/TCP",
                    fatal.status as u16, fatal.info
                ),
            ),
            Cause::Reported(status) => (
                "host_terminated",
                format!(
                    "the host reported an invalid PDU (FES {status}); report it with a capture"
                ),
            ),
        };
        let who = Some(ends.host);
        self.refusals.push(Refusal { who, what: "nvme", asked, reason, advice: advice.into() });
    }

    /// Who a queue is accounted to.
    fn account(&self, queue: &Queue) -> Account<'_> {
        let address = Account::Address(accountable(queue.ends.host));
        match queue.role {
            Role::Admin { controller } | Role::Io { controller } if !queue.is_locked => {
                self.controllers.get(controller).map_or(address, account_of)
            }
            _ => address,
        }
    }

    /// Whether a subsystem that the host may use, or for discovery any such, lists the host's NQN.
    pub(crate) fn lists(&self, of: Of, nqn: &str, address: IpAddr) -> bool {
        let lists = |one: &Subsystem| {
            let is_list = matches!(one.config.hosts, HostList::Listed(_));
            is_list && one.admits(nqn, address).is_ok()
        };
        match of {
            Of::Subsystem(index) => self.subsystems.get(index).is_some_and(lists),
            Of::Discovery => self.subsystems.iter().any(|(_, one)| lists(one)),
        }
    }

    /// Whether a listed host has its most queues. Of others the address was asked before.
    pub(crate) fn has_most_queues(&self, nqn: &str) -> bool {
        let of_host = |(_, queue): &(usize, &Queue)| self.account(queue) == Account::Nqn(nqn);
        self.queues.iter().filter(of_host).count() >= self.settings.queues_per_host
    }

    /// Why a host gets no further discovery controller.
    pub(crate) fn has_most_discovery(&self, host: IpAddr, nqn: &str) -> Option<&'static str> {
        let account = match self.lists(Of::Discovery, nqn, host) {
            true => Account::Exact(host),
            false => Account::Address(accountable(host)),
        };
        let all = || self.controllers.iter().filter(|(_, one)| one.of == Of::Discovery);
        let of_host = all().filter(|(_, one)| account_of(one) == account).count();
        if of_host >= self.settings.discovery_per_host {
            return Some("discovery_per_host");
        }
        (all().count() >= (self.settings.queues / 4).max(1)).then_some("discovery")
    }
}

fn account_of(controller: &Controller) -> Account<'_> {
    let address = controller.host.address;
    match (controller.is_listed, controller.of) {
        (true, Of::Subsystem(_)) => Account::Nqn(&controller.host.nqn),
        (true, Of::Discovery) => Account::Exact(address),
        (false, _) => Account::Address(accountable(address)),
    }
}
