//! Times at which the changes of a commit take effect: at once, as soon as an object is unused, or after a reboot.

use crate::appliance::Appliance;
use crate::config::{Change, Config, compare};
use crate::leaving;

/// The keys that differ. Volumes, remotes and mirrors that come and go do so at once, or have a line of their own.
pub(crate) fn changes_of(old: &Config, new: &Config) -> Vec<Change> {
    let is_whole = |change: &Change| {
        let Some(name) = change.entry.as_deref() else { return false };
        let volume = |config: &Config| config.volume_names().any(|other| other.as_str() == name);
        let mirror = |config: &Config| {
            let mut mirrors = config.mirror.iter();
            mirrors.find(|mirror| mirror.name.as_str() == name).map(|mirror| mirror.members.clone())
        };
        match change.path.split('.').next() {
            Some("volume" | "remote") => volume(old) != volume(new),
            Some("mirror") => mirror(old) != mirror(new),
            _ => false,
        }
    };
    let mut changes = compare(old, new);
    changes.iter_mut().for_each(|change| change.at_once |= is_whole(change));
    changes
}

/// The keys that take effect after a reboot, as a line.
pub(crate) fn after_reboot(changes: &[Change]) -> Option<String> {
    let later = changes.iter().filter(|change| !change.at_once);
    let paths: Vec<&str> = later.map(|change| change.path.as_str()).collect();
    (!paths.is_empty()).then(|| format!("in force after `save` and `reboot`: {}", paths.join(", ")))
}

/// What of the candidate does not take effect with the commit, a line each.
pub(crate) fn delayed(appliance: &dyn Appliance) -> Vec<String> {
    let Some(candidate) = &appliance.lifecycle().candidate else { return Vec::new() };
    let new = candidate.document.config();
    let changes = changes_of(appliance.document().config(), new);
    after_reboot(&changes).into_iter().chain(leaving::delays(appliance, new)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;

    #[test]
    fn what_comes_and_goes_does_so_at_once_and_other_keys_are_named() {
        let config = |text: &str| {
            let volumes = ["a", "b", "c"].map(|name| format!("[[volume]]\nname = \"{name}\"\n"));
            check((volumes.concat() + text).as_bytes()).unwrap()
        };
        let later = |old: &str, new: &str| after_reboot(&changes_of(&config(old), &config(new)));
        let mirror = |members: &str, timeout: u32| {
            format!("[[mirror]]\nname = \"m\"\nmembers = [{members}]\ntimeout_ms = {timeout}\n")
        };
        let (first, other) = (mirror("\"a\", \"b\"", 5000), mirror("\"a\", \"c\"", 7000));
        for (old, new) in [("", &first[..]), (&first, ""), (&first, &other)] {
            assert_eq!(later(old, new), None);
        }
        assert_eq!(later("", "[[volume]]\nname = \"d\"\n"), None);
        assert_eq!(
            later(&first, &mirror("\"a\", \"b\"", 7000)).unwrap(),
            "in force after `save` and `reboot`: mirror.0.timeout_ms"
        );
        let slow = format!("{first}[[net]]\nmtu = 1400\n");
        assert!(later("", &slow).unwrap().contains("net.0.mtu"));
    }
}
