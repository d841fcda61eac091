//! Which of several disks is taken, by what operators, clients and careless hands may have done to them.

use super::super::disks::SharedDisk;
use super::*;
use crate::config::Document;
use drivers::hal::{Completion, Features, Geometry, SubmitError};

/// A disk that answers nothing: choosing does not ask it.
struct Silent;

impl Disk for Silent {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: 4096, features: Features::empty(), ..Geometry::ABSENT }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, _: &Request) -> Result<(), SubmitError> {
        Err(SubmitError::Full)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

const PLAIN: Look = Look { boots: false, config: None, slots: None, bare_config: false };
const BARE: Look = Look { bare_config: true, ..PLAIN };
const PARTITION: Look = Look { config: Some(Stretch { first: 128, sectors: 128 }), ..PLAIN };
const BOOT: Look = Look { boots: true, ..PARTITION };

/// Which of these disks (serial number, what it holds) is taken beside other sources that say `words`.
fn chosen(
    disks: &[(&str, Look)],
    wanted: Option<&str>,
    words: &[(&str, &str)],
) -> Result<Option<usize>, String> {
    let slot = |(number, (serial, look)): (usize, &(&str, Look))| DiskSlot {
        name: format!("disk{number}"),
        serial: serial.to_string(),
        model: String::new(),
        firmware: String::new(),
        location: format!("pci:0000:00:{:02x}.0", number + 3),
        device: String::new(),
        geometry: Silent.geometry(),
        disk: SharedDisk::new(Box::new(Silent)),
        role: if look.boots { Role::Boot } else { Role::Free },
    };
    let slots: Vec<DiskSlot> = disks.iter().enumerate().map(slot).collect();
    let looks: Vec<Look> = disks.iter().map(|(_, look)| *look).collect();
    let mut document = Document::default();
    for (path, value) in words {
        document.set(path, value).unwrap();
    }
    choose(&slots, &looks, wanted, document.config())
}

#[test]
fn contents_alone_make_no_configuration_disk() {
    assert_eq!(chosen(&[("", BARE), ("data", BARE)], None, &[]), Ok(None));
    assert_eq!(chosen(&[("", BARE), (SERIAL, PLAIN)], None, &[]), Ok(Some(1)));
    assert_eq!(chosen(&[("", BARE), ("", PARTITION)], None, &[]), Ok(Some(1)));
}

#[test]
fn a_serial_number_counts_more_than_a_partition_and_the_operator_most() {
    let disks = [("", PARTITION), (SERIAL, BARE), ("mine", BARE)];
    assert_eq!(chosen(&disks, None, &[]), Ok(Some(1)));
    for name in ["serial:mine", "pci:0000:00:05.0", "disk2"] {
        assert_eq!(chosen(&disks, Some(name), &[]), Ok(Some(2)), "{name}");
    }
    for wrong in ["serial:other", "pci:0000:00:06.0", "nonsense", "mac:02:00:00:00:00:01"] {
        assert!(chosen(&disks, Some(wrong), &[]).is_err(), "{wrong}");
    }
}

#[test]
fn of_two_none_is_taken() {
    assert!(chosen(&[(SERIAL, BARE), (SERIAL, BARE)], None, &[]).is_err());
    assert!(chosen(&[("", PARTITION), ("", PARTITION)], None, &[]).is_err());
    assert!(chosen(&[("a", BARE), ("a", BARE)], Some("serial:a"), &[]).is_err());
}

#[test]
fn a_partition_that_a_client_may_have_written_does_not_count() {
    let disks = [("", BOOT), ("data", PARTITION)];
    for name in ["1", "serial:data", "pci:0000:00:04.0"] {
        let whole = [("volume.0.name", "data"), ("volume.0.disk", name)];
        assert_eq!(chosen(&disks, None, &whole), Ok(Some(0)), "{name}");
        assert_eq!(chosen(&disks[1..], None, &[whole[0], ("volume.0.disk", "0")]), Ok(None));
    }
    // Of extents no client reaches the table.
    let part = [("volume.0.name", "x"), ("volume.0.disk", "0"), ("volume.0.size", "1MiB")];
    assert_eq!(chosen(&disks[1..], None, &part), Ok(Some(0)));
    // The boot disk is never a volume, whatever is written.
    let boot = [("volume.0.name", "x"), ("volume.0.disk", "0")];
    assert_eq!(chosen(&disks[..1], None, &boot), Ok(Some(0)));
}
