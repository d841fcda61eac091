//! Virtio entropy device (virtio 1.2, 5.4), used at bring-up for seeding.

use super::{EntropyError, EntropySource};
use crate::driver::{Device, OpenError};
use crate::hal::{Clock, Platform, Window};
use crate::virtio::{self, Descriptor, Live, Ring, Setup, Taken};
use alloc::boxed::Box;
use core::time::Duration;

const QUEUE: u16 = 0;
const MOST_ENTRIES: u16 = 8;
/// Bytes of one request.
const BUFFER: usize = 64;
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A virtio entropy device.
struct VirtioRng {
    transport: Live,
    ring: Ring,
    buffer: Window,
}

/// Sets a device up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
) -> Result<Box<dyn EntropySource>, OpenError> {
    let mut transport = virtio::attach(device, platform)?;
    let mut setup = Setup::begin(&mut *transport, platform.arena(), 0)?;
    let ring = setup.queue(QUEUE, MOST_ENTRIES, false)?;
    let buffer = setup.alloc(BUFFER, BUFFER)?;
    setup.finish();
    Ok(Box::new(VirtioRng { transport: Live::new(transport), ring, buffer }))
}

impl EntropySource for VirtioRng {
    fn read(&mut self, into: &mut [u8], clock: &dyn Clock) -> Result<(), EntropyError> {
        let mut rest = into;
        while !rest.is_empty() {
            let wanted = rest.len().min(BUFFER);
            let given = self.request(wanted, clock)?;
            let (now, later) = rest.split_at_mut(given);
            self.buffer.read(0, now).map_err(|_| EntropyError::Broken)?;
            rest = later;
        }
        // The bytes returned must not remain in memory.
        self.buffer.fill(0);
        Ok(())
    }
}

impl VirtioRng {
    /// Requests up to `wanted` bytes into the buffer; returns how many the device wrote, 1 or more.
    fn request(&mut self, wanted: usize, clock: &dyn Clock) -> Result<usize, EntropyError> {
        if self.ring.outstanding() > 0 {
            // An earlier request timed out: the device still owns the buffer.
            return Err(EntropyError::Timeout);
        }
        let (address, len) = (self.buffer.bus_address(), wanted as u32);
        self.ring.describe(0, Descriptor { address, len, device_writes: true, next: None });
        self.ring.offer(0);
        if self.ring.publish() {
            self.transport.notify(QUEUE);
        }
        let deadline = clock.now() + TIMEOUT;
        loop {
            match self.ring.take() {
                Taken::Chain { written, .. } if (1..=len).contains(&written) => {
                    return Ok(written as usize);
                }
                Taken::Chain { .. } | Taken::Nonsense => return Err(EntropyError::Broken),
                Taken::Nothing if clock.now() >= deadline => return Err(EntropyError::Timeout),
                Taken::Nothing => crate::hal::relax(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EntropyError, EntropySource};
    use crate::driver::Class;
    use crate::virtio::model::{Machine, Model, WallClock};
    use alloc::boxed::Box;

    const MODERN: u64 = 1 << 32;

    fn open() -> (Machine, Model, Box<dyn EntropySource>) {
        let mut machine = Machine::new(1 << 20);
        let model = Model::new(&machine, 4, MODERN, &[], &[64]);
        machine.plug_pci(5, &model);
        let device = machine.find().take(Class::Entropy).remove(0);
        let entropy = device.open_entropy(&mut machine).unwrap();
        (machine, model, entropy)
    }

    #[test]
    fn bytes_are_gathered_from_short_answers() {
        let (_machine, model, mut entropy) = open();
        let player = std::thread::spawn(move || {
            let mut next = 0u8;
            while next < 100 {
                let mut device = model.state();
                let Some(chain) = device.pop(0) else { continue };
                let bytes: std::vec::Vec<u8> = (next..(next + 7).min(100)).collect();
                let written = device.scatter(&chain, &bytes);
                device.push(0, chain.head, written);
                next += written as u8;
            }
        });
        let mut bytes = [0; 100];
        entropy.read(&mut bytes, &WallClock).unwrap();
        assert!(bytes.iter().copied().eq(0..100));
        player.join().unwrap();
    }

    #[test]
    fn silence_and_invalid_lengths_are_errors() {
        let (machine, _model, mut entropy) = open();
        assert_eq!(entropy.read(&mut [0; 8], &machine), Err(EntropyError::Timeout));
        assert_eq!(entropy.read(&mut [0; 8], &machine), Err(EntropyError::Timeout));
        for written in [0, 9, u32::MAX] {
            let (machine, model, mut entropy) = open();
            let player = std::thread::spawn(move || {
                loop {
                    let mut device = model.state();
                    let Some(chain) = device.pop(0) else { continue };
                    return device.push(0, chain.head, written);
                }
            });
            assert_eq!(entropy.read(&mut [0; 8], &WallClock), Err(EntropyError::Broken));
            player.join().unwrap();
            drop(machine);
        }
    }
}
