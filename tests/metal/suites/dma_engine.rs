//! Common parts of the suites of DMA engines: a modelled engine and its channels.

use drivers::dma::{Channel, Health};
use drivers::driver::Class;
use drivers::hal::{Platform, Window};
use metal::Metal;
use models::Function;
use std::time::Duration;

pub const MICROSECOND: Duration = Duration::from_micros(1);
/// Bytes of a part. The test copies memory part by part.
pub const LEN: usize = 1024;
/// Number of parts.
pub const PARTS: usize = 255;

/// Opens the channels of the machine's engine. An error is the reason; all memory is then freed.
pub fn try_open<F: Function + Send + 'static>(
    machine: &mut Metal<F>,
    driver: &str,
) -> Result<Vec<Box<dyn Channel>>, String> {
    let device = machine.find().take(Class::Dma).remove(0);
    assert_eq!(device.driver(), driver);
    let free = machine.arena().available();
    let clock = machine.clock();
    device.open_dma(machine, &clock).map_err(|why| {
        assert_eq!(machine.arena().available(), free, "memory is freed");
        why.to_string()
    })
}

/// A machine with the engine, and source and destination memory.
pub struct Bench<F> {
    pub machine: Metal<F>,
    pub channels: Vec<Box<dyn Channel>>,
    pub from: Window,
    pub to: Window,
}

impl<F: Function + Send + 'static> Bench<F> {
    pub fn open(engine: F, driver: &str) -> Result<Self, String> {
        let mut machine = Metal::new(engine, 4 << 20);
        let channels = try_open(&mut machine, driver)?;
        let [from, to] = [0; 2].map(|_| machine.arena().alloc(PARTS * LEN, 4096).unwrap());
        for part in 0..PARTS {
            from.slice(part * LEN, LEN).unwrap().fill(part as u8 + 1);
        }
        to.fill(0);
        Ok(Bench { machine, channels, from, to })
    }

    /// The first channel.
    pub fn channel(&mut self) -> &mut dyn Channel {
        &mut *self.channels[0]
    }

    /// Pushes a copy of a part to another part's place.
    pub fn push_to(&mut self, part: usize, place: usize) -> Option<u64> {
        let to = self.to.slice(place * LEN, LEN).unwrap();
        let from = self.from.slice(part * LEN, LEN).unwrap();
        self.channel().push(&to, &from)
    }

    /// Pushes a copy of a part to its own place.
    pub fn push(&mut self, part: usize) -> Option<u64> {
        self.push_to(part, part)
    }

    /// The part whose bytes are at a place, if they are a whole part's.
    pub fn at(&self, place: usize) -> Option<usize> {
        let mut bytes = [0; LEN];
        self.to.read(place * LEN, &mut bytes).unwrap();
        let is_whole = bytes.iter().all(|byte| *byte == bytes[0]) && bytes[0] > 0;
        is_whole.then(|| usize::from(bytes[0]) - 1)
    }

    /// Parts that were copied to their places.
    pub fn copied(&self) -> Vec<usize> {
        (0..PARTS).filter(|&part| self.at(part) == Some(part)).collect()
    }

    /// Advances time in steps, until the end or until the channel's health is not good. Returns the completed count and
    /// the health.
    pub fn pass(&mut self, time: Duration) -> (u64, Health) {
        let step = (time / 1000).max(MICROSECOND);
        let mut ended = (0, Health::Good);
        for _ in 0..(time.as_nanos() / step.as_nanos()) as u32 {
            let now = self.machine.pass(step);
            self.machine.run();
            ended = self.channel().complete(now);
            if ended.1 != Health::Good {
                break;
            }
        }
        ended
    }

    /// A counter of the model.
    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.machine.model(|model| model.counters());
        counters.into_iter().find(|(known, _)| known == name).unwrap().1
    }
}
