//! `docs/status.md`: the suites that it names as evidence must exist.

use crate::Finding;

/// Maximum lines of the page.
pub const LINES: usize = 200;

/// Kinds of evidence, which precede names of suites.
const KINDS: [&str; 3] = ["stock:", "model:", "own:"];

/// Finds names in backticks after a kind of evidence that are not names of suites.
pub fn check(page: &str, text: &str, suites: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let unknown = evidence(line).into_iter().filter(|name| !suites.contains(name));
        findings.extend(unknown.map(|name| {
            Finding::at(
                page,
                at + 1,
                format!("`{name}` is not a suite of launch/src/test/suites.rs"),
            )
        }));
    }
    findings
}

/// The names in backticks after a kind of evidence, separated by commas.
fn evidence(line: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for kind in KINDS {
        for (at, _) in line.match_indices(kind) {
            let mut rest = &line[at + kind.len()..];
            loop {
                rest = rest.trim_start_matches([' ', ',']);
                let Some((name, after)) =
                    rest.strip_prefix('`').and_then(|quoted| quoted.split_once('`'))
                else {
                    break;
                };
                names.push(name);
                rest = after;
            }
        }
    }
    names
}

/// The names of the suites in the text of their table.
pub fn suites(table: &str) -> Vec<&str> {
    let calls = table.split("_suite(").skip(1).map(str::trim_start);
    calls.filter_map(|rest| rest.strip_prefix('"')?.split('"').next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_suite_is_found() {
        let table = "boot_suite(\"boot\"),\nmetal_suite(\n  \"boot_metal\", boot_suite(\"boot\"))";
        let suites = suites(table);
        assert_eq!(suites, ["boot", "boot_metal", "boot"]);
        let text =
            "* PVH (stock: `boot`, `boot_metal`; own: `unit`), `other`\n* `x` (model: `gone`)\n";
        let found: Vec<String> =
            check("docs/status.md", text, &suites).iter().map(ToString::to_string).collect();
        let message = "is not a suite of launch/src/test/suites.rs";
        assert_eq!(
            found,
            [
                format!("docs/status.md:1: `unit` {message}"),
                format!("docs/status.md:2: `gone` {message}")
            ]
        );
    }
}
