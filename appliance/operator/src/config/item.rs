//! [`Item`]: the types of keys, with their accepted values, decoding from a tree, and encoding.
//!
//! [`section!`] declares a section of the document once: its struct, its keys, their defaults and limits. Decoding
//! reports every mistake, not only the first.

use super::effect::Effect;
use super::is_secret;
use super::origin::{Kind, Problem};
use super::tree::{MAX_ENTRIES, Node, Value};
use crate::suggestion::did_you_mean;

/// Smallest and largest accepted number.
pub type Range = (u64, u64);

/// JSON types that a value can have in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    /// A string.
    Text,
    /// A string or a whole number.
    TextOrInteger,
    /// A whole number, or a list of such.
    IntegerOrList,
    /// An object.
    Section,
}

/// A key of a section, for completion, messages and the schema.
#[derive(Debug)]
pub struct Field {
    /// Name of the key.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// JSON types of the value, or of an entry if the key is a list.
    pub shape: Shape,
    /// Smallest and largest number.
    pub range: Option<Range>,
    /// The default. None if there is none.
    pub default: fn() -> Option<Value>,
    /// Whether the key may be absent.
    pub optional: fn() -> bool,
    /// The accepted values, in words.
    pub accepts: fn(Option<Range>) -> String,
    /// The keys below, if the key is a section or a list of sections.
    pub fields: fn() -> &'static [Field],
    /// Whether the key is a list.
    pub list: bool,
    /// When a change takes effect. For a section, the keys below declare their own effect.
    pub effect: Effect,
}

/// A type that a key can have.
pub trait Item: Sized {
    /// Whether the type is a list.
    const LIST: bool = false;
    /// JSON types of the value, or of an entry of a list.
    const SHAPE: Shape = Shape::Text;
    /// The keys below, if this is a section.
    fn fields() -> &'static [Field] {
        &[]
    }
    /// The accepted values, in words.
    fn accepts(range: Option<Range>) -> String;
    /// The value of an absent key, if the key is optional.
    fn absent() -> Option<Self> {
        None
    }
    /// Decodes a node. On a mistake, adds to `problems` and returns None.
    fn decode(
        node: &Node,
        path: &str,
        range: Option<Range>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self>;
    /// The value as written in a document. None if the key is left out.
    fn encode(&self) -> Option<Value>;
}

/// A problem of the node at `path`.
#[inline(never)]
pub fn problem(node: &Node, path: &str, reason: String, accepted: String) -> Problem {
    Problem { kind: Kind::Mistake, origin: node.origin, path: path.into(), reason, accepted }
}

/// The problem of a node with the wrong kind of value.
fn wrong_kind(node: &Node, path: &str, accepted: String) -> Problem {
    problem(node, path, format!("{} does not belong here", node.value.kind()), accepted)
}

impl Item for bool {
    const SHAPE: Shape = Shape::Bool;
    fn accepts(_: Option<Range>) -> String {
        "true or false".into()
    }
    fn decode(n: &Node, path: &str, _: Option<Range>, out: &mut Vec<Problem>) -> Option<bool> {
        match &n.value {
            Value::Bool(b) => return Some(*b),
            Value::Bare(text) => match text.as_str() {
                "true" | "on" | "yes" | "1" => return Some(true),
                "false" | "off" | "no" | "0" => return Some(false),
                _ => {
                    let reason = format!("{text:?} is neither true nor false");
                    out.push(problem(n, path, reason, Self::accepts(None)));
                }
            },
            _ => out.push(wrong_kind(n, path, Self::accepts(None))),
        }
        None
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::Bool(*self))
    }
}

/// The whole number in a node, if any.
pub fn integer(node: &Node) -> Option<i64> {
    match &node.value {
        Value::Integer(i) => Some(*i),
        Value::Bare(text) => text.parse().ok(),
        _ => None,
    }
}

macro_rules! integer_items {
    ($($ty:ident)*) => {$(
        impl Item for $ty {
            const SHAPE: Shape = Shape::Integer;
            fn accepts(range: Option<Range>) -> String {
                let (least, most) = range.unwrap_or((0, u64::from($ty::MAX)));
                format!("a whole number from {least} to {most}")
            }
            fn decode(
                node: &Node,
                path: &str,
                range: Option<Range>,
                problems: &mut Vec<Problem>,
            ) -> Option<$ty> {
                let Some(number) = integer(node) else {
                    problems.push(wrong_kind(node, path, Self::accepts(range)));
                    return None;
                };
                let (least, most) = range.unwrap_or((0, u64::from($ty::MAX)));
                match u64::try_from(number).ok().filter(|n| (least..=most).contains(n)) {
                    Some(n) => $ty::try_from(n).ok(),
                    None => {
                        let reason = format!("{number} is out of range");
                        problems.push(problem(node, path, reason, Self::accepts(range)));
                        None
                    }
                }
            }
            fn encode(&self) -> Option<Value> {
                Some(Value::Integer(i64::from(*self)))
            }
        }
    )*};
}
integer_items!(u8 u16 u32);

