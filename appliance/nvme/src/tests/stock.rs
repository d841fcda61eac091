//! The sequence of commands of a stock Linux host.

use super::*;

/// drivers/nvme/host of 6.12: every command from connecting to the first blocks.
#[test]
fn commands_of_a_stock_host_are_answered() {
    for digests in 0..4 {
        for no_flow_control in [false, true] {
            let mut lab = Lab::new();
            lab.digests = digests;
            lab.no_flow_control = no_flow_control;
            let link = lab.dial().unwrap();
            let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
            let connected = lab.connect(link, Sqe::connect(0, 32, 5000, no_flow_control), &data);
            assert_eq!(connected.status, 0);
            assert_eq!(connected.result, 1, "cntlid 1, no authentication");
            let cap = lab.simple(link, Sqe::property_get(0, true)).result;
            assert_eq!(cap & 0xffff, 127);
            assert_eq!((cap >> 16 & 1, cap >> 37 & 1, cap >> 48 & 0xf), (1, 1, 0));
            assert_eq!(lab.simple(link, Sqe::property_set(CC, 0x46_0000)).status, 0);
            assert_eq!(lab.simple(link, Sqe::property_set(CC, ENABLE)).status, 0);
            assert_eq!(lab.simple(link, Sqe::property_get(CSTS, false)).result, 1);
            assert_eq!(lab.simple(link, Sqe::property_get(8, false)).result, 0x1_0400);
            let identity = lab.fetch(link, Sqe::identify(1, 0), 4096).unwrap();
            check_controller(&identity);
            let effects = lab.fetch(link, Sqe::log(5, 0, 0, 4096), 4096).unwrap();
            assert_eq!((effects[4 * 6], effects[1024 + 4], effects[1024 + 4 * 0x19]), (1, 3, 0));
            let event = lab.send(link, Sqe::new(0x0c), Window::empty(), Carry::None);
            lab.run();
            assert_eq!(lab.links[link].host.take(event), None, "the request for events waits");
            assert_eq!(lab.simple(link, Sqe::set_feature(0x0b, 0x900)).status, 0);
            let queues = lab.simple(link, Sqe::set_feature(7, 3 | 3 << 16));
            assert_eq!((queues.status, queues.result), (0, 3 | 3 << 16));
            let io = lab.io(1, 1).unwrap();
            check_namespace(&mut lab, link);
            let ana = lab.fetch(link, Sqe::log(0x0c, 0, 0, 4096), 4096).unwrap();
            assert_eq!((ana[8], ana[16], ana[20], ana[32], ana[48]), (1, 1, 1, 1, 1));
            let bytes = pattern(8192, 1);
            let window = lab.memory(&bytes);
            assert_eq!(lab.execute(io, write(8, 16), window, Carry::InCapsule).status, 0);
            assert_eq!(lab.fetch(io, read(8, 16), 8192).unwrap(), bytes);
            assert_eq!(lab.simple(io, Sqe::new(FLUSH).nsid(1)).status, 0);
            assert_eq!(lab.simple(link, Sqe::new(0x18)).status, 0);
            assert_eq!(lab.simple(link, Sqe::property_set(CC, ENABLE | 1 << 14)).status, 0);
            let ended = lab.links[link].host.take(event).unwrap();
            assert_eq!(ended.status, 8, "the request for events ends with the shutdown");
            assert_eq!(lab.simple(link, Sqe::property_get(CSTS, false)).result, 1 | 2 << 2);
            lab.cut(io);
            lab.cut(link);
            assert_eq!(lab.target.queues(), 0);
            assert_eq!(lab.target.controllers().count(), 0);
        }
    }
}

fn check_controller(identity: &[u8]) {
    let text = |at: usize, len: usize| core::str::from_utf8(&identity[at..at + len]).unwrap();
    let number = |at: usize, len: usize| {
        identity[at..at + len].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
    };
    assert_eq!(text(4, 20), "S1                  ");
    assert_eq!(text(24, 40).trim_end(), "Isthmus");
    assert!(text(64, 8).bytes().all(|byte| byte != 0));
    assert_eq!(number(76, 1), 0x0a, "several controllers, ANA");
    assert_eq!(number(77, 1), 5);
    assert_eq!(number(78, 2), 1);
    assert_eq!(number(80, 4), 0x1_0400);
    assert_eq!(number(111, 1), 1);
    assert_ne!(number(320, 2), 0, "a host refuses a controller without keep alive");
    let (groups, nn, mnan) = (number(348, 4), number(516, 4), number(540, 4));
    assert!(mnan > 0 && mnan <= nn);
    assert!(16 + groups * 32 + mnan * 4 <= 128 << 10, "else Linux disables ANA");
    assert_eq!((number(512, 1), number(513, 1)), (0x66, 0x44));
    assert_ne!(number(514, 2), 0);
    assert_ne!(number(536, 4) & 3, 0, "SGLs");
    assert_eq!(text(768, SUBSYSTEM.len() + 1).trim_end_matches('\0'), SUBSYSTEM);
    assert_eq!(number(1792, 4), (64 + 8192) / 16);
    assert_eq!((number(1796, 4), number(1800, 2)), (1, 0));
}

fn check_namespace(lab: &mut Lab, link: usize) {
    let list = lab.fetch(link, Sqe::identify(2, 0), 4096).unwrap();
    assert_eq!(list[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let described = lab.fetch(link, Sqe::identify(3, 1), 4096).unwrap();
    assert_eq!(described[..4], [3, 16, 0, 0]);
    assert_eq!(described[20..24], [2, 16, 0, 0]);
    assert_eq!(described[40..46], [4, 1, 0, 0, 0, 0]);
    let identity = lab.fetch(link, Sqe::identify(0, 1), 4096).unwrap();
    assert_eq!(identity[..4], 2048u32.to_le_bytes());
    assert_eq!((identity[30], identity[92], identity[130]), (1, 1, 9));
    assert_eq!(identity[104..120], described[4..20]);
    assert_eq!(identity[64..66], [7, 0], "4096 bytes are written without a read");
    let of_command_set = lab.fetch(link, Sqe::identify(6, 0), 4096).unwrap();
    assert_eq!(of_command_set[1], 8);
}
