//! The OpenAPI 3.1 description, made of the table of routes and of the schema of the configuration, in pieces.

use super::resources::plural;
use super::{Body, ROUTES, Route, TOP};
use crate::config::{named_lists, schema_piece};
use crate::report::Value;
use net::http::Method;

/// A path of the description: below [`TOP`], and the section if it is one of a list.
fn paths() -> Vec<(String, &'static str, Option<&'static str>)> {
    let mut paths: Vec<(String, &'static str, Option<&'static str>)> = Vec::new();
    let mut add = |path: String, route: &'static str, list| {
        if paths.iter().all(|(known, ..)| *known != path) {
            paths.push((path, route, list));
        }
    };
    for route in ROUTES {
        match route.path.strip_prefix("{list}") {
            None => add(route.path.into(), route.path, None),
            Some(rest) => named_lists()
                .for_each(|list| add(format!("{}{rest}", plural(list)), route.path, Some(list))),
        }
    }
    paths
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Post => "post",
        Method::Put => "put",
        Method::Patch => "patch",
        Method::Delete => "delete",
    }
}

/// A schema of another part.
fn reference(path: String) -> Value {
    Value::object([("$ref", path.into())])
}

fn content(kind: &'static str, schema: Value) -> Value {
    let schema = Value::object([("schema", schema)]);
    Value::object([("content", Value::Object(vec![(kind.into(), schema)]))])
}

/// The body of a request.
fn body(route: &Route, list: Option<&str>) -> Option<Value> {
    let string = || Value::object([("type", "string".into())]);
    Some(match route.body {
        Body::Nothing => return None,
        Body::Document => content("application/toml", string()),
        Body::Patch => {
            content("application/merge-patch+json", Value::object([("type", "object".into())]))
        }
        Body::Entry => {
            let path = format!(
                "#/components/schemas/Configuration/properties/{}/items",
                list.unwrap_or_default()
            );
            content("application/json", reference(path))
        }
        Body::Object(keys) => {
            let property = |&(key, kind): &(&'static str, &'static str)| {
                (key.into(), Value::object([("type", kind.into())]))
            };
            let schema = Value::object([
                ("type", "object".into()),
                ("additionalProperties", false.into()),
                ("properties", Value::Object(keys.iter().map(property).collect())),
            ]);
            content("application/json", schema)
        }
    })
}

/// Descriptions of the responses.
fn responses(route: &Route) -> Value {
    let plain = |about: &'static str| Value::object([("description", about.into())]);
    let error = |about: &'static str| {
        let schema = reference("#/components/schemas/Error".into());
        let Value::Object(mut entries) = content("application/json", schema) else {
            return Value::None;
        };
        entries.insert(0, ("description".into(), about.into()));
        Value::Object(entries)
    };
    let mut all = vec![("200".into(), plain("done"))];
    if route.body != Body::Nothing || route.method != Method::Get {
        all.push(("201".into(), plain("created")));
        all.push(("202".into(), plain("started")));
        all.push((
            "409".into(),
            error("it cuts somebody off, opens access again, or conflicts with the state"),
        ));
        all.push(("412".into(), error("the entity tag does not match")));
        all.push(("413".into(), plain("the body is too large")));
    }
    if route.role.is_some() {
        all.push(("401".into(), plain("the token is missing or wrong")));
        all.push(("403".into(), plain("the role does not suffice, or the host is wrong")));
        all.push(("429".into(), plain("a token too soon after a wrong one")));
    }
    all.push(("304".into(), plain("unchanged")));
    if route.path == "log" {
        all.push(("503".into(), plain("too many clients follow the log")));
    }
    // A malformed header is answered before the route is known.
    let mut mistakes = error("the request has mistakes");
    if let Value::Object(entries) = &mut mistakes
        && let Some((_, Value::Object(kinds))) =
            entries.iter_mut().find(|(key, _)| key == "content")
    {
        let text = Value::object([("type", "string".into())]);
        kinds.push(("text/plain".into(), Value::object([("schema", text)])));
    }
    all.push(("400".into(), mistakes));
    all.push(("404".into(), error("no such entry")));
    Value::Object(all)
}

