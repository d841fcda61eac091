//! Attributes that keep unused code. `expect(dead_code, reason = …)` is allowed, because the compiler reports when it
//! is no longer needed.

use crate::Finding;
use crate::rust_text::code_only;

/// Attributes that allow dead code.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let code = code_only(text);
    let lines = code.lines().enumerate();
    let guilty = lines.filter(|(_, line)| {
        line.match_indices("allow(").any(|(at, _)| {
            let lints = line[at..].split(')').next().unwrap_or_default();
            lints.contains("dead_code")
        })
    });
    guilty.map(|(at, _)| Finding::at(path, at + 1, "allow(dead_code): remove the code")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_dead_code_is_found() {
        let text = "// allow(dead_code)\n#[allow(unused, dead_code)]\nfn f() {}\n\
                    #[expect(dead_code, reason = \"allow(dead_code)\")]\n";
        assert_eq!(
            check("a.rs", text),
            [Finding::at("a.rs", 2, "allow(dead_code): remove the code")]
        );
    }
}
