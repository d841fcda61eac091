//! Warnings of a commit about clients that it cuts off: those of exports, addresses and rules, and the caller's own connection. A
//! commit lists them and asks for confirmation.

use crate::appliance::Appliance;
use crate::caller::Caller;
use crate::clients::live_paths;
use crate::config::{Config, Size, User};
use crate::leaving;
use crate::manage::openness;
use crate::report::Value;
use crate::status::MirrorStatus;
use core::net::IpAddr;
use net::hosts::Hosts;
use std::collections::BTreeSet;
use storage::volume::mirror::MemberState;

/// Maximum lines.
const SHOWN: usize = 20;

/// One line for each client, service or connection that `new` cuts off, compared with the running configuration.
pub(crate) fn cuts(appliance: &dyn Appliance, caller: &Caller, new: &Config) -> Vec<String> {
    let old = appliance.document().config();
    let mut lines = exports(appliance, new);
    lines.extend(addresses(appliance, old, new, caller, false));
    lines.extend(rules(appliance, old, new));
    lines.extend(subsystems(appliance, old, new));
    lines.extend(lost_data(old, new));
    lines.extend(mirrors(appliance, new));
    lines.extend(members(old, new));
    if let Some(host) = caller.host() {
        lines.extend(own_connection(old, new, host, caller));
    }
    if lines.len() > SHOWN {
        let more = lines.split_off(SHOWN).len();
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Like [`cuts()`], but only clients and connections that are there now. A change of a single key asks for these.
pub(crate) fn live_cuts(appliance: &dyn Appliance, caller: &Caller, new: &Config) -> Vec<String> {
    let old = appliance.document().config();
    let (before, after) = (appliance.wanted_exports(), appliance.exports_under(new));
    let mut lines = openness::cut_off(appliance, &before, &after);
    lines.extend(addresses(appliance, old, new, caller, true));
    lines.extend(rules(appliance, old, new));
    lines.extend(subsystems(appliance, old, new));
    if let Some(host) = caller.host() {
        lines.extend(own_connection(old, new, host, caller));
    }
    lines.truncate(SHOWN);
    lines
}

/// Start of a line about access that a configuration adds.
pub(crate) const OPENS: &str = "opens: ";

/// One line for each access that `new` adds to that of the running configuration: users, exports, rules and so on, and
/// restrictions that it lacks.
pub(crate) fn opened(appliance: &dyn Appliance, new: &Config) -> Vec<String> {
    let (before, after) = (appliance.wanted_exports(), appliance.exports_under(new));
    let mut lines = new.opened(appliance.document().config(), &after, &before);
    if lines.len() > SHOWN {
        let more = lines.split_off(SHOWN).len();
        lines.push(format!("and {more} more"));
    }
    lines.into_iter().map(|line| format!("{OPENS}{line}")).collect()
}

/// Withdrawn exports, and clients that have a volume open which they could not open again.
fn exports(appliance: &dyn Appliance, new: &Config) -> Vec<String> {
    let (before, after) = (appliance.wanted_exports(), appliance.exports_under(new));
    let mut lines = Vec::new();
    if !appliance.document().config().export.is_empty() && new.export.is_empty() {
        lines.push("without any export, each volume is exported to everybody".into());
    }
    for gone in before.iter().filter(|one| after.iter().all(|other| other.name != one.name)) {
        lines.push(format!("export {} is withdrawn", gone.name));
    }
    lines.extend(openness::cut_off(appliance, &before, &after));
    lines
}

/// Fixed addresses of all interfaces.
fn fixed(config: &Config) -> BTreeSet<IpAddr> {
    config.net.iter().flat_map(|net| net.fixed()).map(|(address, _)| address).collect()
}

/// Number of storage paths to one of the appliance's addresses, on all cores.
fn paths_to(appliance: &dyn Appliance, address: IpAddr) -> usize {
    let storage = appliance.storage();
    let own = storage
        .server
        .map_or(0, |server| live_paths(server).filter(|path| path.to == address).count());
    let end = format!("@ip:{address}");
    let is_there = |row: &&Value| match row {
        Value::Object(entries) => entries.iter().any(|(name, value)| {
            name == "name" && matches!(value, Value::Text(text) if text.ends_with(&end))
        }),
        _ => false,
    };
    own + storage.others.iter().flat_map(|rows| &rows.paths).filter(is_there).count()
}

/// Addresses that go; with `only_used` those that storage paths use.
fn addresses(
    appliance: &dyn Appliance,
    old: &Config,
    new: &Config,
    caller: &Caller,
    only_used: bool,
) -> Vec<String> {
    let kept = fixed(new);
    let mut lines = Vec::new();
    for address in fixed(old).into_iter().filter(|address| !kept.contains(address)) {
        let paths = match paths_to(appliance, address) {
            0 if only_used && caller.from.is_none() => continue,
            0 => String::new(),
            1 => ", which one storage path uses".into(),
            paths => format!(", which {paths} storage paths use"),
        };
        lines.push(format!("address {address} goes{paths}"));
    }
    let dhcp = |config: &Config, number: usize| config.net.get(number).is_none_or(|n| n.dhcp());
    let most = old.net.len().max(new.net.len());
    for number in (0..most).filter(|&number| dhcp(old, number) && !dhcp(new, number)) {
        let ports = appliance.ports();
        let leased = ports.get(number).filter(|port| port.addresses.lease);
        let is_used = leased.is_some_and(|port| {
            let addresses = port.addresses.list.iter().filter_map(|cidr| cidr.split('/').next());
            let mut addresses = addresses.filter_map(|text| text.parse().ok());
            addresses.any(|address| paths_to(appliance, address) > 0)
        });
        if leased.is_some() && (!only_used || caller.from.is_some() || is_used) {
            lines.push(format!("net.{number} gives up the address that a DHCP server has leased"));
        }
    }
    if caller.from.is_some() && !lines.is_empty() {
        lines.push("your own connection may use such an address".into());
    }
    lines
}

/// Rules with connections that go, or listen elsewhere.
fn rules(appliance: &dyn Appliance, old: &Config, new: &Config) -> Vec<String> {
    let Some(smc) = appliance.smc() else { return Vec::new() };
    let ends = |name: &str| {
        let before = old.rule.iter().find(|rule| rule.name.as_str() == name)?;
        let stays = new.rule.iter().any(|rule| rule.listen == before.listen);
        (!stays).then_some(())
    };
    let open = smc.users.rules().filter(|(_, relay)| relay.connections() > 0);
    open.filter_map(|(name, relay)| {
        ends(name).map(|()| format!("rule {name} ends with {} connections", relay.connections()))
    })
    .collect()
}

/// Volumes in memory that `new` lacks: their data goes with them.
fn lost_data(old: &Config, new: &Config) -> Vec<String> {
    let is_gone = |name: &str| new.volume_names().all(|other| other.as_str() != name);
    let gone = old.volume.iter().filter(|one| one.disk.is_none() && is_gone(one.name.as_str()));
    gone.map(|volume| format!("volume {} goes, and its data is lost", volume.name)).collect()
}

/// Running mirrors that `new` removes while a member is out of sync. That member becomes a volume with old data.
fn mirrors(appliance: &dyn Appliance, new: &Config) -> Vec<String> {
    let is_gone = |one: &MirrorStatus<'_>| {
        new.mirror.iter().all(|mirror| {
            let members = mirror.members.iter().map(|member| member.as_str());
            mirror.name.as_str() != one.name || !members.eq(one.members)
        })
    };
    let mut lines = Vec::new();
    for one in appliance.remote().mirrors.into_iter().filter(is_gone) {
        let is_behind = |&number: &usize| one.status.members[number] != MemberState::InSync;
        for number in [0, 1].into_iter().filter(is_behind) {
            let (name, member, state) = (one.name, &one.members[number], one.status.member(number));
            let stale = Size(one.status.stale_bytes);
            lines.push(format!(
                "mirror {name} ends while {member} is {state}: {stale} may differ on it"
            ));
        }
    }
    lines
}

/// Existing volumes that become members of a mirror, and may be overwritten.
fn members(old: &Config, new: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for mirror in leaving::added(old, new) {
        for member in &mirror.members {
            let is_there = old.volume_names().any(|name| name == member);
            let was_member = old.mirror_of(member.as_str()).is_some();
            if is_there && !was_member {
                let name = &mirror.name;
                lines.push(format!(
                    "volume {member} becomes a member of mirror {name}: if its beginning is blank, it is overwritten"
                ));
            }
        }
    }
    lines
}

/// Connected NVMe hosts that their subsystem would no longer admit.
fn subsystems(appliance: &dyn Appliance, old: &Config, new: &Config) -> Vec<String> {
    let admitted = |config: &Config| {
        let (subsystems, keys) = (config.subsystems(), config.host_keys());
        move |one: &nvme::ControllerView| {
            let mut same = subsystems.iter().filter(|subsystem| subsystem.nqn == one.subsystem);
            same.any(|it| {
                it.hosts.admits(&one.host)
                    && it.networks.admits(one.address)
                    && one.has_proven(it, keys.clone())
            })
        }
    };
    let (before, after) = (admitted(old), admitted(new));
    let mut lines: Vec<String> = Vec::new();
    let controllers = appliance.nvme().into_iter().flat_map(nvme::Target::controllers);
    for one in controllers.filter(|one| before(one) && !after(one)) {
        let line = format!("NVMe host {} at {} loses {}", one.host, one.address, one.subsystem);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Whether a user of this name stays what it is.
fn same_user(old: &Config, new: &Config, name: &str) -> bool {
    let find = |config: &Config| -> Option<User> {
        config.user.iter().find(|user| user.name.as_str() == name).cloned()
    };
    find(old) == find(new)
}

/// Why the caller could not repeat its request.
fn own_connection(old: &Config, new: &Config, host: IpAddr, caller: &Caller) -> Vec<String> {
    let (before, after) = (&old.http, &new.http);
    let mut lines = Vec::new();
    let mut add = |cut: bool, line: String| {
        if cut {
            lines.push(line);
        }
    };
    add(!after.enabled, "your own connection: http.enabled = false".into());
    let port = after.port(before.tls);
    add(before.port(before.tls) != port, format!("your own connection: HTTP moves to port {port}"));
    let admitted = Hosts::new(after.hosts.clone()).admits(host);
    add(!admitted, format!("your own connection: http.hosts does not admit {host}"));
    let listens = after.listen.is_empty() || before.listen == after.listen;
    add(!listens, "your own connection: http.listen changes".into());
    let same = match caller.name.as_str() {
        "" => before.token_sha256 == after.token_sha256,
        name => same_user(old, new, name),
    };
    add(!same, "your own token or role changes".into());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;

    fn own(new: &str, name: &str) -> Vec<String> {
        let old = "[[user]]\nname = \"ci\"\nrole = \"admin\"\ntoken_sha256 = \"TOKEN\"\n"
            .replace("TOKEN", &"ab".repeat(32));
        let new = new.replace("USER", &old);
        let (old, new) = (check(old.as_bytes()).unwrap(), check(new.as_bytes()).unwrap());
        let from = Some("10.0.0.7:40000".parse().unwrap());
        let caller = Caller { name: name.into(), from, ..Caller::console() };
        own_connection(&old, &new, "10.0.0.7".parse().unwrap(), &caller)
    }

    #[test]
    fn data_of_a_removed_volume_in_memory_is_listed() {
        let config = |text: &str| check(text.as_bytes()).unwrap();
        let old = config(
            "[[volume]]\nname = \"a\"\n[[volume]]\nname = \"b\"\n\
             [[volume]]\nname = \"c\"\ndisk = \"serial:x\"\n",
        );
        let new = config("[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n");
        assert_eq!(lost_data(&old, &new), ["volume b goes, and its data is lost"]);
        assert_eq!(lost_data(&old, &old), [""; 0]);
    }

    #[test]
    fn existing_volumes_that_become_members_are_listed() {
        let config = |text: &str| check(text.as_bytes()).unwrap();
        const A: &str = "[[volume]]\nname = \"a\"\n";
        const B: &str = "[[volume]]\nname = \"b\"\n";
        const MIRROR: &str = "[[mirror]]\nname = \"m\"\nmembers = [\"a\", \"b\"]\n";
        let both = config(&[A, B, MIRROR].concat());
        assert!(
            members(&config(&[A, B].concat()), &both)[1].starts_with("volume b becomes a member")
        );
        assert_eq!(members(&config(A), &both).len(), 1, "a new volume has no data");
        assert_eq!(members(&both, &both), [""; 0]);
        let other = config(&[A, B, &MIRROR.replace("\"a\", \"b\"", "\"b\", \"a\"")].concat());
        assert_eq!(members(&both, &other), [""; 0], "they are members already");
    }

    #[test]
    fn changes_that_end_the_caller_s_connection_are_listed() {
        for (new, count) in [
            ("USER", 0),
            ("USER[http]\nport = 80\nready_needs_mirrors = true\n", 0),
            ("USER[http]\nport = 81\n", 1),
            ("USER[http]\nenabled = false\n", 1),
            ("USER[http]\nhosts = \"10.0.0.0/24\"\n", 0),
            ("USER[http]\nhosts = \"10.0.1.0/24\"\nlisten = \"10.0.0.1\"\n", 2),
            ("", 1),
        ] {
            assert_eq!(own(new, "ci").len(), count, "{new}: {:?}", own(new, "ci"));
        }
        assert_eq!(own("", "").len(), 0, "the token without a name is unchanged");
    }
}
