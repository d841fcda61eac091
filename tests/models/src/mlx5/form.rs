//! The format of each command: its lengths, and the bits with a meaning. Reserved bits must be 0.

use super::fields::{be16, be32};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The format of a command.
pub struct Form {
    /// The command's name.
    pub name: &'static str,
    /// Bytes of the input.
    input: usize,
    /// A list follows the input.
    list: bool,
    /// Bytes of the output, without a list.
    pub output: usize,
    /// Input words with reserved bits: offset, and mask of the bits with a meaning.
    words: Vec<(usize, u32)>,
}

static FORMS: LazyLock<BTreeMap<u16, Form>> = LazyLock::new(|| {
    let text = include_str!("commands.txt").replace("\n    ", " ");
    // Leaked once: counters use the names as long as the process runs.
    let lines = text.leak().lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(parse).collect()
});

fn hexadecimal(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

fn parse(line: &'static str) -> Option<(u16, Form)> {
    let mut parts = line.split_whitespace();
    let opcode = hexadecimal(parts.next()?)? as u16;
    let name = parts.next()?;
    let input = parts.next()?;
    let (list, input) = (input.ends_with('+'), hexadecimal(input.trim_end_matches('+'))?);
    let output = hexadecimal(parts.next()?)?;
    let mut words = Vec::new();
    for part in parts {
        let (place, bits) = part.split_once('=')?;
        let (first, count) = place.split_once('*').unwrap_or((place, "1"));
        let (first, bits) = (hexadecimal(first)?, hexadecimal(bits)? as u32);
        words.extend((0..hexadecimal(count)?).map(|n| (first + 4 * n, bits)));
    }
    Some((opcode, Form { name, input, list, output, words }))
}

/// The format of a known command.
pub fn of(opcode: u16) -> Option<&'static Form> {
    FORMS.get(&opcode)
}

/// Failure of a command that was delivered: the status of the reply, and the reason.
pub type Wrong = (u8, String);

/// Checks a command against its format.
pub fn check(form: &Form, input: &[u8], output: usize) -> Result<(), Wrong> {
    let (wanted, length) = (form.input, input.len());
    let fits = if form.list { length >= wanted } else { length == wanted };
    if !fits || !length.is_multiple_of(4) {
        return Err((0x50, format!("{length:#x} bytes of input, not {wanted:#x}")));
    }
    if output < form.output {
        return Err((
            0x51,
            format!("room for {output:#x} bytes of output, not {:#x}", form.output),
        ));
    }
    // The user context (DEVX is not modelled), and a reserved field that all commands have.
    if be16(input, 2) != 0 || be16(input, 4) != 0 {
        return Err((3, "its head has reserved bits".into()));
    }
    for &(at, bits) in &form.words {
        let value = be32(input, at);
        if value & !bits != 0 {
            return Err((3, format!("{value:#010x} at {at:#x} has reserved bits")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_formats() {
        assert_eq!(FORMS.len(), 87);
        let form = of(0x301).unwrap();
        assert_eq!(
            (form.name, form.input, form.list, form.output),
            ("CREATE_EQ", 0x110, true, 0x10)
        );
        assert!(form.words.contains(&(0x24, 0xfff)) && form.words.contains(&(0x10c, 0)));
        assert!(of(0x999).is_none());
    }

    #[test]
    fn reserved_bits_must_be_zero() {
        let form = of(0x104).unwrap();
        let mut input = [1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(check(form, &input, 12).is_ok());
        assert_eq!(check(form, &input, 8).unwrap_err().0, 0x51);
        assert_eq!(check(form, &input[..12], 12).unwrap_err().0, 0x50);
        input[15] = 1;
        assert_eq!(check(form, &input, 12).unwrap_err().0, 3);
        input[15] = 0;
        input[3] = 1;
        assert_eq!(check(form, &input, 12).unwrap_err().0, 3);
    }
}
