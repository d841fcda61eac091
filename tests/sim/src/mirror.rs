//! A mirror of two disks that fail, come back, lose cached data, and become silent, in a machine with power cuts. The
//! answers to its user must be consistent, and at the end both disks must hold the same data.
//!
//! A silent remote disk is behind a cut network: it accepts requests and does not answer. For the mirror an abandoned
//! request ends at once, but the disk may execute it when the network works again. A silent local disk hangs: it
//! executes its requests when it answers again, with the memory that they were given.

use crate::storage::disk::{Manners, SECTOR, SimDisk};
use crate::storage::history::History;
use crate::storage::user::{User, WRITER};
use drivers::hal::{self, Arena, Disk, Geometry, Instant, SubmitError, Window};
use netsim::Rng;
use rand_core::Rng as _;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use storage::volume::mirror::{Clock, MemberState, Mirror, MirrorState, RESERVED, Status};
use storage::volume::{Completion, DiskVolume, Operation, Request, Submitted, Volume, VolumeError};

const SECTORS: usize = 40;
const MEMORY: usize = 1 << 20;
const TEND: Duration = Duration::from_secs(1);

/// Faults of a disk, set from outside.
#[derive(Debug, Default)]
struct Fate {
    unplugged: Cell<bool>,
    /// It has lost its cache, and has not reported that yet.
    forgot: Cell<bool>,
    /// It does not answer.
    silent: Cell<bool>,
    /// A request failed since it was last in sync.
    failed: Cell<bool>,
}

/// Memory for abandoned writes that are executed late, in sectors.
const LATE: usize = 64;
/// Flag in the tag of an abandoned request.
const ABANDONED: u64 = 1 << 62;

/// A disk that does nothing while it is silent.
struct Hanging {
    disk: SimDisk,
    fate: Rc<Fate>,
}

