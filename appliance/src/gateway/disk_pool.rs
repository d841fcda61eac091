//! A disk that holds volumes as extents, with its pending orders.

use super::disks::{DiskSlot, SharedDisk};
use drivers::hal::{Arena, Disk};
use management::status::PoolStatus;
use std::collections::VecDeque;
use storage::volume::extents::{Change, Store, StoreEvent, StoreState};
use storage::volume::{DiskHandle, Extents, VolumeId};

/// A change on a disk.
#[derive(Clone, Debug)]
pub(super) enum Order {
    Create {
        name: String,
        bytes: u64,
        force: bool,
    },
    Grow {
        name: String,
        bytes: u64,
    },
    Delete {
        name: String,
    },
    /// Erases the table of volumes.
    Wipe,
    /// Writes the record of a volume's reservations.
    Reserve {
        name: String,
        id: VolumeId,
        record: Vec<u8>,
    },
}

impl Order {
    pub fn name(&self) -> &str {
        match self {
            Order::Create { name, .. }
            | Order::Grow { name, .. }
            | Order::Delete { name }
            | Order::Reserve { name, .. } => name,
            Order::Wipe => "",
        }
    }

    /// Whether it changes which volumes there are, or their size.
    pub fn is_of_volumes(&self) -> bool {
        !matches!(self, Order::Reserve { .. } | Order::Wipe)
    }
}

/// A disk that holds volumes, or is being examined.
pub(super) struct DiskPool {
    /// Number of the disk.
    pub number: usize,
    /// Permanent name of the disk.
    pub device: String,
    pub store: Store,
    pub user: DiskHandle<SharedDisk>,
    /// Its volumes.
    pub open: Vec<(String, Extents)>,
    /// Pending orders, and whether the console waits for each. The first is being executed.
    pub orders: VecDeque<(Order, bool)>,
}

impl DiskPool {
    /// Starts to examine a disk. None if there is no memory.
    pub fn new(number: usize, slot: &DiskSlot, arena: &mut Arena) -> Option<Self> {
        let store = Store::new(slot.geometry, arena)?;
        let user = DiskHandle::new(slot.disk.share());
        let device = slot.device.clone();
        Some(DiskPool { number, device, store, user, open: Vec::new(), orders: VecDeque::new() })
    }

    /// State of the disk.
    pub fn state(&self) -> StoreState {
        self.store.state()
    }

    /// Whether the disk is, or was, one with a table of volumes.
    pub fn is_ours(&self) -> bool {
        matches!(self.state(), StoreState::Ready | StoreState::Damaged | StoreState::HalfWiped)
    }

    /// Status for reports.
    pub fn status(&self) -> PoolStatus<'_> {
        PoolStatus {
            disk: (self.number, self.user.geometry().sectors),
            state: self.state(),
            table: self.store.table(),
            coming: {
                let orders = self.orders.iter().filter(|(order, _)| order.is_of_volumes());
                orders.map(|(order, _)| order.name()).collect()
            },
        }
    }

    /// How many extents a volume has, and its bytes.
    pub fn volume(&self, name: &str) -> Option<(usize, u64)> {
        let entry = self.store.table().find(name)?;
        Some((entry.extents.len(), entry.sectors() * 512))
    }

    /// Whether the disk can be released: it has no volumes of ours, and no orders.
    pub fn is_idle(&self) -> bool {
        !self.store.is_busy() && self.orders.is_empty() && self.open.is_empty()
    }

    /// Continues the current operation. True if it made progress.
    pub fn step(&mut self) -> (bool, Option<StoreEvent>) {
        let before = self.store.position();
        let event = self.store.poll(&mut self.user);
        (event.is_some() || self.store.position() != before, event)
    }

    /// Starts the first order; an error ends it.
    pub fn start(&mut self) -> Result<(), String> {
        self.store.set_geometry(self.user.geometry());
        let Some((order, _)) = self.orders.front() else { return Ok(()) };
        let force = matches!(order, Order::Create { force: true, .. });
        let number = self.number;
        if matches!(order, Order::Wipe) {
            let state = self.store.state();
            let why = || format!("disk {number} {state}: there is no table of volumes to wipe");
            return self.store.wipe().then_some(()).ok_or_else(why);
        }
        if self.store.state() != StoreState::Ready {
            let create = matches!(order, Order::Create { .. });
            if create && self.store.claim(force) {
                return Ok(());
            }
            let how = match self.store.state() {
                StoreState::Foreign if create => {
                    ": `force` formats it for volumes, which destroys its contents"
                }
                StoreState::Damaged if create => {
                    ": `force` formats it again, which destroys all volumes"
                }
                _ => "",
            };
            return Err(format!("disk {number} {}{how}", self.store.state()));
        }
        let sectors = |bytes: u64| bytes.div_ceil(512);
        let change = match order {
            Order::Create { name, bytes, .. } => Change::Create(name, sectors(*bytes)),
            Order::Grow { name, bytes } => Change::Grow(name, sectors(*bytes)),
            Order::Delete { name } => Change::Delete(name),
            Order::Reserve { name, record, .. } => Change::Reserve(name, record),
            Order::Wipe => return Ok(()),
        };
        self.store.change(change).map_err(|error| format!("disk {number}: {error}"))
    }
}
