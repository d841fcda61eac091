//! Tests of the choice of config disk and boot disk, with operator errors, disks that clients have written, and disk
//! failures.

use super::super::disks::SharedDisk;
use super::*;
use crate::config::{Document, Sources};
use core::cell::Cell;
use crc::{CRC_32_ISO_HDLC, Crc};
use drivers::hal::{
    Completion, Disk, DiskError, Features, Geometry, Instant, Operation, Request, SubmitError,
};
use proptest::prelude::*;
use release::layout;
use std::collections::VecDeque;

const SIZE: usize = 256 << 10;
const EFI: [u8; 16] = [
    0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
];
/// The operator's saved document. It gives a whole disk to clients.
const SAVED: &str = "[system]\nhostname = \"saved\"\n[http]\nhosts = [\"10.0.0.2\"]\n\
                     [[volume]]\nname = \"data\"\ndisk = \"serial:client\"\n\
                     [[export]]\nname = \"data\"\nvolume = \"data\"\nhosts = [\"10.0.0.2\"]\n";
/// A document of another source, which opens everything.
const OPEN: &[u8] =
    b"[roce]\nservices = true\n[[rule]]\nname = \"r\"\nlisten = 99\nbackend = \"10.0.0.9:99\"\n";

/// Response of a disk to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    Silent,
    Fails,
}

/// A disk in memory.
struct Ram {
    bytes: Vec<u8>,
    health: Health,
    done: VecDeque<Completion>,
}

impl Disk for Ram {
    fn geometry(&self) -> Geometry {
        let sectors = (self.bytes.len() / 512) as u64;
        let max_transfer = 64 << 10;
        Geometry { sectors, max_transfer, features: Features::empty(), ..Geometry::ABSENT }
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        assert!(matches!(request.operation, Operation::Read), "choosing changes nothing");
        let at = request.sector as usize * 512;
        let bytes = self.bytes.get(at..at + request.data.len()).ok_or(SubmitError::Range)?;
        request.data.write(0, bytes).unwrap();
        let result = match self.health {
            Health::Well => Ok(()),
            Health::Silent => return Ok(()),
            Health::Fails => Err(DiskError::Io),
        };
        self.done.push_back(Completion { tag: request.tag, result });
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

/// A clock that advances with each read.
#[derive(Default)]
struct Steps(Cell<u64>);

impl Clock for Steps {
    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 100_000_000);
        Instant::from_nanos(self.0.get())
    }
}

/// A disk of a machine.
#[derive(Clone, Debug)]
struct Given {
    serial: &'static str,
    bytes: Vec<u8>,
    health: Health,
}

fn given(serial: &'static str, mut bytes: Vec<u8>) -> Given {
    bytes.resize(SIZE, 0);
    Given { serial, bytes, health: Health::Well }
}

fn area(text: Option<&str>) -> Vec<u8> {
    let mut area = crate::config::disk::format(text).unwrap();
    area.truncate(crate::config::disk::LEAST_LEN);
    area
}

/// A disk with a table of partitions: type, first sector, contents.
fn table(partitions: &[([u8; 16], usize, Vec<u8>)]) -> Vec<u8> {
    const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
    let mut disk = vec![0; SIZE];
    for (number, (kind, first, contents)) in partitions.iter().enumerate() {
        let entry = &mut disk[1024 + 128 * number..][..128];
        entry[..16].copy_from_slice(kind);
        let last = first + contents.len().div_ceil(512).max(1) - 1;
        entry[32..40].copy_from_slice(&(*first as u64).to_le_bytes());
        entry[40..48].copy_from_slice(&(last as u64).to_le_bytes());
        disk[first * 512..][..contents.len()].copy_from_slice(contents);
    }
    let entries = CRC32.checksum(&disk[1024..1024 + 128 * 128]);
    let header = &mut disk[512..512 + 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[12..16].copy_from_slice(&92u32.to_le_bytes());
    header[72..80].copy_from_slice(&2u64.to_le_bytes());
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header[88..92].copy_from_slice(&entries.to_le_bytes());
    let crc = CRC32.checksum(header);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
    disk
}

/// A disk as written by `./isthmus image raw`, with a document.
fn bootable(text: Option<&str>) -> Vec<u8> {
    table(&[
        (EFI, 64, vec![1; 512]),
        (layout::config_type_on_disk(), 128, area(text)),
        (layout::partition_type_on_disk(), 320, vec![0; 32 << 10]),
    ])
}

/// How the config disk is identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Serial,
    Named,
    Booted,
}

