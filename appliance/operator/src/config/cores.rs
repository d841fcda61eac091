//! `core`: the cores that poll an interface.

use super::item::{Item, Range, Shape, problem};
use super::origin::Problem;
use super::tree::{Node, Value};

/// Distinct core numbers. Empty means the first core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores(Vec<u8>);

impl Cores {
    /// All cores, the interface's main core first: core 0 if listed, else the first listed core.
    pub fn all(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.0.iter().copied().map(usize::from).collect();
        match all.iter().position(|&core| core == 0) {
            Some(at) => all.swap(0, at),
            None if all.is_empty() => all.push(0),
            None => {}
        }
        all
    }

    /// Whether only the first core serves the interface.
    pub fn is_first_alone(&self) -> bool {
        self.0.iter().all(|&core| core == 0)
    }
}

impl Item for Cores {
    const SHAPE: Shape = Shape::IntegerOrList;

    fn accepts(range: Option<Range>) -> String {
        format!("{}, or a list of such", u8::accepts(range))
    }

    fn absent() -> Option<Self> {
        Some(Cores::default())
    }

    fn decode(n: &Node, path: &str, range: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        let mut cores = Vec::new();
        let mut add = |node: &Node| {
            let core = u8::decode(node, path, range, out)?;
            if cores.contains(&core) {
                let reason = format!("core {core} is named twice");
                out.push(problem(n, path, reason, Self::accepts(range)));
                return None;
            }
            cores.push(core);
            Some(())
        };
        match &n.value {
            Value::List(items) => items.iter().try_for_each(add)?,
            Value::Bare(text) => {
                let mut words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                words.try_for_each(|word| {
                    add(&Node { value: Value::Bare(word.into()), origin: n.origin })
                })?;
            }
            _ => add(n)?,
        }
        Some(Cores(cores))
    }

    fn encode(&self) -> Option<Value> {
        match self.0[..] {
            [] => None,
            [one] => one.encode(),
            _ => {
                let all = self.0.iter().filter_map(u8::encode);
                Some(Value::List(all.map(Node::built_in).collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Document};
    use super::*;

    fn read(text: &str) -> (Vec<usize>, Vec<String>) {
        let sources = crate::config::Sources {
            fw_cfg: Some(text.as_bytes()),
            ..crate::config::Sources::default()
        };
        let (document, problems) = Document::load(&sources);
        let config: &Config = document.config();
        let cores = config.net.first().map(|net| net.core.all()).unwrap_or_default();
        (cores, problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn core_lists_are_read_with_the_main_core_first() {
        for (text, wanted) in [
            ("", &[0][..]),
            ("core = 3", &[3]),
            ("core = []", &[0]),
            ("core = [2]", &[2]),
            ("core = [1, 2]", &[1, 2]),
            ("core = [2, 1, 0]", &[0, 1, 2]),
        ] {
            assert_eq!(read(&format!("[[net]]\n{text}")), (wanted.to_vec(), vec![]), "{text}");
        }
    }

    #[test]
    fn invalid_core_is_reported() {
        for (text, wanted) in [
            ("core = 64", "net.0.core: 64 is out of range; accepted: a whole number from 0 to 63"),
            ("core = [1, 64]", "net.0.core: 64 is out of range"),
            ("core = [1, 2, 1]", "net.0.core: core 1 is named twice"),
            ("core = \"x\"", "net.0.core: a string does not belong here"),
        ] {
            let (_, problems) = read(&format!("[[net]]\n{text}"));
            assert!(problems.len() == 1 && problems[0].contains(wanted), "{problems:?}");
        }
    }

    #[test]
    fn single_core_is_written_as_a_number() {
        assert_eq!(Cores(vec![]).encode(), None);
        assert_eq!(Cores(vec![3]).encode(), Some(Value::Integer(3)));
        assert!(matches!(Cores(vec![1, 2]).encode(), Some(Value::List(list)) if list.len() == 2));
    }
}
