//! Secrets in typed lines: private keys and secrets of NVMe hosts are shown as stars, and lines with secrets are not kept in the history.

use super::parse::parse;
use crate::config::is_secret;

/// Label of a private key in PEM, after `BEGIN` and possibly the kind of key.
const PRIVATE: &[u8] = b"PRIVATE KEY";
/// Marks of lines with a secret, none longer than `PRIVATE`: of a private key, and of secrets of NVMe hosts.
const MARKS: [&[u8]; 3] = [PRIVATE, b"DHHC-1:", b"TLSkey-1:"];
/// Longest line that the history keeps.
const LONGEST: usize = 1024;
/// Minimum characters of a word that may be part of a key.
const KEY_WORD: usize = 24;
/// Maximum bytes of a command and a path.
const HEAD: usize = 160;
/// Configuration keys with hashes or public halves of secrets, which may be shown while typed.
const SEEN: [&str; 2] = ["token_sha256", "upgrade_key"];

/// First byte of the secret part of a line, if any. Only the beginning and the bytes near `place` are examined, because
/// the others were examined when typed.
pub(super) fn hidden_from(line: &[u8], place: core::ops::Range<usize>) -> Option<usize> {
    let near = place.start.saturating_sub(PRIVATE.len())..line.len().min(place.end + PRIVATE.len());
    let is_private =
        |near: &[u8]| MARKS.iter().any(|mark| near.windows(mark.len()).any(|part| part == *mark));
    if line.get(near).is_some_and(is_private) {
        return Some(0);
    }
    let (path, from) = secret_key(line)?;
    if SEEN.iter().any(|key| path.ends_with(key)) { None } else { Some(from) }
}

/// The path of a secret key and the offset of its value, in a line that sets one.
fn secret_key(line: &[u8]) -> Option<(&str, usize)> {
    let line = &line[..line.len().min(HEAD)];
    let mut words = Words { line, at: 0 };
    let mut first = words.next();
    if first.clone().is_some_and(|word| &line[word] == b"configure") {
        first = words.next();
    }
    let is_set = first.is_some_and(|word| &line[word] == b"set");
    let path = words.next().filter(|path| is_set && words.at > path.end)?;
    let path = core::str::from_utf8(&line[path]).ok().filter(|path| is_secret(path))?;
    Some((path, words.at))
}

/// Whether an entered line may be kept in the history. A line that is not a command and has a long word may be a part
/// of a key pasted by mistake.
pub(super) fn may_be_recalled(line: &str) -> bool {
    let is_base64 =
        |word: &str| word.bytes().all(|c| c.is_ascii_alphanumeric() || b"+/=".contains(&c));
    let mut words = line.split_whitespace();
    line.len() <= LONGEST
        && hidden_from(line.as_bytes(), 0..line.len()).is_none()
        && secret_key(line.as_bytes()).is_none()
        && (parse(line).is_ok() || !words.any(|word| word.len() >= KEY_WORD && is_base64(word)))
}

/// Whether a line begins a private key without ending it. The following lines of the key are not commands.
pub(super) fn begins_key(line: &[u8]) -> bool {
    let has = |wanted: &[u8]| line.windows(wanted.len()).any(|part| part == wanted);
    has(PRIVATE) && has(b"BEGIN") && !has(b"END ")
}

/// Whether a line is the last of a private key, or cannot belong to one.
pub(super) fn ends_key(line: &[u8]) -> bool {
    let is_base64 = |c: &u8| c.is_ascii_alphanumeric() || b"+/=".contains(c);
    line.windows(4).any(|part| part == b"END ") || !line.iter().all(is_base64)
}

/// Iterates over the words of a line. `at` is the start of the next word.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl Iterator for Words<'_> {
    type Item = core::ops::Range<usize>;

    fn next(&mut self) -> Option<core::ops::Range<usize>> {
        let is_space = |&at: &usize| self.line[at] == b' ';
        let all = self.at..self.line.len();
        let start = all.clone().find(|at| !is_space(at))?;
        let end = (start..all.end).find(is_space).unwrap_or(all.end);
        self.at = (end..all.end).find(|at| !is_space(at)).unwrap_or(all.end);
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_keys_are_hidden() {
        for (line, from) in [
            ("set http.key PEM0", Some(13)),
            ("  set  http.key  PEM0", Some(17)),
            ("configure set http.key PEM0", Some(23)),
            ("configure set http.port 81", None),
            ("configure http.key PEM0", None),
            ("set http.token_sha256 4e73", None),
            ("set system.upgrade_key 19bf", None),
            ("set http.kye PEM0", Some(13)),
            ("set http.key", None),
            ("set http.port 81", None),
            ("set net.0.mtu 9000", None),
            ("set system.hostname key", None),
            ("write /a -----BEGIN PRIVATE KEY-----", Some(0)),
            ("-----BEGIN EC PRIVATE KEY-----", Some(0)),
            ("show log", None),
            ("", None),
        ] {
            assert_eq!(hidden_from(line.as_bytes(), 0..line.len()), from, "{line}");
        }
    }

    #[test]
    fn history_keeps_commands_and_near_misses_only() {
        for line in ["show log", "shwo log", "one", "set http.port x", "volume create a size=1MiB"]
        {
            assert!(may_be_recalled(line), "{line}");
        }
        let base64 = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg";
        let long = format!("set http.certificate {}", "x".repeat(2000));
        let (token, key) = ("set http.token_sha256 4e73", "set system.upgrade_key 19bf");
        let candidate = "configure set user.0.token_sha256 4e73";
        for line in
            [base64, token, key, candidate, "set http.key x", &long, "-----BEGIN PRIVATE KEY-----"]
        {
            assert!(!may_be_recalled(line), "{line}");
        }
    }
}