const WAYS: [Way; 3] = [Way::Serial, Way::Named, Way::Booted];

impl Way {
    fn disk(self) -> Given {
        match self {
            Way::Serial => given(SERIAL, area(Some(SAVED))),
            Way::Named => {
                let partition = (layout::config_type_on_disk(), 128, area(Some(SAVED)));
                given("mine", table(&[partition]))
            }
            Way::Booted => given("system", bootable(Some(SAVED))),
        }
    }
}

/// Result of a start.
#[derive(Debug, PartialEq)]
struct Start {
    chosen: Option<usize>,
    slots: Option<(usize, Stretch)>,
    roles: Vec<Role>,
    unreachable: Option<String>,
    config: Config,
    closed: bool,
}

/// Starts with these disks. `own` is the number of the boot disk.
fn start(disks: &[Given], named: Option<&str>, own: Option<usize>, fw_cfg: &[u8]) -> Start {
    let place = |number: usize| format!("pci:0000:00:{:02x}.0", number + 3);
    let command_line = match own {
        Some(number) => format!("isthmus-disk={},saved", place(number)),
        None => String::new(),
    };
    start_by(disks, named, &command_line, fw_cfg)
}

fn start_by(disks: &[Given], named: Option<&str>, command_line: &str, fw_cfg: &[u8]) -> Start {
    let slot = |(number, disk): (usize, &Given)| {
        let ram = Ram { bytes: disk.bytes.clone(), health: disk.health, done: VecDeque::new() };
        DiskSlot {
            name: format!("disk{number}"),
            serial: disk.serial.to_string(),
            model: String::new(),
            firmware: String::new(),
            location: format!("pci:0000:00:{:02x}.0", number + 3),
            device: format!("serial:{}", disk.serial),
            geometry: ram.geometry(),
            disk: SharedDisk::new(Box::new(ram)),
            role: Role::Free,
        }
    };
    let mut slots: Vec<DiskSlot> = disks.iter().enumerate().map(slot).collect();
    let mut sources = Sources { fw_cfg: Some(fw_cfg), command_line, ..Sources::default() };
    let (others, _) = Document::load(&sources);
    let outside = Outside { named, command_line, others: others.config(), failed: &[] };
    let mut arena = Arena::on_heap(2 << 20);
    let known = find(&mut slots, &outside, &mut arena, &Steps::default());
    sources.disk = known.text.as_deref();
    sources.disk_unreachable = known.unreachable.as_deref();
    let (document, _) = Document::load(&sources);
    known.protect(&mut slots, document.config());
    Start {
        chosen: known.place.as_ref().map(|(number, _)| *number),
        slots: known.slots,
        roles: slots.iter().map(|slot| slot.role).collect(),
        unreachable: known.unreachable.clone(),
        config: document.config().clone(),
        closed: document.is_closed(),
    }
}

/// Whether anything is open that the saved document has closed.
fn is_open(start: &Start) -> bool {
    let config = &start.config;
    let open = config.open_to_everybody();
    // HTTP serves no reports while the document is closed.
    open.iter().any(|what| what != "http" || !start.closed) || config.http.token_sha256.is_some()
}

