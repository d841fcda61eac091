//! [`InForce`]: when a change at a path takes effect, as a message for the operator.

use super::effect::Effect;
use super::item::{Field, Item as _, join};
use super::schema::Config;
use core::fmt;

/// When a change at a path, which may cover several keys, takes effect. Displays as a message for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// Whether some of the keys take effect immediately.
    at_once: bool,
    /// The keys that take effect at the next boot, relative to the given path, with `*` for the entries of a list.
    /// Empty for the key itself.
    at_boot: Vec<String>,
}

impl InForce {
    /// The effect of a change at `path`, as in `set` and `unset`.
    pub fn of(path: &str) -> InForce {
        let mut force = InForce::default();
        let mut fields = Config::fields();
        let mut parts = path.split('.').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let Some(field) = fields.iter().find(|field| field.name == part) else { return force };
            if field.list {
                parts.next_if(|next| next.bytes().all(|b| b.is_ascii_digit()));
            }
            fields = (field.fields)();
            if fields.is_empty() {
                force.add(field.effect, String::new());
                return force;
            }
        }
        force.add_all(fields, "");
        force
    }

    /// Whether all keys take effect immediately.
    pub fn is_at_once(&self) -> bool {
        self.at_boot.is_empty()
    }

    fn add(&mut self, effect: Effect, path: String) {
        match effect {
            Effect::AtOnce => self.at_once = true,
            Effect::AtBoot => self.at_boot.push(path),
        }
    }

    fn add_all(&mut self, fields: &[Field], path: &str) {
        for field in fields {
            let (path, below) = (join(path, field.name), (field.fields)());
            match (below.is_empty(), field.list) {
                (true, _) => self.add(field.effect, path),
                (false, true) => self.add_all(below, &join(&path, "*")),
                (false, false) => self.add_all(below, &path),
            }
        }
    }
}

impl fmt::Display for InForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.at_once, self.at_boot.as_slice()) {
            (_, []) => write!(f, "in force now; `save` keeps it"),
            (false, _) => write!(f, "in force after `save` and `reboot`"),
            (true, some) => {
                write!(f, "in force now, but {} after `save` and `reboot`", some.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effect_of_each_path_is_described() {
        for (path, text) in [
            ("system.log_level", "in force now; `save` keeps it"),
            ("system.hostname", "in force after `save` and `reboot`"),
            ("net.0.address", "in force now; `save` keeps it"),
            ("net.0.core", "in force after `save` and `reboot`"),
            ("ntb.0.core", "in force after `save` and `reboot`"),
            ("net.3.mtu", "in force after `save` and `reboot`"),
            ("http.tls", "in force after `save` and `reboot`"),
            ("rule.2", "in force now; `save` keeps it"),
            ("export", "in force now; `save` keeps it"),
            ("smc.hosts", "in force after `save` and `reboot`"),
            ("volume", "in force after `save` and `reboot`"),
            (
                "http",
                "in force now, but connections, tls, certificate, key after `save` and `reboot`",
            ),
        ] {
            assert_eq!(InForce::of(path).to_string(), text, "{path}");
        }
    }

    #[test]
    fn unknown_path_has_no_effect() {
        assert_eq!(InForce::of("net.0.nothing.at.all"), InForce::default());
    }

    #[test]
    fn keys_of_list_entries_are_named_with_a_star() {
        let whole = InForce::of("");
        assert!(whole.at_boot.contains(&"net.*.mtu".to_string()), "{whole}");
        assert!(!whole.at_boot.contains(&"net.*.address".to_string()), "{whole}");
    }
}
