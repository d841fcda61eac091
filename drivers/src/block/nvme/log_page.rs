//! The log page SMART / Health Information (NVMe 1.4, 5.14.1.2).

use crate::hal::{Health, Window};

/// Bytes of the page.
pub const LEN: usize = 512;

/// Kelvin of 0 degrees Celsius, as the specification rounds.
const FREEZING: i32 = 273;

/// Message to the operator for each bit of Critical Warning.
const WARNINGS: [&str; 6] = [
    "the drive reports that its spare blocks run out: replace it soon",
    "the drive reports that it is too hot or too cold: check its cooling",
    "the drive reports that it is not reliable any more: replace it",
    "the drive reports that it is read-only: replace it",
    "the drive reports that its backup of volatile memory has failed: flushed data may be lost at a power \
     cut, replace it",
    "the drive reports that its persistent memory region is not reliable any more",
];

/// Parsed page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmartLog {
    /// Critical Warning, bit by bit.
    pub warnings: u8,
    /// Health of the drive.
    pub health: Health,
}

impl SmartLog {
    /// Parses the page.
    pub fn read(page: &Window) -> SmartLog {
        let byte = |at: usize| page.read_array::<1>(at).map_or(0, |[byte]| byte);
        // Counters have 16 bytes. A value beyond 8 bytes saturates.
        let counter = |at: usize| {
            let [low, high] =
                [at, at + 8].map(|at| u64::from_le_bytes(page.read_array(at).unwrap_or_default()));
            if high == 0 { low } else { u64::MAX }
        };
        let kelvin = i32::from(u16::from_le_bytes([byte(1), byte(2)]));
        let health = Health {
            celsius: (kelvin != 0).then_some(kelvin - FREEZING),
            spare: Some(byte(3).min(100)),
            used: Some(byte(5)),
            media_errors: Some(counter(160)),
            power_on_hours: Some(counter(128)),
            ..Health::default()
        };
        SmartLog { warnings: byte(0), health }
    }

    /// Messages for the warnings that are not in `before`.
    pub fn new_warnings(&self, before: u8) -> impl Iterator<Item = &'static str> {
        let new = self.warnings & !before;
        WARNINGS
            .iter()
            .enumerate()
            .filter(move |(bit, _)| new & 1 << bit != 0)
            .map(|(_, text)| *text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;
    use std::vec::Vec;

    #[test]
    fn page_is_parsed_as_specified() {
        let page = Arena::on_heap(2 * LEN).alloc(LEN, 64).unwrap();
        page.fill(0);
        page.write(0, &[0b101, 0x43, 0x01, 100, 10, 3]).unwrap();
        page.write(128, &77u64.to_le_bytes()).unwrap();
        page.write(160, &[0xff; 16]).unwrap();
        let log = SmartLog::read(&page);
        assert_eq!(log.health.celsius, Some(50));
        assert_eq!((log.health.spare, log.health.used), (Some(100), Some(3)));
        assert_eq!(log.health.power_on_hours, Some(77));
        assert_eq!(log.health.media_errors, Some(u64::MAX));
        assert_eq!(log.new_warnings(0).count(), 2);
        assert_eq!(log.new_warnings(1).collect::<Vec<_>>(), [WARNINGS[2]]);
        page.fill(0);
        assert_eq!(SmartLog::read(&page).health.celsius, None);
    }
}
