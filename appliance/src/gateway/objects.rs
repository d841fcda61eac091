//! The object tree: reports by path, and what can be written to. The console's `ls`, `cat` and
//! `write` use it, and `/api/…` over HTTP.

use super::show;
use super::state::State;
use crate::console::Topic;
use crate::report::Value;
use net::capture::Filter;

/// Reports that lie at the top of the tree.
const TOPICS: [(&str, Topic); 6] = [
    ("interfaces", Topic::Interfaces),
    ("disks", Topic::Disks),
    ("volumes", Topic::Volumes),
    ("memory", Topic::Memory),
    ("loops", Topic::Loops),
    ("version", Topic::Version),
];
/// Memory of the capture ring.
const CAPTURE_BYTES: usize = 4 << 20;

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty()).collect()
}

fn nothing(path: &str) -> String {
    format!("there is no object {path:?}; `ls` shows what there is")
}

/// Names below `path`; those with more below end in `/`.
pub(super) fn list(state: &mut State, path: &str) -> Result<Vec<String>, String> {
    match parts(path).as_slice() {
        [] => {
            Ok(TOPICS.iter().map(|(name, _)| name.to_string()).chain(["capture".into()]).collect())
        }
        _ => read(state, path).map(|_| Vec::new()),
    }
}

/// What the object at `path` holds.
pub(super) fn read(state: &mut State, path: &str) -> Result<Value, String> {
    match parts(path).as_slice() {
        ["capture"] => {
            let (frames, overwritten) = state.capture.counts();
            Ok(Value::object([
                ("running", state.capture.running().into()),
                ("frames", frames.into()),
                ("overwritten", overwritten.into()),
            ]))
        }
        [name] => match TOPICS.iter().find(|(topic, _)| topic == name) {
            Some(&(_, topic)) => Ok(show::topic(state, topic)),
            None => Err(nothing(path)),
        },
        _ => Err(nothing(path)),
    }
}

/// Writes to the object at `path`.
pub(super) fn write(state: &mut State, path: &str, value: &str) -> Result<(), String> {
    match parts(path).as_slice() {
        ["capture"] => match value.split_once(' ').unwrap_or((value, "")) {
            ("start", filter) => {
                let filter = Filter::parse(filter).map_err(|error| error.to_string())?;
                state.capture.start(filter, CAPTURE_BYTES);
                Ok(())
            }
            ("stop", "") => {
                state.capture.stop();
                Ok(())
            }
            ("discard", "") => {
                state.capture.discard();
                Ok(())
            }
            _ => Err("accepted: start [FILTER], stop, discard".into()),
        },
        _ => match read(state, path) {
            Ok(_) => Err(format!("{path} can only be read")),
            Err(why) => Err(why),
        },
    }
}
