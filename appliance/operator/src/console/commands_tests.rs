//! Tests of the table of commands.

use super::*;

#[test]
fn manual_lists_every_command() {
    let manual = include_str!("../../../../docs/console.md");
    for command in COMMANDS {
        let line = format!("| `{}` | {}", command.usage(), command.about);
        assert!(manual.contains(&line), "{line}");
    }
}

#[test]
fn commands_on_objects_have_the_verb_of_their_words() {
    for command in COMMANDS {
        let Verb::Manage(verb) = command.verb else { continue };
        let words = match command.words {
            ["upgrade"] => "upgrade(write)".into(),
            ["wipe"] => "wipe".into(),
            ["show", object, verb] => format!("{object}({verb})"),
            ["resolve"] => "name(resolve)".into(),
            // `compare` and `show history` are short for `configure compare` and so on.
            [.., last] if matches!(verb, Configure(_)) => format!("configure({last})"),
            words => format!("{}({})", words[0], words[1]),
        };
        assert_eq!(format!("{verb:?}").to_lowercase(), words);
    }
}

/// The commands in README and docs: those after the prompt, and the lines of blocks without one that have only commands.
#[test]
fn commands_of_the_manual_are_parsed() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = std::fs::read_dir(top.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for path in
        docs.chain([top.join("README.md")]).filter(|path| path.extension() == Some("md".as_ref()))
    {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, block) in text.split("```").enumerate().filter(|(number, _)| number % 2 == 1) {
            let lines: Vec<&str> = block.lines().skip(1).collect();
            let is_command = |line: &&str| {
                let first = line.split(' ').next();
                COMMANDS.iter().any(|command| Some(command.words[0]) == first)
            };
            let is_bare = block.starts_with('\n') && lines.iter().all(is_command);
            let typed = lines.iter().filter_map(|line| match line.strip_prefix("isthmus> ") {
                None if is_bare => Some(*line),
                rest => rest,
            });
            for line in typed.filter(|line| !line.contains('…')) {
                let line = line.split(" # ").next().unwrap_or(line).trim_end();
                let parsed = crate::console::parse::parse(line);
                assert!(
                    matches!(parsed, Ok(Some(_))),
                    "{path:?}, block {number}: `{line}`: {parsed:?}"
                );
                count += 1;
            }
        }
    }
    assert!(count > 40, "{count}");
}
