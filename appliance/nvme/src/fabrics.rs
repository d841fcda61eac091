//! Fabrics commands: Connect, and the properties of a controller. They are valid before the controller is enabled.

use crate::command::{Command, Outcome, fabrics};
use crate::controller::{Change, Controller, Host, Of};
use crate::discovery::DISCOVERY_NQN;
use crate::queue::{QueueId, Role};
use crate::request::State;
use crate::status::Status;
use crate::subsystem::is_nqn;
use crate::target::{Context, Target};
use alloc::string::String;
use core::net::IpAddr;
use core::time::Duration;
use net::hosts::accountable;
use nvme_auth::Channel;

/// Bytes of a Connect's data.
const CONNECT_DATA: usize = 1024;
/// Offsets in it.
const HOST_ID: usize = 0;
const CNTLID: usize = 16;
const SUBNQN: usize = 256;
const HOSTNQN: usize = 512;
/// Connect: the host wants no flow control of the submission queue.
const NO_FLOW_CONTROL: u8 = 1 << 2;
/// Any controller.
const ANY: u16 = u16::MAX;
/// Smallest number of entries of a queue.
const LEAST_ENTRIES: u16 = 2;
/// Longest keep alive timeout.
const LONGEST_KATO: Duration = Duration::from_secs(3600);

/// Version 1.4.
pub const VERSION: u32 = 0x0001_0400;
/// Property offsets.
const CAP: u32 = 0x00;
const VS: u32 = 0x08;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;

/// A parameter of a Connect that is invalid: its offset, in the entry or in the data.
#[derive(Clone, Copy, Debug)]
struct Parameter {
    offset: u16,
    in_data: bool,
}

impl Parameter {
    const fn entry(offset: u16) -> Parameter {
        Parameter { offset, in_data: false }
    }

    const fn data(offset: usize) -> Parameter {
        Parameter { offset: offset as u16, in_data: true }
    }

    fn outcome(self) -> Outcome {
        let result = u64::from(self.offset) | u64::from(self.in_data) << 16;
        Outcome { result, status: Status::CONNECT_PARAMETER }
    }
}

/// The fields of a Connect.
struct Connect {
    qid: u16,
    /// Entries.
    entries: u16,
    no_flow_control: bool,
    kato: Duration,
    host_id: [u8; 16],
    cntlid: u16,
    subnqn: String,
    hostnqn: String,
}

/// Reason and remedy of a refusal, for the operator, by its label.
pub fn remedy(reason: &str) -> &'static str {
    match reason {
        "no_such_subsystem" => "no [[subsystem]] has that `nqn`; `nvme list` shows all",
        "no_hosts" => "the [[subsystem]] has no `hosts`, so it admits none; add the host's NQN",
        "host_not_admitted" => "`hosts` of the [[subsystem]] does not have the host's NQN; add it",
        "other_address" => {
            "the host's admin queue came from another address: its I/O queues have to come from the same"
        }
        "dhchap_no_secret" => {
            "the [[subsystem]] demands DH-HMAC-CHAP of all hosts, and no [[nvme_host]] has a `dhchap_secret` for this one"
        }
        "dhchap_slow" => {
            "the host connected and did not authenticate for 30 s; it needs its secret (`nvme connect --dhchap-secret`)"
        }
        "authentications" => {
            "too many authentications have begun and are not complete; the host tries again"
        }
        "slowed" => {
            "the host's address failed to authenticate several times, and has to wait; correct its secret"
        }
        "too_often" => "the host's address begins too many authentications; it has to wait",
        "tls_required" => {
            "the host has to use TLS: `nvme connect --tls`, and a `tls_psk` in its [[nvme_host]] and its keyring"
        }
        "tls_key_removed" => "the host's [[nvme_host]] has no `tls_psk` any more",
        "tls_key" => {
            "no [[nvme_host]] has that `nqn` and that `tls_psk`, or no [[subsystem]] that `nqn`; compare the keys"
        }
        "tls_identity" => {
            "the host's Connect has other names than its TLS identity; it has to use one connection for each subsystem"
        }
        "tls_not_configured" => "the host wants TLS, and no [[nvme_host]] has a `tls_psk`",
        "other_channel" => {
            "the host's I/O queue does not use TLS as its admin queue does; both have to use the same"
        }
        "connect_data" => {
            "the data of the host's Connect is not that of a Connect; the host is defective"
        }
        "invalid_nqn" => "the host's Connect has a name that is no NQN; correct it on the host",
        "queue_size" => {
            "the host wants a queue of fewer than 2 or more than 128 entries; `nvme connect --queue-size=128`"
        }
        "static_controller" => "the host asks for a certain controller; it has to ask for any",
        "discovery_per_host" => "the host has its most discovery controllers; it disconnects some",
        "discovery" => "a quarter of all places is in use for discovery; hosts disconnect some",
        "queues_per_host" => {
            "the host has its most queues; `nvme connect --nr-io-queues` for fewer"
        }
        "controllers" => {
            "all identifiers from `cntlid_min` to `cntlid_max` are in use; widen the range"
        }
        "memory" => "there is no memory for another queue",
        "no_such_controller" => {
            "the host's controller is gone; the host connects again, beginning with its admin queue"
        }
        "other_host" => {
            "the controller is that of another host NQN or host identifier; two hosts must not have the same"
        }
        "not_enabled" => {
            "the host connects an I/O queue before it has enabled its controller; it is defective"
        }
        "queue_id" => "the host connects more I/O queues than it was granted; it is defective",
        "queue_in_use" => {
            "the host has connected this queue; it is tried again when the old connection is gone"
        }
        _ => "`networks` of the [[subsystem]] does not have the host's address; add its network",
    }
}