impl Disk for Hanging {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }
    fn depth(&self) -> usize {
        self.disk.depth()
    }
    fn submit(&mut self, request: &hal::Request) -> Result<(), SubmitError> {
        self.disk.submit(request)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<hal::Completion> {
        if self.fate.silent.get() { None } else { self.disk.poll() }
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

/// A disk that can be unplugged.
struct Flaky {
    inner: DiskVolume<Hanging>,
    fate: Rc<Fate>,
    /// A local disk, which cannot cancel requests.
    local: bool,
    /// Requests that arrived while it was silent.
    held: VecDeque<Request>,
    /// Completions that are ready.
    ready: VecDeque<Completion>,
    /// Abandoned writes that the disk still executes, with their data.
    late: VecDeque<Request>,
    late_in_flight: usize,
    scratch: Window,
    rng: Rng,
}

impl Flaky {
    /// Executes requests that waited for the network.
    fn resume(&mut self) {
        if self.fate.silent.get() || self.fate.unplugged.get() {
            return;
        }
        while let Some(request) = self.late.front() {
            match self.inner.submit(request) {
                Ok(Submitted::Pending) => self.late_in_flight += 1,
                Err(VolumeError::Busy) => break,
                _ => {}
            }
            self.late.pop_front();
        }
        while let Some(request) = self.held.front() {
            let submitted = match self.fate.forgot.take() {
                true => Err(VolumeError::Lost),
                false => self.inner.submit(request),
            };
            let result = match submitted {
                Ok(Submitted::Pending) => None,
                Err(VolumeError::Busy) => break,
                Ok(_) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            };
            let tag = request.tag;
            self.ready.extend(result.map(|result| Completion { tag, result }));
            self.held.pop_front();
        }
        self.inner.flush_queue();
    }
}

impl Flaky {
    fn accept(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        if self.fate.unplugged.get() {
            return Err(VolumeError::Io);
        }
        if self.fate.forgot.take() {
            return Err(VolumeError::Lost);
        }
        if !self.local && (self.fate.silent.get() || !self.held.is_empty()) {
            self.held.push_back(*request);
            return Ok(Submitted::Pending);
        }
        self.inner.submit(request)
    }

    fn next_completion(&mut self) -> Option<Completion> {
        self.resume();
        if self.fate.unplugged.get() {
            let failed = self.held.drain(..);
            self.ready.extend(
                failed.map(|request| Completion { tag: request.tag, result: Err(VolumeError::Io) }),
            );
        }
        if let Some(done) = self.ready.pop_front() {
            return Some(done);
        }
        if self.fate.silent.get() && !self.local {
            return None;
        }
        loop {
            let done = self.inner.poll()?;
            if done.tag.word & ABANDONED == 0 {
                return Some(done);
            }
            self.late_in_flight -= 1;
        }
    }
}

impl Volume for Flaky {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let result = self.accept(request);
        let failed = matches!(result, Err(VolumeError::Io));
        self.fate.failed.set(self.fate.failed.get() || failed);
        result
    }
    fn flush_queue(&mut self) {
        self.inner.flush_queue();
    }
    fn poll(&mut self) -> Option<Completion> {
        let done = self.next_completion()?;
        self.fate.failed.set(self.fate.failed.get() || done.result.is_err());
        Some(done)
    }
    fn is_idle(&self) -> bool {
        let nothing = self.held.is_empty() && self.ready.is_empty() && self.late.is_empty();
        nothing && self.late_in_flight == 0 && self.inner.is_idle()
    }
    fn releases_memory(&self) -> bool {
        !self.local
    }
    /// Cancels requests that are in flight to a remote disk. The disk keeps those that it has.
    fn give_up(&mut self) {
        if self.local {
            return self.inner.give_up();
        }
        for request in self.held.drain(..) {
            let failed = Completion { tag: request.tag, result: Err(VolumeError::Io) };
            self.ready.push_back(failed);
            let write = matches!(request.operation, Operation::Write { .. });
            let used = self.late.iter().map(|late| late.data.len()).sum::<usize>();
            let room = self.scratch.slice(used, request.data.len());
            if let (true, Some(room)) =
                (write && self.late_in_flight == 0 && self.rng.chance(500), room)
            {
                room.write_window(0, &request.data).expect("as long");
                let tag = (ABANDONED | request.tag.word).into();
                self.late.push_back(Request { tag, data: room, ..request });
            }
        }
    }
}

struct World {
    now: Instant,
    rng: Rng,
    disks: [SimDisk; 2],
    fates: [Rc<Fate>; 2],
    /// None while the power is off.
    mirror: Option<(Mirror, Rc<Cell<Status>>)>,
    memory: Window,
    scratch: [Window; 2],
    clock: Clock,
    timeout: Duration,
    user: User,
    tend_at: Instant,
    power_at: Option<Instant>,
    plug_at: [Option<Instant>; 2],
    /// When silent disks answer again.
    answers_at: [Option<Instant>; 2],
    /// The only faults are silent disks: then no request fails.
    only_silence: bool,
    power_cuts: bool,
    /// A disk may lose its cache, because the other one has no random failures.
    may_forget: bool,
    /// Which disks are local.
    local: [bool; 2],
    /// A disk falls silent only while the other one serves requests.
    one_at_a_time: bool,
    /// Additional time of requests because disks stall.
    stalls: Duration,
}

impl World {
    fn trace(&self, what: std::fmt::Arguments<'_>) {
        if netsim::tracing() {
            println!("{:>12} {what}", self.now.as_nanos() / 1000);
        }
    }

    fn members(&mut self) -> [Box<dyn Volume>; 2] {
        [0, 1].map(|n| {
            let (disk, fate) = (self.disks[n].clone(), self.fates[n].clone());
            let inner = DiskVolume::new(Hanging { disk, fate: fate.clone() }, false);
            let (local, scratch, rng) = (self.local[n], self.scratch[n], self.rng.fork());
            let (held, ready, late) = Default::default();
            let late_in_flight = 0;
            Box::new(Flaky { inner, fate, local, held, ready, late, late_in_flight, scratch, rng })
                as Box<dyn Volume>
        })
    }

    fn start(&mut self, mirror: Mirror) {
        self.clock = Clock::default();
        self.clock.set(self.now);
        let mirror = mirror.with_timeout(self.clock.clone(), self.timeout);
        let status = mirror.status();
        self.mirror = Some((mirror, status));
        self.tend_at = self.now;
    }

    fn assemble(&mut self) {
        // Before the first answer, the creation of the mirror may have been interrupted.
        let mirror = match self.user.wrote > 0 {
            true => Mirror::assemble(self.members(), self.memory),
            false => Mirror::create(self.members(), self.memory, [7; 16]),
        };
        self.start(mirror);
    }

    fn status(&self) -> Status {
        self.mirror.as_ref().map(|(_, status)| status.get()).unwrap_or_default()
    }

    /// The next event of a disk, None while it is silent.
    fn next_of(&self, n: usize) -> Option<Instant> {
        self.disks[n].next().filter(|_| !self.fates[n].silent.get())
    }

    /// Runs until `until`.
    fn pass(&mut self, until: Instant) {
        while self.now < until {
            let events = [
                self.next_of(0),
                self.next_of(1),
                self.user.next(),
                self.mirror.as_ref().and_then(|_| self.clock.due()),
                Some(self.tend_at),
                Some(until),
            ];
            let next = events.into_iter().flatten().min().expect("`until` is an event");
            self.now = self.now.max(next);
            self.disks.iter().for_each(|disk| disk.set_now(self.now));
            self.clock.set(self.now);
            if self.tend_at <= self.now || self.clock.take_due() {
                self.tend_at = self.now + TEND;
                let before = self.status();
                if let Some((mirror, _)) = &mut self.mirror {
                    mirror.tend(self.now);
                }
                for (fate, state) in self.fates.iter().zip(self.status().members) {
                    fate.failed.set(fate.failed.get() && state == MemberState::InSync);
                }
                if self.status() != before {
                    self.trace(format_args!("{:?}", self.status()));
                }
            }
            match &mut self.mirror {
                Some((mirror, _)) => self.user.work(mirror, self.now),
                None => self.now = self.now.max(until),
            }
        }
    }

    fn cut_power(&mut self) {
        self.trace(format_args!("power cut; {:?}", self.status()));
        self.mirror = None;
        self.disks.iter().for_each(SimDisk::cut_power);
        self.fates.iter().for_each(|fate| {
            fate.forgot.set(false);
            fate.silent.set(false);
        });
        self.answers_at = [None; 2];
        self.user.forget();
        self.user.history.borrow_mut().cut_power(self.now);
    }

    fn unplug(&mut self, n: usize) {
        let both = [0, 1].map(|n| {
            self.status().members[n] == MemberState::InSync
                && !self.fates[n].unplugged.get()
                && !self.fates[n].forgot.get()
        });
        // The loss of a cache must be noticed before the other disk fails.
        if self.fates[1 - n].forgot.get() {
            return;
        }
        // The mirror may not notice the failed requests before the disk is plugged in again.
        let failed = self.disks[n].interrupt();
        self.fates[n].failed.set(self.fates[n].failed.get() || failed);
        self.fates[n].unplugged.set(true);
        // The other disk has not failed at the same requests.
        let may = self.may_forget && !self.fates[1 - n].failed.get();
        let forgets = both == [true; 2] && may && self.rng.chance(500);
        if forgets {
            self.disks[n].lose_cache();
            self.fates[n].forgot.set(true);
            self.user.history.borrow_mut().cache_lost();
        }
        self.trace(format_args!("disk {n} unplugged; forgets: {forgets}"));
    }

    fn silence(&mut self, n: usize, until: Instant) {
        self.fates[n].silent.set(true);
        self.answers_at[n] = Some(until);
        self.trace(format_args!("disk {n} is silent"));
    }

    /// Whether a disk answers, is in sync, and stays in the mirror.
    fn serves(&self, n: usize) -> bool {
        let stays = self.mirror.as_ref().is_some_and(|(mirror, _)| !mirror.detached().get()[n]);
        let in_sync = self.status().members[n] == MemberState::InSync;
        stays && in_sync && self.answers_at[n].is_none()
    }

    fn happen(&mut self) {
        let after = |rng: &mut Rng, now: Instant| {
            let most = rng.pick(&[50, 1000, 5000]);
            Some(now + Duration::from_millis(rng.within(1..most)))
        };
        if let Some((mirror, _)) = &self.mirror {
            let detached = match self.rng.within(0..100) {
                0..3 => Some([true, false]),
                3..6 => Some([false, true]),
                6..20 => Some([false; 2]),
                _ => None,
            };
            detached.into_iter().for_each(|detached| mirror.detached().set(detached));
        }
        for n in 0..2 {
            if self.answers_at[n].is_some_and(|at| at <= self.now) {
                self.answers_at[n] = None;
                self.fates[n].silent.set(false);
                self.trace(format_args!("disk {n} answers"));
            }
            let alone = self.one_at_a_time && !self.serves(1 - n);
            let may = self.answers_at[n].is_none() && self.mirror.is_some() && !alone;
            if may && self.rng.chance(60) {
                let most = self.rng.pick(&[50, 1000, 12_000]);
                let at = self.now + Duration::from_millis(self.rng.within(1..most));
                self.silence(n, at);
                if !self.one_at_a_time && self.rng.chance(300) {
                    let other = at + Duration::from_millis(self.rng.within(0..300));
                    self.silence(1 - n, other);
                }
            }
            if self.only_silence {
                continue;
            }
            if self.plug_at[n].is_some_and(|at| at <= self.now) {
                self.plug_at[n] = None;
                self.fates[n].unplugged.set(false);
                self.trace(format_args!("disk {n} plugged"));
            }
            if self.plug_at[n].is_none() && self.rng.chance(100) {
                self.plug_at[n] = after(&mut self.rng, self.now);
                self.unplug(n);
                if self.power_cuts && self.power_at.is_none() && self.rng.chance(300) {
                    // While the mirror records that the disk is dropped.
                    let soon = Duration::from_micros(self.rng.within(0..10_000));
                    self.pass(self.now + soon);
                    self.power_at = after(&mut self.rng, self.now);
                    self.cut_power();
                }
            }
        }
        if self.only_silence {
            return;
        }
        if self.power_at.is_some_and(|at| at <= self.now) {
            self.power_at = None;
            self.trace(format_args!("power on"));
            self.assemble();
        }
        if self.power_cuts && self.power_at.is_none() && self.rng.chance(60) {
            self.power_at = after(&mut self.rng, self.now);
            self.cut_power();
        }
    }
}

/// Runs a seed.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    netsim::with_memory(MEMORY, |memory| {
        let mut arena = Arena::new(memory);
        let cache = rng.chance(700);
        let errors = rng.pick(&[0, 0, 0, 5]);
        let may_forget = errors == 0;
        let manners = |rng: &mut Rng| Manners {
            cache,
            latency: Duration::from_micros(rng.pick(&[5, 200, 5000])),
            errors,
            stalls: rng.pick(&[0, 0, 3]),
            kept: rng.pick(&[0, 500, 1000]),
        };
        let sectors = SECTORS + RESERVED as usize;
        let mut stalls = false;
        let disks = [0, 1].map(|_| {
            let manners = manners(&mut rng);
            stalls |= manners.stalls > 0;
            SimDisk::new(sectors, manners, rng.fork())
        });
        let history = Rc::new(RefCell::new(History::new(b'm', SECTORS, true).mirrored()));
        let (depth, left) = (rng.pick(&[1, 4, 8]), rng.within(60..250) as u32);
        let local = [0, 1].map(|_| rng.chance(500));
        // No request is larger than the smallest of these.
        let buffers = if local == [false; 2] { 0 } else { rng.pick(&[4, 6, 64]) << 12 };
        let user = User::new(WRITER, history, depth, left, &mut arena, rng.fork());
        let memory = arena.alloc(Mirror::MEMORY + buffers, 4096).expect("room");
        let scratch = [0; 2].map(|_| arena.alloc(LATE * SECTOR, 4096).expect("room"));
        let power_cuts = rng.chance(600);
        let only_silence = errors == 0 && rng.chance(300);
        let one_at_a_time = only_silence && local == [true; 2] && rng.chance(700);
        let timeout = Duration::from_millis(rng.pick(&[100, 1000, 5000]));
        let mut world = World {
            now: Instant::from_nanos(1),
            rng,
            disks,
            fates: Default::default(),
            mirror: None,
            memory,
            scratch,
            clock: Clock::default(),
            timeout,
            user,
            tend_at: Instant::ZERO,
            power_at: None,
            plug_at: [None; 2],
            answers_at: [None; 2],
            only_silence,
            power_cuts,
            may_forget,
            local,
            one_at_a_time,
            stalls: Duration::from_secs(if stalls { 20 } else { 0 }),
        };
        let mirror = Mirror::create(world.members(), memory, [7; 16]);
        world.start(mirror);
        story(&mut world);
    });
}

