//! `meta-data`: YAML, of which lines of the form `KEY: VALUE` at the left margin are read.

/// The value of a key, without quotes. The last one counts, as in YAML readers that accept a key twice.
pub fn value<'a>(text: &'a [u8], key: &str) -> Option<&'a str> {
    let text = core::str::from_utf8(text).ok()?;
    let values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let value = values.map(str::trim).next_back()?;
    let quoted = |quote: char| value.strip_prefix(quote)?.split(quote).next();
    let plain = || value.split(" #").next().unwrap_or_default().trim();
    Some(quoted('"').or_else(|| quoted('\'')).unwrap_or_else(plain))
        .filter(|value| !value.is_empty())
}