/// Contents that a client may have written to a whole disk.
fn written() -> impl Strategy<Value = Vec<u8>> {
    let evil = "[system]\nhostname = \"evil\"\n";
    let iso = {
        let mut bytes = vec![0; 40 << 10];
        bytes[(32 << 10) + 1..][..5].copy_from_slice(b"CD001");
        bytes[(32 << 10) + 40..][..8].copy_from_slice(b"ISTHMUS ");
        bytes
    };
    let known = prop::sample::select(vec![
        Vec::new(),
        area(Some(evil)),
        table(&[(layout::config_type_on_disk(), 128, area(Some(evil)))]),
        table(&[(layout::partition_type_on_disk(), 128, vec![0; 32 << 10])]),
        bootable(Some(evil)),
        bootable(None),
        iso,
    ]);
    let noise = prop::collection::vec((0..SIZE, any::<u8>()), 0..40);
    (known, noise).prop_map(|(mut bytes, noise)| {
        bytes.resize(SIZE, 0);
        noise.into_iter().for_each(|(at, byte)| bytes[at] = byte);
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// No contents of a disk of clients influence the choice.
    #[test]
    fn contents_of_a_disk_of_clients_change_nothing(
        bytes in written(), way in prop::sample::select(&WAYS[..]), first: bool,
    ) {
        let run = |bytes: Vec<u8>| {
            let mut disks = vec![way.disk(), given("client", bytes)];
            if first {
                disks.reverse();
            }
            let own = (way == Way::Booted).then_some(usize::from(first));
            let named = (way == Way::Named).then_some("serial:mine");
            start(&disks, named, own, b"")
        };
        let booted = run(bytes);
        prop_assert_eq!(booted.config.system.hostname.as_str(), "saved");
        prop_assert_eq!(booted.roles[usize::from(!first)], Role::Free);
        prop_assert_eq!(booted, run(Vec::new()));
    }

    /// Everything that the config disk has closed stays closed after any fault of that disk.
    #[test]
    fn faulty_config_disk_opens_nothing(
        bytes in written(), way in prop::sample::select(&WAYS[..]), fault in 0..4, first: bool,
    ) {
        // If that disk is removed, nothing shows that it existed.
        prop_assume!((way, fault) != (Way::Serial, 0));
        let mut disks = vec![way.disk(), given("client", bytes)];
        let mut own = (way == Way::Booted).then(|| "isthmus-disk=pci:0000:00:03.0,saved".to_string());
        match fault {
            0 => drop(disks.remove(0)),
            1 => disks[0].health = Health::Silent,
            2 => disks[0].health = Health::Fails,
            _ if way == Way::Booted => disks[0].bytes[512] ^= 1,
            _ => disks.push(way.disk()),
        }
        if first {
            disks.reverse();
        }
        if let Some(own) = &mut own {
            let at = disks.iter().position(|disk| disk.serial == "system").unwrap_or(9);
            *own = format!("isthmus-disk=pci:0000:00:{:02x}.0,saved", at + 3);
        }
        let named = (way == Way::Named).then_some("serial:mine");
        let booted = start_by(&disks, named, own.as_deref().unwrap_or_default(), OPEN);
        prop_assert!(booted.closed && booted.unreachable.is_some(), "{booted:?}");
        prop_assert!(!is_open(&booted), "{booted:?}");
        prop_assert_eq!(booted.config.system.hostname.as_str(), "isthmus");
    }
}

#[test]
fn unnamed_disk_with_a_configuration_is_not_used_and_closes() {
    let partition = table(&[(layout::config_type_on_disk(), 128, area(Some(SAVED)))]);
    for bytes in [area(Some(SAVED)), partition, bootable(Some(SAVED))] {
        let disks = [given("old", bytes.clone())];
        let booted = start(&disks, None, None, OPEN);
        assert!(booted.closed && !is_open(&booted), "{booted:?}");
        let why = booted.unreachable.unwrap();
        assert!(why.contains("config_disk=serial:old") && why.contains(SERIAL), "{why}");
        // If it is named, it is used.
        let booted = start(&disks, Some("serial:old"), None, OPEN);
        assert_eq!((booted.chosen, booted.config.system.hostname.as_str()), (Some(0), "saved"));
        // The operator can declare that there is none.
        let booted = start(&disks, Some("none"), None, OPEN);
        assert!(!booted.closed && booted.chosen.is_none());
        // If clients could have written it, its contents are ignored.
        let whole = b"[[volume]]\nname = \"data\"\ndisk = \"serial:old\"\n";
        let booted = start(&disks, None, None, whole);
        assert_eq!((booted.closed, booted.chosen, booted.roles[0]), (false, None, Role::Free));
    }
}

#[test]
fn named_disk_precedes_serial_number_precedes_boot_disk() {
    let disks = [
        given("system", bootable(None)),
        given(SERIAL, area(Some("[system]\nhostname = \"serial\"\n"))),
        given("mine", area(Some(SAVED))),
    ];
    assert_eq!(start(&disks, None, Some(0), b"").chosen, Some(1));
    assert_eq!(start(&disks[..1], None, Some(0), b"").chosen, Some(0));
    for name in ["serial:mine", "pci:0000:00:05.0", "disk2"] {
        let booted = start(&disks, Some(name), Some(0), b"");
        assert_eq!(
            (booted.chosen, booted.slots.map(|(disk, _)| disk)),
            (Some(2), Some(0)),
            "{name}"
        );
        assert_eq!(booted.roles, [Role::Boot, Role::Free, Role::Configuration]);
    }
    for wrong in ["serial:other", "pci:0000:00:06.0", "nonsense", "mac:02:00:00:00:00:01", ""] {
        let booted = start(&disks, Some(wrong), Some(0), OPEN);
        assert!(booted.chosen.is_none() && booted.closed && !is_open(&booted), "{wrong}");
    }
    // A document of another source names it as well.
    let named = Document::load(&Sources {
        image: Some(b"[system]\nconfig_disk = \"serial:mine\"\n"),
        ..Sources::default()
    });
    assert_eq!(named.0.config().system.config_disk.as_ref().unwrap().to_string(), "serial:mine");
}

#[test]
fn disk_of_clients_is_refused_as_config_disk() {
    for (serial, named) in [(SERIAL, None), ("mine", Some("serial:mine"))] {
        let whole = format!("[[volume]]\nname = \"x\"\ndisk = \"serial:{serial}\"\n");
        let booted = start(&[given(serial, area(Some(SAVED)))], named, None, whole.as_bytes());
        assert!(booted.chosen.is_none() && booted.closed && !is_open(&booted), "{booted:?}");
        // A disk with extents is used, because clients cannot reach its partition table.
        let part = format!("{whole}size = \"1MiB\"\n");
        let booted = start(&[given(serial, area(Some(SAVED)))], named, None, part.as_bytes());
        assert_eq!(booted.chosen, Some(0));
    }
}

#[test]
fn slots_are_those_of_the_disk_that_was_booted() {
    let disks = [given("a", bootable(None)), given("b", bootable(None))];
    for own in [0, 1] {
        let booted = start(&disks, None, Some(own), b"");
        assert_eq!((booted.slots.map(|(disk, _)| disk), booted.chosen), (Some(own), Some(own)));
        assert_eq!(
            booted.roles,
            [Role::Boot; 2],
            "the other one is not to be overwritten by mistake"
        );
    }
    // From a CD or a network there are none.
    assert_eq!(start(&disks, Some("none"), None, b"").slots, None);
}

/// A current release in a slot, started by a front end of an earlier version.
#[test]
fn boot_disk_of_an_old_front_end_is_the_only_one_with_slots() {
    let system = || given("system", bootable(Some(SAVED)));
    let old = |disks: &[Given]| start_by(disks, None, "isthmus-slot=a,trial", OPEN);
    let booted = old(&[given("data", Vec::new()), system()]);
    assert_eq!((booted.chosen, booted.slots.map(|(disk, _)| disk)), (Some(1), Some(1)));
    // With two such disks, or an unreadable one, the boot disk is ambiguous.
    let silent = Given { health: Health::Silent, ..given("data", Vec::new()) };
    for other in [given("data", bootable(Some("[system]\nhostname = \"evil\"\n"))), silent] {
        let booted = old(&[other, system()]);
        assert!(booted.chosen.is_none() && booted.slots.is_none(), "{booted:?}");
        assert!(booted.closed && !is_open(&booted), "{booted:?}");
    }
}

#[test]
fn unreadable_disk_without_serial_number_closes() {
    let silent = |serial| Given { health: Health::Fails, ..given(serial, Vec::new()) };
    assert!(start(&[silent("")], None, None, OPEN).closed);
    assert!(!start(&[silent("data")], None, None, OPEN).closed);
    assert!(!start(&[silent("")], Some("none"), None, OPEN).closed);
    assert!(!start(&[silent(""), Way::Serial.disk()], None, None, b"").closed);
}
