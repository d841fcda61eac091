//! Tests of the configuration: documents in, settings or messages out.

use super::*;
use proptest::prelude::*;

/// The problems of a document, a line each.
fn problems(text: &str) -> Vec<String> {
    check(text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
}

fn boot(sources: Sources<'_>) -> (Config, Vec<String>) {
    let (document, problems) = Document::load(&sources);
    (document.config().clone(), problems.iter().map(ToString::to_string).collect())
}

#[test]
fn default_is_dhcp_and_ram0() {
    let (config, problems) = boot(Sources::default());
    assert!(problems.is_empty());
    assert!(config.net(0, [0; 6], "").dhcp() && config.net(7, [0; 6], "").dhcp());
    assert_eq!(config.exports()[0].name.as_str(), "ram0");
    assert_eq!(config.volume[0].memory(), 64 << 20);
    assert_eq!(config.rnbd.port, 1234);
}

#[test]
fn mistakes_are_reported_with_line_reason_and_accepted_values() {
    let cases = [
        (
            "[[net]]\nmtux = 1",
            "line 2: net.0.mtux: unknown key (did you mean \"mtu\"?); accepted: \
                              device, index, mac, address, gateway, mtu, vlan, core, roce, pnetid",
        ),
        (
            "[[net]]\nmtu = 20000",
            "line 2: net.0.mtu: 20000 is out of range; accepted: a whole \
                                 number from 68 to 9216",
        ),
        (
            "[http]\nport = \"x\"",
            "line 2: http.port: a string does not belong here; accepted: a \
                                 whole number from 1 to 65535",
        ),
        (
            "\n[[volume]]\nsize = 512",
            "line 2: volume.0.name: missing; accepted: 1 to 63 letters, \
                                     digits, '.', '_' and '-'",
        ),
        (
            "http = 1",
            "line 1: http: an integer does not belong here; accepted: a section with the \
                     keys enabled, port, connections, hosts, anonymous, listen, token_sha256, tls, \
                     ready_needs_mirrors, certificate, key, client_ca",
        ),
        ("net = 3", "line 1: net: an integer does not belong here; accepted: [[net]] sections"),
        (
            "[system]\nhostname = 1.5",
            "line 2: system.hostname: a floating-point number does not \
                                     belong here; accepted: letters, digits and hyphens in parts \
                                     of at most 63, joined by dots",
        ),
        (
            "[rnbd]\nchunk_size = \"96KiB\"",
            "line 2: rnbd.chunk_size: 96KiB is not a power of two; \
                                           accepted: 8KiB, 16KiB, 32KiB and so on",
        ),
        (
            "[[net]]\naddress = \"10.0.0.1/24\"\n[[net]]\naddress = \"10.0.0.1/16\"",
            "line 4: net.1.address: 10.0.0.1 is already an address of net.0",
        ),
        (
            "[[net]]\naddress = \"10.0.0.1/24\"\ngateway = \"10.0.1.1\"",
            "line 3: net.0.gateway: 10.0.1.1 is in no subnet of this interface; accepted: a \
          neighbour of one of its fixed addresses",
        ),
        (
            "[[export]]\nname = \"x\"\nvolume = \"y\"",
            "line 3: export.0.volume: there is no volume \"y\"; accepted: ram0",
        ),
        (
            "[[export]]\nname = \"a\"\nvolume = \"ram0\"\n\
             [[export]]\nname = \"/dev/a\"\nvolume = \"ram0\"",
            "line 5: export.1.name: another export is called \"a\"; accepted: with and without \
             /dev/ is one name",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(problems(text), [expected]);
    }
}

#[test]
fn all_mistakes_are_reported() {
    let text = "[http]\nport = 0\nenabled = 3\n[system]\nhostname = \"\"\nx = 1\n";
    let lines: Vec<String> =
        problems(text).iter().map(|p| p.split(':').next().unwrap().to_string()).collect();
    assert_eq!(lines, ["line 2", "line 3", "line 5", "line 6"]);
}

#[test]
fn later_sources_override_earlier_ones() {
    let (config, problems) = boot(Sources {
        image: Some(b"[system]\nhostname = \"image\"\n[http]\nport = 1\n[[net]]\nmtu = 1400"),
        fw_cfg: Some(b"[system]\nhostname = \"fw-cfg\"\n[rnbd]\nport = 2"),
        disk: Some(b"[system]\nhostname = \"disk\"\n[[net]]\naddress = \"10.0.0.1/24\""),
        command_line: "quiet isthmus.system.hostname=line isthmus.net.0.mtu=9000",
        ..Sources::default()
    });
    assert_eq!(problems, [""; 0]);
    assert_eq!(config.system.hostname.as_str(), "line");
    assert_eq!((config.http.port, config.rnbd.port), (Some(1), 2));
    assert_eq!(config.net.len(), 1);
    assert_eq!((config.net[0].mtu, config.net[0].dhcp()), (Some(9000), false));
}

#[test]
fn bad_document_is_ignored_and_reported() {
    let (config, problems) = boot(Sources {
        image: Some(b"[system]\nhostname = \"image\"\n"),
        fw_cfg: Some(b"[system]\nhostname = \"fw\"\n[http]\nport = 99999\n"),
        disk: Some(b"\xff\xfe"),
        ..Sources::default()
    });
    assert_eq!(config.system.hostname.as_str(), "image");
    assert_eq!(problems.len(), 2);
    assert!(problems[0].starts_with("fw_cfg line 4: http.port: 99999"), "{problems:?}");
    assert!(problems[1].starts_with("config disk line 1: not UTF-8"), "{problems:?}");
}

/// Whether all services are closed to all hosts.
fn is_shut(config: &Config) -> bool {
    !config.rnbd.enabled
        && config.rule.is_empty()
        && config.ntb.is_empty()
        && config.rapidio.is_empty()
        && config.linx.is_empty()
        && config.http.token_sha256.is_none()
        && !config.smc.services
        && !config.roce.services
}

const RESTRICTED: &str = "[[export]]\nname = \"ram0\"\nvolume = \"ram0\"\nhosts = [\"10.0.0.7\"]\n";
const OPEN: &str =
    "[smc]\nservices = true\n[[rule]]\nname = \"r\"\nlisten = 99\nbackend = [\"10.0.0.9:99\"]\n";

#[test]
fn unknown_key_that_grants_nothing_leaves_the_rest_in_force() {
    let text = format!(
        "[system]\nfuture_key = 1\n[rnbd]\nport = 99\n[future]\nx.y = 1\n[[net]]\nfuture = 3\n{RESTRICTED}"
    );
    let (document, problems) =
        Document::load(&Sources { fw_cfg: Some(text.as_bytes()), ..Sources::default() });
    let config = document.config();
    assert_eq!((config.rnbd.port, config.rnbd.enabled), (99, true));
    assert_eq!(config.exports()[0].hosts.len(), 1);
    assert!(!document.is_closed());
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems.iter().all(Problem::is_warning));
    let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("fw_cfg line 2: system.future_key: unknown key, ignored"), "{text}");
    // `check` refuses the document.
    assert_eq!(check(text.as_bytes()).unwrap_err().len(), 3);
}

