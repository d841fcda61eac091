//! `/api/v1`: the configuration, its lists as resources, and the commands of the console, over HTTP.
//!
//! [`ROUTES`] is the one table of routes: requests are dispatched by it, and the OpenAPI document is made of it. Access
//! was checked before (`web.rs`): a caller has a role, and each route names the role that it needs.

mod configuration;
mod description;
mod resources;

pub(crate) use description::openapi_piece;

use crate::appliance::Appliance;
use crate::caller::Caller;
use crate::config::{Json, Role, parse_json};
use crate::log_ring::{Filter, audit};
use crate::log_stream::{LogStream, Source};
use crate::pieces::Node;
use crate::producers::{Bundle, Doctor, Producer};
use crate::report::Value;
use net::http::{Method, Request, Response, Status};
use sha2::{Digest, Sha256};

/// Path of the API.
pub(crate) const TOP: &str = "/api/v1/";

/// A request to a route.
pub(crate) struct Call<'a> {
    /// The appliance.
    pub appliance: &'a mut dyn Appliance,
    /// The user who sent the request.
    pub caller: &'a Caller,
    /// The request.
    pub request: &'a Request<'a>,
    /// Values of the parameters in the path, decoded, in order.
    pub parameters: Vec<String>,
}

/// What a route answers with.
pub(crate) enum Answer {
    /// A response.
    Whole(Response),
    /// A page that takes a while, with its media type.
    Produced(&'static str, Box<dyn Producer>),
    /// Pieces of JSON by their index, until None.
    Pieces(fn(usize) -> Option<String>),
    /// A report.
    Report(&'static Node),
    /// The log.
    Log(Box<LogStream>),
    /// The output of a command.
    Command(Box<crate::console::Run>),
}

impl From<Response> for Answer {
    fn from(response: Response) -> Answer {
        Answer::Whole(response)
    }
}

/// Body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// None.
    Nothing,
    /// A document in TOML.
    Document,
    /// A part of the document in JSON.
    Patch,
    /// An entry of the list in JSON.
    Entry,
    /// An object with these keys and their JSON types.
    Object(&'static [(&'static str, &'static str)]),
}

/// A route.
pub(crate) struct Route {
    /// Method.
    pub method: Method,
    /// Path below [`TOP`]; `{…}` is a parameter.
    pub path: &'static str,
    /// The role that it needs. None if it is public.
    pub role: Option<Role>,
    /// Description.
    pub about: &'static str,
    /// Body of the request.
    pub body: Body,
    run: fn(&mut Call<'_>) -> Answer,
}

/// Keys of the body of a commit.
const TERMS: &[(&str, &str)] = &[
    ("confirm_minutes", "integer"),
    ("reboot", "boolean"),
    ("comment", "string"),
    ("yes", "boolean"),
];

macro_rules! routes {
    ($($method:ident $path:literal $role:expr, $about:literal, $body:expr, $run:expr;)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            role: $role,
            about: $about,
            body: $body,
            run: $run,
        }),*]
    };
}

