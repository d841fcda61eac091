//! `wipe`: erases the config disk, or the table of volumes of another disk, and reports what was read back.

use super::disk_pool::Order;
use super::disks::DiskSlot;
use super::orders::NO_DISK;
use super::revisions::Waiting;
use super::state::State;
use super::storage::Storage;
use crate::console::Managed;
use drivers::hal::Arena;
use management::Told;

/// Result of a wipe of the config disk.
pub(super) fn report(slot: &DiskSlot, sectors: u64) -> String {
    format!(
        "{} ({}): {sectors} sectors erased and read back as zeroes, and the first 8 hold no document; the running \
         configuration stays in force until `reboot`, and the image, fw_cfg and the command line keep theirs",
        slot.name, slot.device
    )
}

impl State {
    /// Starts to erase the config disk, if the operator has typed its name.
    pub(super) fn wipe_config(&mut self, typed: Option<&str>) -> Told {
        let Some((index, _)) = &self.config_disk else { return Err(NO_DISK.into()) };
        let slot = &self.disks[*index];
        if typed != Some(slot.name.as_str()) && typed != Some(slot.device.as_str()) {
            return Err(format!(
                "this erases the saved configuration with its secrets, all revisions, the audit log, records of panics \
                 and the appliance's own certificate on {0} ({1}); nothing brings them back: confirm with `wipe --yes {0}`",
                slot.name, slot.device
            ));
        }
        if self.is_recording() {
            return self.wait(Waiting::Wipe);
        }
        self.begin_wipe()
    }

    /// Starts to erase the config disk.
    pub(super) fn begin_wipe(&mut self) -> Told {
        if self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy()) {
            return Err("the disk is being written for an upgrade; try again later".into());
        }
        let Some((_, engine)) = &mut self.config_disk else { return Err(NO_DISK.into()) };
        engine.wipe()?;
        self.wiping = true;
        Ok(Managed::Started)
    }
}

impl Storage {
    /// Starts to erase the table of volumes of a disk. No client has its volumes, and they are retired.
    pub(super) fn wipe(
        &mut self,
        number: usize,
        disks: &mut [DiskSlot],
        arena: &mut Arena,
    ) -> Told {
        let pool = self.pools.iter().find(|pool| pool.number == number);
        if pool.is_some_and(|pool| pool.store.is_busy() || !pool.orders.is_empty()) {
            return Err(format!("disk {number} is busy; try again"));
        }
        let open = pool.map_or(Vec::new(), |pool| pool.open.clone());
        for (name, _) in open {
            if let Some(id) = self.volumes.find(&name) {
                self.volumes.remove(id);
            }
            self.close_volume(&name);
        }
        self.order(number, Order::Wipe, disks, arena).map(|()| Managed::Started)
    }
}