#[test]
fn misspelled_restriction_still_restricts() {
    let load = |text: &str| {
        let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
        let (document, problems) = Document::load(&sources);
        assert!(problems.len() == 1 && !problems[0].is_warning(), "{problems:?}");
        document.config().clone()
    };
    let admits_none = |hosts: &[net::hosts::Network]| {
        let hosts = net::hosts::Hosts::new(hosts.to_vec());
        !hosts.is_everybody() && !hosts.admits("10.0.0.7".parse().unwrap())
    };
    for key in ["host", "hots", "session", "readonly"] {
        let text = RESTRICTED.replace("hosts", key);
        assert!(admits_none(&load(&text).exports()[0].hosts), "{text}");
    }
    assert!(!load("[rnbd]\nenable = false").rnbd.enabled);
    assert!(!load("[rnbd]\nenable = true").rnbd.enabled);
    assert!(!load("[http]\nlisen = \"10.0.0.1\"").http.enabled);
    for section in ["exports", "exprot", "volumes"] {
        let text = RESTRICTED.replace("[[export]]", &format!("[[{section}]]"));
        assert!(!load(&text).rnbd.enabled, "{text}");
    }
    assert!(!load("[htpp]\nhosts = \"10.0.0.1\"").http.enabled);
}

#[test]
fn unusable_document_leaves_nothing_open() {
    let bad = [
        "[[export]\n",                                // not TOML
        "\u{0}",                                      // not text
        "[http]\nport = 99999\n",                     // out of range
        "[rnbd]\nqueue_depth = \"many\"\n",           // a wrong type
        "[rnbd]\nport = 1\nport = 2\n",               // a key twice
        "[[export]]\nname = \"x\"\nvolume = \"y\"\n", // unknown volume
        "[[export]]\nname = \"x\"\n",                 // a missing key
    ];
    for text in bad {
        let text = Some(text.as_bytes());
        let open = Some(OPEN.as_bytes());
        for sources in [
            Sources { image: text, ..Sources::default() },
            Sources { fw_cfg: text, ..Sources::default() },
            Sources { disk: text, ..Sources::default() },
            // An open earlier source must not widen access.
            Sources { image: open, fw_cfg: text, ..Sources::default() },
            Sources { fw_cfg: open, disk: text, disk_before: text, ..Sources::default() },
            // A later document without these keys leaves them closed.
            Sources {
                image: text,
                fw_cfg: Some(b"[system]\nhostname = \"a\"\n"),
                ..Sources::default()
            },
        ] {
            let (document, problems) = Document::load(&sources);
            assert!(document.is_closed() && is_shut(document.config()), "{sources:?}");
            assert!(problems.iter().any(|problem| !problem.is_warning()));
            assert!(document.config().net(0, [0; 6], "").dhcp(), "it can be reached");
        }
        // A later document that defines everything, as `save` writes it, is in force.
        let saved = Document::default().to_toml();
        let (document, _) = Document::load(&Sources {
            fw_cfg: text,
            disk: Some(saved.as_bytes()),
            ..Sources::default()
        });
        assert!(document.config().rnbd.enabled);
    }
    let damaged =
        Sources { disk_damaged: true, fw_cfg: Some(OPEN.as_bytes()), ..Sources::default() };
    let (document, problems) = Document::load(&damaged);
    assert!(is_shut(document.config()) && problems.len() == 1);
}

