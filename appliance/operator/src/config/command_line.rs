//! Settings on the kernel command line: `isthmus.PATH=VALUE`, separated by white space. A value
//! with white space stands in double quotes, before or after the `=` as GRUB and QEMU users do.

/// The settings of a command line in order, as (path, value). Other words are somebody else's, and
/// so are `isthmus.test.…`, switches of test images, and `CONFIG_DISK`: both are read before there is
/// a configuration.
pub fn settings(line: &str) -> Vec<(String, String)> {
    let setting = |word: String| {
        let rest = word.strip_prefix("isthmus.").filter(|r| !r.starts_with("test."))?;
        let (path, value) = rest.split_once('=').unwrap_or((rest, "true"));
        (path != CONFIG_DISK).then(|| (path.to_string(), value.to_string()))
    };
    words(line).into_iter().filter_map(setting).collect()
}

/// Names the disk that holds the configuration: `isthmus.config_disk=serial:…`.
const CONFIG_DISK: &str = "config_disk";

/// The disk that the command line names as that of the configuration, if it does.
pub fn config_disk(line: &str) -> Option<String> {
    let named = |word: String| {
        // Without a name, none has it.
        let setting = word.strip_prefix("isthmus.")?;
        let (path, name) = setting.split_once('=').unwrap_or((setting, ""));
        (path == CONFIG_DISK).then(|| name.to_string())
    };
    words(line).into_iter().rev().find_map(named)
}

/// Words, without the quotes. A quote that is not closed reaches to the end, and quotes inside of
/// brackets (a TOML list) stay where they are.
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
    fn words_of_others_are_left_alone() {
        let line = "console=ttyS0 isthmus.net.0.mtu=9000  isthmus.system.hostname=\"a b\" \
                    \"isthmus.x=1 2\" isthmus.roce.services isthmus.test.fault=pf isthmus.config_disk=serial:a \
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
        assert_eq!(config_disk("isthmus.config_diskette=1"), None);
        assert_eq!(config_disk("isthmus.config_disk quiet").as_deref(), Some(""));
    }
}
