//! Settings on the kernel command line: `isthmus.PATH=VALUE`, separated by white space. Values with white space are
//! quoted. The opening quote may come before the name or after the `=`, as GRUB and QEMU users write it.

/// The settings of a command line in order, as (path, value). Other words are ignored. So are `isthmus.test.…`, which
/// are switches of test images, `CONFIG_DISK` and `SEED`: these are read before the configuration.
pub fn settings(line: &str) -> Vec<(String, String)> {
    let setting = |word: String| {
        let (path, value) = setting(&word)?;
        let names_a_disk = [CONFIG_DISK, SEED].contains(&path);
        (!names_a_disk).then(|| (path.to_string(), value.to_string()))
    };
    words(line).into_iter().filter_map(setting).collect()
}

/// Path and value of `isthmus.PATH=VALUE`. The value of a path alone is `true`.
pub(super) fn setting(word: &str) -> Option<(&str, &str)> {
    let rest = word.strip_prefix("isthmus.").filter(|rest| !rest.starts_with("test."))?;
    Some(rest.split_once('=').unwrap_or((rest, "true")))
}

/// Names the disk that holds the configuration: `isthmus.config_disk=serial:…`.
pub(super) const CONFIG_DISK: &str = "config_disk";
/// Names the disk that holds a seed: `isthmus.seed=serial:…`.
pub(super) const SEED: &str = "seed";

/// The config disk that the command line names, if any.
pub fn config_disk(line: &str) -> Option<String> {
    named(line, CONFIG_DISK)
}

/// The disk with a seed that the command line names, if any.
pub fn seed(line: &str) -> Option<String> {
    named(line, SEED)
}

/// The last name of a disk that the command line gives for a path.
fn named(line: &str, wanted: &str) -> Option<String> {
    let named = |word: String| {
        // An empty name matches no disk.
        let setting = word.strip_prefix("isthmus.")?;
        let (path, name) = setting.split_once('=').unwrap_or((setting, ""));
        (path == wanted).then(|| name.to_string())
    };
    words(line).into_iter().rev().find_map(named)
}

/// Splits a command line into words and removes quotes. An unclosed quote extends to the end. Quotes inside brackets (a
/// TOML list) are kept.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut list) = (false, false);
    for c in line.chars() {
        list = (list || c == '[') && c != ']';
        match c {
            '"' if !list => quoted = !quoted,
            c if c.is_whitespace() && !quoted && !list => words.push(String::new()),
            c => words.last_mut().expect("never empty").push(c),
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_words_are_ignored() {
        let line = "console=ttyS0 isthmus.net.0.mtu=9000  isthmus.system.hostname=\"a b\" \
                    \"isthmus.x=1 2\" isthmus.roce.services isthmus.test.fault=pf isthmus.config_disk=serial:a isthmus.seed=serial:b \
                    isthmus.net.0.address=[\"dhcp\", \"fd00::1/64\"]";
        let expected = [
            ("net.0.mtu", "9000"),
            ("system.hostname", "a b"),
            ("x", "1 2"),
            ("roce.services", "true"),
            ("net.0.address", "[\"dhcp\", \"fd00::1/64\"]"),
        ];
        assert_eq!(settings(line), expected.map(|(p, v)| (p.to_string(), v.to_string())));
        assert_eq!(config_disk(line).as_deref(), Some("serial:a"));
        assert_eq!(seed(line).as_deref(), Some("serial:b"));
        assert_eq!(config_disk("isthmus.config_diskette=1"), None);
        assert_eq!(config_disk("isthmus.config_disk quiet").as_deref(), Some(""));
    }
}
