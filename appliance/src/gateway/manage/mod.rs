//! The console's verbs for volumes, exports, sessions, devices, paths and the bridge, in the grammar of the
//! `rnbd` tool of Linux hosts: an object, an order, a name, options.

pub(super) mod exports;
mod listing;
mod options;
pub(super) mod sessions;
pub(super) mod volumes;

use super::bridge::{self, ntb_perf};
use super::remote_storage;
use super::state::State;
use crate::config::Problem;
use crate::console::Managed;

type Told = Result<Managed, String>;

/// Carries an order out.
pub(super) fn act(state: &mut State, what: &str, order: &str, rest: &str) -> Told {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let done = |()| Managed::Told(String::new());
    match (what, order) {
        ("volume", "create") => volumes::create(state, &words),
        ("volume", "grow") => volumes::grow(state, &words),
        ("volume", "delete") => volumes::delete(state, &words),
        ("export", "add" | "set") => {
            exports::change(state, &words, order == "add").map(|()| at_once())
        }
        ("export", "remove") => exports::remove(state, one(&words)?).map(|()| at_once()),
        (_, "list") => listing::list(state, what, None, &words),
        (_, "show") => {
            let (name, options) = words.split_first().ok_or("say the name of one")?;
            listing::list(state, what, Some(name), options)
        }
        ("ntb", "reset") => bridge::reset(state, &words).map(done),
        ("ntb", _) => ntb_perf::act(state, &words),
        ("upgrade", "confirm") => state.confirm_upgrade(),
        ("upgrade", _) => state.order_upgrade(&words),
        ("usnic", _) => state.plane.udp_engines.order(what, order, &words, state.now),
        ("remote" | "mirror", _) => remote_storage::manage::act(state, what, order, &words),
        ("session", _) => sessions::disconnect(state, one(&words)?).map(done),
        ("device", _) => sessions::close_device(state, &words).map(done),
        ("path", order) => {
            let order = if order == "reset" { "reset_all" } else { order };
            sessions::path_order(state, one(&words)?, order).map(done)
        }
        _ => Err(format!("unknown command: {what} {order}; `help` lists the commands")),
    }
}

pub(super) fn at_once() -> Managed {
    Managed::Told("in force now; `save` keeps it\n".into())
}

pub(super) fn one<'a>(words: &[&'a str]) -> Result<&'a str, String> {
    match words {
        [name] => Ok(name),
        _ => Err("accepted: one name".into()),
    }
}

pub(super) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
}
