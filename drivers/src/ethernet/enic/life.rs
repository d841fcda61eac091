//! How a port comes up, is looked after, is reset, and is given up. Nothing here waits: each step is a command, or looks
//! whether the device has done what it was asked.

use super::command::{self, Answer, Command, Failure, TIMEOUT};
use super::error::Error;
use super::notices;
use super::port::EnicPort;
use super::registers::{self, ALL_ONES, RECEIVE_ERROR, WORK_ERROR};
use super::steer::{self, Filter};
use crate::ethernet::keeper::{HUNG, LOST_PLACE, Stall};
use crate::hal::{Instant, Severity, UdpFlow, Window};

/// Looks whether a command is done, before somebody else has a turn: a look takes about a microsecond.
const LOOKS: usize = 256;
/// Looks in a row, one a second, at which notices did not add up.
const MOST_GARBLED: u8 = 3;

/// What is received: own address, multicast, broadcast, all of multicast (Linux: `CMD_PFILTER_*`).
const RECEIVED: u64 = 1 | 2 | 4 | 0x10;

const STOPPED: &str =
    "the network card has stopped a queue, because of a mistake that it found: it is reset";
const FATAL: &str =
    "the network card's firmware says that it has failed: it is reset; renew the firmware";
const GARBLED: &str = "what the network card's firmware says of its link does not add up: it is reset; renew the firmware";
const SILENT: &str =
    "the network card's firmware does not do commands any more: it is reset; renew the firmware";
const GONE: &str = "the network card does not answer any more: it was removed, or its firmware has stopped; it is not used until \
     the appliance is restarted";
const NOT_BACK: &str = "the network card does not come back from a reset, and is not used any more: reset the adapter, and \
     restart the appliance";

/// A step of a port's life. Each is followed by the next, but where it is said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    IsOpen,
    VlanCapability,
    EnableCapability,
    Init,
    Address,
    TransmitEntries,
    ReceiveEntries,
    Mtu,
    /// Whoever opens the port makes queues.
    Memory,
    // A reset goes on here.
    VlanMode,
    NicConfig,
    Notify,
    Queues,
    OwnAddress,
    PacketFilter,
    Enable,
    /// The last.
    Live,
    // A reset begins here.
    Disable,
    Stop,
    Reset,
    /// Followed by `VlanMode`.
    IsReset,
    /// It is not used any more.
    Gone(Error),
}

/// A command beside, while the port is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    Statistics,
    Add(UdpFlow),
    Delete(UdpFlow),
}

/// The state of a device.
#[derive(Debug)]
pub struct Life {
    step: Step,
    /// Since when, once somebody looked.
    since: Option<Instant>,
    /// The command of this step was given.
    asked: bool,
    transmit: Stall,
    receive: Stall,
    job: Stall,
    /// Jobs that were done, so that one that is not is found.
    jobs: u32,
    /// Looks at which notices did not add up.
    garbled: u8,
    /// The link, as it was told last; and at the look before.
    pub link: bool,
    had_link: bool,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            step: Step::Open,
            since: None,
            asked: false,
            transmit: Stall::default(),
            receive: Stall::default(),
            job: Stall::default(),
            jobs: 0,
            garbled: 0,
            link: false,
            had_link: false,
        }
    }
}

impl Life {
    pub fn is_live(&self) -> bool {
        self.step == Step::Live
    }

    /// Whether it waits for queues.
    pub fn wants_memory(&self) -> bool {
        self.step == Step::Memory
    }

    /// Why it is not used any more.
    pub fn error(&self) -> Option<Error> {
        match self.step {
            Step::Gone(error) => Some(error),
            _ => None,
        }
    }

    /// Goes to another step.
    pub fn enter(&mut self, step: Step) {
        (self.step, self.since, self.asked) = (step, None, false);
    }
}

