//! Firmware commands, one at a time: blocking ones, and a queue of jobs that no caller waits for.

use super::function::COMMAND_TIMEOUT;
use super::moderation::MOST;
use super::pair::DestroyedPair;
use super::readings::Reading;
use super::{ConnectX, Error, context};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::ethernet::mlx5::fields::{put, put64, set, word};
use drivers::ethernet::mlx5::{self, Command};
use drivers::hal::Instant;
use verbs::{QpId, QpState, VerbsError};

const DESTROY_MKEY: Command = Command(0x202, "DESTROY_MKEY");
const MODIFY_CQ: Command = Command(0x403, "MODIFY_CQ");
const DESTROY_QP: Command = Command(0x501, "DESTROY_QP");
const INIT2RTR_QP: Command = Command(0x503, "INIT2RTR_QP");
const RTR2RTS_QP: Command = Command(0x504, "RTR2RTS_QP");
const TO_ERROR: Command = Command(0x507, "2ERR_QP");
const TO_RESET: Command = Command(0x50a, "2RST_QP");
const SET_ROCE_ADDRESS: Command = Command(0x761, "SET_ROCE_ADDRESS");
const DEALLOC_PD: Command = Command(0x801, "DEALLOC_PD");

/// Keys that are made before the card is used. Each is a command: tens of microseconds, or many milliseconds while the
/// firmware is busy with other functions. The others are made while the card is used.
const FIRST_KEYS: usize = 64;
/// Bytes of an answer that has only a status or the number of an object.
pub const BRIEF: usize = 16;

/// A request to the firmware that no caller waits for.
#[derive(Debug)]
pub enum Job {
    /// Transitions of a queue pair: to ready-to-receive, to ready-to-send, to error.
    Connect(QpId),
    Ready(QpId),
    Fail(QpId),
    /// Reset and destruction of a queue pair.
    Reset(Box<DestroyedPair>),
    Destroy(Box<DestroyedPair>),
    DestroyKey(u32),
    FreeDomain(u32),
    /// Makes a spare key.
    MakeKey,
    /// Sets the GID at an index to the address there.
    SetGid(u16),
    /// Sets the wanted moderation of completion events.
    Moderate,
    /// Reads a counter or a setting.
    Read(Reading),
}

/// The job that the firmware is executing, and its start.
#[derive(Debug)]
pub struct CurrentJob {
    pub job: Job,
    pub since: Instant,
}

/// The number of an object, as the first word of an input.
fn number(number: u32) -> Vec<u8> {
    let mut input = alloc::vec![0; 8];
    put(&mut input, 0, number);
    input
}

impl ConnectX {
    /// Whether the card is up, with all objects that were made on it.
    pub(super) fn is_up(&self) -> bool {
        self.life.is_some() && self.life == self.function.life()
    }

    /// An error if the card is not up.
    pub(super) fn check_up(&self) -> Result<(), VerbsError> {
        if self.is_up() { Ok(()) } else { Err(VerbsError::Unreachable) }
    }

