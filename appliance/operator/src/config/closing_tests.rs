//! Tests that unknown restrictions close the section that they are written in.

use crate::config::{Config, Document, Problem, Sources, check};
use net::hosts::{Hosts, Network};

/// Every section, open to all hosts.
const OPEN: &str = r#"
[system]
hostname = "gate"
[memory]
arena = "512MiB"
[http]
hosts = []
[limits]
sessions_per_host = 64
[services]
udp_echo = true
[roce]
services = true
[rnbd]
port = 1234
[smc]
services = true
[[net]]
address = ["10.0.0.1/24", "fd00::1/64"]
[[ntb]]
side = 0
address = "10.9.0.1"
peer = "10.9.0.2"
[[rapidio]]
role = "host"
id = 1
services = ["echo"]
[[usnic]]
name = "mpi"
net = 0
address = "10.0.0.1"
data_port = 7001
priority_port = 7002
rendezvous = 7004
sender = "1.0"
[[linx]]
name = "far"
transport = "tcp"
address = "10.0.0.7"
[[volume]]
name = "scratch"
size = "1MiB"
[[remote]]
name = "there"
sessname = "gw1"
path = "10.0.0.1@10.0.0.3"
device_path = "d"
[[mirror]]
name = "safe"
members = ["scratch", "there"]
[[export]]
name = "safe"
volume = "safe"
[nvme]
tcp = 4420
[[subsystem]]
nqn = "nqn.2026-01.example:a"
hosts = ["*"]
[[subsystem.namespace]]
nsid = 1
volume = "safe"
[[nvme_host]]
nqn = "nqn.2026-01.example:h"
dhchap_secret = "DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:"
[[rule]]
name = "redis"
listen = 6379
backend = ["10.0.0.9:6379"]
[[user]]
name = "ada"
role = "admin"
token_sha256 = "efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef"
"#;

const KEYS: [&str; 34] = [
    "hosts = [\"10.0.0.2\"]",
    "host = \"10.0.0.2\"",
    "allowed_hosts = [\"10.0.0.2\"]",
    "hosts-allow = \"10.0.0.2\"",
    "read_only = true",
    "readonly = true",
    "ro = true",
    "mode = \"ro\"",
    "access_mode = \"ro\"",
    "sessions = [\"a\"]",
    "session = \"a\"",
    "tls = true",
    "ssl = true",
    "clients = [\"10.0.0.2\"]",
    "client = \"10.0.0.2\"",
    "allow = [\"10.0.0.2\"]",
    "Allow = [\"10.0.0.2\"]",
    "allwo = [\"10.0.0.2\"]",
    "networks = [\"10.0.0.0/24\"]",
    "deny = [\"10.0.0.66\"]",
    "acl = [{ host = \"10.0.0.2\" }]",
    "password = \"x\"",
    "token = \"x\"",
    "enabled = false",
    "iops = 100",
    "read_iops = 100",
    "bandwidth = \"1MiB\"",
    "limit = 3",
    "rate = 3",
    "max_clients = 3",
    "connections_per_host = 3",
    "dhchap = \"required\"",
    "tls_psk = \"x\"",
    "login = true",
];

fn load(text: &str) -> (Document, Vec<Problem>) {
    Document::load(&Sources { disk: Some(text.as_bytes()), ..Sources::default() })
}

fn admits(hosts: &[Network]) -> bool {
    Hosts::new(hosts.to_vec()).admits("10.0.0.7".parse().unwrap())
}

