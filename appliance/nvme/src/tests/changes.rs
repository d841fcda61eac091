//! Changes of namespaces, volumes and ANA states while hosts are connected.

use super::*;
use crate::subsystem::AnaState;

/// An enabled controller that wants events, and its request for one.
fn with_events(lab: &mut Lab) -> (usize, usize, u16) {
    let (admin, io) = lab.both();
    assert_eq!(lab.simple(admin, Sqe::set_feature(0x0b, 0x900)).status, 0);
    let event = lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    lab.run();
    (admin, io, event)
}

fn changed(lab: &mut Lab, admin: usize) -> Vec<u8> {
    lab.fetch(admin, Sqe::log(4, 0, 0, 4096), 4096).unwrap()
}

#[test]
fn namespaces_come_and_go_with_events() {
    let mut lab = Lab::new();
    let (admin, io, event) = with_events(&mut lab);
    lab.add_ram("ram1", 1 << 20);
    lab.configure(vec![namespace(1, "ram0"), namespace(9, "ram1")]);
    lab.run();
    assert_eq!(lab.links[admin].host.take(event).unwrap().result, 0x0004_0002);
    let event = lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    lab.run();
    let ana = lab.links[admin].host.take(event).unwrap();
    assert_eq!(ana.result, 0x000c_0302, "the ANA log has changed, too");
    assert_eq!(changed(&mut lab, admin)[..8], [9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(changed(&mut lab, admin)[..4], [0; 4], "it was read");
    lab.fetch(admin, Sqe::log(0x0c, 0, 0, 64), 64).unwrap();
    assert_eq!(lab.fetch(io, read(0, 1).nsid(9), 512).unwrap(), [0; 512]);
    let event = lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    lab.configure(vec![namespace(9, "ram1")]);
    lab.run();
    assert_eq!(lab.links[admin].host.take(event).unwrap().result, 0x0004_0002);
    assert_eq!(lab.fetch(io, read(0, 1), 512), Err(0x400b));
    assert_eq!(lab.fetch(io, read(0, 1).nsid(9), 512).unwrap(), [0; 512]);
}

#[test]
fn volume_that_comes_later_or_grows_is_reported() {
    let mut lab = Lab::new();
    lab.configure(vec![namespace(1, "late")]);
    let (admin, io, event) = with_events(&mut lab);
    assert_eq!(lab.fetch(io, read(0, 1), 512), Err(0x82), "without DNR");
    assert_eq!(lab.fetch(admin, Sqe::identify(2, 0), 4096).unwrap()[..4], [0; 4]);
    assert_eq!(lab.fetch(admin, Sqe::identify(0, 1), 4096).unwrap(), vec![0; 4096]);
    assert_eq!(lab.fetch(admin, Sqe::identify(3, 1), 4096), Err(0x400b));
    lab.add_ram("late", 1 << 20);
    lab.wait(2);
    assert_eq!(lab.links[admin].host.take(event).unwrap().result, 0x0004_0002);
    assert_eq!(lab.fetch(io, read(0, 1), 512).unwrap(), [0; 512]);
}

#[test]
fn volume_of_a_namespace_is_not_removed_until_the_namespace_is() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    let id = lab.volumes.find("ram0").unwrap();
    let counts = lab.volumes.open_counts(id).unwrap().clone();
    assert_eq!(counts.count(), 1);
    assert!(counts.retire().is_err());
    counts.keep();
    // A read that the host has not taken yet refers to the volume's memory.
    let window = lab.arena.alloc(512, 4).unwrap();
    lab.send(io, read(0, 1), window, Carry::In);
    let mut buffer = vec![0; 4096];
    let n = lab.links[io].host.connection.transmit(&mut buffer);
    let mut queue = lab.links[io].queue.take().unwrap();
    assert_eq!(lab.context(|target, ctx| queue.receive(&buffer[..n], target, ctx)), n);
    lab.configure(vec![]);
    assert_eq!(counts.count(), 1, "the read holds it");
    lab.context(|target, ctx| queue.transmit(&mut buffer, target, ctx));
    assert_eq!(counts.count(), 0);
    assert!(counts.retire().is_ok());
}

#[test]
fn ana_states_decide_over_io_and_are_reported() {
    let mut lab = Lab::new();
    lab.add_ram("ram1", 1 << 20);
    let second = NamespaceConfig { ana_group: 3, ..namespace(2, "ram1") };
    lab.configure(vec![namespace(1, "ram0"), second]);
    let (admin, io, mut event) = with_events(&mut lab);
    for (state, status) in [
        (AnaState::Change, Err(0x303)),
        (AnaState::Inaccessible, Err(0x302)),
        (AnaState::PersistentLoss, Err(0x301)),
        (AnaState::NonOptimized, Ok(vec![0; 512])),
        (AnaState::Optimized, Ok(vec![0; 512])),
    ] {
        assert!(lab.target.set_ana_state(3, state));
        lab.run();
        assert_eq!(lab.links[admin].host.take(event).unwrap().result, 0x000c_0302);
        let log = lab.fetch(admin, Sqe::log(0x0c, 0, 0, 88), 88).unwrap();
        assert_eq!((log[8], log[16], log[32]), (2, 1, 1));
        assert_eq!((log[52], log[68], log[84]), (3, state as u8, 2));
        assert_eq!(lab.fetch(io, read(0, 1).nsid(2), 512), status);
        assert_eq!(lab.fetch(io, read(0, 1), 512).unwrap(), [0; 512], "group 1 is as before");
        event = lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    }
    assert!(lab.target.set_ana_state(3, AnaState::Optimized));
    lab.run();
    assert_eq!(lab.links[admin].host.take(event), None, "nothing has changed");
    assert!(!lab.target.set_ana_state(0, AnaState::Optimized));
    assert!(!lab.target.set_ana_state(33, AnaState::Optimized));
}

#[test]
fn identifiers_of_a_namespace_are_stable_and_its_own() {
    let described = |config: NamespaceConfig| {
        let mut lab = Lab::new();
        lab.add_ram("ram1", 1 << 20);
        let nsid = config.nsid;
        lab.configure(vec![config]);
        let (admin, _) = lab.admin();
        lab.fetch(admin, Sqe::identify(3, nsid), 4096).unwrap()[4..20].to_vec()
    };
    let first = described(namespace(1, "ram0"));
    assert_eq!(described(namespace(1, "ram0")), first);
    assert_ne!(described(namespace(2, "ram0")), first);
    assert_ne!(described(namespace(1, "ram1")), first);
    let given = NamespaceConfig { uuid: Some([5; 16]), ..namespace(1, "ram0") };
    assert_eq!(described(given), [5; 16]);
}

/// The parts of a command that are left would reach the volume that has the identifier now.
#[test]
fn command_does_not_continue_on_the_volume_that_replaces_its_own() {
    let mut lab = Lab::new();
    let a = lab.add_slow("a", 8, |geometry| {
        geometry.max_transfer = 4096;
        geometry.logical_block = 512;
    });
    let b = lab.add_slow("b", 8, |_| {});
    for with_zeroes in [false, true] {
        lab.configure(vec![NamespaceConfig { block_size: Some(4096), ..namespace(1, "a") }]);
        let (_, io) = lab.both();
        let window = lab.memory(&pattern(16 << 10, 1));
        let cid = match with_zeroes {
            false => lab.send(io, write(0, 4), window, Carry::Out),
            true => {
                let zeroes = Sqe::blocks(ZEROES, 1, 0, 16, 0);
                lab.send(io, zeroes, Window::empty(), Carry::None)
            }
        };
        lab.run();
        assert_eq!(a.borrow().waiting.len(), 1);
        let to = if with_zeroes { "a" } else { "b" };
        lab.configure(vec![NamespaceConfig { block_size: Some(512), ..namespace(1, to) }]);
        a.borrow_mut().complete(Ok(()));
        lab.run();
        assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0x82, "without DNR");
        assert!(a.borrow().waiting.is_empty() && b.borrow().seen.is_empty());
    }
}

#[test]
fn flush_of_all_namespaces_skips_none_while_others_go() {
    let mut lab = Lab::new();
    let a = lab.add_slow("a", 8, |_| {});
    let b = lab.add_slow("b", 8, |_| {});
    lab.configure(vec![namespace(1, "ram0"), namespace(2, "a"), namespace(3, "b")]);
    let (_, io) = lab.both();
    let cid = lab.send(io, Sqe::new(FLUSH).nsid(u32::MAX), Window::empty(), Carry::None);
    lab.run();
    lab.configure(vec![namespace(2, "a"), namespace(3, "b")]);
    a.borrow_mut().complete(Ok(()));
    lab.run();
    b.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0);
    assert_eq!((a.borrow().seen.len(), b.borrow().seen.len()), (1, 1));
}
