//! The disk that the machine was started from, as the UEFI front end names it on the command line
//! (`images/efi/src/own_disk.rs`). The firmware's word counts, not what a disk holds.

/// What the front end says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootDisk<'a> {
    /// Where it is, as [`drivers::hal::Location`] is written; another word where the appliance has no driver for it.
    pub place: &'a str,
    /// Its partition for the configuration holds something.
    pub saved: bool,
}

impl<'a> BootDisk<'a> {
    /// Looks for the word. The front end writes behind what others have written.
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
        let told = |line| BootDisk::of(line).map(|disk| (disk.place, disk.saved));
        assert_eq!(told("isthmus-disk=x isthmus-disk=pci:0000:00:03.0,saved isthmus-slot=a"), {
            Some(("pci:0000:00:03.0", true))
        });
        assert_eq!(told("a isthmus-disk=pci:0000:00:03.0/1"), Some(("pci:0000:00:03.0/1", false)));
        assert_eq!(told("isthmus-diskette=1"), None);
    }
}
