//! The EEPROM: 512 words (82599, chapter 6). Linux reads it in `ixgbe_validate_eeprom_checksum_generic`,
//! `ixgbe_get_sfp_init_sequence_offsets` and `ixgbe_verify_fw_version_82599`.

pub const WORDS: usize = 512;

const CHECKSUM: usize = 0x3f;
const SUM: u16 = 0xbaba;
/// The checksum covers the sections of the pointers from `FIRST_POINTER` on, but not the firmware's.
const FIRST_POINTER: usize = 0x03;
const FIRMWARE: usize = 0x0f;
/// Offsets of the sections: port 0, firmware, patch, module list, module initialisation.
const CORE: u16 = 0x80;
const FIRMWARE_SECTION: u16 = 0x90;
const PATCH: u16 = 0xa0;
const MODULES: u16 = 0xb0;
const MODULE_DATA: u16 = 0xb8;
/// Module type: direct attach cable, on port 0 and on port 1.
const CABLES: [u16; 2] = [3, 4];

/// The EEPROM's content, with this MAC address of port 0.
pub fn content(mac: [u8; 6]) -> Vec<u16> {
    let mut words = vec![0xffffu16; WORDS];
    words[..0x40].fill(0);
    words[0x01] = 0x0002; // the core clock may be switched off
    words[0x09] = CORE;
    words[FIRMWARE] = FIRMWARE_SECTION;
    words[0x15] = 0xe765; // the number of the assembly: E76512-003
    words[0x16] = 0x1203;
    words[0x2b] = MODULES;
    words[0x28] = 0xffff; // no addresses for storage
    words[0x2c] = 0x0082; // no FCoE, no crosstalk
    words[0x2d] = 0x0001;
    words[0x2e] = 0x8000;
    let core = usize::from(CORE);
    words[core] = 4; // its length
    for (word, pair) in words[core + 1..].iter_mut().zip(mac.chunks_exact(2)) {
        *word = u16::from_le_bytes([pair[0], pair[1]]);
    }
    words[core + 4] = 0;
    let firmware = usize::from(FIRMWARE_SECTION);
    words[firmware..firmware + 8].fill(0xffff);
    words[firmware + 4] = PATCH;
    words[usize::from(PATCH) + 7] = 0x0009; // version of the patch: what Linux wants is newer than 5
    let mut at = usize::from(MODULES);
    words[at] = 4;
    for cable in CABLES {
        (words[at + 1], words[at + 2]) = (cable, MODULE_DATA);
        at += 2;
    }
    // Values for CORECTL, and the end marker.
    words[usize::from(MODULE_DATA)..][..4].copy_from_slice(&[3, 0x0001, 0x0002, 0x0003]);
    words[usize::from(MODULE_DATA) + 4] = 0xffff;
    words[CHECKSUM] = checksum(&words);
    words
}

/// The word with the MAC address of port 0.
pub fn address_at() -> usize {
    usize::from(CORE) + 1
}

/// The checksum word: it makes the sum of words 0 to 0x3f and of the sections 0xbaba.
fn checksum(words: &[u16]) -> u16 {
    let mut sum = words[..CHECKSUM].iter().fold(0u16, |sum, word| sum.wrapping_add(*word));
    for pointer in &words[FIRST_POINTER..FIRMWARE] {
        let at = usize::from(*pointer);
        if *pointer == 0 || *pointer == 0xffff || matches!(words[at], 0 | 0xffff) {
            continue;
        }
        let section = &words[at + 1..=at + usize::from(words[at])];
        sum = section.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
    }
    SUM.wrapping_sub(sum)
}
