//! JSON Schema (2020-12) of the configuration, made from the tables that parse the document.

use super::is_secret;
use super::item::{Field, Item as _, Shape, join};
use super::schema::Config;
use super::tree::{MAX_ENTRIES, Value};
use crate::report;
use report::Value as Json;

/// The schema of a whole document in JSON, in pieces of one section each, so that no round of the loop pays for all. None
/// after the last one.
pub fn schema_piece(index: usize) -> Option<String> {
    const HEAD: &str = "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\
        \"title\":\"Isthmus configuration\",\"type\":\"object\",\"additionalProperties\":false,\"properties\":{";
    let sections = Config::fields();
    match index.checked_sub(1) {
        None => Some(HEAD.into()),
        Some(at) if at < sections.len() => {
            let (field, comma) = (&sections[at], if at == 0 { "" } else { "," });
            Some(format!("{comma}\"{}\":{}", field.name, property(field, field.name).to_json()))
        }
        Some(at) => (at == sections.len()).then(|| "}}".into()),
    }
}

/// The lists of sections whose entries have names, with their descriptions.
pub fn named_lists() -> impl Iterator<Item = &'static str> {
    let is_named = |field: &&Field| {
        field.list && (field.fields)().iter().any(|key| key.name == "name" && !(key.optional)())
    };
    Config::fields().iter().filter(is_named).map(|field| field.name)
}

/// A section.
fn object(fields: &'static [Field], path: &str) -> Json {
    let properties = fields.iter().map(|f| (f.name.into(), property(f, &join(path, f.name))));
    let required = fields.iter().filter(|field| !(field.optional)());
    let required: Vec<Json> = required.map(|field| field.name.into()).collect();
    let mut entries = vec![
        ("type".into(), "object".into()),
        ("additionalProperties".into(), false.into()),
        ("properties".into(), Json::Object(properties.collect())),
    ];
    if !required.is_empty() {
        entries.push(("required".into(), Json::List(required)));
    }
    Json::Object(entries)
}

/// A key.
fn property(field: &'static Field, path: &str) -> Json {
    let below = (field.fields)();
    let mut one = match below.is_empty() {
        true => scalar(field),
        false => object(below, path),
    };
    if field.list {
        one = Json::object([
            ("type", "array".into()),
            ("maxItems", MAX_ENTRIES.into()),
            ("items", one),
        ]);
    }
    let Json::Object(entries) = &mut one else { return one };
    let mut about = field.about.trim().to_string();
    if below.is_empty() {
        about += &format!(" Accepted: {}.", (field.accepts)(field.range));
    }
    entries.push(("description".into(), about.into()));
    if let Some(default) = (field.default)()
        && !matches!(default, Value::Table(_))
    {
        entries.push(("default".into(), super::document::report_of(default)));
    }
    let at_once = super::in_force::InForce::of(path).is_at_once();
    if below.is_empty() && !at_once {
        entries.push(("x-takes-effect".into(), "reboot".into()));
    }
    if is_secret(path) {
        entries.push(("writeOnly".into(), true.into()));
    }
    one
}

