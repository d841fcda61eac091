//! Who may connect, and what the others are told.

use super::*;
use crate::discovery::DISCOVERY_NQN;

/// Invalid parameter, in the data at that offset.
fn at(offset: u64) -> (u16, u64) {
    (0x4182, offset | 1 << 16)
}

#[test]
fn only_listed_hosts_are_admitted_and_each_refusal_has_its_reason() {
    let mut lab = Lab::new();
    let refused = |lab: &mut Lab, nqn: &str, host: &str| {
        let completion = lab.admin_of(nqn, host, 7).unwrap_err();
        let closed = lab.links.iter().all(|link| link.queue.is_none());
        assert!(closed, "the connection of a refused host is closed");
        ((completion.status, completion.result), lab.refusals())
    };
    let reason = |text: &str| vec![text.to_string()];
    assert_eq!(refused(&mut lab, SUBSYSTEM, OTHER), (at(512), reason("host_not_admitted")));
    assert_eq!(refused(&mut lab, "nqn.2026-01.x:y", HOST), (at(256), reason("no_such_subsystem")));
    assert_eq!(refused(&mut lab, "iqn.2026", HOST), (at(256), reason("invalid_nqn")));
    assert_eq!(refused(&mut lab, SUBSYSTEM, "host"), (at(512), reason("invalid_nqn")));
    let mut config = subsystem(vec![namespace(1, "ram0")]);
    config.networks = net::hosts::Hosts::new(vec!["10.9.0.0/16".parse().unwrap()]);
    lab.target.configure(vec![config.clone()], &lab.volumes);
    assert_eq!(refused(&mut lab, SUBSYSTEM, HOST), (at(512), reason("network_not_admitted")));
    config.networks = Default::default();
    config.hosts = HostList::Closed;
    lab.target.configure(vec![config.clone()], &lab.volumes);
    assert_eq!(refused(&mut lab, SUBSYSTEM, HOST), (at(512), reason("no_hosts")));
    config.hosts = HostList::All;
    lab.target.configure(vec![config], &lab.volumes);
    assert!(lab.admin_of(SUBSYSTEM, OTHER, 7).is_ok());
}

#[test]
fn host_that_is_not_admitted_any_more_is_disconnected() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    let mut config = subsystem(vec![namespace(1, "ram0")]);
    config.hosts = HostList::Listed(vec![OTHER.into()]);
    lab.target.configure(vec![config], &lab.volumes);
    lab.run();
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    assert_eq!(lab.target.queues(), 0);
}

#[test]
fn discovery_log_has_the_reached_address_and_only_what_the_host_may_use() {
    let mut lab = Lab::new();
    let mut second = subsystem(vec![]);
    second.nqn = "nqn.2026-01.example:other".into();
    second.hosts = HostList::Listed(vec![OTHER.into()]);
    lab.target.configure(vec![subsystem(vec![]), second], &lab.volumes);
    for (host, nqn) in [(HOST, SUBSYSTEM), (OTHER, "nqn.2026-01.example:other")] {
        let (link, _) = lab.admin_of(DISCOVERY_NQN, host, 9).unwrap();
        let log = lab.fetch(link, Sqe::log(0x70, 0, 0, 3072), 3072).unwrap();
        assert_eq!((log[8], log[16]), (1, 0), "one record, of format 0");
        let text = |at: usize, len: usize| {
            let field = core::str::from_utf8(&log[1024 + at..1024 + at + len]).unwrap();
            field.trim_end_matches(['\0', ' ']).to_string()
        };
        assert_eq!(log[1024..1028], [3, 1, 2, 4]);
        assert_eq!(log[1030..1034], [0xff, 0xff, 32, 0]);
        assert_eq!((text(32, 32), text(256, 256)), ("4420".into(), nqn.into()));
        assert_eq!(text(512, 256), "10.0.0.1");
        assert!(log[2048..].iter().all(|&byte| byte == 0));
        // The header alone, and in pieces.
        let header = lab.fetch(link, Sqe::log(0x70, 0x80, 0, 20), 20).unwrap();
        assert_eq!(header, log[..20]);
        for at in (0..3072).step_by(700) {
            let piece = lab.fetch(link, Sqe::log(0x70, 0x80, at, 700), 700).unwrap();
            let whole = &log[at as usize..];
            assert_eq!(&piece[..whole.len().min(700)], &whole[..whole.len().min(700)]);
        }
        // A controller for discovery has nothing else.
        assert_eq!(lab.fetch(link, Sqe::identify(2, 0), 4096), Err(0x4002));
        assert_eq!(lab.fetch(link, Sqe::log(2, 0, 0, 512), 512), Err(0x4109));
        assert_eq!(lab.simple(link, Sqe::set_feature(7, 0)).status, 0x4002);
        let identity = lab.fetch(link, Sqe::identify(1, 0), 4096).unwrap();
        assert_eq!(identity[111], 2);
    }
}

