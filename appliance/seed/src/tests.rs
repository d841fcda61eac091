use super::*;
use proptest::prelude::*;
use std::io::Write as _;
use std::string::ToString as _;

/// A disk in memory.
struct Memory(Vec<u8>);

impl Disk for Memory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let start = usize::try_from(at).map_err(|_| "beyond its end".to_string())?;
        let part = start.checked_add(into.len()).and_then(|end| self.0.get(start..end));
        into.copy_from_slice(part.ok_or("beyond its end")?);
        Ok(())
    }
}

const DOCUMENT: &[u8] = b"#isthmus-config\n[system]\nhostname = \"seeded\"\n";
const META: &[u8] = b"instance-id: i-7\nlocal-hostname: 'gw'\n";

/// A volume of this size with these files.
fn fat(kind: fatfs::FatType, len: usize, label: &str, files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = std::vec![0; len];
    let mut name = [b' '; 11];
    name[..label.len()].copy_from_slice(label.as_bytes());
    let options = fatfs::FormatVolumeOptions::new().fat_type(kind).volume_label(name);
    fatfs::format_volume(std::io::Cursor::new(&mut bytes[..]), options).unwrap();
    let volume = fscommon::BufStream::new(std::io::Cursor::new(&mut bytes[..]));
    let system = fatfs::FileSystem::new(volume, fatfs::FsOptions::new()).unwrap();
    for (name, text) in files {
        system.root_dir().create_file(name).unwrap().write_all(text).unwrap();
    }
    system.unmount().unwrap();
    bytes
}

#[test]
fn seed_is_read_from_fat_volumes_of_each_width() {
    let long = [DOCUMENT, &[b'#'; 40_000]].concat();
    for (kind, len) in [
        (fatfs::FatType::Fat12, 1 << 20),
        (fatfs::FatType::Fat16, 16 << 20),
        (fatfs::FatType::Fat32, 64 << 20),
    ] {
        let files = [("vendor-data", &b"x"[..]), ("meta-data", META), ("user-data", &long)];
        let found = read(&mut Memory(fat(kind, len, "CIDATA", &files)));
        assert_eq!(found, Ok(Seed { user_data: long.clone(), meta_data: META.to_vec() }));
        let found = read(&mut Memory(fat(kind, len, "cidata", &files[..2])));
        assert_eq!(found, Err(Error::NoUserData));
        let found = read(&mut Memory(fat(kind, len, "DATA", &files)));
        assert_eq!(found, Err(Error::Label));
    }
}

#[test]
fn user_data_for_cloud_init_and_long_files_are_refused() {
    let read = |text: &[u8]| {
        read(&mut Memory(fat(fatfs::FatType::Fat12, 1 << 20, "CIDATA", &[("user-data", text)])))
    };
    assert_eq!(read(b"#cloud-config\n{}\n"), Err(Error::ForCloudInit));
    assert_eq!(read(&[b'#'; 70_000]), Err(Error::TooLarge("user-data")));
    assert_eq!(read(b"").map(|seed| seed.user_data.len()), Ok(0));
}

/// A chain of clusters that has no end, or leads out of the volume.
#[test]
fn damaged_fat_is_an_error() {
    let whole = fat(fatfs::FatType::Fat16, 16 << 20, "CIDATA", &[("user-data", &[b'#'; 60_000])]);
    let table = usize::from(u16::from_le_bytes([whole[14], whole[15]])) * 512;
    // A file that ends before its length.
    let mut bytes = whole.clone();
    let first = bytes[table..][..200].as_chunks::<2>().0.iter().position(|entry| *entry == [4, 0]);
    let at = table + 2 * first.unwrap();
    bytes[at..at + 2].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(
        read(&mut Memory(bytes.clone())),
        Err(Error::Damaged("a file is shorter than its length"))
    );
    bytes[at..at + 2].copy_from_slice(&[0xf0, 0xfe]);
    assert!(matches!(read(&mut Memory(bytes)), Err(Error::Damaged(_))));
    // A root directory of FAT32 that follows itself.
    let mut bytes = fat(fatfs::FatType::Fat32, 64 << 20, "CIDATA", &[]);
    let table = usize::from(u16::from_le_bytes([bytes[14], bytes[15]])) * 512;
    bytes[table + 8..table + 12].copy_from_slice(&[2, 0, 0, 0]);
    assert!(read(&mut Memory(bytes)).is_err());
}

