//! The end of the appliance, on `reboot` and `poweroff`, which set `State::end`: disks are flushed, connected peers are
//! notified, then the machine ends. Each step ends with its condition or its time limit. All of it takes less than a
//! second.
//!
//! 1. Storage gets no more requests, and the disks' queues belong to this module. Each is flushed, half a second at
//!    most.
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

/// Time limit of flushing disks.
const FLUSHES: Duration = Duration::from_millis(500);
/// Time limit for peers to acknowledge their disconnect. Linux answers at once.
const DISCONNECTS: Duration = Duration::from_millis(400);
/// Time limit to print the log. The serial line sends 11 bytes a millisecond at 115,200 baud.
const CONSOLE: Duration = Duration::from_millis(90);
/// Poll interval of a step.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Tag of a flush. Completions with other tags are ignored.
const FLUSH: u64 = u64::MAX;

/// Progress of the shutdown.
#[derive(Debug)]
pub(super) struct Ending {
    /// None after a panic: the panic handler ends the machine.
    pub how: Option<End>,
    step: Step,
    /// Time limit of the step.
    deadline: Instant,
    /// Flushes, by number of the disk.
    flushes: Vec<Flush>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Flushes,
    Disconnects,
    Console,
}

/// State of a disk's flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// Not submitted yet, because the disk's queue was full.
    Wanted,
    UnderWay,
    Done,
}

impl Ending {
    /// Starts the shutdown. From here on nothing else uses the disks that hold volumes.
    pub fn new(how: End, state: &mut State, now: Instant) -> Self {
        state.plane.ending = true;
        // Loops of other cores have queues of their own to the disks.
        for worker in &mut state.workers {
            worker.send_order(|plane| plane.ending = true);
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

    /// Starts the disconnect after a panic, without flushing disks.
    pub fn of_panic(state: &mut State, networks: &mut [Network], now: Instant) -> Self {
        state.plane.ending = true;
        state.disconnect_peers(networks, now);
        let (step, flushes) = (Step::Disconnects, Vec::new());
        Ending { how: None, step, deadline: now + DISCONNECTS, flushes }
    }

    /// Continues the shutdown. Returns how the machine ends, when it may end. `printed`: the console has printed the
    /// log.
    pub fn poll(
        &mut self,
        state: &mut State,
        networks: &mut [Network],
        printed: bool,
        now: Instant,
    ) -> Option<End> {
        match self.step {
            Step::Flushes => {
                if self.disks_are_done(&mut state.disks, now) {
                    // After a power cut a drive takes longer to come up, and counts it.
                    state.disks.iter_mut().for_each(|slot| slot.disk.shut_down());
                    state.disconnect_peers(networks, now);
                }
                None
            }
            Step::Disconnects => {
                if state.is_shut_down(networks) || now >= self.deadline {
                    self.step = Step::Console;
                    self.deadline = now + CONSOLE;
                    if self.how.is_some() {
                        // Meanwhile other loops notify the machines across their bridges.
                        for worker in &mut state.workers {
                            worker.send_order(DataPlane::leave_bridges);
                        }
                    }
                }
                None
            }
            Step::Console if !printed && now < self.deadline => None,
            Step::Console => {
                if self.how.is_some() {
                    state.plane.leave_bridges();
                }
                self.how
            }
        }
    }

    /// When to poll next.
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        self.deadline.min(now + POLL_INTERVAL)
    }

    /// Whether all disks are flushed, or the time limit has expired. If so, the next step begins.
    fn disks_are_done(&mut self, disks: &mut [DiskSlot], now: Instant) -> bool {
        let done = self.poll_flushes(disks);
        if !done && now < self.deadline {
            return false;
        }
        if !done {
            log::error!("ending: a disk has not flushed its write cache in time");
        }
        self.step = Step::Disconnects;
        self.deadline = now + DISCONNECTS;
        true
    }

    /// Submits and completes flushes. Returns whether all disks are done.
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
    /// Disconnects all peers, on all loops.
    fn disconnect_peers(&mut self, networks: &mut [Network], now: Instant) {
        self.plane.shut_down(now);
        for worker in &mut self.workers {
            // A loop whose ring is full is skipped.
            worker.send_order(move |plane| plane.shut_down(now));
        }
        let (services, mut around) = self.services(networks, now);
        services.shut_down(&mut around);
        networks.iter_mut().for_each(|network| network.interface.shut_down());
    }

    /// Whether all peers were notified, and have acknowledged where the protocol has an acknowledgement.
    pub(super) fn is_shut_down(&mut self, networks: &[Network]) -> bool {
        self.plane.is_shut_down()
            && self.services.are_shut_down()
            && networks.iter().all(|network| network.interface.is_shut_down())
            && self.disks.iter().all(|slot| slot.disk.is_shut_down())
    }
}

#[cfg(test)]
#[path = "ending_tests.rs"]
mod tests;
