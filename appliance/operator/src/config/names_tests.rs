//! Every key with an address: that of another machine may be a name, and for the others the reason is given why not.

use super::check;
use super::item::{Field, Item as _, join};
use super::schema::Config;

/// What an address in the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// That of a machine to connect to, which may have a name: a document with one.
    Machine(&'static str),
    /// The appliance's own, or a next hop on its link: nothing resolves before it.
    Own,
    /// It admits a host. A name proves nothing.
    Admission,
    /// It names the only peer, and admits it.
    Peer,
    /// Nothing else could resolve the name of a name server.
    NameServer,
}
use Use::{Admission, Machine, NameServer, Own, Peer};

/// All keys with addresses; `*` stands for the entries of a list.
const KEYS: &[(&str, Use)] = &[
    ("system.syslog", Machine("[system]\nsyslog = \"NAME:514\"\n")),
    ("system.ntp", Machine("[system]\nntp = [\"NAME\"]\n")),
    ("system.dns", NameServer),
    ("http.hosts", Admission),
    ("http.listen", Own),
    ("smc.hosts", Admission),
    ("net.*.address", Own),
    ("net.*.gateway", Own),
    ("ntb.*.address", Own),
    ("ntb.*.peer", Peer),
    ("ntb.*.tcp", Peer),
    ("ntb.*.hosts", Admission),
    ("usnic.*.address", Own),
    ("usnic.*.hosts", Admission),
    ("usnic.*.peer.*.rendezvous", Peer),
    ("linx.*.address", Peer),
    ("linx.*.hosts", Admission),
    (
        "remote.*.path",
        Machine(
            "[[remote]]\nname = \"r\"\nsessname = \"s\"\ndevice_path = \"d\"\n\
             path = [\"ip:10.0.0.1@NAME\"]\n",
        ),
    ),
    (
        "remote.*.address",
        Machine("[[remote]]\nname = \"r\"\nkind = \"nbd\"\naddress = [\"NAME\"]\n"),
    ),
    ("export.*.hosts", Admission),
    ("subsystem.*.networks", Admission),
    ("rule.*.backend", Machine("[[rule]]\nname = \"w\"\nlisten = 8000\nbackend = [\"NAME:80\"]\n")),
    ("rule.*.hosts", Admission),
];

/// The keys that take an address, by the words for what they accept.
fn with_addresses(fields: &[Field], path: &str, into: &mut Vec<String>) {
    for field in fields {
        let (path, below) = (join(path, field.name), (field.fields)());
        let accepts = (field.accepts)(field.range);
        let is_address = accepts.contains("10.0.0.") || accepts.contains("IP address");
        match (below.is_empty(), field.list) {
            (true, _) if is_address => into.push(path),
            (true, _) => {}
            (false, true) => with_addresses(below, &join(&path, "*"), into),
            (false, false) => with_addresses(below, &path, into),
        }
    }
}

#[test]
fn every_key_with_the_address_of_another_machine_takes_a_name() {
    const NAME: &str = "far.example.net";
    let mut found = Vec::new();
    with_addresses(Config::fields(), "", &mut found);
    for path in &found {
        assert!(KEYS.iter().any(|(key, _)| key == path), "{path}: whose address is it?");
    }
    for (key, of) in KEYS {
        assert!(found.iter().any(|path| path == key), "{key} takes no address");
        let Machine(document) = of else { continue };
        let config = check(document.replace("NAME", NAME).as_bytes());
        let config = config.unwrap_or_else(|problems| panic!("{key}: {problems:?}"));
        let names: Vec<&str> = config.names().map(|name| name.as_str()).collect();
        assert_eq!(names, [NAME], "{key}: its name is resolved");
        let config = check(document.replace("NAME", "10.0.0.9").as_bytes()).unwrap();
        assert_eq!(config.names().count(), 0, "{key}");
    }
}

#[test]
fn keys_that_admit_hosts_refuse_names() {
    for (key, of) in KEYS.iter().filter(|(_, of)| matches!(of, Admission | NameServer)) {
        let path = key.replace('*', "0");
        let mut document = super::Document::default();
        let refused = document.set(&path, "far.example.net").unwrap_err();
        assert!(refused.iter().any(|problem| problem.path.starts_with(&path)), "{key} {of:?}");
    }
}
