//! Authentication of queues by DH-HMAC-CHAP ([`nvme_auth`]): the commands Authentication Send and Receive, the work of
//! key exchanges, and the ends of those that fail. A locked queue takes no other command.

use crate::command::{Command, Outcome};
use crate::controller::{Of, Proof};
use crate::fabrics::answered;
use crate::keys::{Demands, Keys};
use crate::queue::{QueueId, Role};
use crate::request::State;
use crate::sources::Sources;
use crate::status::Status;
use crate::target::{Context, Target};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::hosts::accountable;
use net::refusal::Refusal;
use nvme_auth::{Answer, Channel, Outcome as AuthOutcome, Pending, Policy, Sequence, TargetKeys};

/// Largest message: Linux fetches into 4 KiB, and the largest group's Reply has 1,168 bytes.
pub(crate) const LONGEST_MESSAGE: u32 = 8192;
/// Bits of Connect's result: authentication is required, and a secure channel on top.
const ATR: u64 = 1 << 17;
const ASCR: u64 = 1 << 18;
/// Security protocol and its specific fields.
const PROTOCOL: u8 = 0xe9;
const SPECIFIC: u8 = 1;
/// Begin of a Negotiate.
const NEGOTIATE: &[u8] = &[0, 0];
/// Authentications that have begun and are not complete, and those of a host. Each has about 4 KiB.
const PENDING: usize = 256;
const PENDING_PER_HOST: usize = 32;
/// Multiplications of long numbers in a round: about 60 µs with ffdhe3072, and 0.5 ms with ffdhe8192.
const MULTIPLICATIONS: u32 = 16;
/// Most TLS handshakes in a round that verify a PSK. Each computes one key exchange.
const HANDSHAKES: u32 = 2;
/// How long a queue may take from its Connect to its authentication.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a host to close a queue after its authentication has failed. Linux waits for its command's completion for
/// 60 s if the connection is closed before.
const CLOSE_DELAY: Duration = Duration::from_secs(3);

/// Counters of authentications and of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecurityCounts {
    /// Queues that were authenticated, also again.
    pub authenticated: u64,
    /// Authentications that failed.
    pub failed: u64,
    /// TLS handshakes with a known key.
    pub handshakes: u64,
    /// TLS handshakes and connections that failed.
    pub handshakes_failed: u64,
    /// Authentications that have begun and are not complete.
    pub pending: u64,
}

/// The target's part of authentication and TLS.
#[derive(Debug)]
pub(crate) struct Security {
    pub keys: Keys,
    pub sources: Sources,
    pub counts: SecurityCounts,
    /// Queues whose TLS handshake waits for its turn.
    pub handshaking: VecDeque<QueueId>,
    /// Handshakes that may be continued in this round.
    pub handshakes: u32,
    pending: Pending,
    /// Drawn with the first authentication.
    sequence: Option<Sequence>,
    /// Queues with work, in turn.
    working: VecDeque<QueueId>,
}

impl Default for Security {
    fn default() -> Security {
        Security {
            keys: Keys::default(),
            sources: Sources::default(),
            counts: SecurityCounts::default(),
            handshaking: VecDeque::new(),
            handshakes: HANDSHAKES,
            pending: Pending::new(PENDING, PENDING_PER_HOST),
            sequence: None,
            working: VecDeque::new(),
        }
    }
}

impl Security {
    /// Whether the next round has something to do.
    pub fn has_work(&self) -> bool {
        !self.working.is_empty() || !self.handshaking.is_empty()
    }
}

/// A queue's authentication.
#[derive(Debug)]
pub(crate) struct Auth {
    engine: nvme_auth::Target,
    host: String,
    subsystem: String,
    /// The queue is in clear and may not be used so: it only makes a TLS key.
    only_concatenates: bool,
    /// Slot of an Authentication Receive that waits for a key exchange.
    fetching: Option<u16>,
    /// It is one of `pending`.
    is_counted: bool,
    /// It is on the list of queues with work.
    is_working: bool,
    /// When the queue was connected.
    pub since: Instant,
    /// When the connection is closed.
    closes: Option<Instant>,
}

