//! Limits of an `[[export]]` and of a `[[subsystem.namespace]]`.

use super::nvme::Namespace;
use super::schema::{Config, Export};
use super::values::{Name, Size};
use storage::limits::{Limits, Rate};

/// The six keys of a section that has limits.
macro_rules! limits_of {
    ($section:expr) => {{
        let rate = |requests: Option<u32>, bytes: Option<Size>| Rate {
            requests,
            bytes: bytes.map(|size| size.0),
        };
        Limits {
            reads: rate($section.read_iops, $section.read_bandwidth),
            writes: rate($section.write_iops, $section.write_bandwidth),
            all: rate($section.iops, $section.bandwidth),
        }
    }};
}

impl Export {
    /// An export of a volume to all sessions and hosts, without limits.
    pub fn of(name: super::values::ExportName, volume: Name) -> Export {
        Export {
            name,
            volume,
            read_only: false,
            sessions: Vec::new(),
            hosts: Vec::new(),
            iops: None,
            read_iops: None,
            write_iops: None,
            bandwidth: None,
            read_bandwidth: None,
            write_bandwidth: None,
        }
    }

    /// Its limits.
    pub fn limits(&self) -> Limits {
        limits_of!(self)
    }
}

impl Namespace {
    /// Its limits.
    pub fn limits(&self) -> Limits {
        limits_of!(self)
    }
}

impl Config {
    /// The number of the first export with limits that cannot be kept: sessions share memory, so that requests that
    /// wait would take it from other clients.
    pub(super) fn limited_export_of_shared_memory(&self) -> Option<usize> {
        let shares = self.rnbd.oversubscribe > 1;
        self.export.iter().position(|export| shares && !export.limits().is_none())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Document, Sources, check};
    use storage::limits::{Limits, Rate};

    const KEYS: &str = "iops = 1000\nread_bandwidth = \"100MiB\"\nwrite_iops = 500\n";

    #[test]
    fn limits_of_exports_and_namespaces_are_read_from_the_same_keys() {
        let text = format!(
            "[[export]]\nname = \"a\"\nvolume = \"ram0\"\n{KEYS}\
             [[subsystem]]\nnqn = \"nqn.2026-01.x:a\"\n\
             [[subsystem.namespace]]\nnsid = 1\nvolume = \"ram0\"\n{KEYS}"
        );
        let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
        let (document, problems) = Document::load(&sources);
        assert_eq!(problems, []);
        let config = document.config();
        let wanted = Limits {
            reads: Rate { requests: None, bytes: Some(100 << 20) },
            writes: Rate { requests: Some(500), bytes: None },
            all: Rate { requests: Some(1000), bytes: None },
        };
        assert_eq!(config.export[0].limits(), wanted);
        assert_eq!(config.subsystems()[0].namespaces[0].limits, wanted);
    }

    #[test]
    fn limits_that_cannot_be_kept_are_refused() {
        let export = |keys: &str| format!("[[export]]\nname = \"a\"\nvolume = \"ram0\"\n{keys}\n");
        for (text, wanted) in [
            (export("iops = 99"), "export.0.iops"),
            (export("bandwidth = \"1KiB\""), "export.0.bandwidth"),
            (export("iops = 100\n[rnbd]\noversubscribe = 2"), "export.0.iops"),
        ] {
            let problems = check(text.as_bytes()).unwrap_err();
            assert!(problems.iter().any(|one| one.path == wanted), "{wanted}: {problems:?}");
        }
        assert!(check(export("[rnbd]\noversubscribe = 2").as_bytes()).is_ok());
    }
}