/// All routes.
pub(crate) static ROUTES: &[Route] = routes! {
    Get "schema" None, "JSON Schema of the configuration", Body::Nothing,
        |_| Answer::Pieces(crate::config::schema_piece);
    Get "openapi.json" None, "this description", Body::Nothing,
        |_| Answer::Pieces(openapi_piece);
    Get "config/running" Some(Role::Read), "the running configuration in TOML, without secrets; `?secrets=true` shows them to the role admin", Body::Nothing,
        configuration::running;
    Get "config/candidate" Some(Role::Read), "the candidate in TOML, or the running configuration if there is none", Body::Nothing,
        configuration::candidate;
    Put "config/candidate" Some(Role::Admin), "replaces the candidate by a whole document", Body::Document,
        configuration::replace;
    Patch "config/candidate" Some(Role::Admin), "merges a part into the candidate (RFC 7396)", Body::Patch,
        configuration::patch;
    Delete "config/candidate" Some(Role::Admin), "drops the candidate", Body::Nothing,
        configuration::discard;
    Get "config/compare" Some(Role::Read), "what the candidate changes; `?revision=N`: what has changed since a revision", Body::Nothing,
        configuration::compare;
    Post "config/commit" Some(Role::Admin), "puts the candidate in force; 409 lists whom it cuts off, unless `yes` is true", Body::Object(TERMS),
        configuration::commit;
    Post "config/confirm" Some(Role::Admin), "keeps what was committed with `confirm_minutes`", Body::Nothing,
        configuration::confirm;
    Post "config/rollback/{revision}" Some(Role::Admin), "returns to a revision", Body::Object(TERMS),
        configuration::roll_back;
    Get "config/history" Some(Role::Read), "revisions, newest first", Body::Nothing,
        configuration::history;
    Get "config/history/{revision}" Some(Role::Admin), "the document of a revision in TOML, without secrets", Body::Nothing,
        configuration::revision;
    Post "commands" Some(Role::Read), "a command of the console; some need another role", Body::Object(&[("command", "string")]),
        configuration::command;
    Get "doctor" Some(Role::Read), "checks with cause and remedy, the worst first; `?probe=false`: without new probes of paths; `?format=text`: as text", Body::Nothing,
        doctor;
    Get "support" Some(Role::Operate), "configuration without secrets, log, crashes, metrics, tables and checks, as a tar file", Body::Nothing,
        support;
    Get "audit" Some(Role::Read), "actions of operators, also before this boot, oldest first", Body::Nothing,
        |_| Answer::Report(&crate::show::AUDIT);
    Get "log" Some(Role::Read), "messages of the log; `?filter=audit` or `?filter=errors`: some of them; `?from=N`: from this number; `?follow=true`: as server-sent events, and those that come (text/event-stream)", Body::Nothing,
        log;
    Get "{list}" Some(Role::Read), "all entries", Body::Nothing,
        resources::list;
    Get "{list}/{name}" Some(Role::Read), "an entry", Body::Nothing,
        resources::get;
    Put "{list}/{name}" Some(Role::Admin), "adds or replaces an entry at once; `?yes=true` accepts whom it cuts off", Body::Entry,
        resources::put;
    Delete "{list}/{name}" Some(Role::Admin), "removes an entry at once; `?yes=true` accepts whom it cuts off", Body::Nothing,
        resources::delete;
};

/// The values of the parameters, if a path below [`TOP`] is that of a route.
fn parameters(route: &Route, path: &str) -> Option<Vec<String>> {
    let mut values = Vec::new();
    let (mut wanted, mut given) = (route.path.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => break,
            (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() => {
                values.push(crate::web::decoded(given));
            }
            (Some(wanted), Some(given)) if wanted == given => {}
            _ => return None,
        }
    }
    // The first parameter of these routes names a list.
    let is_list = route.path.starts_with("{list}");
    (!is_list || resources::section(values.first()?).is_some()).then_some(values)
}

/// The route of a request with the values of its parameters. The error is the response for a wrong path or method.
pub(crate) fn find(
    method: Method,
    path: &str,
) -> Result<(&'static Route, Vec<String>), Box<Response>> {
    let below = path.strip_prefix(TOP).unwrap_or_default();
    let of_path: Vec<(&Route, Vec<String>)> =
        ROUTES.iter().filter_map(|route| Some((route, parameters(route, below)?))).collect();
    if of_path.is_empty() {
        return Err(error(Status::NOT_FOUND, "no such path; /api/v1/openapi.json lists all").into());
    }
    let methods: Vec<Method> = of_path.iter().map(|(route, _)| route.method).collect();
    match of_path.into_iter().find(|(route, _)| route.method == method) {
        Some(found) => Ok(found),
        None => Err(Response::method_not_allowed(allowed(&methods)).into()),
    }
}