/// A name in the data of a Connect, as far as it can be shown.
fn shown(field: &[u8]) -> String {
    let name = field.iter().take_while(|byte| **byte != 0).take(60);
    let name = name.map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' });
    name.collect()
}

/// A status of an answer, for the operator.
pub(crate) fn answered(status: Status) -> String {
    let retry = if status.is_final() { "do not retry" } else { "retry" };
    alloc::format!("the host was answered status {:#x}, {retry}", status.0 & 0x7ff)
}

/// Whether a type of fabrics commands is supported.
pub fn is_supported(fctype: u8) -> bool {
    use fabrics::*;
    matches!(fctype, PROPERTY_SET | PROPERTY_GET | CONNECT | DISCONNECT)
}

impl Target {
    /// Executes a fabrics command.
    pub(crate) fn execute_fabrics(
        &mut self,
        id: QueueId,
        slot: u16,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        let Some(role) = self.queue(id).map(|queue| queue.role) else { return };
        match (command.fctype(), role) {
            (fabrics::CONNECT, Role::Fresh) => self.connect(id, slot, command, ctx),
            (fabrics::CONNECT, _) | (_, Role::Fresh) => {
                self.finish(id, slot, Status::SEQUENCE.into());
            }
            (fabrics::PROPERTY_GET, Role::Admin { controller }) => {
                let outcome = self.get_property(controller, command);
                self.finish(id, slot, outcome);
            }
            (fabrics::PROPERTY_SET, Role::Admin { controller }) => {
                self.set_property(id, slot, controller, command);
            }
            (fabrics::DISCONNECT, Role::Io { .. }) => {
                self.finish(id, slot, Outcome::SUCCESS);
                self.end_queue(id);
            }
            (fabrics::AUTH_SEND, _) => self.auth_send(id, slot, command, ctx),
            (fabrics::AUTH_RECEIVE, _) => self.auth_receive(id, slot, command, ctx.now),
            _ => self.finish(id, slot, Status::INVALID_OPCODE.into()),
        }
    }

    fn connect(&mut self, id: QueueId, slot: u16, command: &Command, ctx: &mut Context<'_>) {
        let connect = match self.parse_connect(id, slot, command) {
            Ok(connect) => connect,
            Err(outcome) => {
                self.finish(id, slot, outcome);
                return self.end_queue(id);
            }
        };
        let result = match (self.check_names(id, &connect), connect.qid) {
            (Err(outcome), _) => Err(outcome),
            (_, 0) => self.connect_admin(id, slot, &connect, ctx),
            _ => self.connect_io(id, slot, &connect, ctx),
        };
        match result {
            // It waits for an older controller.
            Ok(None) => {}
            Ok(Some(cntlid)) => {
                let demand = self.demand(id, &connect.hostnqn, &connect.subnqn, ctx.now);
                let Some(queue) = self.queue(id) else { return };
                queue.qid = connect.qid;
                queue.no_flow_control = connect.no_flow_control;
                queue.sq_head = 1;
                queue.complete(command.cid(), Outcome::with(u64::from(cntlid) | demand));
                self.list(id);
            }
            Err(outcome) => {
                self.finish(id, slot, outcome);
                self.end_queue(id);
            }
        }
    }

