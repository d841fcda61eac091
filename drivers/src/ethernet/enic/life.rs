//! Life cycle of a port: start, periodic checks, reset, and failure. No function waits: each step posts a command, or
//! polls for the result of the previous one.

use super::command::{self, Answer, Command, Failure, TIMEOUT};
use super::error::Error;
use super::notices;
use super::port::EnicPort;
use super::registers::{self, ALL_ONES, RECEIVE_ERROR, WORK_ERROR};
use super::steer::{self, Filter};
use crate::ethernet::keeper::{HUNG, OUT_OF_ORDER, Stall};
use crate::hal::{DeviceLife, DeviceState, Instant, Severity, UdpFlow, Window};

/// Polls for the end of a command before the loop continues with other work: a poll takes about a microsecond.
const POLLS: usize = 256;
/// Number of successive checks, one a second, with a wrong checksum of the notices, after which the device is reset.
const MOST_GARBLED: u8 = 3;

/// Packet filter: own address, multicast, broadcast, all of multicast (Linux: `CMD_PFILTER_*`).
const RECEIVED: u64 = 1 | 2 | 4 | 0x10;

const STOPPED: &str = "the network card has stopped a queue because of an error: it is reset";
const FATAL: &str =
    "the network card's firmware reported a fatal error: it is reset; update the firmware";
const GARBLED: &str = "the network card's firmware reports its link with a wrong checksum: it is reset; update the firmware";
const SILENT: &str =
    "the network card's firmware does not complete commands: it is reset; update the firmware";
const GONE: &str = "the network card does not answer: it was removed, or its firmware has stopped; it is not used until the \
     appliance is restarted";
const NOT_BACK: &str = "the network card does not come back from a reset, and is not used any more: reset the adapter, and \
     restart the appliance";

/// A step of the life cycle. The next one follows it, unless noted otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Open,
    IsOpen,
    // Also after each reset, which may leave another size of receive completions.
    EntryCapability,
    EntrySize,
    VlanCapability,
    EnableCapability,
    Init,
    Address,
    TransmitEntries,
    ReceiveEntries,
    Mtu,
    /// [`EnicPort::open`] allocates the queues.
    Memory,
    // A reset continues here.
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
    /// Followed by `EntryCapability`, and then by `VlanMode`.
    IsReset,
    /// The device has failed, and is not used any more.
    Gone(Error),
}

/// A command in the background, while the port is live.
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
    /// Begin of the step; None until the first poll.
    since: Option<Instant>,
    /// The step's command was posted.
    posted: bool,
    transmit: Stall,
    receive: Stall,
    job: Stall,
    /// Number of jobs done, by which a job that hangs is detected.
    jobs: u32,
    /// Number of successive checks with a wrong checksum of the notices.
    garbled: u8,
    /// The link, as last reported.
    pub link: bool,
    /// The link at the previous check.
    had_link: bool,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            step: Step::Open,
            since: None,
            posted: false,
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

    /// Whether the start waits for the queues to be allocated.
    pub fn wants_memory(&self) -> bool {
        self.step == Step::Memory
    }

    /// Why the device is not used any more; None while it is.
    pub fn error(&self) -> Option<Error> {
        match self.step {
            Step::Gone(error) => Some(error),
            _ => None,
        }
    }

    /// The state for reports.
    pub fn report(&self) -> DeviceLife {
        match self.step {
            Step::Live => DeviceLife::default(),
            Step::Gone(error) if is_absent(error) => DeviceLife::new(DeviceState::Absent, GONE),
            Step::Gone(_) => DeviceLife::new(DeviceState::Failed, NOT_BACK),
            Step::Disable | Step::Stop | Step::Reset | Step::IsReset => {
                DeviceLife::new(DeviceState::Resetting, "")
            }
            _ => DeviceLife::new(DeviceState::Starting, ""),
        }
    }

    /// Enters a step.
    pub fn enter(&mut self, step: Step) {
        (self.step, self.since, self.posted) = (step, None, false);
    }
}

fn is_absent(error: Error) -> bool {
    matches!(error, Error::Absent | Error::Command(_, Failure::Absent))
}