/// A value that is not a section.
fn scalar(field: &Field) -> Json {
    let types = |types: &[&'static str]| Json::list(types.iter().map(|&one| Json::from(one)));
    let range = |mut entries: Vec<(std::borrow::Cow<'static, str>, Json)>| {
        if let Some((least, most)) = field.range {
            entries.push(("minimum".into(), least.into()));
            entries.push(("maximum".into(), most.into()));
        }
        Json::Object(entries)
    };
    match field.shape {
        Shape::Bool => Json::object([("type", "boolean".into())]),
        Shape::Integer => range(vec![("type".into(), "integer".into())]),
        Shape::Text | Shape::Section => Json::object([("type", "string".into())]),
        Shape::TextOrInteger => Json::object([("type", types(&["string", "integer"]))]),
        Shape::IntegerOrList => {
            let one = range(vec![("type".into(), "integer".into())]);
            let list = Json::object([("type", "array".into()), ("items", one.clone())]);
            Json::object([("anyOf", Json::list([one, list]))])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Document, manual_tests};
    use serde_json::Value as Parsed;

    fn parsed() -> Parsed {
        let text: String = (0..).map_while(schema_piece).collect();
        serde_json::from_str(&text).unwrap()
    }

    /// Checks a value against the parts of JSON Schema that the schema uses.
    fn check(schema: &Parsed, value: &Parsed, path: &str) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{path}: {what}: {value}"));
        if let Some(any) = schema["anyOf"].as_array() {
            return match any.iter().any(|one| check(one, value, path).is_ok()) {
                true => Ok(()),
                false => wrong("matches none"),
            };
        }
        let types: Vec<&str> = match &schema["type"] {
            Parsed::Array(list) => list.iter().filter_map(Parsed::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        let kind = match value {
            Parsed::Bool(_) => "boolean",
            Parsed::Number(_) => "integer",
            Parsed::String(_) => "string",
            Parsed::Array(_) => "array",
            Parsed::Object(_) => "object",
            Parsed::Null => "null",
        };
        if !types.contains(&kind) {
            return wrong(&format!("not {types:?}"));
        }
        if let (Some(n), Some(least)) = (value.as_u64(), schema["minimum"].as_u64())
            && (n < least || Some(n) > schema["maximum"].as_u64())
        {
            return wrong("out of range");
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            check(&schema["items"], item, &format!("{path}.{index}"))?;
        }
        for (key, item) in value.as_object().into_iter().flatten() {
            let Some(property) = schema["properties"].get(key) else { return wrong("unknown key") };
            check(property, item, &join(path, key))?;
        }
        let required = schema["required"].as_array().into_iter().flatten();
        let lacks = required.filter_map(Parsed::as_str).find(|key| value.get(key).is_none());
        lacks.map_or(Ok(()), |key| wrong(&format!("lacks {key}")))
    }

    #[test]
    fn default_and_the_manual_s_document_match_the_schema() {
        let schema = parsed();
        let json =
            |document: &Document| -> Parsed { serde_json::from_str(&document.to_json()).unwrap() };
        check(&schema, &json(&Document::default()), "").unwrap();
        let manual = include_str!("../../../../docs/configuration.md");
        let start = manual.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let text = manual_tests::filled(start);
        let document = Document::default();
        let document = document.replaced(text.as_bytes(), crate::config::Source::File).unwrap();
        check(&schema, &json(&document), "").unwrap();
    }

    /// Visits every key with its path, with `0` as the index of lists.
    fn visit(fields: &'static [Field], path: &str, each: &mut dyn FnMut(&'static Field, &str)) {
        for field in fields {
            let path = join(path, field.name);
            let below = (field.fields)();
            match (below.is_empty(), field.list) {
                (true, _) => each(field, &path),
                (false, true) => visit(below, &format!("{path}.0"), each),
                (false, false) => visit(below, &path, each),
            }
        }
    }

    #[test]
    fn ranges_of_the_schema_are_those_of_the_parser() {
        let mut checked = 0;
        visit(Config::fields(), "", &mut |field, path| {
            let (Shape::Integer, Some((least, most)), false) =
                (field.shape, field.range, field.list)
            else {
                return;
            };
            let accepts = |number: u64| {
                let wrong = Document::default().set(path, &number.to_string()).err();
                !wrong
                    .into_iter()
                    .flatten()
                    .any(|problem| problem.path == path && problem.reason.contains("out of range"))
            };
            assert!(accepts(least) && accepts(most), "{path}");
            assert!(!accepts(most + 1) && (least == 0 || !accepts(least - 1)), "{path}");
            checked += 1;
        });
        assert!(checked > 20, "{checked}");
    }

    #[test]
    fn every_key_has_a_description_and_lists_with_names_have_a_schema() {
        visit(Config::fields(), "", &mut |field, path| {
            assert!(field.about.trim().len() > 5, "{path}");
        });
        let lists: Vec<&str> = named_lists().collect();
        for list in ["volume", "remote", "mirror", "export", "rule", "user", "usnic", "linx"] {
            assert!(lists.contains(&list), "{lists:?}");
            let items = &parsed()["properties"][list]["items"];
            assert!(items["required"].as_array().unwrap().contains(&"name".into()), "{list}");
        }
        assert!(!lists.contains(&"net"));
    }

    /// Whether the problems say that the key at a path is unknown.
    fn is_unknown<T>(result: Result<T, Vec<crate::config::Problem>>) -> bool {
        let problems = result.err().into_iter().flatten();
        problems.into_iter().any(|problem| problem.reason.contains("unknown key"))
    }

    /// A document with a value at a path, as TOML and as JSON.
    fn documents(path: &str) -> (String, String) {
        let (mut toml, mut json) = (String::from("true"), String::from("true"));
        for part in path.rsplit('.') {
            let is_index = part.bytes().all(|digit| digit.is_ascii_digit());
            toml = if is_index { format!("[{toml}]") } else { format!("{{ {part} = {toml} }}") };
            json = if is_index { format!("[{json}]") } else { format!("{{\"{part}\":{json}}}") };
        }
        // The outermost braces are the document itself.
        (toml[2..toml.len() - 2].to_string(), json)
    }

    /// The key in the schema, as a JSON pointer.
    fn pointer(path: &str) -> String {
        let parts = path.split('.').map(|part| match part.parse::<u8>() {
            Ok(_) => "/items".to_string(),
            Err(_) => format!("/properties/{part}"),
        });
        parts.collect()
    }

    #[test]
    fn one_line_of_the_table_makes_a_key_known_everywhere() {
        let (schema, document) = (parsed(), Document::default());
        let manual = include_str!("../../../../docs/configuration.md");
        let is_known = |path: &str| {
            let (toml, json) = documents(path);
            let key = path.rsplit('.').next().unwrap();
            [
                ("document", !is_unknown(crate::config::check(toml.as_bytes()).map(drop))),
                ("console", !is_unknown(Document::default().set(path, "\u{1}"))),
                ("completion", document.complete(path).iter().any(|found| found == path)),
                ("API", !is_unknown(document.patched(json.as_bytes()))),
                ("schema", schema.pointer(&pointer(path)).is_some()),
                (
                    "manual",
                    manual.contains(&format!("\n{key} =")) || manual.contains(&format!("`{key}`")),
                ),
            ]
        };
        let mut keys = 0;
        visit(Config::fields(), "", &mut |_, path| {
            for (place, known) in is_known(path) {
                assert!(known, "{path} is missing: {place}");
            }
            keys += 1;
        });
        assert!(keys > 100, "{keys}");
        for wrong in ["system.throwaway", "rule.0.throwaway"] {
            for (place, known) in is_known(wrong) {
                assert!(!known, "{wrong} is accepted: {place}");
            }
        }
    }

    #[test]
    fn secrets_are_marked_as_write_only() {
        let schema = parsed();
        let http = &schema["properties"]["http"]["properties"];
        assert_eq!(http["key"]["writeOnly"], true);
        assert_eq!(http["port"]["maximum"], 65535);
        assert_eq!(http["port"]["writeOnly"], Parsed::Null);
        assert_eq!(http["connections"]["default"], 16);
        assert_eq!(http["connections"]["x-takes-effect"], "reboot");
    }
}
