//! `[log]`: levels of single subjects.

use super::item::{section, text_items};
use crate::log_ring::Subject;
use crate::suggestion::did_you_mean;
use core::fmt;
use core::str::FromStr;
use log::LevelFilter;

section! {
    /// The log.
    Log {
        /// Levels of single subjects, such as `smc=debug`, instead of `system.log_level`.
        levels: Vec<SubjectLevel> => AtOnce;
    }
}

/// The level of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectLevel(pub Subject, pub LevelFilter);

impl Log {
    /// Levels by subject.
    pub fn by_subject(&self) -> Vec<(Subject, LevelFilter)> {
        self.levels.iter().map(|SubjectLevel(subject, level)| (*subject, *level)).collect()
    }

    /// The value of `log.levels` after `log level SUBJECT LEVEL`. The level `default` removes the one of the subject.
    pub fn with(&self, subject: &str, level: &str) -> Result<String, String> {
        let subject = subject_named(subject)?;
        let mut levels = self.levels.clone();
        levels.retain(|SubjectLevel(other, _)| *other != subject);
        if level != "default" {
            levels.push(format!("{}={level}", subject.name()).parse()?);
        }
        let levels: Vec<String> = levels.iter().map(|level| format!("\"{level}\"")).collect();
        Ok(format!("[{}]", levels.join(", ")))
    }
}

/// The subject with a name. The error lists all.
fn subject_named(name: &str) -> Result<Subject, String> {
    Subject::named(name).ok_or_else(|| {
        let accepted: Vec<&str> = Subject::names().collect();
        let hint = did_you_mean(name, Subject::names());
        format!("{name:?} is not a subject{hint}; accepted: {}", accepted.join(", "))
    })
}

impl FromStr for SubjectLevel {
    type Err = String;
    fn from_str(text: &str) -> Result<SubjectLevel, String> {
        let (subject, level) = text.split_once('=').ok_or("without =")?;
        let parsed = level.trim().parse::<LevelFilter>();
        let levels = "off, error, warn, info, debug, trace";
        let level = parsed.map_err(|_| format!("{level:?} is not a level; accepted: {levels}"))?;
        Ok(SubjectLevel(subject_named(subject.trim())?, level))
    }
}

impl fmt::Display for SubjectLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.0.name(), self.1.as_str().to_ascii_lowercase())
    }
}

text_items! {
    SubjectLevel: "a subject and its level, such as smc=debug or nvme=warn";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;

    #[test]
    fn levels_of_subjects_are_parsed_and_changed() {
        let config = check(b"[log]\nlevels = [\"smc=debug\", \"nvme=off\"]\n").unwrap();
        assert_eq!(config.log.by_subject().len(), 2);
        let with = |subject, level| config.log.with(subject, level);
        assert_eq!(with("smc", "WARN").unwrap(), "[\"nvme=off\", \"smc=warn\"]");
        assert_eq!(with("smc", "default").unwrap(), "[\"nvme=off\"]");
        assert!(with("smb", "warn").unwrap_err().contains("did you mean \"smc\""));
        assert!(with("smc", "loud").unwrap_err().contains("accepted: off, error"));
        for wrong in ["smc", "=info", "smc=", "smc=loud", "x=info"] {
            assert!(wrong.parse::<SubjectLevel>().is_err(), "{wrong}");
        }
    }
}