/// Whether 10.0.0.7 has access to the service of a section.
fn is_open(section: &str, config: &Config) -> bool {
    let storage = config.rnbd.enabled && config.roce.enabled;
    let exports = config.exports();
    let exported = storage && exports.iter().any(|e| admits(&e.hosts) && e.sessions.is_empty());
    let relays = config.rule.iter().any(|rule| admits(&rule.hosts));
    match section.split('.').next().unwrap_or_default() {
        "exports" | "export" | "volume" | "remote" | "mirror" | "rnbd" => exported,
        "http" => config.http.enabled && admits(&config.http.hosts),
        "services" => config.services.udp_echo,
        "roce" => exported || relays || config.roce.services,
        "smc" => config.smc.services && admits(&config.smc.hosts),
        "ntb" => !config.ntb.is_empty(),
        "rapidio" => !config.rapidio.is_empty(),
        "usnic" => config.usnic.iter().any(|usnic| admits(&usnic.hosts)),
        "nvme" | "subsystem" | "nvme_host" => config.subsystems().iter().any(|one| {
            one.hosts == nvme::HostList::All && one.networks.admits("10.0.0.7".parse().unwrap())
        }),
        "linx" => config.linx.iter().any(|link| admits(&link.hosts)),
        "rule" => relays,
        "user" => !config.user.is_empty(),
        "console" => !config.console.login,
        // Sections that grant nothing themselves.
        _ => exported || relays || config.roce.services || config.services.udp_echo,
    }
}

/// The document with one more key in a section, or at the top if the section is empty.
fn with(section: &str, key: &str) -> String {
    if section.is_empty() {
        return format!("{key}\n{OPEN}");
    }
    for head in [format!("[{section}]\n"), format!("[[{section}]]\n")] {
        if OPEN.contains(&format!("\n{head}")) {
            return OPEN.replacen(&format!("\n{head}"), &format!("\n{head}{key}\n"), 1);
        }
    }
    format!("{OPEN}[{section}]\n{key}\n")
}

/// Whether the key is a known key of the section.
fn knows(section: &str, key: &str) -> bool {
    let name = key.split(' ').next().unwrap();
    super::is_known(&format!("{section}.{name}"))
}

#[test]
fn unknown_restriction_closes_its_section() {
    let (open, problems) = load(OPEN);
    assert_eq!(problems, []);
    let known = ["system", "memory", "net", "limits", "log", "subsystem.namespace"]
        .into_iter()
        .chain(super::GRANTING);
    // Unknown sections, and the top level.
    for section in known.chain(["acl", "storage", "security", "exports", "http.acl", "qos", ""]) {
        assert!(is_open(section, open.config()), "{section}");
        for key in KEYS {
            let name = key.split(' ').next().unwrap();
            if !section.is_empty() && knows(section, key) {
                continue;
            }
            let (document, problems) = load(&with(section, key));
            assert!(!is_open(section, document.config()), "[{section}] {key}: {problems:?}");
            let reported = problems.iter().any(|p| !p.is_warning() && p.path.contains(name));
            let above = problems.iter().any(|p| !p.is_warning() && p.path.starts_with(section));
            assert!(reported || above, "[{section}] {key} is not reported: {problems:?}");
        }
    }
}

#[test]
fn unknown_key_closes_its_own_entry_only() {
    let more = "[[export]]\nname = \"b\"\nvolume = \"safe\"\n\
                [[rule]]\nname = \"c\"\nlisten = 99\nbackend = [\"10.0.0.9:1\"]\n";
    for section in super::GRANTING {
        let (document, problems) = load(&(with(section, "future = 1") + more));
        assert!(problems.iter().any(|problem| !problem.is_warning()), "{section}: {problems:?}");
        let config = document.config();
        let open = match section {
            "export" => admits(&config.export[0].hosts),
            "rule" => admits(&config.rule[0].hosts),
            _ => is_open(section, config),
        };
        assert!(!open, "{section}: {problems:?}");
        if !document.is_closed() {
            assert!(section == "rule" || admits(&config.rule[1].hosts), "{section}");
            assert!(section == "export" || admits(&config.export[1].hosts), "{section}");
        }
    }
    assert!(load(&with("system", "config_dsk = \"serial:x\"")).0.is_closed());
    for section in ["system", "memory", "net", "future"] {
        let (document, problems) = load(&with(section, "future = 1"));
        assert!(problems.len() == 1 && problems[0].is_warning(), "{problems:?}");
        assert!(is_open("", document.config()) && !document.is_closed());
    }
}

#[test]
fn later_document_that_defines_everything_is_in_force() {
    let text = with("net", "hosts = \"10.0.0.2\"");
    let saved = load(OPEN).0.to_toml();
    let (document, problems) = Document::load(&Sources {
        image: Some(text.as_bytes()),
        disk: Some(saved.as_bytes()),
        ..Sources::default()
    });
    assert!(is_open("", document.config()) && !problems.is_empty());
}

