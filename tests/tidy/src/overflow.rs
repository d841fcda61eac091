//! Overflow checks of the shipped image: crates that take numbers of peers, devices, disks or operators have them, so
//! that a number that overflows ends in a recorded panic, and not in a wrong address or length.

use crate::Finding;

/// Directories whose crates take such numbers, with every crate below them.
const DIRECTORIES: [&str; 5] = ["appliance", "drivers", "net", "rdma", "images/release"];

/// Crates of other projects that parse such numbers.
const PARSERS: [&str; 4] = ["httparse", "serde_json", "toml", "toml_parser"];

/// Crates below [`DIRECTORIES`] without the checks, and why.
const WITHOUT: [(&str, &str); 2] = [
    ("appliance", "runs the loop of all ports; the cost there has not been measured"),
    ("image", "starts the machine; what it takes from devices and tables is read in `drivers`"),
];

/// Finds crates that should have overflow checks in the manifest's release profile and do not have them. `members` are
/// the members of the workspace: directory and package name.
pub fn check(manifest: &str, members: &[(String, String)]) -> Vec<Finding> {
    let checked = checked(manifest);
    let mut findings = Vec::new();
    let mut complain = |text: String| findings.push(Finding::of("Cargo.toml", text));
    let is_below = |directory: &str| {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        DIRECTORIES.iter().any(|&top| directory.strip_prefix(top).is_some_and(below))
    };
    let ours = members.iter().filter(|(directory, _)| is_below(directory));
    let names: Vec<&str> = ours.map(|(_, name)| name.as_str()).chain(PARSERS).collect();
    for name in &names {
        let excused = WITHOUT.iter().any(|(without, _)| without == name);
        match (checked.contains(name), excused) {
            (false, false) => complain(format!(
                "{name} takes numbers of others: give [profile.release.package.{name}] `overflow-checks = true`"
            )),
            (true, true) => {
                complain(format!("{name} has overflow checks: remove it from `WITHOUT`"))
            }
            _ => {}
        }
    }
    for (name, _) in WITHOUT.iter().filter(|(name, _)| !names.contains(name)) {
        complain(format!("{name} is gone: remove it from `WITHOUT`"));
    }
    findings
}

/// Packages with overflow checks in the release profile.
fn checked(manifest: &str) -> Vec<&str> {
    let (mut package, mut names) = (None, Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            let name = line.strip_prefix("[profile.release.package.");
            package = name.and_then(|name| name.strip_suffix(']'));
        } else if line == "overflow-checks = true" {
            names.extend(package);
        }
    }
    names
}

/// The directories of a workspace's members.
pub fn members(manifest: &str) -> Vec<&str> {
    let list = manifest.split("\nmembers = [").nth(1).unwrap_or_default();
    let list = list.split(']').next().unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

/// The package name in a crate's manifest.
pub fn name(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(packages: &[&str]) -> String {
        let section =
            |name: &&str| format!("[profile.release.package.{name}]\noverflow-checks = true\n");
        packages.iter().map(section).collect()
    }

    fn members_of(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(at, name)| (at.to_string(), name.to_string())).collect()
    }

    #[test]
    fn crate_without_checks_is_found() {
        let all = members_of(&[
            ("appliance", "appliance"),
            ("appliance/image", "image"),
            ("net", "net"),
            ("net/nbd", "nbd"),
            ("launch", "launch"),
            ("network", "network"),
        ]);
        let good = with(&["net", "nbd", "httparse", "serde_json", "toml", "toml_parser"]);
        assert_eq!(check(&good, &all), []);
        let found = |manifest: &str| {
            check(manifest, &all).into_iter().map(|finding| finding.text).collect::<Vec<_>>()
        };
        let missing =
            found(&good.replace("[profile.release.package.nbd]\noverflow-checks = true", ""));
        assert!(missing.len() == 1 && missing[0].starts_with("nbd takes"), "{missing:?}");
        let other =
            found(&good.replace("[profile.release.package.toml]", "[profile.host.package.toml]"));
        assert!(other.len() == 1 && other[0].starts_with("toml takes"), "{other:?}");
        let stale = found(&(good.clone() + &with(&["image"])));
        assert_eq!(stale, ["image has overflow checks: remove it from `WITHOUT`"]);
    }

    #[test]
    fn members_and_names_are_read() {
        let manifest =
            "[workspace]\nmembers = [\n    \"net\",\n    \"rdma/cm\",\n]\nexclude = [\"x\"]\n";
        assert_eq!(members(manifest), ["net", "rdma/cm"]);
        assert_eq!(name("[package]\nname = \"net\"\n"), Some("net"));
    }
}
