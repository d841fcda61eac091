//! Queues of disks for loops of other cores (`hal::MoreQueues`; NVMe so far).
//!
//! Before its loop starts, a core gets a queue on each drive that has one, and an interrupt, left. Its requests for
//! volumes there go from its server through its `DiskShare` into its own ring, which it polls. The ring's MSI-X vector
//! is armed during a halt. No request and no completion crosses cores. The catalog reports where a volume lies
//! (`OnDisk`: the disk's number and extents).
//!
//! The owner of an NVMe controller has registers, admin queue and its own pair; `drivers/src/block/nvme/line.rs`
//! describes how it resets the pairs of other cores. A core reports faults of its queue (a late request, a completion
//! without request, or of another queue) to the owner, which aborts, resets and counts.

use super::disks::SharedDisk;
use super::loop_waker::LoopWaker;
use crate::machine::SpareCore;
use core::time::Duration;
use drivers::hal::{Clock, CoreQueue, Disk, Instant, MoreQueues, Platform, QueueSeat};
use std::sync::Arc;
use storage::volume::{DiskHandle, DiskShare, OnDisk, OpenCounts, Volume};

/// Interval of timeout checks of requests.
const WATCH: Duration = Duration::from_secs(1);

/// A device that may have more queues, and the numbers of its disks.
pub(super) struct DeviceQueues {
    pub disks: Vec<usize>,
    pub queues: Box<dyn MoreQueues>,
}

/// A queue of a device for one loop, and the numbers of the disks behind it.
pub(super) struct LoopQueue {
    disks: Vec<usize>,
    queue: Box<dyn CoreQueue>,
}

/// Opens a queue of each device for a core, as far as queues and interrupts are left.
pub(super) fn open(
    devices: &mut [DeviceQueues],
    number: usize,
    core: &mut dyn SpareCore,
    waker: &LoopWaker,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Vec<LoopQueue> {
    let mut opened = Vec::new();
    for device in devices {
        let waker = waker.clone();
        let seat = QueueSeat {
            core: number as u16,
            interrupt: &mut || core.interrupt(),
            wake: Box::new(move || waker.wake()),
            platform,
            clock,
        };
        match device.queues.open(seat) {
            Some(queue) => opened.push(LoopQueue { disks: device.disks.clone(), queue }),
            None => log::info!(
                "core {number}: no queue of its own to {}: the drive or the machine has none left; \
                 core 0 submits its requests",
                device
                    .disks
                    .iter()
                    .map(|disk| format!("disk{disk}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        }
    }
    opened
}

/// A disk that a loop has a queue of its own to.
struct OwnDisk {
    disk: SharedDisk,
    users: DiskHandle<SharedDisk>,
}

/// The disks to which a loop has queues of its own, by disk number.
#[derive(Default)]
pub(super) struct OwnDisks {
    all: Vec<Option<OwnDisk>>,
    watch_due: Instant,
}

impl OwnDisks {
    /// Creates it, on the loop's core.
    pub fn new(queues: Vec<LoopQueue>) -> Self {
        let mut all = Vec::new();
        for LoopQueue { disks, queue } in queues {
            for (number, disk) in disks.into_iter().zip(queue.disks()) {
                if all.len() <= number {
                    all.resize_with(number + 1, || None);
                }
                let disk = SharedDisk::new(disk);
                all[number] = Some(OwnDisk { users: DiskHandle::new(disk.share()), disk });
            }
        }
        OwnDisks { all, watch_due: Instant::ZERO }
    }

    /// This loop's share of a volume; None if it has no queue to the volume's disk.
    pub fn share(&self, place: &OnDisk, counts: &Arc<OpenCounts>) -> Option<Box<dyn Volume>> {
        let own = self.all.get(place.disk)?.as_ref()?;
        Some(Box::new(DiskShare::new(own.users.another(), place, counts)))
    }

    fn each(&mut self) -> impl Iterator<Item = &mut SharedDisk> {
        self.all.iter_mut().flatten().map(|own| &mut own.disk)
    }

    /// Updates the disks' sizes after the owner of the volumes has reported a change.
    pub fn update_sizes(&mut self) {
        self.each().for_each(|disk| _ = disk.capacity_changed());
    }

    /// Enables or disables interrupts of the disks.
    #[inline]
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.each().for_each(|disk| disk.set_interrupts(wanted));
    }

    /// Whether completions are pending.
    #[inline]
    pub fn pending(&self) -> bool {
        self.all.iter().flatten().any(|own| own.disk.pending())
    }

    /// Checks requests for timeouts, about once a second.
    pub fn watch(&mut self, now: Instant) {
        if now >= self.watch_due {
            self.watch_due = now + WATCH;
            self.each().for_each(|disk| disk.watch(now));
        }
    }

    /// When the next check is due.
    pub fn watch_due(&self) -> Instant {
        self.watch_due
    }
}
