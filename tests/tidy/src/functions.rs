//! Lengths of functions, from `fn` to the closing brace.

use crate::Finding;
use crate::rust_text::{code_only, is_word};

/// Maximum lines of a function.
pub const LINES: usize = 80;

/// A function of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Name, without module and type.
    pub name: String,
    /// Line number of `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

/// The functions with a body in a file.
pub fn functions(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let bytes = code.as_bytes();
    let begins = code.match_indices("fn ").map(|(at, _)| at);
    let begins = begins.filter(|&at| at == 0 || !is_word(bytes[at - 1]));
    begins.filter_map(|at| function(&code, at)).collect()
}

/// The function whose `fn` is at `at`; None for a type or a declaration.
fn function(code: &str, at: usize) -> Option<Function> {
    let bytes = code.as_bytes();
    let name: String = code[at + 3..]
        .trim_start()
        .bytes()
        .take_while(|&byte| is_word(byte))
        .map(char::from)
        .collect();
    if name.is_empty() {
        return None;
    }
    let mut depth = 0usize;
    let body = bytes[at..].iter().position(|byte| {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && matches!(byte, b'{' | b';')
    })?;
    if bytes[at + body] == b';' {
        return None;
    }
    let mut depth = 0usize;
    let end = bytes[at + body..].iter().position(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0
    })?;
    let line = 1 + count_lines(&bytes[..at]);
    let lines = 1 + count_lines(&bytes[at..at + body + end]);
    Some(Function { name, line, lines })
}

fn count_lines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// Finds functions of more than [`LINES`] lines, or of more than their ceiling in `allowed` (file, name, lines).
pub fn check(path: &str, text: &str, allowed: &[(&str, &str, usize)]) -> Vec<Finding> {
    let functions = functions(text);
    let allowed = allowed.iter().filter(|(file, ..)| *file == path);
    let ceiling = |name: &str| {
        allowed.clone().find(|(_, allowed, _)| *allowed == name).map(|(.., ceiling)| *ceiling)
    };
    let long = functions.iter().filter_map(|Function { name, line, lines }| {
        let text = match ceiling(name) {
            None if *lines > LINES => format!("`{name}` has {lines} lines, at most {LINES}"),
            Some(ceiling) if *lines > ceiling => {
                format!("`{name}` has {lines} lines; it had {ceiling} and may only shrink")
            }
            _ => return None,
        };
        Some(Finding::at(path, *line, text))
    });
    let is_long = |name: &str| functions.iter().any(|f| f.name == name && f.lines > LINES);
    let spare = allowed.clone().filter(|(_, name, _)| !is_long(name)).map(|(_, name, _)| {
        Finding::of(path, format!("`{name}` is short enough now: remove it from `allowances.rs`"))
    });
    long.chain(spare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(lines: usize) -> String {
        format!("type F = fn (u8);\nfn long(x: [u8; 2]) {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    #[test]
    fn functions_are_measured_to_their_closing_brace() {
        let text =
            "trait T {\n    fn none(&self) -> [u8; 2];\n    fn f() {\n        \"}\";\n    }\n}\n";
        assert_eq!(functions(text), [Function { name: "f".into(), line: 3, lines: 3 }]);
    }

    #[test]
    fn a_long_function_is_found() {
        assert_eq!(check("a.rs", &file(80), &[]), []);
        let found = check("a.rs", &file(81), &[]);
        assert_eq!(found, [Finding::at("a.rs", 2, "`long` has 81 lines, at most 80")]);
    }

    #[test]
    fn an_allowed_function_may_not_grow_and_leaves_the_table_when_short() {
        let allowed = [("a.rs", "long", 90)];
        assert_eq!(check("a.rs", &file(90), &allowed), []);
        let found = check("a.rs", &file(91), &allowed);
        assert!(found[0].text.contains("it had 90 and may only shrink"), "{found:?}");
        let found = check("a.rs", &file(80), &allowed);
        assert!(found[0].text.contains("remove it"), "{found:?}");
    }
}
