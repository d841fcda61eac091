//! Log pages and features.

use super::*;

#[test]
fn logs_are_read_in_any_pieces_and_at_any_length() {
    let mut lab = Lab::new();
    let mut namespaces = Vec::new();
    for n in 0..100u32 {
        let group = n % 7 + 1;
        namespaces.push(NamespaceConfig { ana_group: group, ..namespace(n + 1, "ram0") });
    }
    lab.configure(namespaces);
    let (admin, _) = lab.admin();
    for page in [0x01, 0x02, 0x03, 0x04, 0x05, 0x0c] {
        let whole = lab.fetch(admin, Sqe::log(page, 0, 0, 8192), 8192).unwrap();
        for (start, len) in [(0, 4), (0, 228), (4, 4), (16, 32), (1024, 4096), (8188, 4)] {
            let part = lab.fetch(admin, Sqe::log(page, 0, start as u64, len as u32), len).unwrap();
            assert_eq!(part, whole[start..start + len], "{page} {start} {len}");
        }
    }
    let ana = lab.fetch(admin, Sqe::log(0x0c, 0, 0, 640), 640).unwrap();
    assert_eq!(u16::from_le_bytes([ana[8], ana[9]]), 7);
    assert!(ana[16 + 7 * 32 + 100 * 4..].iter().all(|&byte| byte == 0));
    let groups = lab.fetch(admin, Sqe::log(0x0c, 1, 0, 240), 240).unwrap();
    for n in 0..7 {
        assert_eq!(groups[16 + n * 32..][..8], [n as u8 + 1, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn lengths_that_exceed_the_data_or_the_limit_are_refused() {
    let mut lab = Lab::new();
    let (admin, _) = lab.admin();
    // NUMD of 16 GiB; more than the SGL; no data at all.
    let huge = Sqe::log(2, 0, 0, 4).with(42, &[0xff; 4]);
    assert_eq!(lab.fetch(admin, huge, 4096), Err(0x400f));
    assert_eq!(lab.fetch(admin, Sqe::log(2, 0, 0, 516), 512), Err(0x400f));
    assert_eq!(lab.simple(admin, Sqe::log(2, 0, 0, 512)).status, 0x400f);
    assert_eq!(lab.fetch(admin, Sqe::log(2, 0, 2, 512), 512), Err(0x4002), "a start of 2");
    assert_eq!(lab.fetch(admin, Sqe::log(2, 0, u64::MAX - 3, 512), 512).unwrap(), [0; 512]);
    assert_eq!(lab.fetch(admin, Sqe::identify(1, 0), 4092), Err(0x400f));
    // An SGL beyond the largest transfer.
    assert_eq!(lab.fetch(admin, Sqe::log(2, 0, 0, 512), (128 << 10) + 4), Err(0x4002));
    for page in [0x00, 0x06, 0x0d, 0x70, 0x81, 0xff] {
        assert_eq!(lab.fetch(admin, Sqe::log(page, 0, 0, 512), 512), Err(0x4109), "{page}");
    }
    for cns in [0x04, 0x07, 0x08, 0x10, 0x13, 0x1c, 0xff] {
        assert_eq!(lab.fetch(admin, Sqe::identify(cns, 1), 4096), Err(0x4002), "{cns}");
    }
    for nsid in [0, 1025, u32::MAX] {
        assert_eq!(lab.fetch(admin, Sqe::identify(0, nsid), 4096), Err(0x400b));
    }
}

#[test]
fn features_that_exist_are_set_and_read_and_others_are_refused() {
    let mut lab = Lab::new();
    let (admin, _) = lab.admin();
    let get = |feature: u8| Sqe::new(0x0a).with(40, &[feature]);
    assert_eq!(lab.simple(admin, Sqe::set_feature(7, 63 | 63 << 16)).result, 15 | 15 << 16);
    assert_eq!(lab.simple(admin, Sqe::set_feature(7, 0xffff)).status, 0x4002);
    assert_eq!(lab.simple(admin, Sqe::set_feature(0x0f, 9000)).status, 0);
    assert_eq!(lab.simple(admin, get(0x0f)).result, 9000);
    assert_eq!(lab.simple(admin, Sqe::set_feature(0x0b, 0x900)).status, 0);
    assert_eq!(lab.simple(admin, get(0x0b)).result, 0x900);
    assert_eq!(lab.simple(admin, Sqe::set_feature(0x0b, 1 << 12)).status, 0x4002);
    assert_eq!(lab.simple(admin, get(6)).result, 1);
    assert_eq!(lab.fetch(admin, get(0x81).with(44, &[1]), 16).unwrap(), [7; 16]);
    assert_eq!(lab.fetch(admin, get(0x81), 8), Err(0x4002), "64 bits");
    for feature in [0, 1, 2, 0x10, 0x80, 0x84, 0xff] {
        assert_eq!(lab.simple(admin, get(feature)).status, 0x4002);
        assert_eq!(lab.simple(admin, Sqe::set_feature(feature, 0)).status, 0x4002);
    }
    for _ in 0..4 {
        lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    }
    assert_eq!(lab.simple(admin, Sqe::new(0x0c)).status, 0x4105);
    assert_eq!(lab.simple(admin, Sqe::new(8)).result, 1, "not aborted");
}
