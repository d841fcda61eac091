//! JSON text (RFC 8259) to [`Node`]s. The `serde_json` crate parses. This module refuses duplicate keys, and limits
//! depth, keys and length.

use super::origin::Origin;
use super::toml_text::MAX_DOCUMENT;
use super::tree::{Node, Value};
use core::fmt;
use serde_core::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Most keys of an object. No section has as many, and each key is compared with those before it.
const MAX_KEYS: usize = 128;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a fraction, or outside 64 bits.
    Float,
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Json>),
    /// An object, in the order of the text.
    Object(Vec<(String, Json)>),
}

/// Parses a text. `serde_json` limits the depth to 128.
pub fn parse(text: &[u8]) -> Result<Json, String> {
    if text.len() > MAX_DOCUMENT {
        return Err(format!("{} bytes are too many; accepted: at most {MAX_DOCUMENT}", text.len()));
    }
    serde_json::from_slice(text).map_err(|why| format!("not JSON: {why}"))
}

impl Json {
    /// The value of a key of an object.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The value as a node. A key with `null` is absent.
    pub fn into_node(self, origin: Origin) -> Node {
        let value = match self {
            Json::Null => Value::Foreign("null"),
            Json::Bool(b) => Value::Bool(b),
            Json::Integer(i) => Value::Integer(i),
            Json::Float => Value::Foreign("a floating-point number"),
            Json::Text(text) => Value::Text(text),
            Json::List(items) => {
                Value::List(items.into_iter().map(|item| item.into_node(origin)).collect())
            }
            Json::Object(entries) => {
                let present = entries.into_iter().filter(|(_, value)| *value != Json::Null);
                Value::Table(present.map(|(key, value)| (key, value.into_node(origin))).collect())
            }
        };
        Node { value, origin }
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, b: bool) -> Result<Json, E> {
        Ok(Json::Bool(b))
    }
    fn visit_i64<E>(self, i: i64) -> Result<Json, E> {
        Ok(Json::Integer(i))
    }
    fn visit_u64<E>(self, u: u64) -> Result<Json, E> {
        Ok(i64::try_from(u).map_or(Json::Float, Json::Integer))
    }
    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Float)
    }
    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.into()))
    }
    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut keys: A) -> Result<Json, A::Error> {
        let mut entries: Vec<(String, Json)> = Vec::new();
        while let Some((key, value)) = keys.next_entry::<String, Json>()? {
            if entries.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format_args!("key {key:?} is given twice")));
            }
            if entries.len() >= MAX_KEYS {
                return Err(A::Error::custom(format_args!(
                    "more than {MAX_KEYS} keys in an object"
                )));
            }
            entries.push((key, value));
        }
        Ok(Json::Object(entries))
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds_are_parsed() {
        let json = parse(br#"{"a":[1,-2,true,null,1.5,"x"],"b":{"c":"d"}}"#).unwrap();
        let Some(Json::List(items)) = json.get("a") else { panic!("{json:?}") };
        assert_eq!(items[0], Json::Integer(1));
        assert_eq!(items[1..4], [Json::Integer(-2), Json::Bool(true), Json::Null]);
        assert_eq!(items[4..], [Json::Float, Json::Text("x".into())]);
        assert_eq!(json.get("b").and_then(|b| b.get("c")), Some(&Json::Text("d".into())));
    }

    #[test]
    fn duplicate_keys_depth_and_noise_are_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let long = format!("\"{}\"", "x".repeat(MAX_DOCUMENT));
        let keys: Vec<String> = (0..=MAX_KEYS).map(|i| format!("\"{i}\":1")).collect();
        let wide = |count: usize| format!("{{{}}}", keys[..count].join(","));
        assert!(parse(wide(MAX_KEYS).as_bytes()).is_ok());
        let wide = wide(MAX_KEYS + 1);
        for wrong in
            ["", "{", "{\"a\":1,\"a\":1}", "1 2", "\"\\ud800\"", "nul", &deep, &long, &wide]
        {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