#[test]
fn older_copy_is_in_force_if_the_newest_is_unusable() {
    let disk = Some(&b"[http]\nport = 99999"[..]);
    let (document, problems) = Document::load(&Sources {
        disk,
        disk_before: Some(RESTRICTED.as_bytes()),
        ..Sources::default()
    });
    assert!(document.is_older_copy() && !document.is_closed());
    assert_eq!(document.config().export[0].hosts.len(), 1);
    let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("the one saved before it is in force"), "{text}");
}

#[test]
fn invalid_restriction_on_the_command_line_leaves_nothing_open() {
    for setting in [
        "export.0.hosts=10.0.0.0/33",
        "export.0.host=10.0.0.0/24",
        "exprot.0.hosts=10.0.0.0/24",
        "export.0.hosts=[",
        "rnbd.enabled=maybe",
        "volume.0.read_only=maybe",
    ] {
        let line = format!("isthmus.system.hostname=kept isthmus.{setting}");
        let (config, problems) = boot(Sources { command_line: &line, ..Sources::default() });
        assert!(is_shut(&config) && !problems.is_empty(), "{setting}: {problems:?}");
        assert_eq!(config.system.hostname.as_str(), "kept");
    }
}

#[test]
fn entries_are_built_key_by_key_in_any_order() {
    let entries: [(&str, &[(&str, &str)]); 6] = [
        ("rule.0", &[("backend", "10.0.0.9:80"), ("listen", "8080"), ("name", "web")]),
        ("ntb.0", &[("peer", "10.9.0.2"), ("address", "10.9.0.1")]),
        ("export.0", &[("volume", "ram0"), ("name", "x")]),
        ("volume.1", &[("size", "1MiB"), ("name", "more")]),
        (
            "remote.0",
            &[
                ("path", "10.0.0.1@10.0.0.2"),
                ("device_path", "d"),
                ("name", "r"),
                ("sessname", "s"),
            ],
        ),
        ("mirror.0", &[("members", "ram0,far"), ("name", "m")]),
    ];
    for (entry, keys) in entries {
        let far = "name = \"far\"\nsize = 1024\n";
        let text = format!(
            "[[volume]]\nname = \"ram0\"\n{}",
            if entry == "mirror.0" { format!("[[volume]]\n{far}") } else { String::new() }
        );
        for backwards in [false, true] {
            let sources = Sources { image: Some(text.as_bytes()), ..Sources::default() };
            let (mut document, _) = Document::load(&sources);
            let before = document.config().clone();
            let mut keys = keys.to_vec();
            if backwards {
                keys.reverse();
            }
            let (last, first) = keys.split_last().unwrap();
            for (key, value) in first {
                document.set(&format!("{entry}.{key}"), value).unwrap();
                if entry == "volume.1" && *key == "name" {
                    continue;
                }
                assert_eq!(document.pending().len(), 1, "{entry}.{key}");
                assert_eq!(document.config(), &before, "not in force");
                assert!(document.pending_toml().contains(&format!("{entry}: still missing: ")));
                assert_eq!(check(document.to_toml().as_bytes()).as_ref(), Ok(&before));
            }
            document.set(&format!("{entry}.{}", last.0), last.1).unwrap();
            assert!(document.pending().is_empty(), "{:?}", document.pending());
            assert!(document.config() != &before && document.pending_toml().is_empty());
        }
    }
}

