//! The end of the appliance, on `reboot` and `poweroff`, which set `State::end`: disks are flushed, connected peers are
//! notified, then the machine ends. Each step ends with its condition or its time limit. All of it takes less than a
//! second.
//!
//! 1. Storage gets no more requests, and the disks' queues belong to this module. Each is flushed, half a second at most.
//! 2. The data planes (`DataPlane::shut_down`: DREQ), SMC-R with the rules (DELETE_LINK), the services
//!    (`Service::shut_down`) and the interfaces (reset of TCP connections) queue their last messages. Rounds continue
//!    until these have been sent and acknowledged, 400 ms at most. A frame counts when its port has sent it.
//! 3. The peer of an NTRDMA link gets a last heartbeat with a value of its own (`ntrdma`, `link.rs`), after all other
//!    traffic over the bridge. Over TCP the end of the connection has this meaning.
//! 4. The console, which takes no input meanwhile, shows the log. Its last bytes have 90 ms.
//!
//! Unacknowledged writes of clients are not lost to them: they have received no acknowledgement.

use super::disks::{DiskSlot, Role};
use super::network::Network;
use super::plane::DataPlane;
use super::state::State;
use core::time::Duration;
use drivers::hal::{Disk, Features, Instant, Operation, Request, SubmitError, Window};
use management::orders::End;

/// How long disks may take to write down what they were given.
const FLUSHES: Duration = Duration::from_millis(500);
/// How long peers may take to acknowledge that they were told. Linux answers at once.
const GOODBYES: Duration = Duration::from_millis(400);
/// How long the serial line may take to send what was logged, 11 bytes a millisecond at 115,200 baud.
const CONSOLE: Duration = Duration::from_millis(90);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(1);
/// The name of a flush; nobody else's requests are counted any more.
const FLUSH: u64 = u64::MAX;

/// How far the end has come.
#[derive(Debug)]
pub(super) struct Ending {
    /// None where the machine is not to end by this.
    pub how: Option<End>,
    step: Step,
    /// When the step is over at the latest.
    deadline: Instant,
    /// By number of the disk.
    flushes: Vec<Flush>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Flushes,
    Goodbyes,
    Console,
}

/// What is known of a disk's flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// Its queue was full.
    Wanted,
    UnderWay,
    Done,
}

impl Ending {
    /// Begins. From here on nobody but this uses the disks that hold volumes.
    pub fn new(how: End, state: &mut State, now: Instant) -> Self {
        state.plane.ending = true;
        // Loops of other cores have queues of their own to them.
        for worker in &mut state.workers {
            worker.tell(|plane| plane.ending = true);
        }
        log::info!("ending: {how:?}");
        Ending::of_disks(how, &state.disks, now)
    }

    fn of_disks(how: End, disks: &[DiskSlot], now: Instant) -> Self {
        let flush = |slot: &DiskSlot| {
            let caches = slot.geometry.features.contains(Features::VOLATILE_CACHE);
            let written = matches!(slot.role, Role::Volume | Role::Volumes);
            if caches && written { Flush::Wanted } else { Flush::Done }
        };
        let flushes = disks.iter().map(flush).collect();
        Ending { how: Some(how), step: Step::Flushes, deadline: now + FLUSHES, flushes }
    }

    /// The same after a panic: everybody is told at once, and disks are left alone.
    pub fn of_panic(state: &mut State, networks: &mut [Network], now: Instant) -> Self {
        state.plane.ending = true;
        state.say_goodbye(networks, now);
        let (step, flushes) = (Step::Goodbyes, Vec::new());
        Ending { how: None, step, deadline: now + GOODBYES, flushes }
    }

    /// Goes on; how the machine ends, once it may. `told` says whether the console has sent all that was logged.
    pub fn poll(
        &mut self,
        state: &mut State,
        networks: &mut [Network],
        told: bool,
        now: Instant,
    ) -> Option<End> {
        match self.step {
            Step::Flushes => {
                if self.disks_are_done(&mut state.disks, now) {
                    // After a power cut a drive takes longer to come up, and counts it.
                    state.disks.iter_mut().for_each(|slot| slot.disk.shut_down());
                    state.say_goodbye(networks, now);
                }
                None
            }
            Step::Goodbyes => {
                if state.is_shut_down(networks) || now >= self.deadline {
                    self.step = Step::Console;
                    self.deadline = now + CONSOLE;
                    if self.how.is_some() {
                        // Meanwhile other loops tell the machines across their bridges.
                        for worker in &mut state.workers {
                            worker.tell(DataPlane::leave_bridges);
                        }
                    }
                }
                None
            }
            Step::Console if !told && now < self.deadline => None,
            Step::Console => {
                if self.how.is_some() {
                    state.plane.leave_bridges();
                }
                self.how
            }
        }
    }

    /// When it wants to go on.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        self.deadline.min(now + LOOK)
    }

    /// Whether the disks have written down what they were given, or have had their time: then the next step begins.
    fn disks_are_done(&mut self, disks: &mut [DiskSlot], now: Instant) -> bool {
        let done = self.poll_flushes(disks);
        if !done && now < self.deadline {
            return false;
        }
        if !done {
            log::error!("ending: a disk has not written its cache down in time");
        }
        self.step = Step::Goodbyes;
        self.deadline = now + GOODBYES;
        true
    }

    /// Whether all disks are done.
    fn poll_flushes(&mut self, disks: &mut [DiskSlot]) -> bool {
        for (slot, flush) in disks.iter_mut().zip(&mut self.flushes) {
            if *flush == Flush::Done {
                continue;
            }
            while let Some(completion) = slot.disk.poll() {
                if completion.tag == FLUSH && *flush == Flush::UnderWay {
                    *flush = Flush::Done;
                    if let Err(why) = completion.result {
                        log::error!(
                            "ending: {}: its write cache was not flushed: {why}",
                            slot.name
                        );
                    }
                }
            }
            if *flush == Flush::Wanted {
                let (operation, data) = (Operation::Flush, Window::empty());
                *flush = match slot.disk.submit(&Request { tag: FLUSH, operation, sector: 0, data })
                {
                    Ok(()) => Flush::UnderWay,
                    Err(SubmitError::Full) => Flush::Wanted,
                    Err(SubmitError::Range | SubmitError::Unsupported) => Flush::Done,
                };
                slot.disk.flush_queue();
            }
        }
        self.flushes.iter().all(|flush| *flush == Flush::Done)
    }
}

impl State {
    /// Tells everybody who is connected.
    fn say_goodbye(&mut self, networks: &mut [Network], now: Instant) {
        self.plane.shut_down(now);
        for worker in &mut self.workers {
            // A loop that takes no orders is not waited for.
            worker.tell(move |plane| plane.shut_down(now));
        }
        self.shut_down_services(networks, now);
        networks.iter_mut().for_each(|network| network.interface.shut_down());
    }

    /// Whether everybody was told, and has acknowledged that where there is a way to.
    pub(super) fn is_shut_down(&mut self, networks: &[Network]) -> bool {
        self.plane.is_shut_down()
            && self.services_are_shut_down()
            && networks.iter().all(|network| network.interface.is_shut_down())
            && self.disks.iter().all(|slot| slot.disk.is_shut_down())
    }
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
