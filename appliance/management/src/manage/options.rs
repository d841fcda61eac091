//! Arguments of a command: a name, `KEY=VALUE` options, and flags.

use super::limits::LimitOptions;
use crate::config::{DeviceName, Size};

/// Parsed arguments: a name, `key=value` options and flags.
pub(super) struct Options<'a> {
    pub name: &'a str,
    pub size: Option<u64>,
    pub disk: Option<DeviceName>,
    pub volume: Option<&'a str>,
    pub sessions: Option<&'a str>,
    pub hosts: Option<&'a str>,
    pub limits: LimitOptions<'a>,
    flags: Vec<&'a str>,
}

impl<'a> Options<'a> {
    pub fn parse(words: &[&'a str], flags: &[&str]) -> Result<Self, String> {
        let (&name, words) = words.split_first().ok_or("missing name")?;
        let mut options = Options {
            name,
            size: None,
            disk: None,
            volume: None,
            sessions: None,
            hosts: None,
            limits: LimitOptions::default(),
            flags: Vec::new(),
        };
        for &word in words {
            match word.split_once('=') {
                Some(("size", size)) => {
                    let parsed: Result<Size, String> = size.parse();
                    let size = parsed.map_err(|why| format!("{size:?}: {why}; such as 1GiB"))?;
                    options.size = Some(size.0);
                }
                Some(("disk", disk)) => {
                    let name: Result<DeviceName, String> = disk.parse();
                    options.disk =
                        Some(name.map_err(|why| format!("{disk:?} is not a disk: {why}"))?);
                }
                Some(("volume", volume)) => options.volume = Some(volume),
                Some(("sessions", sessions)) => options.sessions = Some(sessions),
                Some(("hosts", hosts)) => options.hosts = Some(hosts),
                Some((key, value)) if LimitOptions::KEYS.contains(&key) => {
                    options.limits.add(key, value);
                }
                None if flags.contains(&word) => options.flags.push(word),
                _ => return Err(format!("unknown option {word:?}")),
            }
        }
        Ok(options)
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let parse = |line: &'static str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Options::parse(&words, &["force"])
                .map(|o| (o.name, o.size, o.disk.clone(), o.has("force")))
        };
        assert_eq!(
            parse("a size=1GiB disk=disk2 force"),
            Ok(("a", Some(1 << 30), Some(DeviceName::Position(2)), true))
        );
        assert_eq!(parse("a"), Ok(("a", None, None, false)));
        for (line, why) in [
            ("", "missing name"),
            ("a size=much", "\"much\": not a size; such as 1GiB"),
            ("a disk=x", "\"x\" is not a disk: not the name of a device"),
            ("a forced", "unknown option \"forced\""),
        ] {
            assert_eq!(parse(line).unwrap_err(), why);
        }
    }
}
