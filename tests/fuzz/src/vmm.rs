//! What a VMM or its operator hands to the machine: SMBIOS tables, and the volume with a seed.

use appliance::config::{Document, OemStrings, Sources};
use drivers::smbios;

/// An entry point in the first 512 bytes, and a structure table: what is found lies in the table, and is loaded as part
/// of a configuration.
pub fn smbios(data: &[u8]) {
    let _ = smbios::search(data);
    let mut strings = smbios::OemStrings::of(data);
    let bytes: usize = strings.by_ref().map(<[u8]>::len).sum();
    assert!(bytes <= data.len());
    let Some(strings) = OemStrings::of(smbios::OemStrings::of(data)) else { return };
    let (document, problems) =
        Document::load(&Sources { smbios: Some(&strings), ..Sources::default() });
    if strings.trouble.is_some() {
        assert!(document.is_closed() && !problems.is_empty());
    }
}

pub fn smbios_corpus() -> Vec<Vec<u8>> {
    let mut entry = vec![0; 32];
    entry[..5].copy_from_slice(b"_SM3_");
    entry[6] = 24;
    let sum = entry.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    entry[5] = 0u8.wrapping_sub(sum);
    let bios = b"\0\x05\0\0\x01SeaBIOS\0\0".to_vec();
    let strings = b"\x0b\x05\x01\0\x03isthmus.net.0.mtu=1400\0isthmus.http.hosts=10.0.0.0/8\0\
        isthmus.document=W3N5c3RlbV0K\0isthmus.seed=none\0\0";
    let table = [&bios[..], strings, b"\x7f\x04\x02\0\0\0"].concat();
    vec![entry, table.clone(), table[..table.len() - 9].to_vec()]
}

struct Volume<'a>(&'a [u8]);

impl seed::Disk for Volume<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        let start = usize::try_from(at).map_err(|why| why.to_string())?;
        let part = start.checked_add(into.len()).and_then(|end| self.0.get(start..end));
        into.copy_from_slice(part.ok_or("beyond the end")?);
        Ok(())
    }
}

/// Volumes: files are not longer than the limit. The first 32 KiB of an ISO 9660 volume mean nothing, so the input
/// begins with a byte that says whether they are left out.
pub fn seed(data: &[u8]) {
    let [kind, rest @ ..] = data else { return };
    let before = if kind % 2 == 0 { 0 } else { 16 * 2048 };
    let bytes = [&vec![0; before][..], rest].concat();
    if let Ok(found) = seed::read(&mut Volume(&bytes)) {
        assert!(found.user_data.len().max(found.meta_data.len()) <= seed::MOST_BYTES as usize);
        let _ = seed::meta_value(&found.meta_data, "instance-id");
    }
}

pub fn seed_corpus() -> Vec<Vec<u8>> {
    // ISO 9660 with a Rock Ridge name: descriptors, the root directory, the document.
    let mut iso = vec![0; 4 * 2048];
    iso[..6].copy_from_slice(b"\x01CD001");
    iso[40..72].fill(b' ');
    iso[40..46].copy_from_slice(b"cidata");
    iso[128..130].copy_from_slice(&2048u16.to_le_bytes());
    iso[158..162].copy_from_slice(&18u32.to_le_bytes());
    iso[166..170].copy_from_slice(&2048u32.to_le_bytes());
    iso[2048..2054].copy_from_slice(b"\xffCD001");
    let record = &mut iso[2 * 2048..];
    let name = b"USER_DAT.;1NM\x0e\x01\0user-data";
    record[0] = (32 + 1 + name.len()) as u8;
    record[2..6].copy_from_slice(&19u32.to_le_bytes());
    record[10] = 12;
    record[32] = 11;
    record[33..33 + name.len()].copy_from_slice(name);
    iso[3 * 2048..][..12].copy_from_slice(b"[system]\n#12");
    // FAT12: the boot sector, a table, a root directory of 16 entries, two clusters.
    let mut fat = vec![0; 5 * 512];
    fat[11..13].copy_from_slice(&512u16.to_le_bytes());
    (fat[13], fat[14], fat[16], fat[17], fat[19], fat[22]) = (1, 1, 1, 16, 5, 1);
    fat[510..512].copy_from_slice(&[0x55, 0xaa]);
    fat[512..518].copy_from_slice(&[0xf8, 0xff, 0xff, 0x03, 0xf0, 0xff]);
    let directory = &mut fat[1024..];
    directory[..12].copy_from_slice(b"CIDATA     \x08");
    let short = *b"USER-D~1   ";
    let sum = short.iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let long = &mut directory[32..64];
    long.fill(0xff);
    (long[0], long[11], long[12], long[13]) = (0x41, 0x0f, 0, sum);
    let units: Vec<u8> = "user-data\0".bytes().flat_map(|byte| [byte, 0]).collect();
    long[1..11].copy_from_slice(&units[..10]);
    long[14..24].copy_from_slice(&units[10..]);
    let file = &mut directory[64..96];
    file[..11].copy_from_slice(&short);
    file[26..28].copy_from_slice(&2u16.to_le_bytes());
    file[28..30].copy_from_slice(&700u16.to_le_bytes());
    let volumes = [[&[1][..], &iso].concat(), [&[0][..], &fat].concat()];
    for volume in &volumes {
        let before = if volume[0] == 0 { 0 } else { 16 * 2048 };
        let bytes = [&vec![0; before][..], &volume[1..]].concat();
        assert!(seed::read(&mut Volume(&bytes)).is_ok(), "the corpus reaches the files");
    }
    volumes.to_vec()
}