    /// Runs a command and blocks until its answer, after that of the current job.
    pub(super) fn run_command(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<Vec<u8>, Error> {
        if self.life.is_some() && !self.is_up() {
            return Err(Error::Reset);
        }
        if let Some(current_job) = self.current_job.take() {
            let answer = self.function.wait();
            self.finish_job(current_job.job, answer);
        }
        self.function.submit(command, operation, input, output)?;
        let answer = self.function.wait();
        if answer.is_err() {
            self.counters.refused += 1;
        }
        Ok(answer?)
    }

    /// Runs a command that makes an object; returns the object's number.
    pub(super) fn create(&mut self, command: Command, input: &[u8]) -> Result<u32, Error> {
        Ok(word(&self.run_command(command, 0, input, BRIEF)?, 8) & 0xff_ffff)
    }

    /// Runs jobs, as far as the firmware has answered.
    pub(super) fn run_jobs(&mut self) {
        while self.is_up() {
            if let Some(current_job) = self.current_job.take() {
                match self.function.answer() {
                    Some(answer) => self.finish_job(current_job.job, answer),
                    None => {
                        if self.now.since(current_job.since) > COMMAND_TIMEOUT {
                            self.function.reset();
                        }
                        self.current_job = Some(current_job);
                        return;
                    }
                }
                continue;
            }
            let Some(job) = self.next_job() else { return };
            let Some((command, operation, input, output)) = self.input(&job) else { continue };
            match self.function.submit(command, operation, &input, output) {
                Ok(()) => self.current_job = Some(CurrentJob { job, since: self.now }),
                Err(error) => self.finish_job(job, Err(error)),
            }
        }
    }

    /// The next job. Keys are made only if there is no other job.
    fn next_job(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front();
        if job.is_none() && self.keys_missing > 0 {
            self.keys_missing -= 1;
            return Some(Job::MakeKey);
        }
        job
    }

    /// Makes the first keys, and blocks until they are made; the others are made in the background.
    pub(super) fn make_first_keys(&mut self) -> Result<(), Error> {
        let first = self.keys_missing.min(FIRST_KEYS);
        self.keys_missing -= first;
        (0..first).for_each(|_| self.jobs.push_back(Job::MakeKey));
        self.run_all_jobs()
    }

    /// Runs all jobs, and blocks until each is done.
    pub(super) fn run_all_jobs(&mut self) -> Result<(), Error> {
        while let Some(job) = self.jobs.pop_front() {
            let Some((command, operation, input, output)) = self.input(&job) else { continue };
            let answer = match (self.run_command(command, operation, &input, output), &job) {
                // The firmware may not permit this reading.
                (Err(Error::Card(mlx5::Error::Status(..))), Job::Read(_)) => continue,
                (answer, _) => answer?,
            };
            self.finish_job(job, Ok(answer));
        }
        Ok(())
    }

    /// The command of a job, with its operation, input, and the bytes of its answer. None if there is nothing left to
    /// do.
    fn input(&self, job: &Job) -> Option<(Command, u16, Vec<u8>, usize)> {
        let pair = |qp: &QpId| self.pairs.get(qp.0);
        let (command, input) = match job {
            Job::Read(reading) => return Some(self.reading(*reading)),
            Job::Connect(qp) => (INIT2RTR_QP, pair(qp)?.to_receive()),
            Job::Ready(qp) => (RTR2RTS_QP, pair(qp)?.to_send()),
            Job::Fail(qp) => (TO_ERROR, number(pair(qp)?.number)),
            Job::Reset(gone) => (TO_RESET, number(gone.number)),
            Job::Destroy(gone) => (DESTROY_QP, number(gone.number)),
            Job::DestroyKey(key) => (DESTROY_MKEY, number(*key)),
            Job::FreeDomain(domain) => (DEALLOC_PD, number(*domain)),
            Job::MakeKey => {
                (super::domains::CREATE_MKEY, super::mkey::create_spare(self.own_domain.0))
            }
            Job::SetGid(index) => (SET_ROCE_ADDRESS, self.gid(*index)),
            Job::Moderate => (MODIFY_CQ, self.moderate()),
        };
        Some((command, 0, input, BRIEF))
    }

    /// The GID at an index; zero without an address.
    fn gid(&self, index: u16) -> Vec<u8> {
        let mut input = alloc::vec![0; 0x30 - 8];
        set(&mut input, 0, 16, index.into());
        let Some(address) = self.addresses.get(usize::from(index)).copied().flatten() else {
            return input;
        };
        let entry = &mut input[0x10 - 8..];
        entry[..16].copy_from_slice(&context::gid(address));
        let mac = self.function.mac();
        let [a, b, c, d, e, f] = mac;
        // The MAC address is the lower 48 bits of the third double word.
        put64(entry, 0x10, u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
        entry[0x1a] = u8::from(address.is_ipv6());
        entry[0x1b] = 2;
        input
    }

    /// Period and number of completions for the queue's moderation.
    fn moderate(&self) -> Vec<u8> {
        let mut input = alloc::vec![0; 0x110 - 8];
        put(&mut input, 0, self.ring.completions.number());
        put(&mut input, 4, 3);
        let context = &mut input[0x10 - 8..];
        set(context, 0x84, 12, self.moderation.period().into());
        set(context, 0x90, 16, MOST.into());
        input
    }

    /// Handles the answer to a job.
    fn finish_job(&mut self, job: Job, answer: Result<Vec<u8>, mlx5::Error>) {
        // A value that the firmware refuses to read stays unknown.
        if answer.is_err() && !matches!(job, Job::Read(_)) {
            self.counters.refused += 1;
        }
        match (job, answer) {
            (Job::Read(reading), Ok(answer)) => self.take_reading(reading, &answer),
            (Job::Read(_), Err(_)) => {}
            (Job::Connect(qp), Ok(_)) => self.reach_state(qp, QpState::Rtr),
            (Job::Ready(qp), Ok(_)) => self.reach_state(qp, QpState::Rts),
            (Job::Connect(qp) | Job::Ready(qp), Err(_)) => {
                // The firmware refused the transition: the queue pair is unusable.
                self.note_pair_failed(qp);
                self.jobs.push_back(Job::Fail(qp));
            }
            (Job::Fail(qp), _) => self.reach_state(qp, QpState::Error),
            (Job::Reset(gone), _) => self.jobs.push_front(Job::Destroy(gone)),
            (Job::Destroy(gone), _) => self.release_destroyed(*gone),
            (Job::MakeKey, Ok(answer)) => self.pool.add(word(&answer, 8) & 0xff_ffff),
            // The firmware has no more keys.
            (Job::MakeKey, Err(_)) => self.keys_missing = 0,
            (Job::Moderate, Ok(_)) => self.moderation.applied(),
            // The moderation stays as it was.
            (Job::Moderate, Err(_)) => self.can_moderate = false,
            (Job::DestroyKey(_) | Job::FreeDomain(_) | Job::SetGid(_), _) => {}
        }
    }

    /// Handles a completed transition of a queue pair.
    fn reach_state(&mut self, qp: QpId, state: QpState) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if pair.state != QpState::Error || state == QpState::Error {
            pair.state = state;
        }
        // Now the card may execute posted requests: it sends them, or flushes them.
        if pair.can_execute() && pair.sends.has_unflushed() {
            self.list(qp);
        }
    }
}
