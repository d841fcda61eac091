//! Arguments and replies shared by several commands and objects.

use crate::config::Problem;
use crate::console::Managed;

/// Error for a configuration or command that needs a family absent from the image.
pub fn missing(family: &str) -> String {
    format!("this image was built without {family}: rebuild it without `--without {family}`")
}

/// Reply to a change that takes effect immediately.
pub fn at_once() -> Managed {
    Managed::Told("in force now; `save` keeps it\n".into())
}

pub(crate) fn one_name<'a>(words: &[&'a str]) -> Result<&'a str, String> {
    match words {
        [name] => Ok(name),
        _ => Err("accepted: one name".into()),
    }
}

pub(crate) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
}

/// Error for a path without an object.
pub(crate) fn no_object(path: &str) -> String {
    format!("there is no object {path:?}; `ls` lists the objects")
}

/// Checks the value written to an object that triggers an action: only `1` is accepted.
pub(crate) fn accept_one(value: &str) -> Result<(), String> {
    match value {
        "1" => Ok(()),
        _ => Err("accepted: 1".into()),
    }
}