impl EnicPort {
    /// The command of a step; None if the step is not a command.
    fn command(&self, step: Step) -> Option<(Command, [u64; 2])> {
        let no_arguments = [0, 0];
        Some(match step {
            // The descriptor cache is kept.
            Step::Open => (command::OPEN, [2, 0]),
            Step::IsOpen => (command::OPEN_STATUS, no_arguments),
            Step::EntryCapability => {
                (command::CAPABILITY, [command::CQ_ENTRY_SIZE_SET.0.into(), 0])
            }
            // All receive queues; 16 bytes, for which the rings are made.
            Step::EntrySize => (command::CQ_ENTRY_SIZE_SET, [u64::MAX, 0]),
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
            // VLAN tags pass unchanged.
            Step::VlanMode if self.has_vlan_mode => (command::IG_VLAN_REWRITE_MODE, [3, 0]),
            // One receive queue, and no stripping of tags.
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

    /// Runs steps until the device has not completed one.
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
                None => self.run_step(step, late),
                Some((command, arguments)) => {
                    self.run_command(command, arguments, late).and_then(|answer| match answer {
                        Some(answer) => self.next_step(step, command, answer),
                        None => Ok(None),
                    })
                }
            };
            match next {
                Ok(Some(next)) => {
                    self.life.enter(next);
                    if next == Step::Live {
                        self.came_up();
                    }
                }
                Ok(None) => return,
                Err(error) => return self.give_up(error),
            }
        }
    }

    /// Posts a command, or polls for its end. The result, when it is done.
    fn run_command(
        &mut self,
        command: Command,
        arguments: [u64; 2],
        late: bool,
    ) -> Result<Option<Result<Answer, Failure>>, Error> {
        let failed = |failure| Error::Command(command.1, failure);
        if !self.life.posted {
            self.life.posted = self.commands.begin(command, arguments).map_err(failed)?;
        }
        let polls = if self.life.posted { POLLS } else { 0 };
        for _ in 0..polls {
            match self.commands.poll() {
                Ok(Some(answer)) => return Ok(Some(Ok(answer))),
                Ok(None) => {}
                Err(Failure::Absent) => return Err(Error::Absent),
                Err(failure) => return Ok(Some(Err(failure))),
            }
        }
        if late { Err(failed(Failure::Late)) } else { Ok(None) }
    }