#[test]
fn a_disk_without_a_volume_is_reported() {
    assert_eq!(read(&mut Memory(std::vec![0; 1 << 20])), Err(Error::NoVolume));
    assert!(matches!(read(&mut Memory(Vec::new())), Err(Error::Disk(_))));
}

/// A minimal ISO 9660 volume: sector 16 and 17 are descriptors, 18 the root directory, 19 the document.
fn iso(record: &[u8]) -> Vec<u8> {
    let mut bytes = std::vec![0; 20 * 2048];
    let primary = &mut bytes[16 * 2048..];
    primary[..6].copy_from_slice(b"\x01CD001");
    primary[40..72].fill(b' ');
    primary[40..46].copy_from_slice(b"cidata");
    primary[128..130].copy_from_slice(&2048u16.to_le_bytes());
    primary[158..162].copy_from_slice(&18u32.to_le_bytes());
    primary[166..170].copy_from_slice(&2048u32.to_le_bytes());
    bytes[17 * 2048..][..6].copy_from_slice(b"\xffCD001");
    bytes[18 * 2048..][..record.len()].copy_from_slice(record);
    bytes[19 * 2048..][..DOCUMENT.len()].copy_from_slice(DOCUMENT);
    bytes
}

/// A directory record of a file in sector 19.
fn record(name: &[u8], system_use: &[u8]) -> Vec<u8> {
    let mut record = std::vec![0; 33];
    record[2..6].copy_from_slice(&19u32.to_le_bytes());
    record[10..14].copy_from_slice(&(DOCUMENT.len() as u32).to_le_bytes());
    record[32] = name.len() as u8;
    record.extend_from_slice(name);
    record.resize(record.len().next_multiple_of(2), 0);
    record.extend_from_slice(system_use);
    record[0] = record.len() as u8;
    record
}

#[test]
fn seed_is_read_from_iso_9660_by_its_rock_ridge_name() {
    let name = b"RR\x05\x01\x89NM\x0e\x01\0user-data";
    let bytes = iso(&record(b"USER_DAT.;1", name));
    let found = read(&mut Memory(bytes.clone()));
    assert_eq!(found, Ok(Seed { user_data: DOCUMENT.to_vec(), meta_data: Vec::new() }));
    assert_eq!(read(&mut Memory(iso(&record(b"USER_DAT.;1", b"")))), Err(Error::NoUserData));
    assert!(read(&mut Memory(iso(&record(b"USER-DATA.;1", b"")))).is_ok());
    let mut other = bytes.clone();
    other[16 * 2048 + 40] = b'x';
    assert_eq!(read(&mut Memory(other)), Err(Error::Label));
    let mut outside = bytes;
    outside[18 * 2048 + 2..][..4].copy_from_slice(&[0xff; 4]);
    assert!(matches!(read(&mut Memory(outside)), Err(Error::Disk(_))));
}

#[test]
fn values_of_meta_data_are_read_at_the_margin_only() {
    let text = b"instance-id: i-1\nnetwork:\n  local-hostname: no\nlocal-hostname:  gw-1  # here\nlocal: x\n";
    assert_eq!(meta_value(text, "instance-id"), Some("i-1"));
    assert_eq!(meta_value(text, "local-hostname"), Some("gw-1"));
    assert_eq!(meta_value(text, "network"), None);
    assert_eq!(meta_value(b"local-hostname: '", "local-hostname"), None);
    assert_eq!(meta_value(b"\xff", "local-hostname"), None);
}

proptest! {
    #[test]
    fn changed_volumes_are_read_without_panic(
        changes in prop::collection::vec((0usize..2048, any::<u8>()), 1..12), iso_9660: bool,
    ) {
        let (mut bytes, from) = match iso_9660 {
            true => (iso(&record(b"USER_DAT.;1", b"NM\x0e\x01\0user-data")), 16 * 2048),
            false => (fat(fatfs::FatType::Fat12, 64 << 10, "CIDATA", &[("user-data", DOCUMENT)]), 0),
        };
        for (at, value) in changes {
            let at = from + at * if iso_9660 { 3 } else { 1 };
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Ok(seed) = read(&mut Memory(bytes)) {
            prop_assert!(seed.user_data.len() <= MOST_BYTES as usize);
        }
    }
}
