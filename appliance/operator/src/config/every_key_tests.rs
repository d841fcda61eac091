//! Every key of the table is in the document, in the completion, in the replies of `set`, and in the schema.

use super::item::{Field, Item as _, join};
use super::schema::Config;
use super::{Document, InForce, schema_piece};

/// The keys without keys below, with 0 for the entries of lists of sections.
fn leaves(fields: &'static [Field], path: &str, into: &mut Vec<(String, &'static Field)>) {
    for field in fields {
        let (path, below) = (join(path, field.name), (field.fields)());
        match (below.is_empty(), field.list) {
            (true, _) => into.push((path, field)),
            (false, true) => leaves(below, &join(&path, "0"), into),
            (false, false) => leaves(below, &path, into),
        }
    }
}

fn all() -> Vec<(String, &'static Field)> {
    let mut found = Vec::new();
    leaves(Config::fields(), "", &mut found);
    assert!(found.len() > 150, "{}", found.len());
    found
}

#[test]
fn every_key_is_completed_and_has_an_effect_and_words() {
    let document = Document::default();
    for (path, field) in all() {
        assert!(document.complete(&path).contains(&path), "{path} is not completed");
        assert_ne!(InForce::of(&path), InForce::default(), "{path} has no effect");
        assert!(
            !field.about.trim().is_empty() && !(field.accepts)(field.range).is_empty(),
            "{path}"
        );
    }
}

#[test]
fn every_key_is_in_the_schema_with_its_description() {
    let schema: String = (0..).map_while(schema_piece).collect();
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    for (path, field) in all() {
        let mut at = &schema;
        for part in path.split('.') {
            at = match part {
                "0" => &at["items"],
                name => &at["properties"][name],
            };
        }
        let about = at["description"].as_str().unwrap_or_default();
        assert!(about.contains(field.about.trim()), "{path}: {at}");
    }
}

#[test]
fn every_key_with_a_default_is_in_the_document_and_can_be_set_to_it() {
    let whole = Document::default().to_text(false);
    let mut document = Document::default();
    for (path, field) in all() {
        let is_default = (field.default)().is_some();
        if path.contains(".0.") || !is_default || field.list {
            continue;
        }
        assert!(whole.contains(&format!("\n{} = ", field.name)), "{path}: {whole}");
        let Some(super::tree::Value::Text(text)) = (field.default)() else { continue };
        document.set(&path, &text).unwrap_or_else(|why| panic!("{path}: {why:?}"));
    }
}