#[test]
fn pending_entry_does_not_block_other_changes() {
    let mut document = Document::default();
    document.set("rule.0.name", "a").unwrap();
    assert_eq!(
        document.pending_at("rule.0.listen").unwrap().to_string(),
        "rule.0: still missing: listen, backend \
        (0 servers; accepted: 1 to 64)"
            .replace(", backend (0 servers; accepted: 1 to 64)", "")
    );
    document.set("http.port", "81").unwrap();
    // A wrong value and an index beyond the next are refused immediately.
    let reason = |result: Result<(), Vec<Problem>>| result.unwrap_err()[0].to_string();
    assert!(
        reason(document.set("rule.0.listen", "70000")).starts_with("console: rule.0.listen: 70000")
    );
    assert!(reason(document.set("rule.7.name", "b")).contains("the next is rule.1"));
    assert!(reason(document.set("rule.0.lisen", "1")).contains("unknown key"));
    // The next entry is complete before this one.
    for (key, value) in [("name", "b"), ("listen", "82"), ("backend", "10.0.0.9:1")] {
        document.set(&format!("rule.1.{key}"), value).unwrap();
    }
    assert_eq!((document.pending().len(), document.config().rule[0].name.as_str()), (1, "b"));
    let why = reason(document.set("rule.1.listen", "81"));
    assert!(why.starts_with("console: rule.1.listen: http listens on port 81"), "{why}");
    // An entry in force stays complete.
    assert!(document.set("rule.1.backend", "[]").is_err());
    assert!(document.unset("rule.1.listen").is_err());
    // A change of the typed configuration keeps the pending entry.
    document.edit(|config| config.volume[0].read_only = true).unwrap();
    assert_eq!(document.pending()[0].entry.to_string(), "rule.1");
    document.unset("rule.0").unwrap();
    assert_eq!((document.config().rule.len(), document.pending().len()), (0, 1));
    document.unset("rule.0").unwrap();
    assert!(document.pending().is_empty());
}

#[test]
fn removal_names_the_lost_object() {
    let mut document = Document::default();
    assert_eq!(document.loses("volume.0").as_deref(), Some("volume ram0"));
    let reason = |result: Result<(), Vec<Problem>>| result.unwrap_err()[0].to_string();
    assert!(reason(document.set("volume", "[]")).contains("would remove 1 of 1 entries"));
    document.set("export.0.name", "x").unwrap();
    document.set("export.0.volume", "ram0").unwrap();
    assert!(reason(document.unset("export.0")).contains("cannot remove the last export"));
    assert!(reason(document.unset("volume.0")).contains("there is no volume \"ram0\""));
    document.set("system.syslog", "10.0.0.9:514").unwrap();
    document.unset("system.syslog").unwrap();
    assert!(document.config().system.syslog.is_none() && document.loses("system.syslog").is_none());
    assert!(document.unset("system.syslogg").is_err() && document.unset("volume").is_err());
}

