//! The configuration as operators meet it: documents in, settings or sentences out.

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
fn without_any_document_there_is_dhcp_and_ram0() {
    let (config, problems) = boot(Sources::default());
    assert!(problems.is_empty());
    assert!(config.net(0, [0; 6]).dhcp() && config.net(7, [0; 6]).dhcp());
    assert_eq!(config.exports()[0].name.as_str(), "ram0");
    assert_eq!(config.volume[0].memory(), 64 << 20);
    assert_eq!(config.rnbd.port, 1234);
}

#[test]
fn mistakes_are_told_with_line_reason_and_what_is_accepted() {
    let cases = [
        (
            "[[net]]\nmtux = 1",
            "line 2: net.0.mtux: unknown key (did you mean \"mtu\"?); accepted: \
                              index, mac, address, gateway, mtu, core, pnetid",
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
                     keys enabled, port, hosts",
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
            "line 4: net.1.address: 10.0.0.1 is net.0's, too",
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
fn every_mistake_is_told_not_only_the_first() {
    let text = "[http]\nport = 0\nenabled = 3\n[system]\nhostname = \"\"\nx = 1\n";
    let lines: Vec<String> =
        problems(text).iter().map(|p| p.split(':').next().unwrap().to_string()).collect();
    assert_eq!(lines, ["line 2", "line 3", "line 5", "line 6"]);
}

#[test]
fn later_sources_win() {
    let (config, problems) = boot(Sources {
        image: Some(b"[system]\nhostname = \"image\"\n[http]\nport = 1\n[[net]]\nmtu = 1400"),
        fw_cfg: Some(b"[system]\nhostname = \"fw-cfg\"\n[rnbd]\nport = 2"),
        disk: Some(b"[system]\nhostname = \"disk\"\n[[net]]\naddress = \"10.0.0.1/24\""),
        command_line: "quiet isthmus.system.hostname=line isthmus.net.0.mtu=9000",
    });
    assert_eq!(problems, [""; 0]);
    assert_eq!(config.system.hostname.as_str(), "line");
    assert_eq!((config.http.port, config.rnbd.port), (1, 2));
    assert_eq!(config.net.len(), 1);
    assert_eq!((config.net[0].mtu, config.net[0].dhcp()), (Some(9000), false));
}

#[test]
fn a_bad_document_is_left_out_and_named() {
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

#[test]
fn on_the_command_line_only_wrong_settings_are_left_out() {
    let (config, problems) = boot(Sources {
        command_line: "isthmus.net.0.address=10.0.0.1/24,fd00::1/64 isthmus.net.0.mtu=1 \
                       isthmus.net.1.address=10.0.0.1/8 isthmus.nett.0.mtu=1 isthmus.http.port=81 \
                       isthmus.volume.1.name=big isthmus.volume.1.size=128MiB \
                       isthmus.volume.0.disk=0 isthmus.system.syslog= isthmus.roce.services",
        ..Sources::default()
    });
    assert_eq!(config.net[0].fixed().count(), 2);
    assert_eq!((config.net[0].mtu, config.http.port), (None, 81));
    assert_eq!(config.volume.len(), 2);
    assert_eq!((config.volume[0].disk, config.volume[1].memory()), (Some(0), 128 << 20));
    assert!(config.roce.services);
    let all = problems.join("\n");
    assert_eq!(problems.len(), 3, "{all}");
    assert!(all.contains("command line: net.0.mtu: 1 is out of range"), "{all}");
    assert!(all.contains("command line: nett: unknown key (did you mean \"net\"?)"), "{all}");
    assert!(all.contains("command line: net.1.address: 10.0.0.1 is net.0's, too"), "{all}");
}

#[test]
fn set_changes_one_thing_or_nothing() {
    let mut document = Document::default();
    document.set("net.1.address", "10.0.0.1/24").unwrap();
    assert!(document.config().net(0, [0; 6]).dhcp());
    assert!(!document.config().net(1, [0; 6]).dhcp());
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
fn interfaces_are_found_by_mac_index_or_place() {
    let text = "[[net]]\nmac = \"52:54:00:00:00:07\"\nmtu = 1007\n[[net]]\nmtu = 1001\n\
                [[net]]\nindex = 4\nmtu = 1004\n";
    let config = check(text.as_bytes()).unwrap();
    let mtu = |index, last| config.net(index, [0x52, 0x54, 0, 0, 0, last]).mtu;
    assert_eq!(
        [mtu(0, 7), mtu(1, 1), mtu(4, 4), mtu(0, 9)],
        [Some(1007), Some(1001), Some(1004), None]
    );
}

#[test]
fn paths_are_completed() {
    let mut document = Document::default();
    assert_eq!(document.complete("s"), ["system.", "services.", "smc."]);
    assert_eq!(document.complete("http."), ["http.enabled", "http.port", "http.hosts"]);
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
fn the_manual_shows_every_key_and_is_right() {
    let manual = include_str!("../../../../docs/configuration.md");
    let example = manual.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    check(example.as_bytes()).unwrap();
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
        (Just("export.0.name"), "[a-z]{1,3}".boxed()),
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
    fn what_is_written_reads_back_the_same(sets in prop::collection::vec(setting(), 0..30)) {
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
    fn nothing_that_is_read_panics(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        toml in "([a-z\\[\\]{}.=\"' 0-9:,#\\-]{0,20}\n){0,6}",
        line in "(isthmus\\.(net|volume|system|x)[.0-9a-z=\\[\",]{0,20} ){0,4}",
    ) {
        let sources = Sources {
            image: Some(toml.as_bytes()),
            fw_cfg: Some(&bytes),
            disk: None,
            command_line: &line,
        };
        let (document, problems) = Document::load(&sources);
        for problem in problems {
            prop_assert!(problem.origin.source != Source::BuiltIn, "{problem}");
        }
        document.complete(&line);
    }
}
