//! Connect, properties, and the order of commands.

use super::*;

#[test]
fn only_connect_is_valid_on_a_new_queue() {
    let mut lab = Lab::new();
    let link = lab.dial().unwrap();
    for sqe in [
        Sqe::identify(1, 0),
        read(0, 1),
        Sqe::property_get(0, true),
        Sqe::property_set(CC, ENABLE),
        Sqe::new(0x0c),
        Sqe::new(0x18),
    ] {
        assert_eq!(lab.simple(link, sqe).status, 0x400c);
    }
    let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
    assert_eq!(lab.connect(link, Sqe::connect(0, 32, 5000, true), &data).status, 0);
    assert_eq!(lab.fetch(link, Sqe::identify(1, 0), 4096), Err(0x400c), "it is not enabled");
    let again = lab.connect(link, Sqe::connect(0, 32, 5000, true), &data);
    assert_eq!(again.status, 0x400c, "one Connect per queue");
    assert_eq!(lab.io(1, 1).unwrap_err().status, 0x400c, "the controller is not enabled");
    assert_eq!(lab.simple(link, Sqe::property_set(CC, ENABLE)).status, 0);
    assert!(lab.io(1, 1).is_ok());
}

#[test]
fn sizes_and_formats_of_a_connect_are_checked() {
    let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
    let good = Sqe::connect(0, 32, 5000, false);
    for (sqe, data, expected) in [
        (Sqe::connect(0, 1, 0, false), data, (0x4182, 44)),
        (Sqe::connect(0, 129, 0, false), data, (0x4182, 44)),
        (good.with(44, &[0xff, 0xff]), data, (0x4182, 44)),
        (good.with(40, &[1]), data, (0x4180, 0)),
        (good, connect_data(7, 1, SUBSYSTEM, HOST), (0x4182, 16 | 1 << 16)),
    ] {
        let mut lab = Lab::new();
        let link = lab.dial().unwrap();
        let completion = lab.connect(link, sqe, &data);
        assert_eq!((completion.status, completion.result), expected);
        assert!(!lab.is_open(link));
    }
    // Names without an end, and of the greatest length.
    for (fill, is_valid) in [(222usize, true), (223, true), (224, false), (256, false)] {
        let mut lab = Lab::new();
        let link = lab.dial().unwrap();
        let mut long = data;
        let mut name = vec![0; 256];
        name[..fill].fill(b'x');
        name[..4].copy_from_slice(b"nqn.");
        long[512..768].copy_from_slice(&name);
        let expected = if is_valid { "host_not_admitted" } else { "invalid_nqn" };
        assert_eq!(lab.connect(link, good, &long).status, 0x4182);
        assert_eq!(lab.refusals().concat(), expected, "{fill}");
    }
    // Less data than a Connect has.
    let mut lab = Lab::new();
    let link = lab.dial().unwrap();
    let short = lab.memory(&data[..512]);
    assert_eq!(lab.execute(link, good, short, Carry::InCapsule).status, 0x400f);
    // Data that the controller asks for.
    let link = lab.dial().unwrap();
    let window = lab.memory(&data);
    assert_eq!(lab.execute(link, good, window, Carry::Out).status, 0);
}

#[test]
fn unknown_properties_are_refused() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    for (offset, wide) in [(0, false), (8, true), (0x20, false), (0x68, false), (u32::MAX, true)] {
        assert_eq!(lab.simple(admin, Sqe::property_get(offset, wide)).status, 0x4002, "{offset}");
    }
    assert_eq!(lab.simple(admin, Sqe::property_set(CSTS, 0)).status, 0x4002);
    assert_eq!(lab.simple(io, Sqe::property_get(0, true)).status, 0x4001);
    assert_eq!(lab.simple(admin, Sqe::new(0x7f).with(4, &[5])).status, 0x4001, "authentication");
}

#[test]
fn identifiers_of_controllers_stay_in_their_range_and_are_not_reused_at_once() {
    let mut lab = Lab::new();
    let mut config = subsystem(vec![namespace(1, "ram0")]);
    config.cntlids = (100, 102);
    lab.target.configure(vec![config], &lab.volumes);
    let (first, a) = lab.admin();
    let (_, b) = lab.admin();
    lab.cut(first);
    let (_, c) = lab.admin();
    let (_, d) = lab.admin();
    assert_eq!((a, b, c, d), (100, 101, 102, 100));
    assert_eq!(lab.admin_of(SUBSYSTEM, HOST, 7).unwrap_err().status, 0x181, "without DNR");
}

#[test]
fn reset_ends_io_queues_and_the_controller_can_be_enabled_again() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, 0)).status, 0);
    assert!(!lab.is_open(io));
    assert_eq!(lab.simple(admin, Sqe::property_get(CSTS, false)).result, 0);
    assert_eq!(lab.fetch(admin, Sqe::identify(1, 0), 4096), Err(0x400c));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
    assert!(lab.io(1, 1).is_ok());
}

#[test]
fn head_of_the_submission_queue_counts_commands() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    for n in 2..300u16 {
        let completion = lab.simple(io, Sqe::new(FLUSH).nsid(1));
        assert_eq!(completion.sq_head, n % 128);
    }
}