#[test]
fn discovery_controller_reports_changes_and_lives_without_keep_alive() {
    let mut lab = Lab::new();
    let link = lab.dial().unwrap();
    let data = connect_data(9, 0xffff, DISCOVERY_NQN, HOST);
    assert_eq!(lab.connect(link, Sqe::connect(0, 32, 0, true), &data).status, 0);
    assert_eq!(lab.simple(link, Sqe::property_set(CC, ENABLE)).status, 0);
    assert_eq!(lab.simple(link, Sqe::set_feature(0x0b, 1 << 31)).status, 0);
    let event = lab.send(link, Sqe::new(0x0c), Window::empty(), Carry::None);
    lab.wait(300);
    assert!(lab.is_open(link));
    assert_eq!(lab.links[link].host.take(event), None);
    lab.target.configure(vec![], &lab.volumes);
    lab.run();
    assert_eq!(lab.links[link].host.take(event).unwrap().result, 0x0070_f002);
    let log = lab.fetch(link, Sqe::log(0x70, 0, 0, 1024), 1024).unwrap();
    assert_eq!((log[0], log[8]), (3, 0));
}

#[test]
fn io_queue_needs_the_controller_of_the_same_host() {
    let mut lab = Lab::new();
    let (_, cntlid) = lab.admin();
    let connect = |lab: &mut Lab, qid: u16, data: [u8; 1024]| {
        let link = lab.dial().unwrap();
        let completion = lab.connect(link, Sqe::connect(qid, 128, 0, false), &data);
        (completion.status, completion.result)
    };
    let data = |id, cntlid, host| connect_data(id, cntlid, SUBSYSTEM, host);
    assert_eq!(connect(&mut lab, 1, data(7, cntlid + 1, HOST)), at(16));
    assert_eq!(connect(&mut lab, 1, data(7, 0xffff, HOST)), at(16));
    assert_eq!(connect(&mut lab, 1, data(7, cntlid, OTHER)), at(512));
    assert_eq!(connect(&mut lab, 1, data(8, cntlid, HOST)), at(0));
    assert_eq!(connect(&mut lab, 17, data(7, cntlid, HOST)), (0x4182, 42));
    assert_eq!(connect(&mut lab, u16::MAX, data(7, cntlid, HOST)), (0x4182, 42));
    assert_eq!(connect(&mut lab, 1, data(7, cntlid, HOST)), (0, u64::from(cntlid)));
    assert_eq!(connect(&mut lab, 1, data(7, cntlid, HOST)), (0x4181, 0), "the queue exists");
    assert_eq!(connect(&mut lab, 2, data(7, cntlid, HOST)), (0, u64::from(cntlid)));
}

/// Neither NQN nor identifier of a host is secret: its `networks` have to hold for I/O queues, too.
#[test]
fn io_queue_comes_from_the_address_of_its_controller() {
    let mut lab = Lab::new();
    let mut config = subsystem(vec![namespace(1, "ram0")]);
    config.networks = net::hosts::Hosts::new(vec!["10.0.0.0/24".parse().unwrap()]);
    lab.target.configure(vec![config], &lab.volumes);
    let (_, cntlid) = lab.admin();
    for stranger in [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 0, 0, 3)] {
        lab.from = stranger.into();
        let refused = lab.io(1, cntlid).unwrap_err();
        assert_eq!((refused.status, refused.result), at(16));
        assert_eq!(lab.refusals(), ["other_address"]);
    }
    lab.from = Ipv4Addr::new(10, 0, 0, 2).into();
    assert!(lab.io(1, cntlid).is_ok());
}