#[test]
fn mistakes_on_the_console_have_the_console_as_origin() {
    let mut document = Document::default();
    document.edit(|config| config.roce.enabled = false).unwrap();
    for (path, value) in [
        ("rule", "[{name = \"a\", listen = 1, backend = [\"10.0.0.1:1\"]}]"),
        ("rnbd.chunk_size", "8MiB"),
        ("volume.0.size", "1000"),
    ] {
        for problem in document.set(path, value).unwrap_err() {
            assert!(problem.to_string().starts_with("console: "), "{problem}");
        }
    }
}

#[test]
fn wrong_settings_on_the_command_line_are_ignored_one_by_one() {
    let (config, problems) = boot(Sources {
        command_line: "isthmus.net.0.address=10.0.0.1/24,fd00::1/64 isthmus.net.0.mtu=1 \
                       isthmus.net.1.address=10.0.0.1/8 isthmus.nett.0.mtu=1 isthmus.http.port=81 \
                       isthmus.volume.1.name=big isthmus.volume.1.size=128MiB \
                       isthmus.volume.0.disk=0 isthmus.system.syslog= isthmus.roce.services",
        ..Sources::default()
    });
    assert_eq!(config.net[0].fixed().count(), 2);
    assert_eq!((config.net[0].mtu, config.http.port), (None, Some(81)));
    assert_eq!(config.volume.len(), 2);
    assert_eq!(
        (&config.volume[0].disk, config.volume[1].memory()),
        (&Some(DeviceName::Position(0)), 128 << 20)
    );
    assert!(config.roce.services);
    let all = problems.join("\n");
    assert_eq!(problems.len(), 3, "{all}");
    assert!(all.contains("command line: net.0.mtu: 1 is out of range"), "{all}");
    assert!(all.contains("command line: nett: unknown key (did you mean \"net\"?)"), "{all}");
    assert!(all.contains("net.1.address: 10.0.0.1 is already an address of net.0"), "{all}");
}

#[test]
fn set_changes_one_thing_or_nothing() {
    let mut document = Document::default();
    document.set("net.1.address", "10.0.0.1/24").unwrap();
    assert!(document.config().net(0, [0; 6], "").dhcp());
    assert!(!document.config().net(1, [0; 6], "").dhcp());
    document.set("net.1.mtu", "9000").unwrap();
    document.set("net.1.mtu", "").unwrap();
    assert_eq!(document.config().net[1].mtu, None);
    let before = document.to_toml();
    let error = document.set("net.1.gateway", "11.0.0.1").unwrap_err();
    assert!(error[0].to_string().starts_with("console: net.1.gateway: 11.0.0.1 is in no"));
    assert!(document.set("", "1").is_err() && document.set("net.1.mtu", "[").is_err());
    assert_eq!(document.to_toml(), before);
}

#[test]
fn interfaces_are_found_by_device_mac_index_or_place() {
    let text = "[[net]]\nmac = \"52:54:00:00:00:07\"\nmtu = 1007\n[[net]]\nmtu = 1001\n\
                [[net]]\nindex = 4\nmtu = 1004\n\
                [[net]]\ndevice = \"pci:0000:00:06.0\"\nmtu = 1006\n\
                [[net]]\ndevice = \"mac:52:54:00:00:00:05\"\nmtu = 1005\n";
    let config = check(text.as_bytes()).unwrap();
    let at = |index, last, location| config.net(index, [0x52, 0x54, 0, 0, 0, last], location).mtu;
    let mtu = |index, last| at(index, last, "pci:0000:00:03.0");
    assert_eq!(
        [mtu(0, 7), mtu(1, 1), mtu(4, 4), mtu(0, 9)],
        [Some(1007), Some(1001), Some(1004), None]
    );
    assert_eq!([at(0, 9, "pci:0000:00:06.0"), mtu(0, 5)], [Some(1006), Some(1005)]);
}