    /// Checks the names of a Connect against those that the host has proven by TLS.
    fn check_names(&mut self, id: QueueId, connect: &Connect) -> Result<(), Outcome> {
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        let (address, tls) = (queue.ends.host, queue.tls.as_ref());
        let field = match tls {
            Some(tls) if tls.host != connect.hostnqn => HOSTNQN,
            Some(tls) if tls.subsystem != connect.subnqn => SUBNQN,
            _ => return Ok(()),
        };
        let outcome = Parameter::data(field).outcome();
        let names = (connect.subnqn.as_str(), connect.hostnqn.as_str());
        Err(self.refuse_connect(address, names, "tls_identity", outcome))
    }

    fn parse_connect(
        &mut self,
        id: QueueId,
        slot: u16,
        command: &Command,
    ) -> Result<Connect, Outcome> {
        let max_entries = self.settings.entries;
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        let mut data = [0; CONNECT_DATA];
        let ends = queue.ends;
        let is_short = queue.request_mut(slot).window().read(0, &mut data).is_err();
        let names = [SUBNQN, HOSTNQN].map(|at| shown(data.get(at..at + 256).unwrap_or_default()));
        let mut refuse = |reason, outcome| {
            let names = (names[0].as_str(), names[1].as_str());
            Err(self.refuse_connect(ends.host, names, reason, outcome))
        };
        if is_short {
            return refuse("connect_data", Status::SGL_LENGTH.into());
        }
        if command.u16(40) != 0 {
            return refuse("connect_data", Status::CONNECT_FORMAT.into());
        }
        let (qid, size) = (command.u16(42), command.u16(44));
        // 0's based.
        let entries = size.saturating_add(1);
        // An admin queue of SPDK's and of Linux' has 32 entries, and no queue fewer than 2.
        if !(LEAST_ENTRIES..=max_entries).contains(&entries) {
            return refuse("queue_size", Parameter::entry(44).outcome());
        }
        let nqn = |offset: usize| {
            let field = data.get(offset..offset + 256)?;
            let end = field.iter().position(|&byte| byte == 0)?;
            core::str::from_utf8(field.get(..end)?).ok().filter(|text| is_nqn(text))
        };
        let (subnqn, hostnqn) = match (nqn(SUBNQN), nqn(HOSTNQN)) {
            (Some(subnqn), Some(hostnqn)) => (subnqn, hostnqn),
            (None, _) => return refuse("invalid_nqn", Parameter::data(SUBNQN).outcome()),
            (_, None) => return refuse("invalid_nqn", Parameter::data(HOSTNQN).outcome()),
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&data[HOST_ID..HOST_ID + 16]);
        let kato = Duration::from_millis(command.u32(48).into()).min(LONGEST_KATO);
        Ok(Connect {
            qid,
            entries,
            no_flow_control: command.byte(46) & NO_FLOW_CONTROL != 0,
            kato,
            host_id,
            cntlid: u16::from_le_bytes([data[CNTLID], data[CNTLID + 1]]),
            subnqn: subnqn.into(),
            hostnqn: hostnqn.into(),
        })
    }

    /// Connects an admin queue. Returns the controller's identifier; None if the Connect has to wait.
    fn connect_admin(
        &mut self,
        id: QueueId,
        slot: u16,
        connect: &Connect,
        ctx: &mut Context<'_>,
    ) -> Result<Option<u16>, Outcome> {
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        let ends = queue.ends;
        if connect.cntlid != ANY {
            let outcome = Parameter::data(CNTLID).outcome();
            return Err(self.deny(connect, ends.host, "static_controller", outcome));
        }
        let busy = Outcome::from(Status::CONNECT_BUSY);
        let of = match connect.subnqn == DISCOVERY_NQN {
            true => match self.has_most_discovery(ends.host, &connect.hostnqn) {
                Some(reason) => return Err(self.deny(connect, ends.host, reason, busy)),
                None => Of::Discovery,
            },
            false => Of::Subsystem(self.admit(id, connect, ends.host)?),
        };
        if self.has_ending(of, connect) {
            if let Some(queue) = self.queue(id)
                && queue.request_mut(slot).state != State::Held
            {
                queue.request_mut(slot).enter(State::Held);
            }
            self.held.push((id, slot));
            return Ok(None);
        }
        let is_listed = self.lists(of, &connect.hostnqn, ends.host);
        if is_listed && of != Of::Discovery && self.has_most_queues(&connect.hostnqn) {
            return Err(self.deny(connect, ends.host, "queues_per_host", busy));
        }
        let Some(cntlid) = self.free_cntlid(of) else {
            return Err(self.deny(connect, ends.host, "controllers", busy));
        };
        let memory = self.memory_of(true);
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        queue.release_memory(slot);
        if !queue.allocate(connect.entries, memory, ctx.arena) {
            return Err(self.deny(connect, ends.host, "memory", busy));
        }
        queue.release(slot);
        let host = Host { nqn: connect.hostnqn.clone(), id: connect.host_id, address: ends.host };
        let mut controller = Controller::new(of, cntlid, host, id, connect.kato, ctx.now);
        controller.is_listed = is_listed;
        let index = self.controllers.insert(controller);
        if let Some(queue) = self.queue(id) {
            queue.role = Role::Admin { controller: index };
        }
        Ok(Some(cntlid))
    }

