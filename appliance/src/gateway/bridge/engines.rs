//! DMA engines of the machine. Their channels copy the data that bridges write.

use drivers::dma::Channel;
use drivers::driver::Device as FoundDevice;
use drivers::hal::{Clock, Platform};
use drivers::ntb::NtbDevice;
use std::collections::VecDeque;

/// Engines that were found.
pub(in crate::gateway) struct Engines<'a> {
    found: VecDeque<FoundDevice>,
    clock: &'a dyn Clock,
    /// Unused channels of opened engines, each with its engine's name.
    spare: VecDeque<(String, Box<dyn Channel>)>,
}

impl<'a> Engines<'a> {
    /// Creates it, with no engine opened yet.
    pub fn new(found: Vec<FoundDevice>, clock: &'a dyn Clock) -> Self {
        Engines { found: found.into(), clock, spare: VecDeque::new() }
    }

    /// Allocates a channel: of an engine without bridges if one works, else another channel of an engine in use.
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

    /// Assigns a channel to the bridge `name`, if the bridge can use one. Returns the name of its engine. Without a
    /// channel the CPU copies.
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
            log::error!("{name}: no memory to use {engine}: the CPU copies instead");
            return None;
        }
        log::info!("{name}: carried by {engine}, channel {number}");
        Some(engine)
    }
}
