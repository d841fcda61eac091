//! The form of each command: how long it is, and which bits of it have a meaning. What has none must be 0.

use super::fields::{be16, be32};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The form of a command.
pub struct Form {
    /// Its name.
    pub name: &'static str,
    /// Bytes of the input.
    input: usize,
    /// A list follows it.
    list: bool,
    /// Bytes of the output, without a list.
    pub output: usize,
    /// Words of the input in which not all bits have a meaning: where, and those that do.
    words: Vec<(usize, u32)>,
}

static FORMS: LazyLock<BTreeMap<u16, Form>> = LazyLock::new(|| {
    let text = include_str!("commands.txt").replace("\n    ", " ");
    // Leaked once: names are told for as long as the process runs.
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

/// The form of the command, if it is known.
pub fn of(opcode: u16) -> Option<&'static Form> {
    FORMS.get(&opcode)
}

/// What is wrong with a command, as delivery status would be 0: the status of the reply and why.
pub type Wrong = (u8, String);

/// Checks a command of a known form.
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
    // The user context of DEVX, which there is none of, and what is reserved in the head of all commands.
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
    fn commands_have_forms() {
        assert_eq!(FORMS.len(), 85);
        let form = of(0x301).unwrap();
        assert_eq!(
            (form.name, form.input, form.list, form.output),
            ("CREATE_EQ", 0x110, true, 0x10)
        );
        assert!(form.words.contains(&(0x24, 0xfff)) && form.words.contains(&(0x10c, 0)));
        assert!(of(0x999).is_none());
    }

    #[test]
    fn what_is_reserved_must_be_zero() {
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
