//! Routes of the lists whose entries have names: exports, volumes, rules and so on. A change is a commit of its own.

use super::configuration::outcome;
use super::{Answer, Call, error};
use crate::config::{Document, Problem, named_lists};
use crate::configure::{self, Terms};
use crate::words::lines;
use net::http::{Response, Status};

/// The name of a list in paths: in the plural, if it has one.
pub(super) fn plural(section: &str) -> String {
    match section.ends_with(['c', 'x']) {
        true => section.into(),
        false => format!("{section}s"),
    }
}

/// The section of a list's name in paths.
pub(super) fn section(list: &str) -> Option<&'static str> {
    named_lists().find(|section| plural(section) == list)
}

/// Section and name of the entry in the path.
fn place(call: &Call<'_>) -> (&'static str, String) {
    let list = call.parameters.first().and_then(|list| section(list));
    (list.unwrap_or_default(), call.parameters.get(1).cloned().unwrap_or_default())
}

pub(super) fn list(call: &mut Call<'_>) -> Answer {
    let (section, _) = place(call);
    let document = call.appliance.document();
    let (shown, full) = (document.list_json(section, false), document.list_json(section, true));
    call.tagged(Response::JSON, shown + "\n", &full).into()
}

fn missing(section: &str, name: &str) -> Response {
    error(Status::NOT_FOUND, format!("there is no {section} {name:?}"))
}

pub(super) fn get(call: &mut Call<'_>) -> Answer {
    let (section, name) = place(call);
    match entry(call, section, &name) {
        Some((shown, full)) => call.tagged(Response::JSON, shown, &full).into(),
        None => missing(section, &name).into(),
    }
}

/// An entry without and with secrets.
fn entry(call: &Call<'_>, section: &str, name: &str) -> Option<(String, String)> {
    let document = call.appliance.document();
    let entry = |secrets| document.entry_json(section, name, secrets);
    Some((entry(false)? + "\n", entry(true)?))
}

/// The entity tag of an entry, as `get` sends it.
fn etag_of(call: &Call<'_>, section: &str, name: &str) -> Option<String> {
    let (shown, full) = entry(call, section, name)?;
    Some(call.etag(&shown, &full))
}

/// Puts a changed document in force.
fn apply(
    call: &mut Call<'_>,
    what: &str,
    new: Result<Document, Vec<Problem>>,
    made: bool,
) -> Answer {
    let new = match new {
        Ok(new) => new.without_pending(),
        Err(problems) => return error(Status::BAD_REQUEST, lines(&problems)).into(),
    };
    let terms = Terms { yes: call.has("yes"), ..Terms::default() };
    let done = configure::put_in_force(call.appliance, call.caller, new, what, &terms);
    outcome(done, if made { Status::CREATED } else { Status::OK }).into()
}

pub(super) fn put(call: &mut Call<'_>) -> Answer {
    let (section, name) = place(call);
    let etag = etag_of(call, section, &name);
    if let Err(response) = call.precondition(etag.as_deref()) {
        return (*response).into();
    }
    let base = configure::with_exports(call.appliance, section);
    let new = base.and_then(|base| base.with_entry(section, &name, call.request.body));
    apply(call, &format!("put {section} {name}"), new, etag.is_none())
}

pub(super) fn delete(call: &mut Call<'_>) -> Answer {
    let (section, name) = place(call);
    let etag = etag_of(call, section, &name);
    if let Err(response) = call.precondition(etag.as_deref()) {
        return (*response).into();
    }
    match call.appliance.document().without_entry(section, &name) {
        Some(new) => apply(call, &format!("delete {section} {name}"), new, false),
        None => missing(section, &name).into(),
    }
}