/// Implements [`Item`] for types that are written as strings. `FromStr` has a message as its error, and parses the
/// output of `Display`.
macro_rules! text_items {
    ($($ty:ty: $accepts:expr;)*) => {$(
        impl $crate::config::item::Item for $ty {
            fn accepts(_: Option<$crate::config::item::Range>) -> String {
                $accepts.into()
            }
            fn decode(
                node: &$crate::config::tree::Node,
                path: &str,
                _: Option<$crate::config::item::Range>,
                problems: &mut Vec<$crate::config::origin::Problem>,
            ) -> Option<$ty> {
                let accepted = <Self as $crate::config::item::Item>::accepts(None);
                $crate::config::item::decode_text(node, path, accepted, problems)
            }
            fn encode(&self) -> Option<$crate::config::tree::Value> {
                Some($crate::config::tree::Value::Text(self.to_string()))
            }
        }
    )*};
}
pub(crate) use text_items;

/// Decodes a string value, for `text_items!`.
pub fn decode_text<T: core::str::FromStr>(
    node: &Node,
    path: &str,
    accepted: String,
    problems: &mut Vec<Problem>,
) -> Option<T>
where
    T::Err: ToString,
{
    let (Value::Text(text) | Value::Bare(text)) = &node.value else {
        problems.push(wrong_kind(node, path, accepted));
        return None;
    };
    let error = |e: T::Err| {
        let why = e.to_string();
        // The text may be the secret itself, which must not reach logs and reports.
        let reason = match is_secret(path) {
            true => why,
            false => format!("{:?}: {why}", text.chars().take(64).collect::<String>()),
        };
        problem(node, path, reason, accepted)
    };
    text.parse().map_err(|e| problems.push(error(e))).ok()
}

impl<T: Item> Item for Option<T> {
    const SHAPE: Shape = T::SHAPE;
    fn accepts(range: Option<Range>) -> String {
        T::accepts(range)
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
    /// A path setting without a value removes the key.
    fn decode(n: &Node, path: &str, r: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        match &n.value {
            Value::Bare(text) if text.is_empty() => Some(None),
            _ => T::decode(n, path, r, out).map(Some),
        }
    }
    fn encode(&self) -> Option<Value> {
        self.as_ref().and_then(T::encode)
    }
}

impl<T: Item> Item for Vec<T> {
    const LIST: bool = true;
    const SHAPE: Shape = T::SHAPE;
    fn fields() -> &'static [Field] {
        T::fields()
    }
    fn accepts(range: Option<Range>) -> String {
        format!("a list of: {}", T::accepts(range))
    }
    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
    /// A single value is a list of one. Bare text is a list separated by commas.
    fn decode(n: &Node, path: &str, r: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        let one = |node: &Node, out: &mut Vec<Problem>| T::decode(node, path, r, out);
        match &n.value {
            Value::List(items) if items.len() > MAX_ENTRIES => {
                let reason = format!("{} entries are too many", items.len());
                out.push(problem(n, path, reason, format!("at most {MAX_ENTRIES}")));
                None
            }
            Value::List(items) => {
                let decode = |(i, item)| T::decode(item, &format!("{path}.{i}"), r, out);
                let all: Vec<Option<T>> = items.iter().enumerate().map(decode).collect();
                all.into_iter().collect()
            }
            Value::Bare(text) if T::fields().is_empty() => {
                let words = text.split(',').map(str::trim).filter(|w| !w.is_empty());
                let node = |word: &str| Node { value: Value::Bare(word.into()), origin: n.origin };
                let all: Vec<Option<T>> =
                    words.take(MAX_ENTRIES).map(|word| one(&node(word), out)).collect();
                all.into_iter().collect()
            }
            _ if T::fields().is_empty() => Some(vec![one(n, out)?]),
            _ => {
                out.push(wrong_kind(n, path, format!("[[{path}]] sections")));
                None
            }
        }
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::List(self.iter().filter_map(T::encode).map(Node::built_in).collect()))
    }
}

