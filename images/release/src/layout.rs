//! Layout of the partition with the slots. Offsets are bytes from its start, multiples of 4096.

use crate::Slot;

/// Type of the partition, cbc0cabc-4596-406c-8127-8786c2795dee: chosen at random, once.
pub const PARTITION_TYPE: u128 = 0xcbc0_cabc_4596_406c_8127_8786_c279_5dee;
/// Name of the partition.
pub const PARTITION_NAME: &str = "isthmus-slots";
/// Bytes of the partition that `./isthmus image` makes: two slots of 16 MiB.
pub const PARTITION: u64 = 33 << 20;

/// Bytes read and written at a time: a multiple of all block sizes in use.
pub const BLOCK: usize = 4096;
/// Offsets of the two copies of the record.
pub const RECORDS: [u64; 2] = [0, BLOCK as u64];
/// Offsets of the two copies of the note.
pub const NOTES: [u64; 2] = [32 << 10, 64 << 10];
/// Offset of the first slot; sizes of slots are multiples of this.
const UNIT: u64 = 1 << 20;

/// Bytes of each slot in a partition of this many; 0 if it is too small.
pub fn slot_length(partition: u64) -> u64 {
    partition.saturating_sub(UNIT) / 2 / UNIT * UNIT
}

/// Offset of a slot in a partition of this many bytes.
pub fn slot_start(partition: u64, slot: Slot) -> u64 {
    match slot {
        Slot::A => UNIT,
        Slot::B => UNIT + slot_length(partition),
    }
}

/// Type of the partition for the configuration, bf447a3c-e257-4bf2-8df3-e43e9098d484: chosen at random,
/// once.
pub const CONFIG_TYPE: u128 = 0xbf44_7a3c_e257_4bf2_8df3_e43e_9098_d484;
/// Offsets of the documents in that partition, in bytes: zeros until a document was saved.
pub const CONFIG_SLOTS: [u64; 2] = [16 << 10, 32 << 10];

/// Type of the slots' partition, as encoded in a partition table.
pub const fn partition_type_on_disk() -> [u8; 16] {
    on_disk(PARTITION_TYPE)
}

/// Type of the configuration's partition, as encoded in a partition table.
pub const fn config_type_on_disk() -> [u8; 16] {
    on_disk(CONFIG_TYPE)
}

/// UEFI 2.10, appendix A: the first three fields are little-endian.
const fn on_disk(kind: u128) -> [u8; 16] {
    let text = kind.to_be_bytes();
    let mut disk = text;
    let order = [3, 2, 1, 0, 5, 4, 7, 6];
    let mut i = 0;
    while i < order.len() {
        disk[i] = text[order[i]];
        i += 1;
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fit_the_partition_and_do_not_overlap() {
        for partition in [0, 1, UNIT, 3 * UNIT - 1, 3 * UNIT, 4 * UNIT, PARTITION, PARTITION + 5] {
            let length = slot_length(partition);
            let [a, b] = [Slot::A, Slot::B].map(|slot| slot_start(partition, slot));
            assert!(a >= RECORDS[1] + BLOCK as u64 && a + length <= b);
            assert!(length == 0 || b + length <= partition, "{partition}");
        }
        assert_eq!(slot_length(PARTITION), 16 << 20);
    }

    #[test]
    fn partition_type_is_mixed_endian_on_disk() {
        let disk = partition_type_on_disk();
        assert_eq!(disk[..8], [0xbc, 0xca, 0xc0, 0xcb, 0x96, 0x45, 0x6c, 0x40]);
        assert_eq!(disk[8..], [0x81, 0x27, 0x87, 0x86, 0xc2, 0x79, 0x5d, 0xee]);
    }
}
