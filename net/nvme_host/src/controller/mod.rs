//! A path: an address of the subsystem, and the controller there. Its admin commands that carry data run one at a time.

mod authentication;
mod queue;
mod setup;
mod watch;

pub(crate) use queue::{Answer, Queue, Tcp};

use crate::failure::Failure;
use crate::identify::{Access, Capabilities, Controller, Namespace};
use crate::{Identity, Settings};
use alloc::boxed::Box;
use alloc::vec::Vec;
use authentication::Authentication;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use nvme_auth::Hash;
use nvme_tcp::host::Connection;
use nvme_tcp::wire::SQE;

/// Fills memory with bytes from a cryptographic generator.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Time limit of a step of the setup, apart from those that the controller gives a limit for.
const STEP: Duration = Duration::from_secs(10);
/// Time limit of a shutdown.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// Places of the admin queue, and identifiers of its commands.
const ADMIN_ENTRIES: u16 = 32;
const SERIAL: u16 = 0;
const KEEP_ALIVE: u16 = 1;
const EVENT: u16 = 2;

/// Settings, names and memory of all paths.
#[derive(Debug)]
pub(crate) struct Shared {
    pub settings: Settings,
    pub identity: Identity,
    /// Identifier of the host.
    pub host_id: [u8; 16],
}

impl Shared {
    /// The identifier is the UUID of the host's NQN, as nvme-cli takes it, or a digest of another NQN.
    pub fn new(settings: Settings, identity: Identity) -> Shared {
        let host_id = uuid_of(&identity.host).unwrap_or_else(|| digest_of(&identity.host));
        Shared { settings, identity, host_id }
    }
}

/// The UUID at the end of an NQN `nqn.2014-08.org.nvmexpress:uuid:…`.
fn uuid_of(nqn: &str) -> Option<[u8; 16]> {
    let text = nqn.strip_prefix("nqn.2014-08.org.nvmexpress:uuid:")?;
    let digits: Vec<u8> =
        text.chars().filter(|c| *c != '-').map_while(|c| c.to_digit(16).map(|d| d as u8)).collect();
    if digits.len() != 32 || text.len() != 36 {
        return None;
    }
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(id)
}

fn digest_of(nqn: &str) -> [u8; 16] {
    let digest = Hash::Sha256.digest(&[b"isthmus host identifier", nqn.as_bytes()]);
    let mut id = digest.as_bytes().first_chunk().copied().unwrap_or([1; 16]);
    // A UUID of version 8 (RFC 9562).
    id[6] = id[6] & 0xf | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// Life of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Closed; it may be opened again at this time.
    Down(Instant),
    /// The controller is being set up.
    Setup,
    /// Requests flow since then.
    Ready(Instant),
    /// The controller is being shut down, until this time at most.
    Leaving(Instant),
}

/// What a path does on its own. Steps with a command have at most one in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Idle,
    /// The TCP connection of a queue opens, and exchanges its parameters.
    Dial(u16),
    /// A queue connects.
    Connect(u16),
    /// A queue authenticates.
    Authenticate(u16),
    Capabilities,
    Enable,
    /// Waits until the controller is ready, until this time at most.
    AwaitReady(Instant),
    Identify,
    Limits,
    Queues,
    Events,
    List,
    Namespace,
    Names,
    /// The ANA log from this group on; None before the number of groups is known.
    Ana(Option<(u16, u16)>),
    Changed,
    Shutdown,
    AwaitShutdown,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Idle => "nothing",
            Step::Dial(_) => "ICReq",
            Step::Connect(_) => "Connect",
            Step::Authenticate(_) => "authentication",
            Step::Capabilities | Step::AwaitReady(_) | Step::AwaitShutdown => "Property Get",
            Step::Enable | Step::Shutdown => "Property Set",
            Step::Identify | Step::Limits | Step::List | Step::Namespace | Step::Names => {
                "Identify"
            }
            Step::Queues | Step::Events => "Set Features",
            Step::Ana(_) | Step::Changed => "Get Log Page",
        }
    }
}

/// News of a path for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The controller is set up.
    Ready,
    /// The namespace was described again.
    Described,
    /// The ANA state was read.
    Access,
    /// The controller is shut down.
    ShutDown,
}

