//! The steps of a controller: from Connect to the first request, descriptions that are read again, and the shutdown.

use super::{Answer, Life, News, Path, Random, SHUTDOWN, Shared, Step};
use crate::PAGE;
use crate::command::{self, CONNECT_DATA, log, property};
use crate::failure::Failure;
use crate::identify::{
    ANA_GROUP, ANA_HEADER, Access, Capabilities, Controller, Namespace, ana_groups, ana_state,
    only_namespace,
};
use crate::status::is_final;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;

/// Delay between two reads of the status property.
const POLL: Duration = Duration::from_millis(100);
/// Unit of the time that a controller takes to get ready.
const READY_UNIT: Duration = Duration::from_millis(500);
/// Most groups of an ANA log that are read.
const MOST_GROUPS: u16 = 1024;
/// Groups that are read at a time.
const GROUPS: u16 = ((PAGE - ANA_HEADER) / ANA_GROUP) as u16;

/// Status: ready, fatal error, and shutdown complete.
const RDY: u64 = 1;
const CFS: u64 = 1 << 1;
const SHUT: u64 = 2 << 2;
/// Configuration: normal shutdown.
const SHN: u32 = 1 << 14;

impl Path {
    /// Continues the present step, as far as that is possible now.
    pub fn advance(
        &mut self,
        shared: &Shared,
        random: Random<'_>,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        if self.is_down() {
            return Ok(None);
        }
        self.poll_watch(shared, now)?;
        if self.step != Step::Idle && self.step_ends <= now {
            return Err(match self.step {
                Step::Dial(queue) => {
                    let is_connected = self.queues.get(usize::from(queue));
                    let is_connected = is_connected.is_some_and(|one| one.connection.is_some());
                    if is_connected { Failure::Slow("ICReq") } else { Failure::Refused }
                }
                step => Failure::Slow(step.name()),
            });
        }
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
        match self.step {
            Step::Idle => return Ok(None),
            Step::Dial(queue) => {
                if self.queues.get(usize::from(queue)).is_some_and(|one| one.is_open()) {
                    self.begin(Step::Connect(queue), now);
                }
            }
            Step::Authenticate(queue) => return self.authenticate(queue, random, now),
            _ => {}
        }
        if let Some(answer) = self.answer.take() {
            return self.finish(shared, answer, random, now);
        }
        if !self.is_waiting && self.not_before.is_none() {
            self.start(shared);
        }
        Ok(None)
    }

    /// Sends the command of the step.
    fn start(&mut self, shared: &Shared) {
        let nsid = self.nsid(shared).unwrap_or(0);
        let (sqe, length) = match self.step {
            Step::Idle | Step::Dial(_) | Step::Authenticate(_) => return,
            Step::Connect(queue) => return self.send_connect(shared, queue),
            Step::Capabilities => (command::property_get(property::CAP, true), 0),
            Step::AwaitReady(_) | Step::AwaitShutdown => {
                (command::property_get(property::CSTS, false), 0)
            }
            Step::Enable => (command::property_set(property::CC, self.enable()), 0),
            Step::Shutdown => (command::property_set(property::CC, self.enable() | SHN), 0),
            Step::Queues => (command::set_queues(shared.settings.connections), 0),
            Step::Events => {
                let events = self.controller.map_or(0, |controller| controller.events);
                (command::set_events(events), 0)
            }
            Step::Identify => (command::identify(1, 0), PAGE),
            // Limits of the NVM command set.
            Step::Limits => (command::identify(6, 0), PAGE),
            // Namespaces above this number.
            Step::List => (command::identify(2, 0), PAGE),
            Step::Namespace => (command::identify(0, nsid), PAGE),
            Step::Names => (command::identify(3, nsid), PAGE),
            // Groups without their namespaces.
            Step::Ana(None) => (command::log_page(log::ANA, 1, 0, ANA_HEADER), ANA_HEADER),
            Step::Ana(Some((first, groups))) => {
                let (first, count) = (usize::from(first), usize::from(groups - first));
                let count = count.min(GROUPS.into());
                let offset = if first == 0 { 0 } else { (ANA_HEADER + first * ANA_GROUP) as u64 };
                let header = if first == 0 { ANA_HEADER } else { 0 };
                let length = header + count * ANA_GROUP;
                (command::log_page(log::ANA, 1, offset, length), length)
            }
            Step::Changed => (command::log_page(log::CHANGED, 0, 0, PAGE), PAGE),
        };
        self.page.fill(0);
        self.send(0, sqe, length, length > 0);
    }

    fn enable(&self) -> u32 {
        self.capabilities.map_or(0, |cap| cap.enable)
    }

    fn nsid(&self, shared: &Shared) -> Option<u32> {
        shared
            .settings
            .nsid
            .or(self.namespace.map(|it| it.nsid))
            .or(self.described.map(|it| it.nsid))
    }

    fn send_connect(&mut self, shared: &Shared, queue: u16) {
        let identity = &shared.identity;
        // Any controller.
        let cntlid = if queue == 0 { 0xffff } else { self.cntlid };
        let data =
            command::connect_data(&shared.host_id, cntlid, &identity.subsystem, &identity.host);
        let entries = self.entries_of(queue.into());
        let sqe = command::connect(queue, entries, shared.settings.keepalive);
        if self.page.write(0, &data).is_ok() {
            self.send(queue, sqe, CONNECT_DATA, false);
        }
    }

    /// The data of the step.
    fn data(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length.min(PAGE)];
        let _ = self.page.read(0, &mut bytes);
        bytes
    }

    /// Handles the completion of the step's command.
    fn finish(
        &mut self,
        shared: &Shared,
        answer: Answer,
        random: Random<'_>,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        let (status, step) = (answer.status(), self.step);
        // Controllers need not have limits, names of namespaces, events, or the log of changes.
        let is_optional = matches!(step, Step::Limits | Step::Names | Step::Events | Step::Changed);
        if status != 0 && !is_optional {
            return Err(Failure::Rejected(step.name(), status));
        }
        let result = answer.result();
        match step {
            Step::Idle | Step::Dial(_) | Step::Authenticate(_) => {}
            Step::Connect(queue) => {
                if queue == 0 {
                    self.cntlid = result as u16;
                }
                if self.needs_authentication(shared, queue, result)? {
                    self.begin_authentication(shared, queue, random, now)?;
                } else {
                    return Ok(self.after_connect(queue, now));
                }
            }
            Step::Capabilities => {
                self.capabilities = Some(Capabilities::parse(result)?);
                self.begin(Step::Enable, now);
            }
            Step::Enable => {
                let timeout = self.capabilities.map_or(0, |cap| cap.timeout);
                let end = now + READY_UNIT * u32::from(timeout).max(1);
                self.begin(Step::AwaitReady(end), now);
            }
            Step::AwaitReady(end) => self.await_ready(result, end, now)?,
            Step::Identify => {
                self.check_length(&answer, PAGE)?;
                let cap = self.capabilities.ok_or(Failure::Closed)?;
                let subsystem = &shared.identity.subsystem;
                let page = self.data(PAGE);
                self.controller = Some(Controller::parse(&page, &cap, self.cntlid, subsystem)?);
                self.begin(Step::Limits, now);
            }
            Step::Limits => {
                let page = self.data(PAGE);
                if let (0, Some(cap), Some(controller)) =
                    (status, self.capabilities, &mut self.controller)
                {
                    controller.limit(&page, &cap);
                }
                self.begin(Step::Queues, now);
            }
            Step::Queues => {
                let granted = (result as u16).min((result >> 16) as u16).saturating_add(1);
                self.granted = granted.min(shared.settings.connections);
                self.begin(Step::Events, now);
            }
            Step::Events => {
                if status != 0
                    && let Some(controller) = &mut self.controller
                {
                    controller.events = 0;
                }
                let is_known = self.nsid(shared).is_some();
                self.begin(if is_known { Step::Namespace } else { Step::List }, now);
            }
            _ => return self.finish_description(shared, &answer, now),
        }
        Ok(None)
    }

    /// Handles the completion of a command that is sent again later, or that ends the controller.
    fn finish_description(
        &mut self,
        shared: &Shared,
        answer: &Answer,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        match self.step {
            Step::List => {
                self.check_length(answer, PAGE)?;
                let nsid = only_namespace(&self.data(8))?;
                self.described = Some(Namespace::numbered(nsid));
                self.begin(Step::Namespace, now);
            }
            Step::Namespace => {
                self.check_length(answer, PAGE)?;
                let nsid = self.nsid(shared).ok_or(Failure::Closed)?;
                self.described = Some(Namespace::parse(&self.data(PAGE), nsid)?);
                self.begin(Step::Names, now);
            }
            Step::Names => return self.finish_names(answer.status(), now),
            Step::Ana(None) => {
                self.check_length(answer, ANA_HEADER)?;
                let groups = ana_groups(&self.data(ANA_HEADER)).min(MOST_GROUPS);
                return self.next_groups(0, groups, now);
            }
            Step::Ana(Some((first, groups))) => {
                return self.finish_groups(answer, first, groups, now);
            }
            Step::Changed => {
                self.pending.namespace = true;
                self.step = Step::Idle;
            }
            Step::Shutdown => self.begin(Step::AwaitShutdown, now),
            Step::AwaitShutdown => {
                if answer.result() & 0xc == SHUT {
                    self.step = Step::Idle;
                    return Ok(Some(News::ShutDown));
                }
                self.not_before = Some(now + POLL);
            }
            _ => {}
        }
        Ok(None)
    }

    /// A queue has connected, and is authenticated if that is needed.
    pub(super) fn after_connect(&mut self, queue: u16, now: Instant) -> Option<News> {
        if queue == 0 {
            self.begin(Step::Capabilities, now);
            return None;
        }
        let depth = self.depth_of(queue.into());
        if let Some(one) = self.queues.get_mut(usize::from(queue)) {
            one.allow(depth);
        }
        if queue < self.granted {
            self.begin(Step::Dial(queue + 1), now);
            return None;
        }
        self.step = Step::Idle;
        Some(News::Ready)
    }

    /// The setup is complete: requests may be sent, and the controller is watched.
    pub fn set_ready(&mut self, shared: &Shared, now: Instant) {
        self.life = Life::Ready(now);
        self.last_failure = None;
        self.begin_watch(shared, now);
        self.watch_access(now);
    }

    fn await_ready(&mut self, status: u64, end: Instant, now: Instant) -> Result<(), Failure> {
        if status & CFS != 0 {
            return Err(Failure::Controller("it reports a fatal error"));
        }
        if status & RDY != 0 {
            self.begin(Step::Identify, now);
        } else if end <= now {
            return Err(Failure::Slow("it does not get ready within its own time limit"));
        } else {
            self.begin(self.step, now);
            self.not_before = Some(now + POLL);
        }
        Ok(())
    }

    /// A controller that succeeds has sent all data.
    fn check_length(&self, answer: &Answer, length: usize) -> Result<(), Failure> {
        if answer.data == length {
            return Ok(());
        }
        Err(Failure::Protocol("a command succeeds before all of its data was sent"))
    }

    fn finish_names(&mut self, status: u16, now: Instant) -> Result<Option<News>, Failure> {
        if status != 0 && !is_final(status) {
            return Err(Failure::Rejected(Step::Names.name(), status));
        }
        let page = self.data(PAGE);
        let mut described = self.described.take().ok_or(Failure::Closed)?;
        if status == 0 {
            described.names.add(&page)?;
        }
        self.namespace = Some(described);
        if self.controller.is_some_and(|controller| controller.ana) {
            self.begin(Step::Ana(None), now);
            return Ok(None);
        }
        self.access = Access::Optimized;
        Ok(self.after_access(News::Described, now))
    }

    /// Reads the groups of the ANA log from `first` on.
    fn next_groups(
        &mut self,
        first: u16,
        groups: u16,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        let can_go_on = first == 0 || self.controller.is_some_and(|it| it.log_offsets);
        if first < groups && can_go_on {
            self.begin(Step::Ana(Some((first, groups))), now);
            return Ok(None);
        }
        // A group that the controller does not report is not reached.
        self.access = Access::Inaccessible;
        Ok(self.after_access(News::Access, now))
    }

    fn finish_groups(
        &mut self,
        answer: &Answer,
        first: u16,
        groups: u16,
        now: Instant,
    ) -> Result<Option<News>, Failure> {
        let count = (groups - first).min(GROUPS);
        let header = if first == 0 { ANA_HEADER } else { 0 };
        let length = header + usize::from(count) * ANA_GROUP;
        self.check_length(answer, length)?;
        let group = self.namespace.map_or(0, |namespace| namespace.group);
        let bytes = self.data(length);
        match ana_state(bytes.get(header..).unwrap_or_default(), group)? {
            Some(access) => {
                self.access = access;
                Ok(self.after_access(News::Described, now))
            }
            None => self.next_groups(first + count, groups, now),
        }
    }

    /// The namespace is described and its ANA state is known.
    fn after_access(&mut self, news: News, now: Instant) -> Option<News> {
        if self.life == Life::Setup {
            self.begin(Step::Dial(1), now);
            return None;
        }
        self.step = Step::Idle;
        self.watch_access(now);
        Some(news)
    }

    /// Shuts the controller down. False if it has to be reset instead.
    pub fn shut_down(&mut self, now: Instant) -> bool {
        if !self.is_ready() || self.is_waiting {
            return false;
        }
        self.life = Life::Leaving(now + SHUTDOWN);
        self.begin(Step::Shutdown, now);
        true
    }
}
