//! Tab completion of commands, arguments and paths.

use super::command::{Argument, Command};
use super::commands::COMMANDS;
use super::system::System;
use crate::log_ring::Subject;
use net::capture::Filter;

/// Sorted completions of the last word of `before`, the text before the cursor. A completion that ends in `.` or `/` is
/// partial.
pub fn candidates(before: &str, system: &mut dyn System) -> Vec<String> {
    let mut words: Vec<&str> = before.split_whitespace().collect();
    let last = if before.ends_with(char::is_whitespace) { "" } else { words.pop().unwrap_or("") };
    let mut found: Vec<String> = COMMANDS
        .iter()
        .filter_map(|c| c.words.get(words.len()).filter(|_| c.words.starts_with(&words)))
        .map(|word| (*word).to_string())
        .collect();
    let complete = |c: &&Command| !c.words.is_empty() && words.starts_with(c.words);
    if let Some(command) = COMMANDS.iter().find(complete) {
        let given = words.len() - command.words.len();
        // A filter may have several words.
        let filter = command.arguments.last().filter(|a| **a == Argument::Filter);
        match command.arguments.get(given).or(filter) {
            Some(Argument::Path) => found.extend(system.document().complete(last)),
            Some(Argument::Object | Argument::Directory) => found.extend(objects(last, system)),
            Some(kind @ (Argument::Subject | Argument::Level)) => {
                found.extend(log::LevelFilter::iter().map(|l| l.as_str().to_ascii_lowercase()));
                match kind {
                    Argument::Subject => found.extend(Subject::names().map(str::to_string)),
                    _ => found.push("default".into()),
                }
            }
            Some(Argument::Filter) => found.extend(filter_words(&words, system)),
            Some(
                Argument::Value
                | Argument::Address
                | Argument::Count
                | Argument::Size
                | Argument::Name
                | Argument::Rest(_),
            )
            | None => {}
        }
        let lists = command.words.last() == Some(&"list");
        if (command.reports() || lists) && last.starts_with('-') {
            found.push("--json".into());
        }
    }
    found.retain(|word| word.starts_with(last));
    found.sort_unstable();
    found.dedup();
    found
}

/// Words that may follow `words` in a capture filter.
fn filter_words(words: &[&str], system: &mut dyn System) -> Vec<String> {
    if words.last().is_some_and(|word| Filter::takes_argument(word)) {
        return Vec::new();
    }
    let ports = system.list("/interfaces").unwrap_or_default();
    let ports = ports.iter().map(|name| name.trim_end_matches('/').to_string());
    Filter::WORDS.iter().map(ToString::to_string).chain(ports).collect()
}

fn objects(partial: &str, system: &mut dyn System) -> Vec<String> {
    let above = partial.rfind('/').map_or("", |slash| &partial[..=slash]);
    let names = system.list(if above.is_empty() { "/" } else { above }).unwrap_or_default();
    let root = if above.is_empty() { "/" } else { above };
    names.into_iter().map(|name| format!("{root}{name}")).collect()
}

/// The common prefix of all candidates beyond `len` bytes.
pub fn common(candidates: &[String], len: usize) -> &str {
    let Some(first) = candidates.first() else { return "" };
    let shared =
        |other: &String| first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let end = candidates.iter().map(shared).min().unwrap_or(0);
    first.get(len..end).unwrap_or_default()
}