fn operation(route: &'static Route, path: &str, list: Option<&'static str>) -> Value {
    let parameter = |name: &str, place: &'static str, kind: &'static str| {
        Value::object([
            ("name", name.to_string().into()),
            ("in", place.into()),
            ("required", (place == "path").into()),
            ("schema", Value::object([("type", kind.into())])),
        ])
    };
    let mut parameters = Vec::new();
    for part in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        parameters.push(parameter(part, "path", "string"));
    }
    let known = [
        ("secrets", "boolean"),
        ("revision", "integer"),
        ("yes", "boolean"),
        ("probe", "boolean"),
        ("format", "string"),
        ("filter", "string"),
        ("from", "integer"),
        ("follow", "boolean"),
    ];
    for (key, kind) in known {
        if route.about.contains(&format!("?{key}=")) {
            parameters.push(parameter(key, "query", kind));
        }
    }
    let changes = matches!(route.method, Method::Put | Method::Patch | Method::Delete);
    if changes || route.path == "config/commit" {
        parameters.push(parameter("If-Match", "header", "string"));
    }
    let about = match list {
        Some(list) => format!("[[{list}]]: {}", route.about),
        None => route.about.into(),
    };
    let mut entries = vec![
        ("summary".into(), about.into()),
        ("parameters".into(), Value::List(parameters)),
        ("responses".into(), responses(route)),
    ];
    if let Some(body) = body(route, list) {
        entries.push(("requestBody".into(), body));
    }
    match route.role {
        Some(role) => {
            entries.push(("x-role".into(), role.name().into()));
            let token = Value::object([("token", Value::List(Vec::new()))]);
            entries.push(("security".into(), Value::list([token])));
        }
        None => entries.push(("security".into(), Value::List(Vec::new()))),
    }
    Value::Object(entries)
}

/// The description in pieces: the head, one for each path, and the schema. None after the last one.
pub(crate) fn openapi_piece(index: usize) -> Option<String> {
    let paths = paths();
    let Some(at) = index.checked_sub(1) else {
        let version = env!("CARGO_PKG_VERSION");
        return Some(format!(
            "{{\"openapi\":\"3.1.0\",\"info\":{{\"title\":\"Isthmus\",\"version\":\"{version}\"}},\"paths\":{{"
        ));
    };
    if let Some((path, pattern, list)) = paths.get(at) {
        let of_path = ROUTES.iter().filter(|route| route.path == *pattern);
        let operations =
            of_path.map(|route| (method(route.method).into(), operation(route, path, *list)));
        let comma = if at == 0 { "" } else { "," };
        let all = Value::Object(operations.collect()).to_json();
        return Some(format!("{comma}{}:{all}", Value::display(format!("{TOP}{path}")).to_json()));
    }
    const COMPONENTS: &str = "},\"components\":{\"securitySchemes\":{\"token\":{\"type\":\"http\",\
        \"scheme\":\"bearer\"}},\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\
        \"properties\":{\"error\":{\"type\":\"string\"},\"cuts\":{\"type\":\"array\",\
        \"items\":{\"type\":\"string\"}}}},\"Configuration\":";
    let at = at - paths.len();
    match at.checked_sub(1) {
        None => Some(COMPONENTS.into()),
        Some(at) => match (schema_piece(at), at.checked_sub(1).and_then(schema_piece)) {
            (Some(piece), _) => Some(piece),
            (None, Some(_)) => Some("}}}".into()),
            (None, None) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Parsed;

    fn parsed() -> Parsed {
        let text: String = (0..).map_while(openapi_piece).collect();
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }

    #[test]
    fn every_route_is_described_and_every_description_has_a_route() {
        let paths = &parsed()["paths"];
        let mut described = 0;
        for (path, operations) in paths.as_object().unwrap() {
            for (name, operation) in operations.as_object().unwrap() {
                let given = path.replace("{name}", "a").replace("{revision}", "1");
                let wanted =
                    [Method::Get, Method::Post, Method::Put, Method::Patch, Method::Delete]
                        .into_iter()
                        .find(|one| method(*one) == name)
                        .unwrap();
                let Ok((route, _)) = super::super::find(wanted, &given) else {
                    panic!("{name} {path} has no route")
                };
                let role = route.role.map_or(Parsed::Null, |role| role.name().into());
                assert_eq!(operation["x-role"], role, "{name} {path}");
                described += 1;
            }
        }
        let (of_lists, others): (Vec<&Route>, Vec<&Route>) =
            ROUTES.iter().partition(|route| route.path.starts_with("{list}"));
        assert_eq!(described, others.len() + of_lists.len() * named_lists().count());
    }

    #[test]
    fn description_has_the_whole_schema_of_the_configuration() {
        let schema: String = (0..).map_while(schema_piece).collect();
        let schema: Parsed = serde_json::from_str(&schema).unwrap();
        assert_eq!(parsed()["components"]["schemas"]["Configuration"], schema);
    }

    #[test]
    fn references_of_the_description_lead_somewhere() {
        let all = parsed();
        let text = all.to_string();
        let mut found = 0;
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(all.pointer(pointer).is_some(), "{pointer}");
            found += 1;
        }
        assert!(found > 10, "{found}");
        assert_eq!(all["openapi"], "3.1.0");
        assert!(all["paths"]["/api/v1/exports/{name}"]["put"]["requestBody"].is_object());
    }
}