    /// Records a refused Connect.
    fn deny(
        &mut self,
        connect: &Connect,
        address: IpAddr,
        reason: &'static str,
        outcome: Outcome,
    ) -> Outcome {
        let names = (connect.subnqn.as_str(), connect.hostnqn.as_str());
        self.refuse_connect(address, names, reason, outcome)
    }

    /// The subsystem that a host asks for, if it may use it.
    fn admit(&mut self, id: QueueId, connect: &Connect, address: IpAddr) -> Result<usize, Outcome> {
        let channel = self.channel_of(id);
        let found = self.subsystems.iter().find(|(_, one)| one.config.nqn == connect.subnqn);
        let admitted = match found {
            None => Err("no_such_subsystem"),
            Some((index, one)) => one
                .admits(&connect.hostnqn, address)
                .and_then(|()| self.security.keys.demands(&one.config, &connect.hostnqn, channel))
                .map(|_| index),
        };
        admitted.map_err(|reason| {
            let outcome = match reason {
                "no_such_subsystem" => Parameter::data(SUBNQN).outcome(),
                "tls_required" => Status::AUTH_REFUSED.into(),
                _ => Parameter::data(HOSTNQN).outcome(),
            };
            let names = (connect.subnqn.as_str(), connect.hostnqn.as_str());
            self.refuse_connect(address, names, reason, outcome)
        })
    }

    /// Whether a volume still has requests of an older controller of the same host and subsystem. The subsystem may have
    /// been removed and configured again meanwhile.
    fn has_ending(&self, of: Of, connect: &Connect) -> bool {
        let is_removed = |of: Of| match of {
            Of::Discovery => false,
            Of::Subsystem(index) => {
                self.subsystems.get(index).is_none_or(|one| one.config.nqn.is_empty())
            }
        };
        self.queues.iter().any(|(_, queue)| {
            let (Role::Admin { controller } | Role::Io { controller }) = queue.role else {
                return false;
            };
            let controller = self.controllers.get(controller);
            // What it has not in a volume is not executed any more.
            queue.is_ending
                && queue.in_volumes > 0
                && controller.is_some_and(|one| {
                    (one.of == of || is_removed(one.of))
                        && one.host.id == connect.host_id
                        && one.host.nqn == connect.hostnqn
                })
        })
    }

    /// The next identifier for a controller that none has.
    fn free_cntlid(&mut self, of: Of) -> Option<u16> {
        let used = |cntlid: u16| {
            self.controllers.iter().any(|(_, one)| one.of == of && one.cntlid == cntlid)
        };
        let (least, most, next) = match of {
            Of::Discovery => (1, crate::subsystem::MAX_CNTLID, self.next_discovery),
            Of::Subsystem(index) => {
                let one = self.subsystems.get(index)?;
                (one.config.cntlids.0, one.config.cntlids.1, one.next_cntlid)
            }
        };
        let next = next.clamp(least, most);
        let found = (next..=most).chain(least..next).find(|&cntlid| !used(cntlid))?;
        let after = if found >= most { least } else { found + 1 };
        match of {
            Of::Discovery => self.next_discovery = after,
            Of::Subsystem(index) => self.subsystems.get_mut(index)?.next_cntlid = after,
        }
        Some(found)
    }