#[test]
fn paths_are_completed() {
    let mut document = Document::default();
    assert_eq!(document.complete("s"), ["system.", "services.", "smc.", "subsystem."]);
    assert_eq!(
        document.complete("http."),
        [
            "http.enabled",
            "http.port",
            "http.connections",
            "http.hosts",
            "http.anonymous",
            "http.listen",
            "http.token_sha256",
            "http.tls",
            "http.ready_needs_mirrors",
            "http.certificate",
            "http.key",
            "http.client_ca"
        ]
    );
    assert_eq!(document.complete("volume."), ["volume.0.", "volume.1."]);
    assert_eq!(document.complete("volume.0.n"), ["volume.0.name"]);
    document.set("net.1.mtu", "1500").unwrap();
    assert_eq!(document.complete("net."), ["net.0.", "net.1.", "net.2."]);
    assert_eq!(document.complete("net.0.gateway."), ["net.0.gateway.0"]);
    for nothing in ["x", "x.y", "net.mtu", "http.port.z", "..", "net.0.0."] {
        assert_eq!(document.complete(nothing), [""; 0], "{nothing}");
    }
}

/// Every path of the document, with 0 for indices.
fn all_paths(document: &Document, above: &str) -> Vec<String> {
    let below = |path: String| match path.strip_suffix('.') {
        Some(section) if section.ends_with(".1") => Vec::new(),
        Some(_) => all_paths(document, &path),
        None => vec![path],
    };
    document.complete(above).into_iter().flat_map(below).collect()
}

#[test]
fn manual_shows_every_key_and_is_valid() {
    let manual = include_str!("../../../../docs/configuration.md");
    let example = manual.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    check(manual_tests::filled(example).as_bytes()).unwrap();
    for path in all_paths(&Document::default(), "") {
        let key = path.rsplit('.').find(|part| !part.starts_with(|c: char| c.is_ascii_digit()));
        let key = key.unwrap();
        assert!(
            manual.contains(&format!("\n{key} =")) || manual.contains(&format!("`{key}`")),
            "{path}"
        );
    }
}

/// Settings, most of them valid, that a run of `set` draws from.
fn setting() -> impl Strategy<Value = (&'static str, String)> {
    let text = |choices: &'static [&'static str]| {
        prop::sample::select(choices).prop_map(ToString::to_string)
    };
    prop_oneof![
        (Just("system.hostname"), "[a-z]{1,8}".boxed()),
        (Just("system.log_level"), text(&["off", "debug", "WARN", "x"]).boxed()),
        (Just("system.syslog"), text(&["", "10.0.0.9:514", "[fd00::9]:514"]).boxed()),
        (Just("net.0.address"), text(&["dhcp", "", "10.0.0.1/24", "dhcp,fd00::1/64"]).boxed()),
        (Just("net.2.mtu"), (0u32..10000).prop_map(|n| n.to_string()).boxed()),
        (Just("net.1.mac"), text(&["", "52:54:00:12:34:56"]).boxed()),
        (Just("net.0.gateway"), text(&["", "10.0.0.2", "fe80::1"]).boxed()),
        (Just("memory.arena"), text(&["", "1GiB", "100MiB"]).boxed()),
        (Just("volume"), text(&["[]", "[{name = \"a\", size = 1024}]"]).boxed()),
        (Just("volume.1.name"), "[a-z%]{0,3}".boxed()),
        (Just("volume.1.size"), text(&["1MiB", "x"]).boxed()),
        (Just("export.0.name"), "[a-z]{1,3}".boxed()),
        (Just("export.0.volume"), text(&["ram0", "a"]).boxed()),
        (Just("rule.0.listen"), text(&["80", "81"]).boxed()),
        (Just("rule.0.name"), text(&["r"]).boxed()),
        (Just("rule.0.backend"), text(&["10.0.0.9:1"]).boxed()),
        (
            Just("export"),
            text(&["[{name = \"x\", volume = \"ram0\", sessions = [\"s\"]}]"]).boxed()
        ),
        (
            Just("remote.0"),
            text(&["{name = \"r\", sessname = \"s\", path = \"10.0.0.1@10.0.0.2\", \
            device_path = \"d\", max_reconnect_attempts = 3}"])
            .boxed()
        ),
        (Just("remote.0.max_reconnect_attempts"), text(&["-1", "9", "-2"]).boxed()),
        (Just("mirror"), text(&["[]", "[{name = \"m\", members = [\"ram0\", \"r\"]}]"]).boxed()),
        (Just("rnbd.always_invalidate"), text(&["on", "off", "maybe"]).boxed()),
    ]
}