/// Key of an address in `pending`.
fn key_of(host: IpAddr) -> u64 {
    match accountable(host) {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    }
}

/// The length that an Authentication Send or Receive states, if its fields are those of NVMe's authentication.
fn stated_length(command: &Command, length: u32) -> Option<usize> {
    let protocol = [command.byte(41), command.byte(42), command.byte(43)];
    let stated = command.u32(44);
    (protocol == [SPECIFIC, SPECIFIC, PROTOCOL] && stated == length && stated > 0)
        .then_some(stated as usize)
}

impl Target {
    /// Sets up authentication of a queue that was connected. Returns the bits for Connect's result.
    pub(crate) fn demand(&mut self, id: QueueId, host: &str, subsystem: &str, now: Instant) -> u64 {
        let Some(Of::Subsystem(index)) =
            self.controller_of(id).and_then(|of| self.controllers.get(of).map(|one| one.of))
        else {
            return 0;
        };
        let channel = self.channel_of(id);
        let Some(config) = self.subsystems.get(index).map(|one| &one.config) else { return 0 };
        // It was admitted.
        let Ok(demands) = self.security.keys.demands(config, host, channel) else { return 0 };
        let Some(queue) = self.queue(id) else { return 0 };
        let is_admin = matches!(queue.role, Role::Admin { .. });
        if is_admin
            && let Some(of) = self.controller_of(id)
            && let Some(controller) = self.controllers.get_mut(of)
        {
            controller.proof = Proof { channel, both_ways: None };
            controller.demands = Some(demands);
        }
        let Demands { authenticates, policy } = demands;
        if !authenticates && channel != Channel::Generated {
            return 0;
        }
        let engine = nvme_auth::Target::new(host, subsystem, is_admin, channel, policy);
        let Some(queue) = self.queue(id) else { return 0 };
        queue.is_locked = authenticates;
        queue.auth = Some(Box::new(Auth {
            engine,
            host: host.into(),
            subsystem: subsystem.into(),
            only_concatenates: policy == Policy::Required,
            fetching: None,
            is_counted: false,
            is_working: false,
            since: now,
            closes: None,
        }));
        match (authenticates, policy) {
            (false, _) => 0,
            (true, Policy::Required) => ATR | ASCR,
            (true, _) => ATR,
        }
    }

