//! Routes of the document: running, candidate, commit, revisions; and the commands of the console.

use super::{Answer, Call, TERMS, error, json};
use crate::config::{Json, Role, Source, changes_json};
use crate::configure::{self, Done, Refusal, Terms};
use crate::console::{Ended, Managed, Run};
use crate::log_ring::audit;
use crate::report::Value;
use crate::system::Operator;
use net::http::{Response, Status};

/// Media type of documents.
const TOML: &str = "application/toml";
/// Most minutes of a trial.
const MOST_MINUTES: i64 = 24 * 60;

pub(super) fn running(call: &mut Call<'_>) -> Answer {
    let secrets = call.has("secrets");
    if let Err(why) = call.caller.needs(if secrets { Role::Admin } else { Role::Read }) {
        return error(Status::FORBIDDEN, why).into();
    }
    if secrets {
        audit(call.caller, format_args!("reads the configuration with secrets"));
    }
    let document = call.appliance.document();
    let full = document.to_text(true);
    if call.query("format") == Some("json") {
        return call.tagged(Response::JSON, document.to_json() + "\n", &full).into();
    }
    call.tagged(TOML, document.to_text(secrets), &full).into()
}

/// Texts of the candidate, or of the running configuration: without and with secrets.
fn texts(call: &Call<'_>) -> (String, String) {
    let candidate = &call.appliance.lifecycle().candidate;
    let document = match candidate {
        Some(candidate) => &candidate.document,
        None => call.appliance.document(),
    };
    (document.to_text(false), document.to_text(true))
}

pub(super) fn candidate(call: &mut Call<'_>) -> Answer {
    let (shown, full) = texts(call);
    call.tagged(TOML, shown, &full).into()
}

/// Checks the precondition of a request that changes or commits the candidate.
fn precondition(call: &Call<'_>) -> Result<(), Box<Response>> {
    let (shown, full) = texts(call);
    call.precondition(Some(&call.etag(&shown, &full)))
}

/// Changes the candidate, if the precondition holds.
fn change(
    call: &mut Call<'_>,
    change: impl FnOnce(&mut crate::config::Document) -> Result<(), Vec<crate::config::Problem>>,
) -> Answer {
    if let Err(response) = precondition(call) {
        return (*response).into();
    }
    let (caller, method) = (call.caller, call.request.method);
    audit(caller, format_args!("{method:?} of the candidate"));
    match configure::edit(call.appliance, call.caller, change) {
        Ok(_) => candidate(call),
        Err(why) => error(Status::BAD_REQUEST, why).into(),
    }
}

pub(super) fn replace(call: &mut Call<'_>) -> Answer {
    let body = call.request.body;
    // Secrets that the body does not show stay those of the candidate, from which it was made.
    change(call, |document| {
        *document = document.replaced(body, Source::Http)?;
        Ok(())
    })
}

pub(super) fn patch(call: &mut Call<'_>) -> Answer {
    let body = call.request.body;
    change(call, |document| {
        *document = document.patched(body)?;
        Ok(())
    })
}

pub(super) fn discard(call: &mut Call<'_>) -> Answer {
    if let Err(response) = precondition(call) {
        return (*response).into();
    }
    configure::discard(call.appliance, call.caller);
    json(Status::OK, &Value::Object(Vec::new())).into()
}

pub(super) fn compare(call: &mut Call<'_>) -> Answer {
    match configure::compared(call.appliance, call.query("revision")) {
        Ok(changes) => json(Status::OK, &changes_json(&changes)).into(),
        Err(why) => error(Status::NOT_FOUND, why).into(),
    }
}

/// The terms in a body.
fn terms(call: &Call<'_>) -> Result<Terms, String> {
    let body = call.object(TERMS)?;
    let flag = |key| matches!(body.get(key), Some(Json::Bool(true)));
    let seconds = match body.get("confirm_minutes") {
        Some(Json::Integer(minutes @ 1..=MOST_MINUTES)) => Some(60 * *minutes as u64),
        Some(_) => return Err(format!("confirm_minutes: accepted: 1 to {MOST_MINUTES}")),
        None => None,
    };
    let comment = match body.get("comment") {
        Some(Json::Text(text)) => text.clone(),
        _ => String::new(),
    };
    if flag("reboot") && seconds.is_none() {
        return Err("reboot: only with confirm_minutes".into());
    }
    Ok(Terms { seconds, reboot: flag("reboot"), comment, yes: flag("yes") })
}