proptest! {
    #[test]
    fn written_configuration_reads_back_the_same(sets in prop::collection::vec(setting(), 0..30)) {
        let mut document = Document::default();
        for (path, value) in &sets {
            let before = document.config().clone();
            if document.set(path, value).is_err() {
                prop_assert_eq!(document.config(), &before);
            }
        }
        let text = document.to_toml();
        let again = check(text.as_bytes());
        prop_assert_eq!(again.as_ref(), Ok(document.config()), "{}", text);
    }

    #[test]
    fn arbitrary_input_never_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        toml in "([a-z\\[\\]{}.=\"' 0-9:,#\\-]{0,20}\n){0,6}",
        line in "(isthmus\\.(net|volume|system|x)[.0-9a-z=\\[\",]{0,20} ){0,4}",
    ) {
        let sources = Sources {
            image: Some(toml.as_bytes()),
            fw_cfg: Some(&bytes),
            disk: None,
            command_line: &line,
            ..Sources::default()
        };
        let (document, problems) = Document::load(&sources);
        for problem in problems {
            prop_assert!(problem.origin.source != Source::BuiltIn, "{problem}");
        }
        document.complete(&line);
    }
}

/// A test certificate and its key.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBcTCCARegAwIBAgIUUls4EHAoIiz0j4NAhb2ugEu0XScwCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCZ3cwIBcNMjYxMTIzMDkzOTAxWhgPMjEwOTAxMTIwOTM5MDFa
MA0xCzAJBgNVBAMMAmd3MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE+jLbA6cK
Kcs8tHR6xUZFcZeNaOPa6Jpqy+yKi/dos11aCmtGKSxI8Sez6wQog2mMVbvQRuOm
dioI+s8nTpiRh6NTMFEwHQYDVR0OBBYEFLB8rOd/FH0gsLXwo3fQbyrBTCD7MB8G
A1UdIwQYMBaAFLB8rOd/FH0gsLXwo3fQbyrBTCD7MA8GA1UdEwEB/wQFMAMBAf8w
CgYIKoZIzj0EAwIDSAAwRQIhAPM9kuJC7D9WgyrvXvQocFgxNK4XE+jQzTLlYXaO
nU1aAiBiRmEIlLMcA7Ud4X/ZRNFP5TG3qgc8psQhlgVcl2U9EQ==
-----END CERTIFICATE-----
";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgxcJVkQzbQt9YyTI8
7HZVix8re+M03V6lkFd9UAjqJBuhRANCAAT6MtsDpwopyzy0dHrFRkVxl41o49ro
mmrL7IqL92izXVoKa0YpLEjxJ7PrBCiDaYxVu9BG46Z2Kgj6zydOmJGH
-----END PRIVATE KEY-----
";

#[test]
fn mismatched_pair_is_reported_at_the_wrong_key() {
    let checked = |certificate: &str, key: &str| {
        let quoted = |name: &str, text: &str| match text {
            "" => String::new(),
            text => format!("{name} = '''\n{text}'''\n"),
        };
        let text = format!(
            "[http]\ntls = true\n{}{}",
            quoted("certificate", certificate),
            quoted("key", key)
        );
        check(text.as_bytes()).map_err(|problems| problems[0].to_string())
    };
    let good = checked(CERTIFICATE, KEY).unwrap();
    assert!(good.http.pair().unwrap().is_ok());
    assert_eq!((good.http.port(true), good.http.port(false)), (443, 80));
    assert!(checked("", "").unwrap().http.pair().is_none());
    let blamed = |certificate: &str, key: &str, start: &str| {
        let problem = checked(certificate, key).unwrap_err();
        assert!(problem.starts_with(start), "{problem}");
        assert!(!problem.contains("MIGHAgEA"), "the key is not shown: {problem}");
    };
    blamed(CERTIFICATE, "", "line 3: http.certificate: given without http.key");
    blamed("", KEY, "line 3: http.key: given without http.certificate");
    blamed("x", KEY, "line 3: http.certificate: not PEM");
    blamed(KEY, KEY, "line 3: http.certificate: PRIVATE KEY is not a CERTIFICATE");
    blamed(CERTIFICATE, CERTIFICATE, "line 15: http.key: this is a certificate, not a key");
    let twice = KEY.to_string() + KEY;
    blamed(CERTIFICATE, &twice, "line 15: http.key: more than one key");
    let other = KEY.replace("PRIVATE KEY", "RSA PRIVATE KEY");
    blamed(CERTIFICATE, &other, "line 15: http.key: not an ECDSA key on P-256; `openssl genpkey");
}