/// Methods for `Allow`.
fn allowed(methods: &[Method]) -> &'static str {
    let has = |method| methods.contains(&method);
    match (has(Method::Get), has(Method::Put), has(Method::Patch)) {
        (true, true, true) => "GET, HEAD, PUT, PATCH, DELETE",
        (true, true, false) => "GET, HEAD, PUT, DELETE",
        (true, ..) => "GET, HEAD",
        _ => "POST",
    }
}

/// The checks of `doctor`.
fn doctor(call: &mut Call<'_>) -> Answer {
    let json = call.query("format") != Some("text");
    let probes = call.query("probe") != Some("false") && !call.request.head_only;
    let kind = if json { Response::JSON } else { Response::TEXT };
    Answer::Produced(kind, Box::new(Doctor::new(call.appliance, json, probes)))
}

/// The support bundle.
fn support(call: &mut Call<'_>) -> Answer {
    audit(call.caller, format_args!("reads the support bundle"));
    Answer::Produced("application/x-tar", Box::new(Bundle::new(call.appliance, call.caller)))
}

/// The log.
fn log(call: &mut Call<'_>) -> Answer {
    let filter = match call.query("filter") {
        None => Filter::All,
        Some("audit") => Filter::Audit,
        Some("errors") => Filter::Errors,
        Some(_) => return error(Status::BAD_REQUEST, "filter: accepted: audit, errors").into(),
    };
    let from = match call.query("from").map(str::parse) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => return error(Status::BAD_REQUEST, "from: not a number").into(),
    };
    let follow = call.has("follow") || call.request.query.split('&').any(|key| key == "follow");
    let source = Source {
        log: call.appliance.log(),
        config: call.appliance.document().config(),
        now: call.appliance.machine().now,
    };
    Answer::Log(Box::new(LogStream::new(source, call.caller, filter, from, follow)))
}

/// Runs a route.
pub(crate) fn run(route: &Route, call: &mut Call<'_>) -> Answer {
    (route.run)(call)
}

impl Call<'_> {
    /// The value of a key in the query.
    fn query(&self, key: &str) -> Option<&str> {
        let mut pairs = self.request.query.split('&');
        pairs.find_map(|pair| pair.split_once('=').filter(|(k, _)| *k == key)).map(|(_, v)| v)
    }

    /// Whether `key=true` is in the query.
    fn has(&self, key: &str) -> bool {
        self.query(key) == Some("true")
    }

    /// The body as an object with no other keys than these. An empty body is an empty object.
    fn object(&self, keys: &[(&str, &str)]) -> Result<Json, String> {
        if self.request.body.trim_ascii().is_empty() {
            return Ok(Json::Object(Vec::new()));
        }
        let json = parse_json(self.request.body)?;
        let Json::Object(entries) = &json else { return Err("not a JSON object".into()) };
        for (key, value) in entries {
            let known = keys.iter().find(|(known, _)| known == key);
            let fits = match (known.map(|(_, kind)| *kind), value) {
                (Some("integer"), Json::Integer(_))
                | (Some("boolean"), Json::Bool(_))
                | (Some("string"), Json::Text(_)) => true,
                (Some(kind), _) => return Err(format!("{key}: not of the type {kind}")),
                (None, _) => false,
            };
            if !fits {
                let accepted: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
                return Err(format!("unknown key {key:?}; accepted: {}", accepted.join(", ")));
            }
        }
        Ok(json)
    }

    /// Checks `If-Match` and `If-None-Match` against the entity tag of the resource; None if it does not exist.
    fn precondition(&self, etag: Option<&str>) -> Result<(), Box<Response>> {
        let matches = |tags: &str| {
            let mut tags = tags.split(',').map(|tag| tag.trim().trim_start_matches("W/"));
            etag.is_some_and(|etag| tags.any(|tag| tag == "*" || tag == etag))
        };
        let (wanted, unwanted) = (self.request.if_match, self.request.if_none_match);
        if (!wanted.is_empty() && !matches(wanted)) || (!unwanted.is_empty() && matches(unwanted)) {
            let why = "the resource has changed: read it again, and repeat the change";
            return Err(error(Status::PRECONDITION_FAILED, why).into());
        }
        Ok(())
    }

    /// The entity tag of a representation. `full` has the secrets that it does not show, so that the tag changes with
    /// them.
    fn etag(&self, shown: &str, full: &str) -> String {
        etag(self.appliance.lifecycle().salt, shown, full)
    }

    /// A response with the entity tag of [`Call::etag`], or 304 if the client has it.
    fn tagged(&self, content_type: &'static str, shown: String, full: &str) -> Response {
        let etag = self.etag(&shown, full);
        let mut tags = self.request.if_none_match.split(',');
        let status = match tags.any(|tag| tag.trim().trim_start_matches("W/") == etag) {
            true => {
                return Response { etag, ..Response::new(Status::NOT_MODIFIED, content_type, "") };
            }
            false => Status::OK,
        };
        Response { etag, ..Response::new(status, content_type, shown) }
    }
}

