//! Reports as JSON.

use super::Value;
use core::fmt::Write as _;

/// Appends `value`.
pub fn write(out: &mut String, value: &Value) {
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) | Value::Bytes(n) | Value::Memory(n) => {
            let _ = write!(out, "{n}");
        }
        Value::Float(f) if f.is_finite() => {
            let _ = write!(out, "{f}");
        }
        Value::Float(_) => out.push_str("null"),
        Value::Text(text) => write_string(out, text),
        Value::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write(out, item);
            }
            out.push(']');
        }
        Value::Object(entries) => {
            out.push('{');
            for (i, (key, value)) in entries.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                write_string(out, key);
                out.push(':');
                write(out, value);
            }
            out.push('}');
        }
    }
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            // Also escapes other characters that a terminal interprets (C1, DEL).
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::None),
            any::<bool>().prop_map(Value::Bool),
            any::<u64>().prop_map(Value::Number),
            any::<f64>().prop_map(Value::Float),
            any::<String>().prop_map(|s| Value::Text(s.into())),
        ];
        leaf.prop_recursive(4, 30, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
                prop::collection::btree_map(any::<String>(), inner, 0..5).prop_map(|m| {
                    Value::Object(m.into_iter().map(|(k, v)| (k.into(), v)).collect())
                }),
            ]
        })
    }

    fn same(ours: &Value, theirs: &serde_json::Value) -> bool {
        match (ours, theirs) {
            (Value::None, serde_json::Value::Null) => true,
            (Value::Bool(a), serde_json::Value::Bool(b)) => a == b,
            (Value::Number(a) | Value::Bytes(a) | Value::Memory(a), b) => b.as_u64() == Some(*a),
            (Value::Float(a), serde_json::Value::Null) => !a.is_finite(),
            (Value::Float(a), b) => {
                b.as_f64().is_some_and(|b| (b - a).abs() <= a.abs() * 1e-15 + 1e-300)
            }
            (Value::Text(a), serde_json::Value::String(b)) => a == b,
            (Value::List(a), serde_json::Value::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
            }
            (Value::Object(a), serde_json::Value::Object(b)) => {
                a.len() == b.len()
                    && a.iter().all(|(k, v)| b.get(k.as_ref()).is_some_and(|w| same(v, w)))
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn parser_reads_back_the_same_value(value in value()) {
            let text = value.to_json();
            prop_assert!(!text.chars().any(char::is_control));
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert!(same(&value, &read), "{} {}", text, read);
        }
    }
}