#[test]
fn queues_of_a_host_and_of_all_are_limited() {
    let settings = Settings { queues: 6, queues_per_host: 4, ..Settings::default() };
    let mut lab = Lab::bare(settings);
    for _ in 0..4 {
        assert!(lab.dial().is_some());
    }
    assert!(lab.dial().is_none());
    lab.from = Ipv4Addr::new(10, 0, 0, 3).into();
    assert!(lab.dial().is_some() && lab.dial().is_some() && lab.dial().is_none());
    assert_eq!(lab.refusals(), ["queues_per_host", "queues"]);
    lab.cut(0);
    assert!(lab.dial().is_some());
}

#[test]
fn connections_without_a_connect_do_not_keep_others_out() {
    let settings = Settings { queues: 6, fresh_per_host: 3, ..Settings::default() };
    let mut lab = Lab::bare(settings);
    lab.add_ram("ram0", 1 << 20);
    lab.configure(vec![namespace(1, "ram0")]);
    for _ in 0..3 {
        assert!(lab.dial().is_some());
    }
    assert!(lab.dial().is_none());
    assert_eq!(lab.refusals(), ["fresh_per_host"]);
    lab.from = Ipv4Addr::new(10, 0, 0, 3).into();
    for _ in 0..3 {
        assert!(lab.dial().is_some());
    }
    lab.from = Ipv4Addr::new(10, 0, 0, 4).into();
    assert!(lab.dial().is_none());
    assert_eq!(lab.refusals(), ["queues"]);
    lab.wait(2);
    let (admin, _) = lab.admin();
    assert!(lab.is_open(admin) && !lab.is_open(0), "the oldest has made place");
    assert_eq!(lab.refusals(), ["no_connect"]);
    assert_eq!(lab.target.queues(), 6);
}

#[test]
fn discovery_controllers_of_a_host_are_limited() {
    let mut lab = Lab::new();
    for n in 0..16 {
        assert!(lab.admin_of(DISCOVERY_NQN, HOST, n).is_ok());
    }
    assert_eq!(lab.admin_of(DISCOVERY_NQN, HOST, 16).unwrap_err().status, 0x181);
    assert_eq!(lab.refusals(), ["discovery_per_host"]);
    lab.from = Ipv4Addr::new(10, 0, 0, 3).into();
    assert!(lab.admin_of(DISCOVERY_NQN, HOST, 1).is_ok());
}

fn v6(network: u16, host: u16) -> IpAddr {
    core::net::Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host).into()
}

/// All hosts of a storage network are in one /64.
#[test]
fn hosts_with_listed_names_have_their_own_share_of_places() {
    let mut lab = Lab::bare(Settings { queues_per_host: 3, ..Settings::default() });
    lab.add_ram("ram0", 1 << 20);
    let mut config = subsystem(vec![namespace(1, "ram0")]);
    config.hosts = HostList::Listed(vec![HOST.to_string(), OTHER.to_string()]);
    lab.target.configure(vec![config.clone()], &lab.volumes);
    for (n, host) in [(1, HOST), (2, OTHER)] {
        lab.from = v6(1, n);
        let (_, cntlid) = lab.admin_of(SUBSYSTEM, host, n as u8).unwrap();
        let io = |lab: &mut Lab, qid: u16| {
            let link = lab.dial().unwrap();
            let data = connect_data(n as u8, cntlid, SUBSYSTEM, host);
            lab.connect(link, Sqe::connect(qid, 128, 0, false), &data).status
        };
        assert_eq!((io(&mut lab, 1), io(&mut lab, 2)), (0, 0), "{host}");
        // Another address of the /64 is no way to more.
        lab.from = v6(1, n + 100);
        assert_eq!(io(&mut lab, 3), 0x181);
        assert_eq!(lab.admin_of(SUBSYSTEM, host, 9).unwrap_err().status, 0x181);
        assert_eq!(lab.refusals(), ["queues_per_host", "queues_per_host"]);
    }
    // An invented name belongs to its address.
    config.hosts = HostList::All;
    config.nqn += "2";
    lab.target.configure(vec![config.clone()], &lab.volumes);
    let invented = |n: u16| alloc::format!("nqn.2026-01.x:{n}");
    for n in 0..3 {
        lab.from = v6(2, n);
        assert!(lab.admin_of(&config.nqn, &invented(n), 1).is_ok());
    }
    assert!(lab.dial().is_none());
    assert_eq!(lab.refusals(), ["queues_per_host"]);
}

