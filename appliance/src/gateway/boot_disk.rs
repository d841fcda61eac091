//! The disk that the machine booted from, as the UEFI front end names it on the command line
//! (`images/efi/src/own_disk.rs`). Only the firmware's device path decides, not the contents of a disk.

/// The boot disk, as the front end reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootDisk<'a> {
    /// Its location, as [`drivers::hal::Location`] is written. Another word if the appliance has no driver for it.
    pub place: &'a str,
    /// A configuration is saved on its partition.
    pub saved: bool,
}

impl<'a> BootDisk<'a> {
    /// Parses the command line. The last word counts, because the front end appends to earlier words.
    pub fn of(command_line: &'a str) -> Option<BootDisk<'a>> {
        let mut words = command_line.split_ascii_whitespace().rev();
        let word = words.find_map(|word| word.strip_prefix("isthmus-disk="))?;
        Some(match word.strip_suffix(",saved") {
            Some(place) => BootDisk { place, saved: true },
            None => BootDisk { place: word, saved: false },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_disk_is_the_last_word_of_its_kind() {
        let found = |line| BootDisk::of(line).map(|disk| (disk.place, disk.saved));
        assert_eq!(found("isthmus-disk=x isthmus-disk=pci:0000:00:03.0,saved isthmus-slot=a"), {
            Some(("pci:0000:00:03.0", true))
        });
        assert_eq!(found("a isthmus-disk=pci:0000:00:03.0/1"), Some(("pci:0000:00:03.0/1", false)));
        assert_eq!(found("isthmus-diskette=1"), None);
    }
}