    /// The step that follows after the result of a command; None if the command is to be repeated later.
    fn next_step(
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
                self.life.posted = false;
                return Ok(None);
            }
            Step::IsOpen | Step::IsReset => Step::EntryCapability,
            // A firmware that does not know the command knows 16 bytes only.
            Step::EntryCapability if value == 0 => Step::EntrySize,
            Step::EntryCapability | Step::EntrySize if self.queues.is_none() => {
                Step::VlanCapability
            }
            Step::EntryCapability | Step::EntrySize => Step::VlanMode,
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
            Step::Memory | Step::Queues | Step::Stop | Step::Live | Step::Gone(_) => {
                return Ok(None);
            }
        }))
    }

    /// Runs a step that is not a command. The following step, when it is done.
    fn run_step(&mut self, step: Step, late: bool) -> Result<Option<Step>, Error> {
        match step {
            Step::VlanMode => Ok(Some(Step::NicConfig)),
            Step::OwnAddress => Ok(Some(Step::PacketFilter)),
            Step::Queues => {
                self.start_queues();
                Ok(Some(Step::OwnAddress))
            }
            Step::Stop => {
                if !self.life.posted {
                    self.life.posted = true;
                    self.stop_queues();
                }
                for _ in 0..POLLS {
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

    /// Resets the driver's state of the queues. The device must not access them any more.
    fn reset_queues(&mut self) {
        if let Some(queues) = &mut self.queues {
            queues.receiver.stop();
            queues.transmitter.stop();
        }
        if let Some(steered) = &mut self.steered {
            steered.receiver.stop();
        }
    }

    /// Completes the start.
    fn came_up(&mut self) {
        (self.life.transmit, self.life.receive) = (Stall::default(), Stall::default());
        (self.life.job, self.life.garbled, self.job) = (Stall::default(), 0, None);
        self.reset_log.note_up();
        self.reset_filters();
        self.read_notices();
        if self.wants_interrupts {
            self.apply_interrupts();
        }
        self.work_on_jobs();
    }

    /// Resets the device and sets it up again. Frames in flight are lost.
    fn begin_reset(&mut self, why: &'static str, now: Instant) {
        self.reset_log.reset(why);
        self.reset_queues();
        self.missed = [self.missed.iter().sum(), 0];
        self.life.link = false;
        self.job = None;
        self.life.enter(Step::Disable);
        self.advance(now);
    }

    /// Takes the device out of use.
    pub fn give_up(&mut self, error: Error) {
        if self.life.error().is_some() {
            return;
        }
        self.halt();
        self.life.enter(Step::Gone(error));
        self.life.link = false;
        self.reset_log.note(Severity::Error, if is_absent(error) { GONE } else { NOT_BACK });
    }

    /// Stops the device for good: it cannot access memory any more.
    pub fn halt(&mut self) {
        self.stop_queues();
        self.commands.stop();
        self.function.disable();
        self.reset_queues();
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

    /// Checks the device. Call it about once a second.
    pub fn check(&mut self, now: Instant) {
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
        if self.queues_out_of_sync() {
            return self.begin_reset(OUT_OF_ORDER, now);
        }
        if self.transmitter_hangs() {
            return self.begin_reset(HUNG, now);
        }
        self.job.get_or_insert(Job::Statistics);
        if !self.work_on_jobs() {
            return self.begin_reset(SILENT, now);
        }
        let waits = self.job.map(|_| self.life.jobs);
        if self.life.job.check(waits) {
            return self.begin_reset(SILENT, now);
        }
        self.reset_log.passed_check();
    }

    /// Whether a queue is out of sync with the device.
    fn queues_out_of_sync(&mut self) -> bool {
        let Some(queues) = &mut self.queues else { return false };
        queues.transmitter.reclaim();
        let second = self.steered.as_ref().map(|steered| &steered.receiver);
        let lost = queues.transmitter.out_of_sync()
            || queues.receiver.out_of_sync()
            || second.is_some_and(|receiver| receiver.out_of_sync());
        let waits = queues.receiver.stuck_at().or(second.and_then(|r| r.stuck_at()));
        self.life.receive.check(waits) || lost
    }

    /// Whether the device does not send, although the link is up.
    fn transmitter_hangs(&mut self) -> bool {
        let Some(queues) = &self.queues else { return false };
        // Without a link the device does not send, for any time. When the link comes up, it has one check interval to
        // begin.
        let sends = self.life.link && self.life.had_link;
        self.life.had_link = self.life.link;
        let waits = if sends { queues.transmitter.stuck_at() } else { None };
        self.life.transmit.check(waits)
    }

    /// The next job, if there is one.
    fn next_job(&self) -> Option<Job> {
        let flows = self.steered.as_ref()?.flows.iter();
        let job = |&(flow, filter): &(UdpFlow, Filter)| match filter {
            Filter::Unwanted(_) => Some(Job::Delete(flow)),
            Filter::Wanted => Some(Job::Add(flow)),
            _ => None,
        };
        flows.filter_map(job).next()
    }

    /// Runs jobs; false if the device does not accept their commands.
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
            let answer = match self.run_command(command, arguments, false) {
                Ok(Some(answer)) => answer,
                Ok(None) => return true,
                Err(_) => return false,
            };
            self.life.posted = false;
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
                if !self.life.posted {
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

/// Bytes of statistics: 27 transmit counters, and 37 receive counters, 64 bits each (Linux: `vnic_stats.h`).
pub const STATISTICS: usize = 8 * (27 + 37);
/// Receive counters: frames dropped, frames without a buffer, damaged frames.
const MISSED: [usize; 3] = [27 + 9, 27 + 10, 27 + 11];

fn missed(statistics: &Window) -> u64 {
    MISSED.into_iter().map(|n| statistics.load64(8 * n)).fold(0, u64::wrapping_add)
}
