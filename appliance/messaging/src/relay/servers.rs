//! Chooses and dials the server of a connection, and tries another one if it does not answer.

use super::pipe::Side;
use super::proxy::{self, MAX_HEADER};
use super::rule::Notice;
use super::streams::Backs;
use super::{MAX_NOTICES, Place, Relay, World, messages};
use crate::names::Target;
use crate::transport::{Over, Reason, Transport};
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use net::refusal::Refusal;
use smcr::SmcDevice;

/// Address in the PROXY header of a client whose connection has ended.
const UNKNOWN_CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Relay {
    /// Starts to connect to a server that was not tried yet.
    pub(super) fn dial<P: SmcDevice + ?Sized>(&mut self, key: usize, world: &mut World<'_, '_, P>) {
        loop {
            let Some(backend) = self.balance.choose(self.relayed[key].tried) else {
                self.refuse(key, "no_server", self.no_server(), world);
                return self.end_for(key, true, Reason::NoServer, world);
            };
            let relayed = &mut self.relayed[key];
            relayed.tried |= 1 << backend;
            relayed.backend = backend;
            relayed.tcp_only = false;
            if self.connect(key, world) {
                return;
            }
            self.balance.left(backend);
            self.backend_failed(backend);
        }
    }

    /// Advice for a client that was refused because no server answers.
    #[cold]
    fn no_server(&self) -> String {
        let backends = self.balance.backends();
        if backends.is_empty() {
            return "no name in rule.N.backend has an address at present: see `show dns`".into();
        }
        let first = backends.first().map(|one| one.address.to_string()).unwrap_or_default();
        let which = match backends.len() {
            0 | 1 => first,
            count => format!("{first} and {} more", count - 1),
        };
        format!(
            "no server of the rule answers ({which}): start one, or correct rule.N.backend; `show smc rules` lists them"
        )
    }

    /// Counts and records the refusal of a client.
    #[cold]
    pub(super) fn refuse<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        reason: &'static str,
        advice: impl Into<Cow<'static, str>>,
        world: &mut World<'_, '_, P>,
    ) {
        self.counters.refused += 1;
        let who = match self.relayed[key].front {
            Place::Stream((at, id)) => self.fronts[at].ends(id).map(|(_, remote)| remote.ip()),
            Place::Message(_) => None,
        };
        self.note_refused(who, reason, advice.into(), world);
    }

    /// Records the refusal of a connection to this rule.
    pub(super) fn note_refused<P: SmcDevice + ?Sized>(
        &self,
        who: Option<IpAddr>,
        reason: &'static str,
        advice: Cow<'static, str>,
        world: &mut World<'_, '_, P>,
    ) {
        let asked = format!("rule {}", self.rule.name);
        let refusal = Refusal { who, what: "connection", asked, reason, advice };
        world.engine.admission.refusals.push(refusal);
    }

    /// Starts to connect to the server of a connection. False if there is no route or no room.
    pub(super) fn connect<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        world: &mut World<'_, '_, P>,
    ) -> bool {
        let (relayed, now) = (&mut self.relayed[key], world.ctx.now);
        let Some(backend) = self.balance.backends().get(relayed.backend) else { return false };
        let place = match &backend.address {
            Target::Socket(address) => {
                let doubts = || world.engine.doubts(address.ip(), now);
                let smc = self.rule.smc && !relayed.tcp_only && !doubts();
                let connectors = &mut self.backs;
                let mut backs = Backs { connectors, at: 0, smc, world: &mut *world };
                backs.connect(address).map(Place::Stream)
            }
            // The caller has replaced names by addresses.
            Target::Name(..) => return false,
            Target::Message(name) => {
                let wanted = messages::server(&self.rule, name, self.first_owner);
                world.messages.connect(&wanted).map(Place::Message)
            }
        };
        let Some(place) = place else { return false };
        relayed.back = Some(place);
        relayed.since = now;
        self.by_back.insert(place, key);
        self.timers.put(key, now + self.rule.connect_timeout);
        true
    }

    /// Dials the server again over TCP alone: its SMC-R handshake has failed.
    pub(super) fn dial_over_tcp<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        world: &mut World<'_, '_, P>,
    ) {
        let relayed = &mut self.relayed[key];
        if let Some(place) = relayed.back.take() {
            self.by_back.remove(&place);
        }
        if core::mem::replace(&mut relayed.tcp_only, true) || !self.connect(key, world) {
            let backend = self.relayed[key].backend;
            self.balance.left(backend);
            self.backend_failed(backend);
            self.dial(key, world);
        }
    }

    /// Dials another server, because this one does not answer.
    pub(super) fn dial_another<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        world: &mut World<'_, '_, P>,
    ) {
        let relayed = &mut self.relayed[key];
        let backend = relayed.backend;
        if let Some(place) = relayed.back.take() {
            self.by_back.remove(&place);
            self.hang_up(Side::Backend, place, true, world);
            self.balance.left(backend);
            self.backend_failed(backend);
        }
        self.dial(key, world);
    }

    pub(super) fn backend_failed(&mut self, backend: usize) {
        if self.balance.failed(backend) {
            self.notify_backend(backend, false);
        }
    }

    pub(super) fn notify_backend(&mut self, backend: usize, up: bool) {
        let backend = self.balance.backends()[backend].address.clone();
        self.push_notice(Notice::Backend { backend, up });
    }

    pub(super) fn push_notice(&mut self, notice: Notice) {
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Opens a connection whose server is reached.
    pub(super) fn reached<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        over: Over,
        world: &mut World<'_, '_, P>,
    ) {
        self.counters.smc_servers += u64::from(over == Over::Smc);
        let relayed = &mut self.relayed[key];
        relayed.open = true;
        relayed.since = world.ctx.now;
        let (backend, front, back) = (relayed.backend, relayed.front, relayed.back);
        if self.balance.answered(backend, true) {
            self.notify_backend(backend, true);
        }
        self.relayed[key].patience = self.patience(&self.relayed[key], world);
        if let Some(idle) = self.relayed[key].patience {
            self.timers.put(key, world.ctx.now + idle);
        }
        if !self.begin_conversation(key, world) {
            return;
        }
        if let (true, Place::Stream(front), Some(Place::Stream((at, id)))) =
            (self.rule.proxy, front, back)
        {
            let mut header = [0; MAX_HEADER];
            let ends = self.fronts[front.0].ends(front.1);
            let (local, remote) = ends.unwrap_or((UNKNOWN_CLIENT, UNKNOWN_CLIENT));
            let length = proxy::header(remote, local, &mut header);
            let header = &header[..length];
            let World { interfaces, engine, ctx, .. } = world;
            // The first write fits, because the buffer is empty and larger.
            let written = self.backs[at].write(id, header, interfaces.get(at), engine, ctx);
            if written != Ok(header.len()) {
                return self.end(key, true, world);
            }
        }
        self.queue(key);
    }
}