    /// Connects an I/O queue to the controller that the host names.
    fn connect_io(
        &mut self,
        id: QueueId,
        slot: u16,
        connect: &Connect,
        ctx: &mut Context<'_>,
    ) -> Result<Option<u16>, Outcome> {
        let Some(address) = self.queue(id).map(|queue| queue.ends.host) else {
            return Err(Status::INTERNAL.into());
        };
        let channel = self.channel_of(id);
        let of_host = |one: &Controller| {
            let nqn = match one.of {
                Of::Discovery => return false,
                Of::Subsystem(index) => self.subsystems.get(index).map(|it| &it.config.nqn),
            };
            one.cntlid == connect.cntlid && nqn == Some(&connect.subnqn) && !one.is_ending
        };
        let found = self.controllers.iter().find(|(_, one)| of_host(one));
        let refused = match found {
            None => Some(("no_such_controller", Parameter::data(CNTLID).outcome())),
            Some((_, one)) => self.refuses_io(one, connect, address, channel),
        };
        let (index, is_listed) = match (found, refused) {
            (Some((index, one)), None) => (index, one.is_listed),
            (_, Some((reason, outcome))) => {
                return Err(self.deny(connect, address, reason, outcome));
            }
            (None, None) => return Err(Status::INTERNAL.into()),
        };
        let busy = Outcome::from(Status::CONNECT_BUSY);
        if is_listed && self.has_most_queues(&connect.hostnqn) {
            return Err(self.deny(connect, address, "queues_per_host", busy));
        }
        let place = usize::from(connect.qid) - 1;
        let old = self.controllers.get(index).and_then(|one| one.io.get(place).copied().flatten());
        if let Some(old) = old {
            // The end of an old connection is waited for, and of one whose host did not authenticate: it may be another.
            let goes = self.queue(old).is_none_or(|queue| queue.is_ending || queue.is_locked);
            let outcome = if goes { busy } else { Status::CONNECT_IN_USE.into() };
            return Err(self.deny(connect, address, "queue_in_use", outcome));
        }
        let memory = self.memory_of(false);
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        queue.release_memory(slot);
        if !queue.allocate(connect.entries, memory, ctx.arena) {
            return Err(self.deny(connect, address, "memory", busy));
        }
        let Some(queue) = self.queue(id) else { return Err(Status::INTERNAL.into()) };
        queue.release(slot);
        queue.role = Role::Io { controller: index };
        let one = self.controllers.get_mut(index).ok_or(Outcome::from(Status::INTERNAL))?;
        if one.io.len() <= place {
            one.io.resize(place + 1, None);
        }
        one.io[place] = Some(id);
        Ok(Some(connect.cntlid))
    }

    /// Why a controller does not take an I/O queue, and the answer.
    fn refuses_io(
        &self,
        one: &Controller,
        connect: &Connect,
        address: IpAddr,
        channel: Channel,
    ) -> Option<(&'static str, Outcome)> {
        if one.host.nqn != connect.hostnqn {
            return Some(("other_host", Parameter::data(HOSTNQN).outcome()));
        }
        if one.host.id != connect.host_id {
            return Some(("other_host", Parameter::data(HOST_ID).outcome()));
        }
        if accountable(one.host.address) != accountable(address) {
            return Some(("other_address", Parameter::data(CNTLID).outcome()));
        }
        if !one.is_ready() {
            return Some(("not_enabled", Status::SEQUENCE.into()));
        }
        if one.proof.channel != channel {
            return Some(("other_channel", Status::AUTH_REFUSED.into()));
        }
        let is_beyond = connect.qid > self.settings.io_queues;
        is_beyond.then(|| ("queue_id", Parameter::entry(42).outcome()))
    }

    fn get_property(&self, controller: usize, command: &Command) -> Outcome {
        let Some(one) = self.controllers.get(controller) else { return Status::INTERNAL.into() };
        let is_wide = command.byte(40) & 7 == 1;
        match (command.u32(44), is_wide) {
            (CAP, true) => Outcome::with(self.capabilities()),
            (VS, false) => Outcome::with(VERSION.into()),
            (CC, false) => Outcome::with(one.cc.into()),
            (CSTS, false) => Outcome::with(one.status().into()),
            _ => Status::INVALID_FIELD.into(),
        }
    }

    /// CAP: entries 0's based, contiguous queues (as fabrics has to say), 15 s to become ready, the NVM command set.
    fn capabilities(&self) -> u64 {
        let entries = u64::from(self.settings.entries - 1);
        entries | 1 << 16 | 30 << 24 | 1 << 37
    }

    fn set_property(&mut self, id: QueueId, slot: u16, controller: usize, command: &Command) {
        if command.byte(40) & 7 != 0 || command.u32(44) != CC {
            return self.finish(id, slot, Status::INVALID_FIELD.into());
        }
        let Some(one) = self.controllers.get_mut(controller) else { return };
        let change = one.configure(command.u32(48));
        self.finish(id, slot, Outcome::SUCCESS);
        match change {
            Change::Nothing | Change::Enabled => {}
            Change::ShutDown => self.drop_event_requests(controller),
            Change::Reset => {
                self.drop_event_requests(controller);
                let Some(one) = self.controllers.get_mut(controller) else { return };
                let queues: alloc::vec::Vec<QueueId> = one.io.iter().flatten().copied().collect();
                queues.into_iter().for_each(|queue| self.end_queue(queue));
            }
        }
    }
}