impl EnicPort {
    /// The command of a step, if it is one.
    fn command(&self, step: Step) -> Option<(Command, [u64; 2])> {
        let no_arguments = [0, 0];
        Some(match step {
            // The descriptor cache is kept.
            Step::Open => (command::OPEN, [2, 0]),
            Step::IsOpen => (command::OPEN_STATUS, no_arguments),
            Step::VlanCapability => {
                (command::CAPABILITY, [command::IG_VLAN_REWRITE_MODE.0.into(), 0])
            }
            Step::EnableCapability => (command::CAPABILITY, [command::ENABLE_WAIT.0.into(), 0]),
            Step::Init => (command::INIT, no_arguments),
            Step::Address => (command::GET_MAC_ADDR, no_arguments),
            // Offset and size.
            Step::TransmitEntries => (command::DEV_SPEC, [4, 4]),
            Step::ReceiveEntries => (command::DEV_SPEC, [8, 4]),
            Step::Mtu => (command::DEV_SPEC, [12, 2]),
            // Tags pass as they are.
            Step::VlanMode if self.has_vlan_mode => (command::IG_VLAN_REWRITE_MODE, [3, 0]),
            // One queue for all, and nothing is taken out of frames.
            Step::NicConfig => (command::NIC_CFG, no_arguments),
            // Size, and no interrupt.
            Step::Notify => {
                let len = notices::BYTES as u64;
                (command::NOTIFY, [self.notices.bus_address(), len | 0xffff << 32])
            }
            Step::OwnAddress if !self.is_virtual => {
                let [a, b, c, d, e, f] = self.mac;
                (command::ADDR_ADD, [u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), 0])
            }
            Step::PacketFilter => (command::PACKET_FILTER, [RECEIVED, 0]),
            Step::Enable if self.has_enable_wait => (command::ENABLE_WAIT, no_arguments),
            Step::Enable => (command::ENABLE, no_arguments),
            Step::Disable => (command::DISABLE, no_arguments),
            Step::Reset => (command::SOFT_RESET, no_arguments),
            Step::IsReset => (command::SOFT_RESET_STATUS, no_arguments),
            _ => return None,
        })
    }

    /// Takes steps for as long as the device has done the last one.
    pub fn advance(&mut self, now: Instant) {
        loop {
            let step = self.life.step;
            if matches!(step, Step::Live | Step::Memory | Step::Gone(_)) {
                return;
            }
            let since = *self.life.since.get_or_insert(now);
            let late = now.since(since) > TIMEOUT;
            match step {
                Step::IsOpen if late => return self.give_up(Error::Endless("opening")),
                Step::IsReset if late => return self.give_up(Error::Endless("a reset")),
                _ => {}
            }
            let next = match self.command(step) {
                None => self.act(step, late),
                Some((command, arguments)) => {
                    self.ask(command, arguments, late).and_then(|answer| match answer {
                        Some(answer) => self.answered(step, command, answer),
                        None => Ok(None),
                    })
                }
            };
            match next {
                Ok(Some(next)) => {
                    self.life.enter(next);
                    if next == Step::Live {
                        self.is_up();
                    }
                }
                Ok(None) => return,
                Err(error) => return self.give_up(error),
            }
        }
    }

    /// Gives the step's command, or looks whether it is done: what was answered.
    fn ask(
        &mut self,
        command: Command,
        arguments: [u64; 2],
        late: bool,
    ) -> Result<Option<Result<Answer, Failure>>, Error> {
        let failed = |failure| Error::Command(command.1, failure);
        if !self.life.asked {
            self.life.asked = self.commands.begin(command, arguments).map_err(failed)?;
        }
        let looks = if self.life.asked { LOOKS } else { 0 };
        for _ in 0..looks {
            match self.commands.poll() {
                Ok(Some(answer)) => return Ok(Some(Ok(answer))),
                Ok(None) => {}
                Err(Failure::Absent) => return Err(Error::Absent),
                Err(failure) => return Ok(Some(Err(failure))),
            }
        }
        if late { Err(failed(Failure::Late)) } else { Ok(None) }
    }

    /// What comes after an answer; None if the same is to be asked again, later.
    fn answered(
        &mut self,
        step: Step,
        command: Command,
        answer: Result<Answer, Failure>,
    ) -> Result<Option<Step>, Error> {
        let failed = |failure| Error::Command(command.1, failure);
        let value = match answer {
            Ok([value, _]) => value,
            Err(failure) if failure.is_unknown() && command == command::CAPABILITY => 1,
            Err(failure) => return Err(failed(failure)),
        };
        Ok(Some(match step {
            Step::Open => Step::IsOpen,
            Step::IsOpen | Step::IsReset if value != 0 => {
                self.life.asked = false;
                return Ok(None);
            }
            Step::IsOpen => Step::VlanCapability,
            Step::VlanCapability => {
                self.has_vlan_mode = value == 0;
                Step::EnableCapability
            }
            Step::EnableCapability => {
                self.has_enable_wait = value == 0;
                Step::Init
            }
            Step::Init => Step::Address,
            Step::Address => {
                let bytes = value.to_le_bytes();
                self.mac = core::array::from_fn(|n| bytes[n]);
                if !crate::ethernet::is_station(self.mac) {
                    return Err(Error::NoMac);
                }
                Step::TransmitEntries
            }
            Step::TransmitEntries => {
                self.transmit_entries = value as u32;
                Step::ReceiveEntries
            }
            Step::ReceiveEntries => {
                self.receive_entries = value as u32;
                Step::Mtu
            }
            Step::Mtu => {
                self.port_mtu = value as u16;
                Step::Memory
            }
            Step::VlanMode => Step::NicConfig,
            Step::NicConfig => Step::Notify,
            Step::Notify => Step::Queues,
            Step::OwnAddress => Step::PacketFilter,
            Step::PacketFilter => Step::Enable,
            Step::Enable => Step::Live,
            Step::Disable => Step::Stop,
            Step::Reset => Step::IsReset,
            Step::IsReset => Step::VlanMode,
            Step::Memory | Step::Queues | Step::Stop | Step::Live | Step::Gone(_) => {
                return Ok(None);
            }
        }))
    }

    /// A step that is no command; what comes then.
    fn act(&mut self, step: Step, late: bool) -> Result<Option<Step>, Error> {
        match step {
            Step::VlanMode => Ok(Some(Step::NicConfig)),
            Step::OwnAddress => Ok(Some(Step::PacketFilter)),
            Step::Queues => {
                self.start_queues();
                Ok(Some(Step::OwnAddress))
            }
            Step::Stop => {
                if !self.life.asked {
                    self.life.asked = true;
                    self.stop_queues();
                }
                for _ in 0..LOOKS {
                    let all = [&self.work, &self.receive];
                    if all.iter().all(|queues| registers::have_stopped(&***queues)) {
                        return Ok(Some(Step::Reset));
                    }
                }
                if late { Err(Error::NotStopped) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    fn start_queues(&mut self) {
        if let Some(interrupts) = &self.interrupt {
            for n in 0..interrupts.len() / registers::BLOCK {
                registers::start_interrupt(&**interrupts, n);
            }
        }
        let sent = u32::from(self.has_own_interrupt());
        if let Some(queues) = &mut self.queues {
            queues.receiver.start(&*self.receive, &*self.completion, 0);
            queues.transmitter.start(&*self.work, &*self.completion, 1, sent);
        }
        if let Some(steered) = &mut self.steered {
            steered.receiver.start(&*self.receive, &*self.completion, steer::COMPLETION);
        }
    }

    fn stop_queues(&self) {
        registers::stop(&*self.work);
        registers::stop(&*self.receive);
        registers::stop(&*self.receive);
    }

    /// Nothing is taken from the device, nor given to it.
    fn forget_queues(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.receiver.stop();
            queues.transmitter.stop();
        }
        if let Some(steered) = &mut self.steered {
            steered.receiver.stop();
        }
    }

    /// It has come up.
    fn is_up(&mut self) {
        (self.life.transmit, self.life.receive) = (Stall::default(), Stall::default());
        (self.life.job, self.life.garbled, self.job) = (Stall::default(), 0, None);
        self.keeper.works();
        self.forget_filters();
        self.read_notices();
        if self.wants_interrupts {
            self.apply_interrupts();
        }
        self.work_on_jobs();
    }

    /// Stops the device; it is set up anew. What it had under way is lost.
    fn begin_reset(&mut self, why: &'static str, now: Instant) {
        self.keeper.reset(why);
        self.forget_queues();
        self.missed = [self.missed.iter().sum(), 0];
        self.life.link = false;
        self.job = None;
        self.life.enter(Step::Disable);
        self.advance(now);
    }

    /// The device is not used any more.
    pub fn give_up(&mut self, error: Error) {
        if self.life.error().is_some() {
            return;
        }
        self.halt();
        self.life.enter(Step::Gone(error));
        self.life.link = false;
        let absent = matches!(error, Error::Absent | Error::Command(_, Failure::Absent));
        self.keeper.note(Severity::Error, if absent { GONE } else { NOT_BACK });
    }

    /// From here on it cannot reach memory.
    pub fn halt(&mut self) {
        self.stop_queues();
        self.commands.stop();
        self.function.disable();
        self.forget_queues();
    }

    fn read_notices(&mut self) -> Option<notices::State> {
        let state = notices::read(&self.notices);
        if let Some(state) = state {
            self.life.link = state.link && self.life.is_live();
        }
        state
    }

    /// Whether the link is up.
    pub fn read_link(&mut self) -> bool {
        self.read_notices();
        self.life.link
    }

    /// Looks after the device; to be called about once a second.
    pub fn look(&mut self, now: Instant) {
        if self.life.error().is_some() {
            return;
        }
        if !self.life.is_live() {
            return self.advance(now);
        }
        let error = registers::error(&*self.work, 0, WORK_ERROR);
        if error == ALL_ONES {
            return self.give_up(Error::Absent);
        }
        let queues = if self.steered.is_some() { 2 } else { 1 };
        let failed = |queue| registers::error(&*self.receive, queue, RECEIVE_ERROR) != 0;
        if error != 0 || (0..queues).any(failed) {
            return self.begin_reset(STOPPED, now);
        }
        match self.read_notices() {
            Some(state) if state.fatal => return self.begin_reset(FATAL, now),
            Some(_) => self.life.garbled = 0,
            None => {
                self.life.garbled += 1;
                if self.life.garbled == MOST_GARBLED {
                    return self.begin_reset(GARBLED, now);
                }
            }
        }
        if self.look_at_queues() {
            return self.begin_reset(LOST_PLACE, now);
        }
        if self.look_at_transmitter() {
            return self.begin_reset(HUNG, now);
        }
        self.job.get_or_insert(Job::Statistics);
        if !self.work_on_jobs() {
            return self.begin_reset(SILENT, now);
        }
        let waits = self.job.map(|_| self.life.jobs);
        if self.life.job.look(waits) {
            return self.begin_reset(SILENT, now);
        }
        self.keeper.look();
    }

    /// Whether a queue has lost its place.
    fn look_at_queues(&mut self) -> bool {
        let Some(queues) = &mut self.queues else { return false };
        queues.transmitter.reclaim();
        let second = self.steered.as_ref().map(|steered| &steered.receiver);
        let lost = queues.transmitter.is_lost
            || queues.receiver.is_lost
            || second.is_some_and(|receiver| receiver.is_lost);
        let waits = queues.receiver.waits_at().or(second.and_then(|r| r.waits_at()));
        self.life.receive.look(waits) || lost
    }

    /// Whether nothing is sent, though there is a link.
    fn look_at_transmitter(&mut self) -> bool {
        let Some(queues) = &self.queues else { return false };
        // Without a link nothing is sent, for as long as that takes; and then it takes a look to begin.
        let sends = self.life.link && self.life.had_link;
        self.life.had_link = self.life.link;
        let waits = if sends { queues.transmitter.waits_at() } else { None };
        self.life.transmit.look(waits)
    }

    /// The next command beside, if there is one to give.
    fn next_job(&self) -> Option<Job> {
        let flows = self.steered.as_ref()?.flows.iter();
        let job = |&(flow, filter): &(UdpFlow, Filter)| match filter {
            Filter::Unwanted(_) => Some(Job::Delete(flow)),
            Filter::Wanted => Some(Job::Add(flow)),
            _ => None,
        };
        flows.filter_map(job).next()
    }

    /// Gives commands beside, and takes their answers; false if the device does not take them.
    pub fn work_on_jobs(&mut self) -> bool {
        if !self.life.is_live() {
            return true;
        }
        loop {
            if self.job.is_none() {
                self.job = self.next_job();
            }
            let Some(job) = self.job else { return true };
            let (command, arguments) = self.command_of(job);
            let answer = match self.ask(command, arguments, false) {
                Ok(Some(answer)) => answer,
                Ok(None) => return true,
                Err(_) => return false,
            };
            self.life.asked = false;
            self.life.jobs = self.life.jobs.wrapping_add(1);
            self.job = None;
            match (job, answer) {
                (Job::Statistics, Ok(_)) => self.missed[1] = missed(&self.statistics),
                (Job::Statistics, Err(_)) => {}
                (Job::Add(flow), Ok([id, _])) => self.filter_is(flow, Some(id)),
                (Job::Add(flow), Err(_)) => self.filter_is(flow, None),
                (Job::Delete(flow), _) => {
                    if let Some(steered) = &mut self.steered {
                        steered.flows.retain(|(known, _)| *known != flow);
                    }
                }
            }
        }
    }

    fn command_of(&self, job: Job) -> (Command, [u64; 2]) {
        match job {
            Job::Statistics => {
                let memory = &self.statistics;
                (command::STATS_DUMP, [memory.bus_address(), memory.len() as u64])
            }
            Job::Add(flow) => {
                if !self.life.asked {
                    steer::describe(&self.filter, flow);
                }
                (command::ADD_FILTER, [self.filter.bus_address(), steer::BYTES as u64])
            }
            Job::Delete(flow) => {
                let flows = self.steered.iter().flat_map(|steered| &steered.flows);
                let id = |&(known, filter): &(UdpFlow, Filter)| match filter {
                    Filter::Unwanted(id) if known == flow => Some(id),
                    _ => None,
                };
                (command::DEL_FILTER, [flows.filter_map(id).next().unwrap_or(0), 0])
            }
        }
    }
}

/// Bytes of statistics: 27 of what was sent, and 37 of what was received, 64 bits each (Linux: `vnic_stats.h`).
pub const STATISTICS: usize = 8 * (27 + 37);
/// Of what was received: frames that were dropped, that found no buffer, that were damaged.
const MISSED: [usize; 3] = [27 + 9, 27 + 10, 27 + 11];

fn missed(statistics: &Window) -> u64 {
    MISSED.into_iter().map(|n| statistics.load64(8 * n)).fold(0, u64::wrapping_add)
}
