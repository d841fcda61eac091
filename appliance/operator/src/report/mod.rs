//! Reports of the appliance: a tree of values, shown as aligned text on the console and as JSON to programs.

mod json;
mod text;

use std::borrow::Cow;

pub use text::TableLayout;

/// A value of a report.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    None,
    /// Yes or no.
    Bool(bool),
    /// A count.
    Number(u64),
    /// A measure.
    Float(f64),
    /// A number of bytes: with a unit in text, a plain number in JSON.
    Bytes(u64),
    /// An approximate number of bytes: in text in MiB with one decimal, in JSON exact.
    Memory(u64),
    /// Text, which a peer may have chosen.
    Text(Cow<'static, str>),
    /// A list. A list of objects is shown as a table.
    List(Vec<Value>),
    /// Named values in order.
    Object(Vec<(Cow<'static, str>, Value)>),
}

impl Value {
    /// An object with fixed names (lower case, words joined by `_`, units at the end).
    pub fn object<const N: usize>(entries: [(&'static str, Value); N]) -> Value {
        Value::named(Box::new(entries))
    }

    /// An object of any number of entries. Not inlined, so that the image has the loop once and not unrolled in each
    /// report.
    #[inline(never)]
    fn named(entries: Box<[(&'static str, Value)]>) -> Value {
        Value::Object(entries.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// A list of an iterator's items.
    pub fn list(items: impl IntoIterator<Item = Value>) -> Value {
        Value::List(items.into_iter().collect())
    }

    /// Text of anything that can be displayed.
    pub fn display(what: impl ToString) -> Value {
        Value::Text(what.to_string().into())
    }

    /// JSON on one line (RFC 8259), without a line end.
    pub fn to_json(&self) -> String {
        let mut out = String::new();
        json::write(&mut out, self);
        out
    }

    /// Lines for a terminal, each with a line end. Control characters are shown, not sent.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        text::write(&mut out, self, 0);
        out
    }
}

impl Value {
    /// Whether this is an object with this text under a key.
    pub fn has_text(&self, key: &str, text: &str) -> bool {
        let Value::Object(entries) = self else { return false };
        let is_it = |value: &Value| matches!(value, Value::Text(one) if one == text);
        entries.iter().any(|(name, value)| name == key && is_it(value))
    }
}

impl From<bool> for Value {
    fn from(b: bool) -> Value {
        Value::Bool(b)
    }
}

macro_rules! numbers {
    ($($ty:ty)*) => {$(
        impl From<$ty> for Value {
            fn from(n: $ty) -> Value {
                Value::Number(n as u64)
            }
        }
    )*};
}
numbers!(u8 u16 u32 u64 usize);

impl From<f64> for Value {
    fn from(f: f64) -> Value {
        Value::Float(f)
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text.into())
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(maybe: Option<T>) -> Value {
        maybe.map_or(Value::None, Into::into)
    }
}