fn story(world: &mut World) {
    let before = Duration::from_millis(world.rng.next_u64() % 2000);
    // In some seeds faults begin before the first copy is complete.
    world.pass(world.now + before);
    while world.status().state != MirrorState::Running {
        world.pass(world.now + TEND);
    }
    let end = world.now + Duration::from_secs(20);
    while world.now < end && !world.user.is_done() {
        let pause = world.rng.within(1..100);
        world.pass(world.now + Duration::from_millis(pause));
        world.happen();
    }
    world.trace(format_args!("healed"));
    world.disks.iter().for_each(SimDisk::heal);
    world.fates.iter().for_each(|fate| {
        fate.unplugged.set(false);
        fate.silent.set(false);
    });
    world.answers_at = [None; 2];
    world.mirror.iter().for_each(|(mirror, _)| mirror.detached().set([false; 2]));
    // Requests reveal the loss of a cache.
    world.user.left += 30;
    if world.mirror.is_none() {
        world.assemble();
    }
    let limit = world.now + Duration::from_secs(60);
    let in_sync = [MemberState::InSync; 2];
    while !world.user.is_done() || world.status().members != in_sync {
        assert!(world.now < limit, "requests do not end: {:?}", world.status());
        world.pass(world.now + TEND);
    }
    world.user.history.borrow().check();
    if world.only_silence {
        let failed = world.user.errors + world.user.broken_promises;
        assert_eq!(failed, 0, "requests failed although disks were only silent");
    }
    if world.one_at_a_time {
        // A request may wait for a silent disk several times (record, copy, data), and for stalls of both disks.
        let most = 3 * world.timeout + Duration::from_secs(2) + world.stalls;
        assert!(world.user.longest < most, "a request took {:?}", world.user.longest);
    }
    let data = [0, 1].map(|n| world.disks[n].contents()[RESERVED as usize * SECTOR..].to_vec());
    assert!(data[0] == data[1], "the members differ");
    // After another power cut the flushed data is there, and the mirror reports the right state.
    world.cut_power();
    let mirror = Mirror::assemble(world.members(), world.memory);
    world.start(mirror);
    world.user.read_once();
    while !world.user.is_done() || world.status().members != in_sync {
        assert!(world.now < limit + 4 * TEND, "{:?}", world.status());
        world.pass(world.now + TEND);
    }
    world.user.history.borrow().check();
}
