//! The command line from the load options of UEFI (UEFI 2.10 section 9.1). They are usually UCS-2 text, but any
//! bytes are allowed, and some firmware passes data of its own.

/// Word for the appliance if its options are lost: it stays closed, since a lost option may have restricted access.
pub const CUT: &str = "isthmus-line=cut";

/// Whether rejected options were for the appliance, and not the firmware's own data.
pub fn is_for_appliance(options: &[u8]) -> bool {
    let wanted = *b"isthmus.";
    let units = options.as_chunks::<2>().0;
    units.windows(wanted.len()).any(|window| {
        window.iter().zip(wanted).all(|(unit, byte)| u16::from_le_bytes(*unit) == u16::from(byte))
    })
}

/// Writes the options as NUL-terminated ASCII into `line` and returns its length without the NUL.
///
/// A UEFI shell puts the program's name first: a first word that ends in `.efi` is removed.
/// Options that are not text, not ASCII, or too long for `line` are an error, and leave it empty.
pub fn from_load_options(options: &[u8], line: &mut [u8]) -> Result<usize, &'static str> {
    line.fill(0);
    let mut length = 0;
    for &unit in options.as_chunks::<2>().0 {
        let character = match u16::from_le_bytes(unit) {
            0 => break,
            unit @ (0x20..=0x7e | 0x09) => unit as u8,
            _ => {
                line.fill(0);
                return Err("the load options are not plain text and are ignored");
            }
        };
        // One byte is reserved for the NUL.
        if length + 1 >= line.len() {
            line.fill(0);
            return Err("the load options are too long and are ignored");
        }
        line[length] = character;
        length += 1;
    }
    let first = line[..length].split(u8::is_ascii_whitespace).next().unwrap_or_default();
    if first.last_chunk::<4>().is_some_and(|end| end.eq_ignore_ascii_case(b".efi")) {
        let skip = (first.len() + 1).min(length);
        line.copy_within(skip..length, 0);
        line[length - skip..length].fill(0);
        length -= skip;
    }
    Ok(length)
}

/// Appends a word to the `length` bytes of a NUL-terminated line; returns the new length. None if it does not fit; the
/// line is unchanged then.
pub fn append(line: &mut [u8], length: usize, word: &str) -> Option<usize> {
    let end = length.checked_add(1)?.checked_add(word.len())?;
    // One byte is reserved for the NUL.
    if end >= line.len() {
        return None;
    }
    line[length] = b' ';
    line[length + 1..end].copy_from_slice(word.as_bytes());
    line[end] = 0;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn word_is_appended_if_it_fits() {
        let mut line = [0; 8];
        line[..3].copy_from_slice(b"a=b");
        assert_eq!(append(&mut line, 3, "wxyz"), None);
        assert_eq!(&line, b"a=b\0\0\0\0\0");
        assert_eq!(append(&mut line, 3, "xyz"), Some(7));
        assert_eq!(&line, b"a=b xyz\0");
    }

    fn line(options: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut line = [0xaa; 32];
        let result = from_load_options(options, &mut line);
        let length = result.unwrap_or(0);
        assert!(line[length..].iter().all(|&byte| byte == 0));
        result.map(|length| line[..length].to_vec())
    }

    fn ucs2(text: &str) -> Vec<u8> {
        text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
    }

    #[test]
    fn text_becomes_the_command_line() {
        assert_eq!(line(&ucs2("isthmus.net.0.mtu=9000")).unwrap(), b"isthmus.net.0.mtu=9000");
        assert_eq!(line(&[]).unwrap(), b"");
        assert_eq!(line(b"a\0b").unwrap(), b"a", "without a NUL, and with odd length");
    }

    #[test]
    fn program_name_of_the_shell_is_removed() {
        assert_eq!(line(&ucs2("isthmus.efi a=b c")).unwrap(), b"a=b c");
        assert_eq!(line(&ucs2("FS0:\\ISTHMUS.EFI")).unwrap(), b"");
    }

    #[test]
    fn options_of_the_appliance_and_the_firmware_are_distinguished() {
        assert!(is_for_appliance(&ucs2("isthmus.system.hostname=ü")));
        assert!(is_for_appliance(&ucs2(&std::format!("isthmus.x={}", "x".repeat(5000)))));
        assert!(
            !is_for_appliance(&[0x4e, 0xac, 0x08, 0x81]) && !is_for_appliance(&ucs2("isthmus"))
        );
    }

    #[test]
    fn options_that_are_not_text_are_rejected() {
        assert!(line(&[0x4e, 0xac, 0x08, 0x81]).is_err());
        assert!(line(&ucs2(&"x".repeat(32))).is_err());
        assert_eq!(line(&ucs2(&"x".repeat(31))).unwrap().len(), 31);
    }
}