/// The keys of a section's table during decoding.
pub struct Keys<'a> {
    node: &'a Node,
    path: &'a str,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Keys<'a> {
    /// Starts decoding the section at `node`. Reports keys that are not in `fields`.
    pub fn new(
        node: &'a Node,
        path: &'a str,
        fields: &[Field],
        problems: &'a mut Vec<Problem>,
    ) -> Option<Self> {
        let names = || fields.iter().map(|f| f.name);
        let accepted = || names().collect::<Vec<_>>().join(", ");
        let Value::Table(entries) = &node.value else {
            problems.push(wrong_kind(
                node,
                path,
                format!("a section with the keys {}", accepted()),
            ));
            return None;
        };
        for (key, value) in entries.iter().filter(|(k, _)| names().all(|n| n != k)) {
            let shown: String = key.chars().take(64).collect();
            let reason = format!("unknown key{}", did_you_mean(key, names()));
            let unknown = problem(value, &join(path, &shown), reason, accepted());
            problems.push(Problem { kind: Kind::Unknown, ..unknown });
        }
        Some(Keys { node, path, problems })
    }

    /// Decodes one key. Not inlined, to keep the image small: there are many keys.
    #[inline(never)]
    pub fn take<T: Item>(
        &mut self,
        name: &str,
        range: Option<Range>,
        default: Option<fn() -> T>,
    ) -> Option<T> {
        let path = join(self.path, name);
        match self.node.get(name) {
            Some(node) => T::decode(node, &path, range, self.problems),
            None => default.map(|make| make()).or_else(T::absent).or_else(|| {
                let missing = problem(self.node, &path, "missing".into(), T::accepts(range));
                self.problems.push(Problem { kind: Kind::Missing, ..missing });
                None
            }),
        }
    }
}

/// `path.name`, or `name` at the top.
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}

/// Declares a section of the document: `name: Type [least, most] = default => AtOnce;` per key. Limits, default and
/// effect are optional. A key without a default is mandatory, unless its type is an `Option`, a list or a section. A
/// key without an effect takes effect at the next boot.
macro_rules! section {
    (
        $(#[$about:meta])*
        $name:ident {$(
            $(#[doc = $doc:literal])*
            $field:ident: $ty:ty $([$least:expr, $most:expr])? $(= $default:expr)? $(=> $effect:ident)?;
        )*}
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {$(
            $(#[doc = $doc])*
            pub $field: $ty,
        )*}

        impl $crate::config::item::Item for $name {
            const SHAPE: $crate::config::item::Shape = $crate::config::item::Shape::Section;
            fn fields() -> &'static [$crate::config::item::Field] {
                use $crate::config::item::{Field, Item, default_of, may_be_absent};
                const FIELDS: &[Field] = &[$(Field {
                    name: stringify!($field),
                    about: concat!($($doc),*),
                    shape: <$ty as Item>::SHAPE,
                    range: $crate::config::item::optional!($(($least, $most))?),
                    default: || default_of::<$ty>($crate::config::item::optional!($(|| $default)?)),
                    optional: || may_be_absent::<$ty>($crate::config::item::has!($($default)?)),
                    accepts: <$ty as Item>::accepts,
                    fields: <$ty as Item>::fields,
                    list: <$ty as Item>::LIST,
                    effect: $crate::config::effect::declared!($($effect)?),
                }),*];
                FIELDS
            }
            fn accepts(_: Option<$crate::config::item::Range>) -> String {
                "a section".into()
            }
            fn absent() -> Option<Self> {
                let nothing = $crate::config::tree::Node::built_in(
                    $crate::config::tree::Value::Table(Vec::new()),
                );
                Self::decode(&nothing, "", None, &mut Vec::new())
            }
            fn decode(
                node: &$crate::config::tree::Node,
                path: &str,
                _: Option<$crate::config::item::Range>,
                problems: &mut Vec<$crate::config::origin::Problem>,
            ) -> Option<Self> {
                let fields = <Self as $crate::config::item::Item>::fields();
                let mut keys = $crate::config::item::Keys::new(node, path, fields, problems)?;
                $(let $field = keys.take::<$ty>(
                    stringify!($field),
                    $crate::config::item::optional!($(($least, $most))?),
                    $crate::config::item::optional!($(|| $default)?),
                );)*
                Some($name { $($field: $field?),* })
            }
            fn encode(&self) -> Option<$crate::config::tree::Value> {
                let mut entries = Vec::new();
                $(if let Some(value) = self.$field.encode() {
                    let node = $crate::config::tree::Node::built_in(value);
                    entries.push((stringify!($field).to_string(), node));
                })*
                Some($crate::config::tree::Value::Table(entries))
            }
        }
    };
}
pub(crate) use section;

/// The encoded default of a key.
#[inline(never)]
pub fn default_of<T: Item>(default: Option<fn() -> T>) -> Option<Value> {
    default.and_then(|make| make().encode())
}

/// Whether a key may be absent, with or without a default.
#[inline(never)]
pub fn may_be_absent<T: Item>(has_default: bool) -> bool {
    has_default || T::absent().is_some()
}

/// Whether an expression is given.
macro_rules! has {
    () => {
        false
    };
    ($given:expr) => {
        true
    };
}
pub(crate) use has;

/// `Some` of the given expression, or `None` without one.
macro_rules! optional {
    () => {
        None
    };
    ($given:expr) => {
        Some($given)
    };
}
pub(crate) use optional;
