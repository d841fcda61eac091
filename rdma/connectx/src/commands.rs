//! Commands, one at a time: those that are waited for, and jobs that nobody waits for, in order.

use super::moderation::MOST;
use super::pair::Gone;
use super::readings::Reading;
use super::{ConnectX, Error, context};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;
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

/// A command that is not answered for so long is not answered at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// Keys that are made before anybody uses the card: each takes tens of microseconds at least.
const FIRST_KEYS: usize = 1024;
/// Bytes of an answer that says how it went, or which number something has.
pub const BRIEF: usize = 16;

/// Something that the firmware is asked for, and nobody waits for.
#[derive(Debug)]
pub enum Job {
    /// A queue pair is to know its peer, to send, to fail.
    Connect(QpId),
    Ready(QpId),
    Fail(QpId),
    /// One is to forget what it does, and to go.
    Reset(Box<Gone>),
    Destroy(Box<Gone>),
    DestroyKey(u32),
    FreeDomain(u32),
    /// A spare key is to be made.
    MakeKey,
    /// The GID at an index is to be what the address there says.
    SetGid(u16),
    /// Events of completions are to be held back as is wanted now.
    Moderate,
    /// A counter or a setting is to be read.
    Read(Reading),
}

/// The job that is under way, and since when.
#[derive(Debug)]
pub struct Doing {
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
    /// Whether the card is there, and what was made on it.
    pub(super) fn is_up(&self) -> bool {
        self.life.is_some() && self.life == self.function.life()
    }

    /// An error if it is not.
    pub(super) fn check_up(&self) -> Result<(), VerbsError> {
        if self.is_up() { Ok(()) } else { Err(VerbsError::Unreachable) }
    }

    /// Gives a command and waits for its answer. What is under way is waited for before.
    pub(super) fn ask(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<Vec<u8>, Error> {
        if self.life.is_some() && !self.is_up() {
            return Err(Error::Reset);
        }
        if let Some(doing) = self.doing.take() {
            let answer = self.function.wait();
            self.is_done(doing.job, answer);
        }
        self.function.give(command, operation, input, output)?;
        let answer = self.function.wait();
        if answer.is_err() {
            self.counters.refused += 1;
        }
        Ok(answer?)
    }

    /// The same of one that makes an object: its number.
    pub(super) fn create(&mut self, command: Command, input: &[u8]) -> Result<u32, Error> {
        Ok(word(&self.ask(command, 0, input, BRIEF)?, 8) & 0xff_ffff)
    }

    /// Goes on with jobs, as far as the firmware has come.
    pub(super) fn go_on(&mut self) {
        while self.is_up() {
            if let Some(doing) = self.doing.take() {
                match self.function.answer() {
                    Some(answer) => self.is_done(doing.job, answer),
                    None => {
                        if self.now.since(doing.since) > PATIENCE {
                            self.function.reset();
                        }
                        self.doing = Some(doing);
                        return;
                    }
                }
                continue;
            }
            let Some(job) = self.next_job() else { return };
            let Some((command, operation, input, output)) = self.input(&job) else { continue };
            match self.function.give(command, operation, &input, output) {
                Ok(()) => self.doing = Some(Doing { job, since: self.now }),
                Err(error) => self.is_done(job, Err(error)),
            }
        }
    }

    /// What is to be done next: keys only if there is nothing else.
    fn next_job(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front();
        if job.is_none() && self.keys_missing > 0 {
            self.keys_missing -= 1;
            return Some(Job::MakeKey);
        }
        job
    }

    /// Makes keys, as many as there have to be at first; the others are made beside all else.
    pub(super) fn make_first_keys(&mut self) -> Result<(), Error> {
        let first = self.keys_missing.min(FIRST_KEYS.max(2 * self.limits.spare_keys));
        self.keys_missing -= first;
        (0..first).for_each(|_| self.jobs.push_back(Job::MakeKey));
        self.do_jobs()
    }

    /// Does all jobs that there are, waiting for each.
    pub(super) fn do_jobs(&mut self) -> Result<(), Error> {
        while let Some(job) = self.jobs.pop_front() {
            let Some((command, operation, input, output)) = self.input(&job) else { continue };
            let answer = match (self.ask(command, operation, &input, output), &job) {
                // It may not be asked.
                (Err(Error::Card(mlx5::Error::Status(..))), Job::Read(_)) => continue,
                (answer, _) => answer?,
            };
            self.is_done(job, Ok(answer));
        }
        Ok(())
    }

    /// The command of a job, with its operation, input, and the bytes of its answer. None if there is nothing to be done
    /// any more.
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

    /// The GID at an index, which is none where there is no address.
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

    /// Period and number of completions for the queue.
    fn moderate(&self) -> Vec<u8> {
        let mut input = alloc::vec![0; 0x110 - 8];
        put(&mut input, 0, self.ring.completions.number());
        put(&mut input, 4, 3);
        let context = &mut input[0x10 - 8..];
        set(context, 0x84, 12, self.moderation.period().into());
        set(context, 0x90, 16, MOST.into());
        input
    }

    /// A job was answered.
    fn is_done(&mut self, job: Job, answer: Result<Vec<u8>, mlx5::Error>) {
        // What may not be read stays unknown.
        if answer.is_err() && !matches!(job, Job::Read(_)) {
            self.counters.refused += 1;
        }
        match (job, answer) {
            (Job::Read(reading), Ok(answer)) => self.is_read(reading, &answer),
            (Job::Read(_), Err(_)) => {}
            (Job::Connect(qp), Ok(_)) => self.reaches(qp, QpState::Rtr),
            (Job::Ready(qp), Ok(_)) => self.reaches(qp, QpState::Rts),
            (Job::Connect(qp) | Job::Ready(qp), Err(_)) => {
                // The firmware did not like it: the queue pair is of no use.
                self.falls(qp);
                self.jobs.push_back(Job::Fail(qp));
            }
            (Job::Fail(qp), _) => self.reaches(qp, QpState::Error),
            (Job::Reset(gone), _) => self.jobs.push_front(Job::Destroy(gone)),
            (Job::Destroy(gone), _) => self.is_gone(*gone),
            (Job::MakeKey, Ok(answer)) => self.pool.add(word(&answer, 8) & 0xff_ffff),
            // It has no more.
            (Job::MakeKey, Err(_)) => self.keys_missing = 0,
            (Job::Moderate, Ok(_)) => self.moderation.applies(),
            // It is as it was.
            (Job::Moderate, Err(_)) => self.moderates = false,
            (Job::DestroyKey(_) | Job::FreeDomain(_) | Job::SetGid(_), _) => {}
        }
    }

    /// A queue pair has come to a state that it was asked to come to.
    fn reaches(&mut self, qp: QpId, state: QpState) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if pair.reached != QpState::Error || state == QpState::Error {
            pair.reached = state;
        }
        // Now the card may be told of what was posted: to send it, or to flush it.
        if pair.is_told() && pair.sends.has_news() {
            self.list(qp);
        }
    }
}
