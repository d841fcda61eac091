//! The model by itself.

use super::*;

#[test]
fn controller_shows_its_ports_and_the_drive_its_data() {
    let mut model = Ahci::new(Config::default());
    let mut word = [0; 4];
    model.read(5, 0x0c, &mut word);
    assert_eq!(u32::from_le_bytes(word), 3, "two ports");
    let identity = model.drive(0).identity();
    assert_eq!(&identity[20..28], b"omed-l 1");
    let page = model.drive(0).error_page(None);
    assert_eq!(page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    assert_eq!(page[0], 0x80, "no command of the queue has failed");
}

#[test]
fn power_cut_loses_what_was_not_flushed() {
    let mut drive = Drive::default();
    assert!(drive.write(0, &[1; 512], false) && drive.write(1, &[2; 512], true));
    drive.cut_power();
    assert_eq!((drive.medium()[0], drive.medium()[512]), (0xa5, 2));
    assert!(drive.write(0, &[1; 512], false));
    drive.flush();
    drive.cut_power();
    assert_eq!(drive.medium()[0], 1);
    assert!(!drive.write(4096, &[1; 512], false), "past the end");
}
