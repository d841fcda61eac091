//! The functions of this program and their crates.

use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::HashMap;

pub struct Function {
    /// Its symbol.
    pub name: String,
    /// Its crate, if the symbol contains one.
    pub krate: Option<String>,
}

/// Returns the functions by start address in this process.
pub fn functions() -> HashMap<u64, Function> {
    let path = std::env::current_exe().unwrap();
    let file = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*file).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = path.to_str().unwrap();
    let first = maps.lines().find(|line| line.ends_with(path)).unwrap();
    let base = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let slide = if file.kind() == object::ObjectKind::Dynamic { base } else { 0 };
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    functions
        .filter_map(|symbol| {
            let name = symbol.name().ok()?.to_string();
            let krate = krate(&name).map(str::to_string);
            Some((slide + symbol.address(), Function { name, krate }))
        })
        .collect()
}

/// Returns the crate of a mangled name.
fn krate(symbol: &str) -> Option<&str> {
    match symbol.strip_prefix("_R") {
        Some(path) => of_path(path),
        None => of_words(symbol.strip_prefix("_ZN")?),
    }
}

/// Parses the current mangling (RFC 2603): the innermost first element of a name is the path of a module, which begins
/// with `C` and the crate.
fn of_path(mut rest: &str) -> Option<&str> {
    loop {
        let (first, behind) = rest.split_at_checked(1)?;
        rest = match first {
            // The namespace of a path element.
            "N" => behind.get(1..)?,
            // An implementation, perhaps with a number.
            "M" | "X" => without_number(behind)?,
            "I" => behind,
            "C" => break identifier(without_number(behind)?),
            _ => return None,
        };
    }
}

/// Parses the legacy mangling: `9interface`, or `31_$LT$roce..Roce$u20$as$u20$…`.
fn of_words(symbol: &str) -> Option<&str> {
    let word = identifier(symbol)?;
    let word = word.strip_prefix("_$LT$").or(word.strip_prefix("$LT$")).unwrap_or(word);
    let word = word.trim_start_matches("$RF$").trim_start_matches("mut$u20$");
    let end = word.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(word.len());
    Some(&word[..end])
}

/// Strips the disambiguator: `s`, digits, `_`.
fn without_number(text: &str) -> Option<&str> {
    match text.strip_prefix('s') {
        Some(number) => Some(number.split_once('_')?.1),
        None => Some(text),
    }
}

/// Returns the identifier at the start of a text: length, `_` if the name begins with a digit or `_`, name.
fn identifier(text: &str) -> Option<&str> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = text[..digits].parse().ok()?;
    let text = &text[digits..];
    match text.len() > length {
        true => text.strip_prefix('_').unwrap_or(text).get(..length),
        false => text.get(..length),
    }
}

#[test]
fn crate_is_parsed_from_a_symbol() {
    for (symbol, expected) in [
        ("_RNvMs_NtCs6RzcGeEL24_4roce7receiveNtB6_4Roce12handle_frame", "roce"),
        (
            "_RNvXs_NtCs6RzcGeEL24_4roce8providerNtB6_4RoceNtCsaHAjIrvv2dF_5verbs8Provider9post_send",
            "roce",
        ),
        ("_RNCNvMNtCs5Ef94AGtMC0_3net9interfaceNtB4_9Interface12handle_frame0B6_", "net"),
        ("_ZN3net9interface9Interface12handle_frame17h0123456789abcdefE", "net"),
        (
            "_ZN50_$LT$roce..Roce$u20$as$u20$verbs..Provider$GT$9post_send17h0123456789abcdefE",
            "roce",
        ),
    ] {
        assert_eq!(krate(symbol), Some(expected), "{symbol}");
    }
    assert_eq!(krate("memmove"), None);
}