/// What a path is to do when it is idle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pending {
    pub namespace: bool,
    pub changed: bool,
    pub ana: bool,
}

/// A path.
#[derive(Debug)]
pub(crate) struct Path {
    pub life: Life,
    /// Number 0 is the admin queue.
    pub queues: Vec<Queue>,
    /// I/O queues in use.
    pub granted: u16,
    pub step: Step,
    /// When the step's time is over.
    step_ends: Instant,
    /// The step's command is in flight.
    is_waiting: bool,
    /// A poll of a property waits until then.
    not_before: Option<Instant>,
    answer: Option<Answer>,
    authentication: Option<Box<Authentication>>,
    /// Memory for the data of a step.
    page: Window,
    pub cntlid: u16,
    capabilities: Option<Capabilities>,
    pub controller: Option<Controller>,
    /// The namespace as this controller describes it; while it is described, what is known.
    pub namespace: Option<Namespace>,
    described: Option<Namespace>,
    pub access: Access,
    /// The ANA state that was last reported to the operator.
    pub announced: Option<Access>,
    pub pending: Pending,
    /// When the ANA log is read again, while the path is not usable.
    ana_due: Option<Instant>,
    keepalive_period: Duration,
    keepalive_due: Instant,
    keepalive_sent: Option<Instant>,
    /// When the next event is asked for; None while one is.
    event_due: Option<Instant>,
    /// Failed attempts in a row.
    pub attempts: u32,
    pub last_failure: Option<Failure>,
    /// Steps that this controller acknowledged and that need a flush, and how many a flush covered.
    pub acknowledged: u64,
    pub stable: u64,
}

