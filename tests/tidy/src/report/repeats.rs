//! Pairs of places that have the same lines.

use std::collections::HashMap;

/// Lines from which a repeat counts.
pub const LINES: usize = 12;

/// Places of at least `least` equal lines of code, a line for each pair of places: length, first and second place. Blank
/// lines, comments, `use` lines and lone brackets do not count as lines.
pub fn find(files: &[(&str, &str)], least: usize) -> Vec<String> {
    let files: Vec<(&str, Vec<(usize, &str)>)> =
        files.iter().map(|(path, text)| (*path, code_lines(text))).collect();
    let mut windows: HashMap<Vec<&str>, Vec<(usize, usize)>> = HashMap::new();
    for (file, (_, lines)) in files.iter().enumerate() {
        for at in 0..(lines.len() + 1).saturating_sub(least) {
            let window: Vec<&str> = lines[at..at + least].iter().map(|(_, line)| *line).collect();
            windows.entry(window).or_default().push((file, at));
        }
    }
    let mut pairs = Vec::new();
    for places in windows.values() {
        for (n, &first) in places.iter().enumerate() {
            for &second in &places[n + 1..] {
                let before = |(file, at): (usize, usize)| Some(files[file].1[at.checked_sub(1)?].1);
                let continues = before(first).is_some() && before(first) == before(second);
                if !continues && !overlap(first, second, least) {
                    pairs.push((first, second));
                }
            }
        }
    }
    pairs.sort_unstable();
    pairs.into_iter().map(|(first, second)| describe(&files, first, second)).collect()
}

/// Whether two windows of one file have lines in common.
fn overlap(first: (usize, usize), second: (usize, usize), least: usize) -> bool {
    first.0 == second.0 && first.1.abs_diff(second.1) < least
}

fn describe(
    files: &[(&str, Vec<(usize, &str)>)],
    first: (usize, usize),
    second: (usize, usize),
) -> String {
    let rest = |(file, at): (usize, usize)| files[file].1[at..].iter().map(|(_, line)| line);
    let length = rest(first).zip(rest(second)).take_while(|(one, other)| one == other).count();
    let place = |(file, at): (usize, usize)| format!("{}:{}", files[file].0, files[file].1[at].0);
    format!("{length} lines: {} and {}", place(first), place(second))
}

/// The lines that count, with their numbers from 1.
fn code_lines(text: &str) -> Vec<(usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate().map(|(n, line)| (n + 1, line));
    lines.filter(|(_, line)| counts(line)).collect()
}

fn counts(line: &str) -> bool {
    let skipped = ["//", "use ", "pub use ", "mod ", "pub mod ", "#["];
    line.chars().any(char::is_alphanumeric) && !skipped.iter().any(|begin| line.starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_places_of_two_files_are_one_pair() {
        let body: String = (0..5).map(|n| format!("    call({n});\n")).collect();
        let (a, b) = (format!("fn a() {{\n{body}}}\n"), format!("fn b() {{\n// why\n{body}}}\n"));
        let found = find(&[("a.rs", &a), ("b.rs", &b)], 4);
        assert_eq!(found, ["5 lines: a.rs:2 and b.rs:3"]);
        assert!(find(&[("a.rs", &a), ("b.rs", &b)], 6).is_empty());
    }
}
