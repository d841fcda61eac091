//! Finds the host that a log message is about, in its text.

use core::net::{IpAddr, SocketAddr};
use net::hosts::accountable;

/// The first address in `text` outside quotation marks, because peers choose quoted text. An IPv6 address is reduced to
/// its /64.
pub(super) fn of(text: &str) -> Option<IpAddr> {
    let mut quoted = false;
    text.split_ascii_whitespace().find_map(|word| {
        let inside = quoted || word.starts_with('"');
        quoted ^= has_odd_quotes(word);
        if inside { None } else { address(word) }
    })
}

/// Whether a quotation begins or ends in a word. A quotation mark after a backslash is part of the quoted text.
fn has_odd_quotes(word: &str) -> bool {
    let mut escaped = false;
    let quotes = word.bytes().filter(|&byte| {
        let counts = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        counts
    });
    quotes.count() % 2 == 1
}

/// The address in a word such as `10.0.0.1`, `10.0.0.1:80`, `[fd00::1]:80`, `(fd00::1)`, `10.0.0.1:`, `ip:10.0.0.1@…`.
fn address(word: &str) -> Option<IpAddr> {
    let word = word.strip_prefix("ip:").unwrap_or(word);
    let word = word.split('@').next().unwrap_or(word);
    let word = word.trim_matches(|c| matches!(c, '(' | ')' | ',' | ';' | '\''));
    // Rejects most words quickly.
    if !word.contains(['.', ':'])
        || !word.starts_with(|c: char| c.is_ascii_hexdigit() || c == '[' || c == ':')
    {
        return None;
    }
    let bare = word.strip_suffix([':', '.']).unwrap_or(word);
    let parsed = |word: &str| {
        let address = word.parse::<IpAddr>().ok();
        address.or_else(|| word.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
    };
    parsed(word).or_else(|| parsed(bare)).map(accountable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_is_the_first_address_outside_of_quotes() {
        let found = |text| of(text).map(|ip| ip.to_string()).unwrap_or_default();
        for (text, expected) in [
            (
                "refused session \"10.9.9.9 \\\" 10.8.8.8\" of 10.0.0.2: the name is taken",
                "10.0.0.2",
            ),
            ("http from 10.0.0.7:40122: write", "10.0.0.7"),
            ("path ip:10.0.0.3@ip:10.0.0.1 is down", "10.0.0.3"),
            ("from [fd00:1:2:3:4::1]:80 and 10.0.0.1", "fd00:1:2:3::"),
            ("from (::ffff:10.0.0.9)", "10.0.0.9"),
            ("10.0.0.4:7000 does not answer", "10.0.0.4"),
            ("took 1.5 s at 12:30: add face", ""),
            ("link up", ""),
            ("\"10.0.0.1\"", ""),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }
}