#[test]
fn discovery_of_a_listed_host_is_not_taken_by_others_and_does_not_take_all() {
    let mut lab = Lab::bare(Settings { queues: 80, ..Settings::default() });
    lab.add_ram("ram0", 1 << 20);
    lab.configure(vec![namespace(1, "ram0")]);
    // A station claims the name, and others of its /64 do not list: they share.
    lab.from = v6(1, 66);
    for n in 0..16 {
        assert!(lab.admin_of(DISCOVERY_NQN, HOST, n).is_ok());
    }
    assert!(lab.admin_of(DISCOVERY_NQN, HOST, 16).is_err());
    lab.from = v6(1, 2);
    assert!(lab.admin_of(DISCOVERY_NQN, HOST, 1).is_ok());
    assert_eq!(lab.refusals(), ["discovery_per_host"]);
    // A quarter of 80 places.
    for n in 3..6 {
        lab.from = v6(1, n);
        assert!(lab.admin_of(DISCOVERY_NQN, HOST, 1).is_ok());
    }
    lab.from = v6(1, 7);
    assert_eq!(lab.admin_of(DISCOVERY_NQN, HOST, 1).unwrap_err().status, 0x181);
    assert_eq!(lab.refusals(), ["discovery"]);
    assert!(lab.admin_of(SUBSYSTEM, HOST, 1).is_ok());
}

#[test]
fn refused_connects_say_who_asked_for_what_and_what_to_do() {
    let mut lab = Lab::new();
    let (_, cntlid) = lab.admin();
    let good = Sqe::connect(1, 128, 0, false);
    let data = |id, cntlid, host| connect_data(id, cntlid, SUBSYSTEM, host);
    let mut unnamed = data(7, cntlid, HOST);
    unnamed[512] = b'\n';
    for (sqe, data, reason) in [
        (good.with(44, &[0xff, 0xff]), data(7, cntlid, HOST), "queue_size"),
        (good.with(40, &[1]), data(7, cntlid, HOST), "connect_data"),
        (good, unnamed, "invalid_nqn"),
        (good, data(7, cntlid + 1, HOST), "no_such_controller"),
        (good, data(8, cntlid, HOST), "other_host"),
        (Sqe::connect(17, 128, 0, false), data(7, cntlid, HOST), "queue_id"),
        (Sqe::connect(0, 32, 0, false), data(7, 5, HOST), "static_controller"),
    ] {
        let link = lab.dial().unwrap();
        let status = lab.connect(link, sqe, &data).status;
        let refusal = lab.target.refusals().pop().expect(reason);
        assert_eq!((refusal.reason, refusal.who), (reason, Some(lab.from)));
        let host = if reason == "invalid_nqn" { &HOST[1..] } else { HOST };
        let asked = refusal.asked;
        assert!(asked.contains(SUBSYSTEM) && asked.contains(&host[..50]), "{asked}");
        assert!(asked.bytes().all(|byte| byte >= b' '));
        let answer = alloc::format!("{:#x}", status & 0x7ff);
        assert!(refusal.advice.contains(&answer), "{}", refusal.advice);
        let default = crate::remedy("networks");
        assert_ne!(crate::remedy(reason), default, "{reason} has a remedy of its own");
    }
    let link = lab.dial().unwrap();
    lab.links[link].host.unsent.extend_from_slice(&[0xff; 128]);
    lab.run();
    assert_eq!(lab.refusals(), ["invalid_pdu"]);
}