#[test]
fn unknown_restriction_on_the_command_line_closes_everything() {
    for (setting, closes) in [
        ("net.0.hosts=10.0.0.2", true),
        ("rule.0.allow=10.0.0.2", true),
        ("rnbd.future=1", true),
        ("limits.memory_per_host=lots", true),
        ("limits.sessions=1", true),
        ("acl=10.0.0.2", true),
        ("http.tsl=true", true),
        ("config_dsk=serial:x", true),
        ("system.config_disk=nonsense", true),
        ("nonsense=1", false),
        ("net.0.mtu=7", false),
        ("system.hostnam=x", false),
        ("http.port=99999", false),
    ] {
        let line = format!("isthmus.{setting}");
        let (document, problems) = Document::load(&Sources {
            image: Some(OPEN.as_bytes()),
            command_line: &line,
            ..Sources::default()
        });
        assert_eq!(document.is_closed(), closes, "{setting}: {problems:?}");
        assert_eq!(is_open("", document.config()), !closes, "{setting}");
    }
}

#[test]
fn truncated_command_line_closes_everything_despite_documents() {
    let saved = load(OPEN).0.to_toml();
    let (document, problems) = Document::load(&Sources {
        disk: Some(saved.as_bytes()),
        command_line_cut: true,
        ..Sources::default()
    });
    assert!(document.is_closed() && !is_open("", document.config()), "{problems:?}");
    assert!(problems[0].to_string().starts_with("command line: too long"), "{problems:?}");
}

/// Each service is listed while it has no list of hosts, and not while it has one or is disabled.
#[test]
fn services_open_to_all_hosts_are_listed() {
    const OPEN: &str = "[smc]\nservices = true\n[roce]\nservices = true\n\
        [[subsystem]]\nnqn = \"nqn.a:b\"\nhosts = \"*\"\n\
        [[rule]]\nname = \"web\"\nlisten = 8080\nbackend = \"10.0.0.9:80\"\n\
        [[usnic]]\nname = \"far\"\naddress = \"10.0.0.1\"\ndata_port = 7001\npriority_port = 7002\nsender = \"1.0\"\nrendezvous = 7003\n\
        [[net]]\naddress = \"10.0.0.1/24\"\n";
    let open = |text: &str| check(text.as_bytes()).expect(text).open_to_everybody();
    assert_eq!(open(""), ["export ram0", "http"]);
    let all = [
        "export ram0",
        "subsystem nqn.a:b",
        "rule web",
        "smc.services",
        "roce.services",
        "usnic far",
        "http",
    ];
    assert_eq!(open(OPEN), all);
    let hosts = "hosts = [\"10.0.0.0/24\"]\n";
    // The place of a list of hosts, and the service that it restricts.
    for (after, closed) in [
        ("[smc]\n", "smc.services"),
        ("name = \"web\"\n", "rule web"),
        ("name = \"far\"\n", "usnic far"),
    ] {
        let text = OPEN.replace(after, &format!("{after}{hosts}"));
        let left: Vec<_> = all.into_iter().filter(|what| *what != closed).collect();
        assert_eq!(open(&text), left, "{text}");
    }
    for (from, to) in [
        ("hosts = \"*\"", "hosts = \"nqn.h:1\""),
        ("hosts = \"*\"", "hosts = \"*\"\nnetworks = \"10.0.0.0/24\""),
    ] {
        assert!(!open(&OPEN.replace(from, to)).contains(&all[1].to_string()), "{to}");
    }
    // Without a rendezvous only the listed peers are admitted.
    let listed = OPEN.replace("rendezvous = 7003\n", "");
    assert!(!open(&listed).contains(&"usnic far".to_string()));
    assert_eq!(open(&format!("[http]\n{hosts}")), ["export ram0"]);
    let export = "[[export]]\nname = \"a\"\nvolume = \"ram0\"\n";
    assert_eq!(open(export), ["export a", "http"]);
    assert_eq!(open(&format!("{export}{hosts}")), ["http"]);
    assert_eq!(open("[http]\nenabled = false\n[rnbd]\nenabled = false\n"), [""; 0]);
}
