//! Words that several commands and objects take or say.

use crate::config::Problem;
use crate::console::Managed;

/// What is said where the configuration or the operator wants a part that the image has not.
pub fn missing(family: &str) -> String {
    format!("this image was built without {family}: build it without `--without {family}`")
}

/// What is said of what counts at once.
pub fn at_once() -> Managed {
    Managed::Told("in force now; `save` keeps it\n".into())
}

pub(crate) fn one<'a>(words: &[&'a str]) -> Result<&'a str, String> {
    match words {
        [name] => Ok(name),
        _ => Err("accepted: one name".into()),
    }
}

pub(crate) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
}

/// What is said where there is no object.
pub(crate) fn nothing(path: &str) -> String {
    format!("there is no object {path:?}; `ls` shows what there is")
}

/// What objects take that are orders.
pub(crate) fn accept_one(value: &str) -> Result<(), String> {
    match value {
        "1" => Ok(()),
        _ => Err("accepted: 1".into()),
    }
}
