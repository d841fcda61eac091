//! Circles of modules inside a crate: files that use each other's items, directly or through others.

use std::collections::{BTreeMap, BTreeSet};

use super::product_part;
use crate::Tree;
use crate::rust_text::{code_only, is_word};

/// The circles of all crates, a line for each: the crate, and the files in it. Uses of a parent module by its children do
/// not count: a family of files that shares a noun is one room.
pub fn find(tree: &Tree, files: &[&(String, String)]) -> Vec<String> {
    let manifests = tree.texts("Cargo.toml");
    let crates = manifests.iter().filter_map(|(path, _)| path.strip_suffix("Cargo.toml"));
    let mut lines = Vec::new();
    for root in crates {
        let source = format!("{root}src/");
        let modules: BTreeMap<Vec<String>, &str> = files
            .iter()
            .filter_map(|(path, text)| Some((module_of(path.strip_prefix(&source)?)?, text)))
            .map(|(module, text)| (module, product_part(text)))
            .collect();
        let uses = modules.iter().map(|(module, text)| (module, used(module, text, &modules)));
        let uses: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> = uses.collect();
        for circle in circles(&uses) {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            lines.push(format!("{root}: {} files: {}", names.len(), names.join(", ")));
        }
    }
    lines
}

/// The path of a file's module: `a/mod.rs` and `a.rs` are `a`, `lib.rs` is the crate.
fn module_of(path: &str) -> Option<Vec<String>> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let is_root = matches!(path, "lib" | "main");
    Some(if is_root { Vec::new() } else { path.split('/').map(Into::into).collect() })
}

/// The modules that a module's code names by `crate::` and `super::` paths, but for itself and its parents.
fn used<'a>(
    module: &[String],
    text: &str,
    modules: &'a BTreeMap<Vec<String>, &str>,
) -> BTreeSet<&'a Vec<String>> {
    let code = code_only(text);
    let mut found = BTreeSet::new();
    for (word, base) in
        [("crate::", &module[..0]), ("super::", &module[..module.len().saturating_sub(1)])]
    {
        for (at, _) in code.match_indices(word) {
            let bytes = code.as_bytes();
            if at > 0 && (is_word(bytes[at - 1]) || bytes[at - 1] == b':') {
                continue;
            }
            for path in expand(&code[at + word.len()..]) {
                let (up, path) = ascend(base, &path);
                let whole: Vec<String> = up.iter().chain(path).cloned().collect();
                found.extend(longest(&whole, modules));
            }
        }
    }
    found.retain(|other| !module.starts_with(other));
    found
}

/// Follows `super` at the beginning of a path.
fn ascend<'a>(base: &'a [String], path: &'a [String]) -> (&'a [String], &'a [String]) {
    match path.split_first() {
        Some((first, rest)) if first == "super" => {
            ascend(&base[..base.len().saturating_sub(1)], rest)
        }
        _ => (base, path),
    }
}

/// The module that the longest beginning of a path names.
fn longest<'a>(
    path: &[String],
    modules: &'a BTreeMap<Vec<String>, &str>,
) -> Option<&'a Vec<String>> {
    (1..=path.len()).rev().find_map(|n| modules.get_key_value(&path[..n]).map(|(key, _)| key))
}

/// The paths of `a::b` and `a::{b, c::d}`, at the beginning of `text`.
fn expand(text: &str) -> Vec<Vec<String>> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        return split_group(group).into_iter().flat_map(expand).collect();
    }
    let end = text.bytes().position(|byte| !is_word(byte)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return vec![Vec::new()];
    }
    let below = rest.strip_prefix("::").map_or_else(|| vec![Vec::new()], expand);
    let whole = |path: Vec<String>| [vec![name.to_string()], path].concat();
    below.into_iter().map(whole).collect()
}

/// The parts of a group, behind its opening brace.
fn split_group(text: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => {
                parts.push(&text[begin..at]);
                break;
            }
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts
}

/// Sets of two or more modules each of which reaches all others.
fn circles<'a>(
    uses: &BTreeMap<&'a Vec<String>, BTreeSet<&'a Vec<String>>>,
) -> Vec<Vec<&'a Vec<String>>> {
    let reach: BTreeMap<_, _> = uses.keys().map(|&from| (from, reachable(from, uses))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for &from in uses.keys() {
        let both = |to: &&&Vec<String>| reach.get(**to).is_some_and(|back| back.contains(from));
        let circle: Vec<&Vec<String>> = reach[from].iter().filter(both).copied().collect();
        if circle.len() > 1 && seen.insert(circle.clone()) {
            found.push(circle);
        }
    }
    found
}

fn reachable<'a>(
    from: &'a Vec<String>,
    uses: &BTreeMap<&'a Vec<String>, BTreeSet<&'a Vec<String>>>,
) -> BTreeSet<&'a Vec<String>> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for &to in uses.get(next).into_iter().flatten() {
            if found.insert(to) {
                open.push(to);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules<'a>(texts: &[(&str, &'a str)]) -> BTreeMap<Vec<String>, &'a str> {
        texts.iter().map(|(path, text)| (module_of(path).expect("a Rust file"), *text)).collect()
    }

    fn circles_of(texts: &[(&str, &str)]) -> Vec<Vec<String>> {
        let modules = modules(texts);
        let uses: BTreeMap<_, _> =
            modules.iter().map(|(module, text)| (module, used(module, text, &modules))).collect();
        circles(&uses).into_iter().map(|c| c.iter().map(|m| m.join("::")).collect()).collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle() {
        let texts = [
            ("a.rs", "use crate::{b::{X, Y}, c};"),
            ("b.rs", "use super::c::Z;"),
            ("c.rs", "fn f() { crate::a::g() }"),
            ("d.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles_of(&texts), [["a", "b", "c"]]);
    }

    #[test]
    fn use_of_a_parent_is_no_circle() {
        let texts =
            [("a/mod.rs", "use crate::a::b::X;"), ("a/b.rs", "use super::Y;\nuse crate::a::Z;")];
        assert!(circles_of(&texts).is_empty());
    }
}
