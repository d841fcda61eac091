//! Jobs: requests of the mirror to its members, and the handling of their completions.

use super::{Mirror, RESERVED};
use crate::volume::{Operation, Request, Submitted, Tag, VolumeError};

/// Purpose of a request to a member. It is encoded in the request's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// A request of the mirror's user.
    User(usize),
    /// Writes the record.
    Log,
    /// Copies a region, or flushes the copy.
    Resync,
    /// Reads the member's records.
    Records,
    /// Checks that the member responds.
    Probe,
}

impl Job {
    fn to_tag(self) -> u64 {
        match self {
            Job::User(slot) => slot as u64,
            Job::Log => 1 << 32,
            Job::Resync => 2 << 32,
            Job::Records => 3 << 32,
            Job::Probe => 4 << 32,
        }
    }

    fn from_tag(tag: u64) -> Self {
        match tag >> 32 {
            0 => Job::User(tag as usize),
            1 => Job::Log,
            2 => Job::Resync,
            3 => Job::Records,
            _ => Job::Probe,
        }
    }
}

/// A job has ended on a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub member: usize,
    pub job: Job,
    pub result: Result<(), VolumeError>,
}

impl Mirror {
    /// Queues a job for a member.
    pub(super) fn issue(&mut self, member: usize, job: Job) {
        self.members[member].in_flight += 1;
        self.todo.push_back((member, job));
    }

    /// Submits the queued jobs. Jobs of a busy member stay queued.
    pub(super) fn issue_all(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..self.todo.len() {
            let Some((member, job)) = self.todo.pop_front() else { break };
            match self.try_issue(member, job) {
                Err(VolumeError::Busy) => self.todo.push_back((member, job)),
                Ok(false) => moved = true,
                Ok(true) => {
                    moved = true;
                    self.ended.push_back(Ended { member, job, result: Ok(()) });
                }
                Err(error) => {
                    moved = true;
                    self.ended.push_back(Ended { member, job, result: Err(error) });
                }
            }
        }
        moved
    }

    /// Submits a job; true if it is complete.
    fn try_issue(&mut self, member: usize, job: Job) -> Result<bool, VolumeError> {
        // The member may have been left out while the job was queued.
        if !self.members[member].is_written() && job != Job::Records {
            return Err(VolumeError::Io);
        }
        let request = match job {
            Job::User(slot) => self.user_request(slot)?,
            Job::Log => self.log_request(member),
            Job::Resync => self.resync_request(),
            Job::Records => self.read_records(member),
            Job::Probe => {
                let request = self.read_records(member);
                let block = self.members[member].volume.geometry().logical_block.max(512) as usize;
                Request { data: request.data.slice(0, block).unwrap_or(request.data), ..request }
            }
        };
        let request = Request { tag: job.to_tag().into(), ..request };
        match self.members[member].volume.submit(&request)? {
            Submitted::Pending => Ok(false),
            Submitted::Done => Ok(true),
            Submitted::Lent(data) => {
                request.data.write_window(0, &data).map_err(|_| VolumeError::Invalid)?;
                Ok(true)
            }
        }
    }

    fn read_records(&self, member: usize) -> Request {
        let (tag, operation) = (Tag::default(), Operation::Read);
        Request { tag, operation, sector: 0, data: self.members[member].records }
    }

    /// Collects the completions of the members. Allows one part to be copied in this round.
    pub(super) fn take_completions(&mut self) {
        self.resync.may_copy = true;
        for member in 0..2 {
            while let Some(done) = self.members[member].volume.poll() {
                let job = Job::from_tag(done.tag.word);
                self.ended.push_back(Ended { member, job, result: done.result });
            }
        }
    }

    /// Handles completions and issues requests until there is no more progress.
    pub(super) fn make_progress(&mut self) {
        loop {
            let mut moved = false;
            while let Some(Ended { member, job, result }) = self.ended.pop_front() {
                moved = true;
                self.members[member].in_flight -= 1;
                match job {
                    Job::User(slot) => self.end_step(slot, member, result),
                    Job::Log => self.end_log(member, result),
                    Job::Resync => self.end_resync(member, result),
                    Job::Records => self.end_records(member, result),
                    Job::Probe => self.end_probe(member, result),
                }
            }
            moved |= self.start_waiting();
            moved |= self.advance_resync();
            moved |= self.advance_log();
            moved |= self.complete_logged();
            moved |= self.issue_all();
            if !moved {
                break;
            }
            for member in &mut self.members {
                member.volume.flush_queue();
            }
        }
    }

    /// The member's sector for a sector of the mirror.
    pub(super) const fn on_member(sector: u64) -> u64 {
        RESERVED + sector
    }
}
