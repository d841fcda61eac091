//! Rust source without comments and literals.

/// The text with comments, strings and characters replaced by spaces. Line numbers are unchanged.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + skipped(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Whether a byte may be part of a name.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

/// Length of the comment, string or character at the start of `rest`; 0 for code.
fn skipped(rest: &[u8], in_word: bool) -> usize {
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => string(rest),
        [b'r', b'"' | b'#', ..] if !in_word => raw_string(rest),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_word => 1 + raw_string(&rest[1..]),
        [b'\'', ..] => character(rest),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    rest.len().min(at + 1)
}

/// Length of a raw string; 0 for a raw identifier (`r#`).
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'#'; hashes + 1];
    end[0] = b'"';
    let begin = hashes + 2;
    let found = rest[begin..].windows(end.len()).position(|window| window == end);
    found.map_or(rest.len(), |at| begin + at + end.len())
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &[u8]) -> usize {
    let end = match rest.get(1) {
        Some(b'\\') => rest.iter().skip(3).position(|&byte| byte == b'\'').map(|at| at + 3),
        // A multi-byte character has at most four bytes.
        Some(first) => {
            let longest = if first.is_ascii() { 2 } else { 5 };
            (2..=longest).find(|&at| rest.get(at) == Some(&b'\''))
        }
        None => None,
    };
    end.map_or(0, |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_spaces() {
        let cases = [
            ("a // b\nc", "a c"),
            ("a /* b /* c */ d */ e", "a e"),
            (r#"f("a\"{", b)"#, "f( , b)"),
            ("x = r#\"a\"{\"# ;", "x = ;"),
            ("br\"a\" r#fn", "r#fn"),
            ("'{' + '\\'' + '\\u{7b}' + 'é'", "+ + +"),
            ("<'a>(x: &'a str)", "<'a>(x: &'a str)"),
            ("bar\"x\" y", "bar y"),
        ];
        for (text, expected) in cases {
            let code = code_only(text);
            assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
            assert_eq!(code.len(), text.len(), "{text}");
        }
    }
}