/// The entity tag: 64 bits of a SHA-256, in quotes. `salt` is secret.
fn etag(salt: u64, shown: &str, full: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(salt.to_le_bytes());
    digest.update((shown.len() as u64).to_le_bytes());
    digest.update(shown.as_bytes());
    digest.update(full.as_bytes());
    let digest = digest.finalize();
    let digits: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digits}\"")
}

/// A response with a value.
fn json(status: Status, value: &Value) -> Response {
    Response::new(status, Response::JSON, value.to_json() + "\n")
}

/// An error with its reason.
pub(crate) fn error(status: Status, why: impl Into<String>) -> Response {
    json(status, &Value::object([("error", why.into().into())]))
}

#[cfg(test)]
mod console_tests;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_found_by_method_and_path() {
        let found = |method, path: &str| {
            find(method, path).map(|(route, values)| (route.path, values)).map_err(|r| r.status.0)
        };
        assert_eq!(found(Method::Get, "/api/v1/schema"), Ok(("schema", vec![])));
        assert_eq!(
            found(Method::Put, "/api/v1/exports/%25SESSNAME%25%2Fdata"),
            Ok(("{list}/{name}", vec!["exports".into(), "%SESSNAME%/data".into()]))
        );
        assert_eq!(
            found(Method::Post, "/api/v1/config/rollback/7"),
            Ok(("config/rollback/{revision}", vec!["7".into()]))
        );
        for path in ["", "x", "exports/", "exports/a/b", "nets", "nets/a", "config", "config/x"] {
            assert_eq!(found(Method::Get, &format!("/api/v1/{path}")), Err(404), "{path}");
        }
        assert_eq!(found(Method::Post, "/api/v1/exports/a"), Err(405));
        assert_eq!(found(Method::Get, "/api/v1/commands"), Err(405));
        let Err(response) = find(Method::Post, "/api/v1/exports/a") else { panic!() };
        assert_eq!(response.allow, "GET, HEAD, PUT, DELETE");
    }

    #[test]
    fn changes_need_the_role_admin_and_reading_does_not() {
        for route in ROUTES {
            let wanted = match (route.method, route.path) {
                (Method::Get, "schema" | "openapi.json") => None,
                (Method::Get, "config/history/{revision}") => Some(Role::Admin),
                (Method::Get, "support") => Some(Role::Operate),
                (Method::Get, _) | (_, "commands") => Some(Role::Read),
                _ => Some(Role::Admin),
            };
            assert_eq!(route.role, wanted, "{}", route.path);
        }
    }

    #[test]
    fn entity_tag_depends_on_the_text() {
        let one = etag(1, "a", "b");
        assert_eq!(one.len(), 18);
        for other in [etag(1, "b", "b"), etag(1, "a", "c"), etag(1, "ab", ""), etag(2, "a", "b")] {
            assert_ne!(one, other);
        }
    }
}