/// The console sets certificate and key one after the other. The key is never shown.
#[test]
fn pair_is_set_before_tls_is_enabled() {
    let mut document = Document::default();
    document.set("http.certificate", &CERTIFICATE.replace('\n', " ")).unwrap();
    document.set("http.key", "nonsense").unwrap();
    assert!(document.set("http.tls", "true").is_err());
    document.set("http.key", &KEY.replace('\n', " ")).unwrap();
    document.set("http.tls", "true").unwrap();
    assert!(document.set("http.key", "nonsense").is_err());
    let body = KEY.lines().nth(1).unwrap();
    assert!(document.to_toml().contains(body) && !document.to_shown_toml().contains(body));
    assert!(!document.to_report().to_json().contains(body));
    assert!(!format!("{:?}", document.config()).contains(body));
    assert_eq!(check(document.to_toml().as_bytes()).as_ref(), Ok(document.config()));
}

/// A misspelled `tls` disables HTTP instead of serving it without TLS.
#[test]
fn misspelled_tls_disables_http() {
    for text in ["tsl = true", "tl = true", "tlss = 1"] {
        let text = format!("[http]\n{text}\n");
        let sources = Sources { fw_cfg: Some(text.as_bytes()), ..Sources::default() };
        let (document, problems) = Document::load(&sources);
        assert!(!document.config().http.enabled, "{problems:?}");
    }
    let sources = Sources { fw_cfg: Some(b"[http]\ntsl = false\n"), ..Sources::default() };
    assert!(!Document::load(&sources).0.config().http.enabled);
}

/// A renamed key is accepted, with a warning that names the new key.
#[test]
fn renamed_key_is_accepted_with_a_warning() {
    let ntb = "address = \"10.1.0.1\"\npeer = \"10.1.0.2\"\n";
    let text = format!("[[ntb]]\n{ntb}lost_ms = 700\n");
    let (mut document, problems) =
        Document::load(&Sources { disk: Some(text.as_bytes()), ..Sources::default() });
    assert_eq!(document.config().ntb[0].peer_timeout_ms, Some(700));
    assert_eq!(problems.len(), 1);
    assert!(problems[0].is_warning());
    let warning = problems[0].to_string();
    assert!(warning.contains("ntb.0.lost_ms: renamed to peer_timeout_ms"), "{warning}");
    assert_eq!(check(text.as_bytes()).unwrap().ntb[0].peer_timeout_ms, Some(700));
    assert_eq!(renamed_keys(text.as_bytes()).len(), 1);
    document.set("ntb.0.lost_ms", "800").unwrap();
    assert_eq!(document.config().ntb[0].peer_timeout_ms, Some(800));
    assert!(document.to_toml().contains("peer_timeout_ms = 800"));
    document.unset("ntb.0.lost_ms").unwrap();
    assert_eq!(document.config().ntb[0].peer_timeout_ms, None);
    let text = format!("[[ntb]]\n{ntb}");
    let command_line = "isthmus.ntb.0.lost_ms=900";
    let (document, problems) = Document::load(&Sources {
        disk: Some(text.as_bytes()),
        command_line,
        ..Sources::default()
    });
    assert_eq!(document.config().ntb[0].peer_timeout_ms, Some(900));
    assert_eq!(problems.len(), 1);
}
