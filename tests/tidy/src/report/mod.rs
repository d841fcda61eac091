//! Measures of the tree, as `./isthmus tidy --report` prints them: sizes, language, repeats, circles of modules.

pub mod circles;
pub mod repeats;

use crate::functions::functions;
use crate::rust_text::code_only;
use crate::{Tree, openings};

/// One row of the report: a measure, the number, and places that it counts.
pub struct Row {
    /// Name of the measure.
    pub name: &'static str,
    /// The number.
    pub count: usize,
    /// Where: a line for each place, for measures that are lists.
    pub places: Vec<String>,
}

/// The report of a tree.
pub fn rows(tree: &Tree) -> Vec<Row> {
    let files = tree.texts(".rs");
    let product: Vec<&(String, String)> = files.iter().filter(|(path, _)| !is_test(path)).collect();
    let lines_of = |text: &str| text.lines().count();
    let inline_tests: usize =
        product.iter().map(|(_, text)| lines_of(text) - lines_of(product_part(text))).sum();
    let all: usize = files.iter().map(|(_, text)| lines_of(text)).sum();
    let in_product: usize = product.iter().map(|(_, text)| lines_of(product_part(text))).sum();
    let comments = product.iter().flat_map(|(_, text)| text.lines());
    let comments = comments.filter(|line| line.trim_start().starts_with("//")).count();
    let mut lengths: Vec<usize> = product
        .iter()
        .flat_map(|(_, text)| functions(product_part(text)))
        .map(|function| function.lines)
        .collect();
    lengths.sort_unstable();
    let percentile = |n: usize| lengths.get(lengths.len() * n / 100).copied().unwrap_or(0);
    let opened = product.iter().filter_map(|(path, text)| openings::check(path, text));
    let opened: Vec<String> = opened.map(|finding| finding.to_string()).collect();
    let circles = circles::find(tree, &product);
    let parts: Vec<(&str, &str)> =
        product.iter().map(|(path, text)| (path.as_str(), product_part(text))).collect();
    let repeats = repeats::find(&parts, repeats::LINES);
    let list = |name, places: Vec<String>| Row { name, count: places.len(), places };
    let number = |name, count| Row { name, count, places: Vec::new() };
    vec![
        number("Rust files", files.len()),
        number("lines of the product, without its inline tests", in_product),
        number("lines of inline tests", inline_tests),
        number("lines of tests", all - in_product - inline_tests),
        number("comment lines of the product", comments),
        number("functions of the product", lengths.len()),
        number("lines of a function: median", percentile(50)),
        number("lines of a function: 99 of 100 have at most", percentile(99)),
        number("`inline(always)` in the product", mentions(&product, "inline(always)")),
        number("conditions on features in the product", mentions(&product, "feature = ")),
        number("`unsafe` blocks, functions and impls in the product", unsafe_places(&product)),
        list("opening comments of the product that match the list of words", opened),
        list("circles of modules", circles),
        list("places of the product that share twelve lines or more", repeats),
    ]
}

/// Whether a file holds tests and no product.
pub fn is_test(path: &str) -> bool {
    let mut parts = path.split('/');
    let name = parts.next_back().unwrap_or(path);
    let in_tests = |part: &str| matches!(part, "tests" | "testing" | "test_support");
    parts.any(in_tests) || name == "tests.rs" || name.ends_with("_tests.rs") || name == "testing.rs"
}

/// The text before the module of inline tests.
pub fn product_part(text: &str) -> &str {
    let at = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    &text[..at]
}

fn mentions(files: &[&(String, String)], what: &str) -> usize {
    files.iter().map(|(_, text)| product_part(text).matches(what).count()).sum()
}

fn unsafe_places(files: &[&(String, String)]) -> usize {
    let words = |text: &str| code_only(product_part(text)).matches("unsafe ").count();
    files.iter().map(|(_, text)| words(text)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_told_from_product_files() {
        for path in
            ["tests/boot/src/lib.rs", "net/src/tests.rs", "a/src/x_tests.rs", "a/testing/b.rs"]
        {
            assert!(is_test(path), "{path}");
        }
        for path in ["net/src/tcp.rs", "launch/src/test/mod.rs"] {
            assert!(!is_test(path), "{path}");
        }
    }

    #[test]
    fn product_part_ends_before_inline_tests() {
        assert_eq!(product_part("a\n#[cfg(test)]\nmod tests {\n}\n"), "a\n");
        assert_eq!(product_part("a\n#[cfg(test)]\nmod tests;\n"), "a\n#[cfg(test)]\nmod tests;\n");
    }
}