    /// Executes Authentication Send.
    pub(crate) fn auth_send(
        &mut self,
        id: QueueId,
        slot: u16,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        let Some(queue) = self.queue(id) else { return };
        let (host, window) = (queue.ends.host, queue.request_mut(slot).window());
        let mut message = alloc::vec![0; window.len()];
        let valid = stated_length(command, window.len() as u32).is_some()
            && window.read(0, &mut message).is_ok();
        if !valid {
            return self.finish(id, slot, Status::INVALID_FIELD.into());
        }
        if message.starts_with(NEGOTIATE)
            && let Err(reason) = self.begin_authentication(id, host, ctx.now)
        {
            self.refuse_authentication(id, reason, crate::fabrics::remedy(reason));
            return self.finish(id, slot, Status::INTERRUPTED.into());
        }
        let Target { queues, security, .. } = self;
        let found = queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id);
        let Some(auth) = found.and_then(|queue| queue.auth.as_mut()) else { return };
        let Security { keys, sequence, .. } = security;
        let secrets = keys.of(&auth.host).and_then(|of| Some((of.dhchap.as_ref()?, of)));
        let Some((secret, of)) = secrets else {
            // The operator has removed it meanwhile.
            self.finish(id, slot, Status::AUTH_REFUSED.into());
            return self.end_queue(id);
        };
        let sequence = sequence.get_or_insert_with(|| Sequence::new(&mut *ctx.random));
        let secrets = TargetKeys { host: secret, controller: of.controller.as_ref() };
        let (config, random) = (&keys.config, &mut *ctx.random);
        let taken = auth.engine.receive(&message, secrets, config, sequence, random, ctx.now);
        let status = if taken { Status::SUCCESS } else { Status::SEQUENCE };
        self.finish(id, slot, status.into());
        self.settle_authentication(id, ctx.now);
    }

    /// Counts an authentication that begins. A label of the reason if it has to wait.
    fn begin_authentication(
        &mut self,
        id: QueueId,
        host: IpAddr,
        now: Instant,
    ) -> Result<(), &'static str> {
        let Target { queues, security, .. } = self;
        let found = queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id);
        let Some(auth) = found.and_then(|queue| queue.auth.as_mut()) else { return Ok(()) };
        security.sources.admit(host, now)?;
        if !auth.is_counted {
            if !security.pending.begin(key_of(host)) {
                return Err("authentications");
            }
            auth.is_counted = true;
        }
        Ok(())
    }

    /// Executes Authentication Receive.
    pub(crate) fn auth_receive(&mut self, id: QueueId, slot: u16, command: &Command, now: Instant) {
        let Some(queue) = self.queue(id) else { return };
        let window = queue.request_mut(slot).window();
        let Some(auth) = queue.auth.as_mut() else { return };
        if stated_length(command, window.len() as u32).is_none() {
            return self.finish(id, slot, Status::INVALID_FIELD.into());
        }
        if auth.engine.wants_work() {
            if auth.fetching.is_some() {
                return self.finish(id, slot, Status::SEQUENCE.into());
            }
            auth.fetching = Some(slot);
            queue.request_mut(slot).enter(State::Computing);
            return;
        }
        self.hand_out(id, slot);
        self.settle_authentication(id, now);
    }

    /// Completes Authentication Receive with a message for the host, if there is one.
    fn hand_out(&mut self, id: QueueId, slot: u16) {
        let Some(queue) = self.queue(id) else { return };
        let window = queue.request_mut(slot).window();
        let Some(auth) = queue.auth.as_mut() else { return };
        match auth.engine.fetch(window.len()) {
            Answer::Message(message) => {
                window.fill(0);
                // It fits.
                let _ = window.write(0, &message);
                self.finish_with(id, slot, window);
            }
            Answer::TooShort(_) => self.finish(id, slot, Status::INVALID_FIELD.into()),
            Answer::Busy | Answer::OutOfOrder => self.finish(id, slot, Status::SEQUENCE.into()),
        }
    }

    /// Acts on what a queue's authentication has led to.
    fn settle_authentication(&mut self, id: QueueId, now: Instant) {
        let Target { queues, security, .. } = self;
        let found = queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id);
        let Some(queue) = found else { return };
        let Some(auth) = queue.auth.as_mut() else { return };
        // Before Success1 is handed out: the next connection may use it at once.
        if let Some(key) = auth.engine.take_generated() {
            security.keys.keep(key, &auth.host, now);
        }
        let works = auth.engine.wants_work();
        if works && !core::mem::replace(&mut auth.is_working, true) {
            security.working.push_back(id);
        }
        let fetching = if works { None } else { auth.fetching.take() };
        if let Some(slot) = fetching {
            self.hand_out(id, slot);
        }
        self.conclude_authentication(id, now);
        self.follow(id, now);
    }

    /// Unlocks a queue whose authentication has succeeded, and locks one whose has failed. It has succeeded when the
    /// last message is handed out.
    fn conclude_authentication(&mut self, id: QueueId, now: Instant) {
        let Target { queues, security, .. } = self;
        let found = queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id);
        let Some(queue) = found else { return };
        let (host, role) = (queue.ends.host, queue.role);
        let Some(auth) = queue.auth.as_mut() else { return };
        match auth.engine.take_outcome() {
            Some(AuthOutcome::Authenticated { mutually }) => {
                security.counts.authenticated += 1;
                queue.is_locked = auth.only_concatenates;
                if let Role::Admin { controller } = role
                    && let Some(controller) = self.controllers.get_mut(controller)
                {
                    controller.proof.both_ways = Some(mutually);
                }
            }
            Some(AuthOutcome::Failed { why, .. }) => {
                security.counts.failed += 1;
                security.sources.failed(host, now);
                queue.is_locked = true;
                self.refuse_authentication(id, "dhchap_failed", why);
            }
            // A queue that was authenticated before remains so; another one ends by its own deadline.
            Some(AuthOutcome::Slow) | None => {}
        }
    }

    /// Ends the count of an authentication that is complete, and sets the end of a queue that has failed.
    fn follow(&mut self, id: QueueId, now: Instant) {
        let Target { queues, security, .. } = self;
        let found = queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id);
        let Some(queue) = found else { return };
        let Some(auth) = queue.auth.as_mut() else { return };
        if !auth.engine.is_pending() && core::mem::take(&mut auth.is_counted) {
            security.pending.end(key_of(queue.ends.host));
        }
        if auth.engine.has_failed() && auth.closes.is_none() {
            auth.closes = Some(now + CLOSE_DELAY);
        }
    }

    /// Records a refusal of a queue's authentication.
    fn refuse_authentication(&mut self, id: QueueId, reason: &'static str, why: &'static str) {
        let Some(queue) = self.queue(id) else { return };
        let who = Some(queue.ends.host);
        let Some(auth) = queue.auth.as_ref() else { return };
        let asked = alloc::format!("{} for {}", auth.subsystem, auth.host);
        self.refusals.push(Refusal { who, what: "nvme", asked, reason, advice: why.into() });
    }

    /// Performs a share of key exchanges, and gives TLS handshakes their turn. Returns the amount of work.
    pub(crate) fn poll_security(&mut self, now: Instant) -> usize {
        self.security.handshakes = HANDSHAKES;
        let mut done = 0;
        for _ in 0..HANDSHAKES {
            let Some(id) = self.security.handshaking.pop_front() else { break };
            if let Some(queue) = self.queue(id) {
                queue.awaits_turn = false;
            }
            self.list(id);
            done += 1;
        }
        let Some(id) = self.security.working.pop_front() else { return done };
        let Some(auth) = self.queue(id).and_then(|queue| queue.auth.as_mut()) else {
            return done + 1;
        };
        if auth.engine.work(MULTIPLICATIONS) {
            self.security.working.push_back(id);
            return done + 1;
        }
        auth.is_working = false;
        self.settle_authentication(id, now);
        done + 1
    }

    /// Enforces deadlines of authentications. Runs once a second.
    pub(crate) fn check_authentications(&mut self, now: Instant) {
        let with_auth = self.queues.iter().filter(|(_, one)| one.auth.is_some() && !one.is_ending);
        let all: Vec<QueueId> = with_auth.map(|(_, queue)| queue.id).collect();
        for id in all {
            let Some(queue) = self.queue(id) else { continue };
            let (is_locked, role) = (queue.is_locked, queue.role);
            let Some(auth) = queue.auth.as_mut() else { continue };
            auth.engine.poll(now);
            let is_late = is_locked && auth.closes.is_none() && auth.since + TIMEOUT <= now;
            let is_over = auth.closes.is_some_and(|at| at <= now);
            self.settle_authentication(id, now);
            if is_late {
                let why = crate::fabrics::remedy("dhchap_slow");
                self.refuse_authentication(id, "dhchap_slow", why);
            }
            if is_late || is_over {
                match role {
                    Role::Admin { controller } => self.end_controller(controller),
                    _ => self.end_queue(id),
                }
            }
        }
    }

    /// Forgets the authentication of a queue that has ended.
    pub(crate) fn forget_authentication(&mut self, id: QueueId) {
        let Some(queue) = self.queue(id) else { return };
        let key = key_of(queue.ends.host);
        if queue.auth.take().is_some_and(|auth| auth.is_counted) {
            self.security.pending.end(key);
        }
    }

    /// Replaces the secrets of all hosts, and the preferences of DH-HMAC-CHAP. Connections stay, also those of hosts
    /// whose secret is another one, but not those that prove less than is demanded now.
    pub fn set_keys(&mut self, hosts: Vec<crate::HostKeys>, config: nvme_auth::TargetConfig) {
        if self.security.keys.set(hosts, config) {
            self.end_unproven();
            // It says who needs TLS.
            self.discovery_changed();
        }
    }

    /// Ends controllers whose hosts have proven less than is demanded of them.
    pub(crate) fn end_unproven(&mut self) {
        let mut ends = Vec::new();
        for (index, one) in self.controllers.iter_mut().filter(|(_, one)| !one.is_ending) {
            let Of::Subsystem(of) = one.of else { continue };
            let Some(subsystem) = self.subsystems.get(of) else { continue };
            let (config, nqn) = (&subsystem.config, &one.host.nqn);
            let demands = self.security.keys.demands(config, nqn, one.proof.channel).ok();
            let is_proven = match demands {
                None => false,
                Some(now) if one.demands == Some(now) => true,
                Some(now) => {
                    (!now.authenticates || one.proof.both_ways.is_some())
                        && now.policy != Policy::Required
                }
            };
            match is_proven {
                true => one.demands = demands,
                false => ends.push((index, one.host.clone(), config.nqn.clone())),
            }
        }
        for (index, host, nqn) in ends {
            self.refusals.push(Refusal {
                who: Some(host.address),
                what: "nvme",
                asked: alloc::format!("{nqn} for {}", host.nqn),
                reason: "proof_demanded",
                advice: "the configuration demands more of the host than it has proven; it is disconnected, and connects \
                         again with its secret"
                    .into(),
            });
            self.end_controller(index);
        }
    }

    /// Counters of authentications and of TLS.
    pub fn security_counts(&self) -> SecurityCounts {
        SecurityCounts { pending: self.security.pending.count() as u64, ..self.security.counts }
    }

    /// How a host proves its name to a subsystem; a label of the reason if it cannot.
    pub fn proof_of(&self, subsystem: &str, host: &str) -> Result<&'static str, &'static str> {
        let found = self.subsystems.iter().find(|(_, one)| one.config.nqn == subsystem);
        let Some((_, one)) = found else { return Err("no_such_subsystem") };
        let keys = &self.security.keys;
        let over = |channel| keys.demands(&one.config, host, channel);
        Ok(match (over(Channel::Clear), over(Channel::Tls)) {
            (Err(reason), Err(_)) => return Err(reason),
            (
                Ok(Demands { policy: Policy::Required, .. }) | Err(_),
                Ok(Demands { authenticates, .. }),
            ) => {
                if authenticates {
                    "TLS and DH-HMAC-CHAP"
                } else {
                    "TLS"
                }
            }
            (Ok(Demands { policy: Policy::Required, .. }), Err(_)) => "DH-HMAC-CHAP and then TLS",
            (Ok(Demands { authenticates: true, .. }), Err(_)) => "DH-HMAC-CHAP",
            (Ok(Demands { authenticates: true, .. }), Ok(_)) => "DH-HMAC-CHAP or TLS",
            (Ok(_), Ok(_)) => "TLS",
            (Ok(_), Err(_)) => "nothing",
        })
    }

    /// Refuses a Connect, with the reason for the operator and the status of the answer.
    pub(crate) fn refuse_connect(
        &mut self,
        address: IpAddr,
        (subsystem, host): (&str, &str),
        reason: &'static str,
        outcome: Outcome,
    ) -> Outcome {
        let (remedy, answer) = (crate::fabrics::remedy(reason), answered(outcome.status));
        self.refusals.push(Refusal {
            who: Some(address),
            what: "nvme",
            asked: alloc::format!("{subsystem} for {host}"),
            reason,
            advice: alloc::format!("{remedy} ({answer})").into(),
        });
        outcome
    }
}