/// The response to a change.
pub(super) fn outcome(result: Result<Done, Refusal>, success: Status) -> Response {
    match result {
        Ok(done) => {
            let status = if done.started { Status::ACCEPTED } else { success };
            let notes = done.notes.into_iter().map(Value::from);
            json(
                status,
                &Value::object([
                    ("revision", if done.started { Value::None } else { done.revision.into() }),
                    ("changes", changes_json(&done.changes)),
                    ("notes", Value::list(notes)),
                ]),
            )
        }
        Err(Refusal::Why(why)) => error(Status::BAD_REQUEST, why),
        Err(Refusal::Cuts(cuts)) => json(
            Status::CONFLICT,
            &Value::object([
                (
                    "error",
                    "cuts somebody off, or opens access again; repeat with yes = true".into(),
                ),
                ("cuts", Value::list(cuts.into_iter().map(Value::from))),
            ]),
        ),
    }
}

/// [`outcome`] of a commit. The client does not wait for the end of what it has started.
fn finished(call: &mut Call<'_>, done: Result<Done, Refusal>) -> Answer {
    if done.as_ref().is_ok_and(|done| done.started) {
        call.appliance.task().leave();
    }
    outcome(done, Status::OK).into()
}

pub(super) fn commit(call: &mut Call<'_>) -> Answer {
    // Others may have edited the candidate since the client read it.
    if let Err(response) = precondition(call) {
        return (*response).into();
    }
    match terms(call) {
        Ok(terms) => {
            let done = configure::commit(call.appliance, call.caller, &terms);
            finished(call, done)
        }
        Err(why) => error(Status::BAD_REQUEST, why).into(),
    }
}

/// The number of the revision in the path.
fn number(call: &Call<'_>) -> Result<u64, Box<Response>> {
    let text = call.parameters.first().map_or("", String::as_str);
    let number = text.parse().ok();
    let known = number.filter(|&number| call.appliance.lifecycle().history.get(number).is_some());
    known.ok_or_else(|| error(Status::NOT_FOUND, format!("there is no revision {text:?}")).into())
}

pub(super) fn roll_back(call: &mut Call<'_>) -> Answer {
    let number = match number(call) {
        Ok(number) => number,
        Err(response) => return (*response).into(),
    };
    match terms(call) {
        Ok(terms) => {
            let done = configure::roll_back(call.appliance, call.caller, number, &terms);
            finished(call, done)
        }
        Err(why) => error(Status::BAD_REQUEST, why).into(),
    }
}

pub(super) fn confirm(call: &mut Call<'_>) -> Answer {
    match configure::confirm(call.appliance, call.caller) {
        Ok(Managed::Told(_)) => json(Status::OK, &Value::Object(Vec::new())).into(),
        Ok(Managed::Started) => {
            call.appliance.task().leave();
            json(Status::ACCEPTED, &Value::Object(Vec::new())).into()
        }
        Err(why) => error(Status::CONFLICT, why).into(),
    }
}

pub(super) fn history(call: &mut Call<'_>) -> Answer {
    json(Status::OK, &configure::history(call.appliance)).into()
}

pub(super) fn revision(call: &mut Call<'_>) -> Answer {
    match number(call) {
        Ok(number) => match configure::document_of(call.appliance, number) {
            Ok(document) => {
                call.tagged(TOML, document.to_text(false), &document.to_text(true)).into()
            }
            Err(why) => error(Status::CONFLICT, why).into(),
        },
        Err(response) => (*response).into(),
    }
}

pub(super) fn command(call: &mut Call<'_>) -> Answer {
    const KEYS: &[(&str, &str)] = &[("command", "string")];
    let body = match call.object(KEYS) {
        Ok(body) => body,
        Err(why) => return error(Status::BAD_REQUEST, why).into(),
    };
    let Some(Json::Text(line)) = body.get("command") else {
        return error(Status::BAD_REQUEST, "missing command").into();
    };
    let mut operator = Operator::new(call.appliance, call.caller.clone());
    let mut run = match Run::start(line, &mut operator) {
        Ok(run) => run,
        Err(why) => {
            let status = match why.starts_with("needs the role") {
                true => Status::FORBIDDEN,
                false => Status::BAD_REQUEST,
            };
            return error(status, why).into();
        }
    };
    if run.is_long() {
        return Answer::Command(Box::new(run));
    }
    let mut output = String::new();
    let result = loop {
        match run.poll(&mut operator, &mut output) {
            Ok(_) => {}
            Err(Ended(result)) => break result,
        }
    };
    let (status, why) = match result {
        Ok(()) => (Status::OK, Value::None),
        Err(why) => (Status::BAD_REQUEST, why.into()),
    };
    json(status, &Value::object([("output", output.into()), ("error", why)])).into()
}
