//! DMA engines of the machine, whose channels carry what bridges write.

use drivers::device::Device as FoundDevice;
use drivers::dma::Channel;
use drivers::hal::{Clock, Platform};
use drivers::ntb::NtbDevice;
use std::collections::VecDeque;

/// Engines that were found.
pub(in crate::gateway) struct Engines<'a> {
    found: VecDeque<FoundDevice>,
    clock: &'a dyn Clock,
    /// Channels of opened engines that carry for nobody, each with its engine's name.
    spare: VecDeque<(String, Box<dyn Channel>)>,
}

impl<'a> Engines<'a> {
    /// None is opened yet.
    pub fn new(found: Vec<FoundDevice>, clock: &'a dyn Clock) -> Self {
        Engines { found: found.into(), clock, spare: VecDeque::new() }
    }

    /// A channel: of an engine that carries for nobody if there is one that works, else another of one that does.
    fn channel(&mut self, platform: &mut dyn Platform) -> Option<(String, Box<dyn Channel>)> {
        while let Some(device) = self.found.pop_front() {
            let location = device.location();
            let engine = format!("{}, {location}", device.driver());
            match device.open_dma(platform, self.clock) {
                Ok(channels) => {
                    let mut channels = channels.into_iter();
                    let Some(first) = channels.next() else { continue };
                    self.spare.extend(channels.map(|channel| (engine.clone(), channel)));
                    return Some((engine, first));
                }
                Err(why) => log::error!("{location}: {why}"),
            }
        }
        self.spare.pop_front()
    }

    /// Has a channel carry what is written through the bridge `name`, if it wants that; whose it is. Without one the CPU
    /// does.
    pub fn serve(
        &mut self,
        name: &str,
        bridge: &mut dyn NtbDevice,
        platform: &mut dyn Platform,
    ) -> Option<String> {
        bridge.carrier()?;
        let (engine, channel) = self.channel(platform)?;
        let number = channel.number();
        if !bridge.use_engine(channel, platform.arena()) {
            log::error!("{name}: no memory for what {engine} carries: the CPU does");
            return None;
        }
        log::info!("{name}: carried by {engine}, channel {number}");
        Some(engine)
    }
}
