//! Function-level reset.

use super::*;

#[test]
fn function_level_reset_clears_all_state() {
    let (mut bench, ..) = Bench::pairs();
    /// Device Control of the PCI Express capability, the first in the list.
    const DEVICE_CONTROL: u64 = 0x58;
    let read = |card: &mut Mlx5, now: Nanoseconds, offset: u64| {
        let mut bytes = [0; 4];
        card.config().read_at(now, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    let card = &mut bench.cards[0];
    card.config().write(0x10, &0xfe00_0000u32.to_le_bytes());
    card.config().write_at(5, DEVICE_CONTROL, &0x8000u16.to_le_bytes());
    assert!(crate::take_function_reset(card, 5));
    assert_eq!((card.left().len(), card.pages()), (0, 0));
    // Retries, then all registers are as after power-on.
    let end = 5 + Config::default().reset_time;
    card.config().write_at(end - 1, 4, &6u16.to_le_bytes());
    assert_eq!((read(card, end - 1, 0), read(card, end - 1, 4)), (0xffff_0001, u32::MAX));
    assert_eq!((read(card, end, 0), read(card, end, 4) & 0xffff), (0x1018_15b3, 0));
    assert_eq!(read(card, end, 0x10), 0xc & 4, "BARs are cleared");
    assert_eq!(read(card, end, DEVICE_CONTROL) & 0xffff, 0x2810, "ordering is relaxed again");
    assert!(!crate::take_function_reset(card, end));
}
