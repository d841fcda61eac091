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