impl Path {
    pub fn new(settings: &Settings, page: Window) -> Path {
        Path {
            life: Life::Down(Instant::ZERO),
            queues: (0..=settings.connections).map(|_| Queue::new()).collect(),
            granted: 0,
            step: Step::Idle,
            step_ends: Instant::ZERO,
            is_waiting: false,
            not_before: None,
            answer: None,
            authentication: None,
            page,
            cntlid: 0,
            capabilities: None,
            controller: None,
            namespace: None,
            described: None,
            access: Access::Inaccessible,
            announced: None,
            pending: Pending::default(),
            ana_due: None,
            keepalive_period: settings.keepalive / 2,
            keepalive_due: Instant::ZERO,
            keepalive_sent: None,
            event_due: None,
            attempts: 0,
            last_failure: None,
            acknowledged: 0,
            stable: 0,
        }
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready(_))
    }

    pub fn is_down(&self) -> bool {
        matches!(self.life, Life::Down(_))
    }

    /// Whether requests may be sent.
    pub fn is_usable(&self) -> bool {
        self.is_ready() && self.access.is_usable()
    }

    /// Commands of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.queues.iter().map(Queue::in_flight).sum()
    }

    /// Opens a path that is down at this time.
    pub fn retry_at(&mut self, at: Instant) {
        (self.life, self.attempts) = (Life::Down(at), 0);
    }

    /// Begins to set the controller up.
    pub fn open(&mut self, now: Instant) {
        self.life = Life::Setup;
        self.begin(Step::Dial(0), now);
    }

    /// Ends the path and all of its queues.
    pub fn reset(&mut self, again_at: Instant, abort: bool) {
        self.life = Life::Down(again_at);
        self.queues.iter_mut().for_each(|queue| queue.reset(abort));
        self.step = Step::Idle;
        (self.is_waiting, self.answer, self.authentication) = (false, None, None);
        (self.not_before, self.granted, self.described) = (None, 0, None);
        (self.access, self.announced) = (Access::Inaccessible, None);
        self.pending = Pending::default();
        (self.ana_due, self.keepalive_sent, self.event_due) = (None, None, None);
    }

    /// The caller has opened the TCP connection of a queue.
    pub fn connected(&mut self, queue: usize, digests: u8) {
        let depth = self.depth_of(queue);
        let Some(one) = self.queues.get_mut(queue).filter(|one| one.tcp == Tcp::Opening) else {
            return;
        };
        one.tcp = Tcp::Open;
        one.connection = Some(Box::new(Connection::new(digests & 3, 0, depth.into())));
    }

    /// Commands at a time on a queue: a queue of N places holds N - 1.
    fn depth_of(&self, queue: usize) -> u16 {
        self.entries_of(queue).saturating_sub(1).max(1)
    }

    /// Places of a queue.
    fn entries_of(&self, queue: usize) -> u16 {
        if queue == 0 {
            return ADMIN_ENTRIES;
        }
        let most = self.capabilities.map_or(2, |cap| cap.entries);
        let commands = self.controller.map_or(0, |controller| controller.most_commands);
        let commands = if commands == 0 { u16::MAX } else { commands.max(2) };
        most.min(commands).clamp(2, 128)
    }

    /// Goes on to a step, whose command is sent by [`Path::advance`].
    fn begin(&mut self, step: Step, now: Instant) {
        self.step = step;
        self.step_ends = now + STEP;
        (self.is_waiting, self.answer, self.not_before) = (false, None, None);
        if let Step::Dial(queue) = step
            && let Some(one) = self.queues.get_mut(usize::from(queue))
        {
            one.tcp = Tcp::Wanted;
        }
    }

    /// Sends the command of the step on a queue. `length` bytes of the page are its data.
    fn send(&mut self, queue: u16, sqe: crate::command::Sqe, length: usize, reads: bool) {
        let in_capsule = length > 0 && !reads;
        let data = self.page.slice(0, length).unwrap_or(Window::empty());
        let entry: [u8; SQE] = sqe.finish(SERIAL, length, in_capsule);
        if let Some(queue) = self.queues.get_mut(usize::from(queue)) {
            self.is_waiting = queue.submit(&entry, data, reads, in_capsule);
        }
    }

    /// Takes bytes that a queue received, up to the next completion of a request: its slot.
    pub fn receive(
        &mut self,
        queue: usize,
        bytes: &mut &[u8],
        now: Instant,
    ) -> Result<Option<(u16, Answer)>, Failure> {
        while !bytes.is_empty() {
            let carries_step = self.is_waiting && self.queue_of_step() == queue;
            let Some(one) = self.queues.get_mut(queue) else { return Ok(None) };
            let Some((cid, answer)) = one.receive(bytes)? else { continue };
            let is_serial = cid == SERIAL && carries_step;
            if is_serial {
                self.is_waiting = false;
                self.answer = Some(answer);
            } else if queue == 0 {
                self.watch(cid, &answer, now)?;
            } else if let Some(slot) = one.release(cid) {
                return Ok(Some((slot, answer)));
            }
        }
        Ok(None)
    }

    /// The queue that the step's command is sent on.
    fn queue_of_step(&self) -> usize {
        match self.step {
            Step::Connect(queue) | Step::Authenticate(queue) => queue.into(),
            _ => 0,
        }
    }

    /// When [`Path::advance`] or the time limits are due.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_down() {
            return None;
        }
        let works = self.authentication.as_ref().is_some_and(|one| one.wants_work());
        let is_due = match self.step {
            Step::Dial(queue) => self.queues.get(usize::from(queue)).is_some_and(Queue::is_open),
            Step::Idle => self.has_pending(),
            _ => self.answer.is_some() || works || !self.is_waiting && self.not_before.is_none(),
        };
        let at_once = is_due.then_some(Instant::ZERO);
        let step = (self.step != Step::Idle).then_some(self.step_ends);
        let leaves = match self.life {
            Life::Leaving(end) => Some(end),
            _ => None,
        };
        let own = Instant::first([at_once, step, self.not_before.filter(|_| !self.is_waiting)]);
        Instant::first([own, leaves, self.watch_deadline()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_identifier_is_the_uuid_of_the_nqn() {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
        let id = uuid_of(nqn).unwrap();
        assert_eq!((id[0], id[1], id[15]), (0x6e, 0x8d, 0x11));
        for other in ["nqn.2026-01.example:a", "nqn.2014-08.org.nvmexpress:uuid:6e8d"] {
            assert_eq!(uuid_of(other), None);
        }
        assert_ne!(digest_of("nqn.a"), digest_of("nqn.b"));
    }
}
