//! DMA engines of the machine, which carry what a bridge writes.

use drivers::device::Device as FoundDevice;
use drivers::hal::{Clock, Platform};
use drivers::ntb::NtbDevice;

/// Engines that were found.
pub(in crate::gateway) struct Engines<'a> {
    pub found: Vec<FoundDevice>,
    pub clock: &'a dyn Clock,
}

impl Engines<'_> {
    /// Has the first engine that works, and that carries for no other, carry what is written through the bridge `name`, if
    /// it wants that. Without one the CPU does.
    pub fn serve(&mut self, name: &str, bridge: &mut dyn NtbDevice, platform: &mut dyn Platform) {
        if bridge.carrier().is_none() {
            return;
        }
        while !self.found.is_empty() {
            let device = self.found.remove(0);
            let location = device.location();
            match device.open_dma(platform, self.clock) {
                Ok(mut channels) if !channels.is_empty() => {
                    if bridge.use_engine(channels.remove(0), platform.arena()) {
                        log::info!("{name}: carried by {}, {location}, channel 0", device.driver());
                    }
                    return;
                }
                Ok(_) => {}
                Err(why) => log::error!("{location}: {why}"),
            }
        }
    }
}
