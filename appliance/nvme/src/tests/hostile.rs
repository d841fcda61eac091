//! Hosts that lie, and noise.

use super::*;
use proptest::prelude::*;

fn closes(lab: &mut Lab, link: usize) {
    lab.run();
    assert!(!lab.is_open(link));
    assert!(lab.links[link].host.connection.reported().is_some(), "a TermReq says why");
}

#[test]
fn more_commands_than_the_queue_has_entries_end_the_connection() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 2, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (_, cntlid) = lab.admin();
    let link = lab.dial().unwrap();
    let data = connect_data(7, cntlid, SUBSYSTEM, HOST);
    assert_eq!(lab.connect(link, Sqe::connect(1, 4, 0, false), &data).status, 0);
    for _ in 0..4 {
        lab.send(link, Sqe::new(FLUSH).nsid(1), Window::empty(), Carry::None);
    }
    lab.run();
    assert!(lab.is_open(link));
    lab.send(link, Sqe::new(FLUSH).nsid(1), Window::empty(), Carry::None);
    closes(&mut lab, link);
    held.borrow_mut().complete(Ok(()));
    lab.run();
}

#[test]
fn capsule_whose_entry_lies_about_its_data_ends_the_connection() {
    for (kind, length) in [(0x01u8, 511u32), (0x01, 513), (0x01, 0), (0x5a, 512)] {
        let mut lab = Lab::new();
        let (_, io) = lab.both();
        let window = lab.memory(&[1; 512]);
        let sqe = write(0, 1).with(32, &length.to_le_bytes()).with(39, &[kind]).with(2, &[9, 0]);
        lab.links[io].host.submit_as_is(9, sqe, window, Carry::InCapsule);
        closes(&mut lab, io);
        let mut again = Lab::new();
        let (_, io) = again.both();
        assert_eq!(again.fetch(io, read(0, 1), 512).unwrap(), [0; 512]);
    }
}

#[test]
fn offsets_of_sgls_are_refused_and_the_queue_lives() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    for offset in [1u64, u64::MAX, u64::MAX - 4095] {
        for length in [512usize, 4096, 8192] {
            let window = lab.memory(&vec![1; length]);
            let sqe = write(0, 1).with(24, &offset.to_le_bytes());
            let refused = lab.execute(io, sqe, window, Carry::InCapsule);
            assert_eq!(refused.status, 0x4016);
        }
    }
    for kind in [0x00u8, 0x40, 0x4f, 0x02, 0xff] {
        let cid = 100;
        let sqe = read(0, 1).with(39, &[kind]).with(32, &512u32.to_le_bytes());
        let sqe = sqe.with(2, &[cid, 0]);
        let link = &mut lab.links[io].host;
        link.submit_as_is(u16::from(cid), sqe, Window::empty(), Carry::None);
        lab.run();
        assert_eq!(lab.links[io].host.take(u16::from(cid)).unwrap().status, 0x4011);
    }
    assert_eq!(lab.fetch(io, read(0, 1), 512).unwrap(), [0; 512]);
}

#[test]
fn transfer_beyond_the_largest_is_refused_before_any_data_moves() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    for length in [(128 << 10) + 512u32, 1 << 20, u32::MAX] {
        for opcode in [READ, WRITE, COMPARE, DSM] {
            let sqe = Sqe::blocks(opcode, 1, 0, 1, 0).with(32, &length.to_le_bytes());
            let sqe = sqe.with(39, &[0x5a]).with(2, &[3, 0]);
            lab.links[io].host.submit_as_is(3, sqe, Window::empty(), Carry::None);
            lab.run();
            assert_eq!(lab.links[io].host.take(3).unwrap().status, 0x4002);
        }
    }
}

#[test]
fn identifier_that_is_used_twice_harms_only_its_queue() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 8, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (_, io) = lab.both();
    for n in 0..2 {
        let sqe = Sqe::new(FLUSH).nsid(1).with(2, &[5, 0]).with(39, &[0x5a]);
        let mut capsule = vec![4, 0, 72, 0, 72, 0, 0, 0];
        capsule.extend_from_slice(&sqe.0);
        let mut queue = lab.links[io].queue.take().unwrap();
        let taken = lab.context(|target, ctx| queue.receive(&capsule, target, ctx));
        assert_eq!(taken, 72);
        lab.links[io].queue = Some(queue);
        assert_eq!(held.borrow().waiting.len(), n + 1);
    }
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert!(!lab.is_open(io), "the initiator ends it, because it has no such command");
    assert!(lab.io(2, 1).is_ok());
}

/// A capsule with its data behind it, or with data that the target has to ask for.
fn capsule(sqe: Sqe, data: &[u8], is_inside: bool) -> Vec<u8> {
    let kind = if is_inside { 0x01 } else { 0x5a };
    let sqe = sqe.with(32, &(data.len() as u32).to_le_bytes()).with(39, &[kind]);
    let carried = if is_inside { data } else { &[] };
    let mut pdu = vec![4, 0, 72, if carried.is_empty() { 0 } else { 72 }];
    pdu.extend_from_slice(&(72 + carried.len() as u32).to_le_bytes());
    pdu.extend_from_slice(&sqe.0);
    pdu.extend_from_slice(carried);
    pdu
}

/// Passes bytes to a connection whose host reads nothing. Returns how many were taken.
fn feed(lab: &mut Lab, link: usize, bytes: &[u8]) -> usize {
    let mut queue = lab.links[link].queue.take().unwrap();
    let taken = lab.context(|target, ctx| queue.receive(bytes, target, ctx));
    lab.links[link].queue = Some(queue);
    taken
}

/// The memory that the first Connect waits to fill would be freed by the second.
#[test]
fn second_connect_while_the_first_waits_for_its_data_is_refused() {
    let mut lab = Lab::new();
    let link = lab.dial().unwrap();
    let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
    let connect = |cid: u8| Sqe::connect(0, 32, 5000, false).with(2, &[cid, 0]);
    feed(&mut lab, link, &capsule(connect(1), &data, false));
    feed(&mut lab, link, &capsule(connect(2), &data, true));
    assert_eq!(lab.target.controllers().count(), 0);
    let mut pdu = vec![6, 4, 24, 24, 0, 4, 0, 0];
    pdu[4..8].copy_from_slice(&(24 + 1024u32).to_le_bytes());
    pdu.extend_from_slice(&[1, 0]);
    let id = lab.links[link].queue.as_ref().unwrap().id();
    let queue = lab.target.queue(id).unwrap();
    let slot = (0..2u16).find(|&slot| queue.request(slot).is_some()).unwrap();
    pdu.extend_from_slice(&slot.to_le_bytes());
    pdu.extend_from_slice(&0u32.to_le_bytes());
    pdu.extend_from_slice(&1024u32.to_le_bytes());
    pdu.extend_from_slice(&[0; 4]);
    pdu.extend_from_slice(&data);
    feed(&mut lab, link, &pdu);
    assert_eq!(lab.target.controllers().count(), 1, "the first is executed");
}

#[test]
fn host_that_reads_nothing_is_not_read_beyond_what_its_queue_can_answer() {
    let mut lab = Lab::new();
    let fresh = lab.dial().unwrap();
    let (admin, io) = lab.both();
    let many = |sqe: Sqe| capsule(sqe, &[], false).repeat(5000);
    for (link, sqe, entries) in [
        (fresh, Sqe::new(0x18), 2),
        (admin, Sqe::new(0xff), 32),
        (admin, Sqe::new(0x18), 32),
        (io, Sqe::new(FLUSH).nsid(1), 128),
        (io, Sqe::new(0x7e), 128),
    ] {
        let taken = feed(&mut lab, link, &many(sqe));
        assert!(taken <= (2 * entries + 2) * 72, "{taken}");
        assert!(!lab.links[link].queue.as_ref().unwrap().takes_bytes());
        let mut queue = lab.links[link].queue.take().unwrap();
        let mut buffer = vec![0; 1 << 16];
        lab.context(|target, ctx| queue.transmit(&mut buffer, target, ctx));
        assert!(queue.takes_bytes(), "it is read again once it has read");
        lab.links[link].queue = Some(queue);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Any entries with any data end in a completion or the end of the connection; the target serves others after.
    #[test]
    fn any_commands_leave_the_target_serving(
        on_admin: bool,
        entries in prop::collection::vec(
            (
                any::<u8>(), prop::collection::vec((0usize..64, any::<u8>()), 0..12),
                0usize..9000, 0u8..4,
            ),
            1..40,
        ),
    ) {
        let mut lab = Lab::new();
        let (admin, io) = lab.both();
        let link = if on_admin { admin } else { io };
        let opcodes = [0u8, 1, 2, 5, 8, 9, 6, 0x0a, 0x0c, 0x18, 0x7f, 0x02];
        for (opcode, changes, length, carry) in entries {
            let opcode = opcodes[usize::from(opcode) % opcodes.len()];
            let mut sqe = Sqe::new(opcode).nsid(1);
            for (at, byte) in changes {
                if !matches!(at, 2 | 3) {
                    sqe = sqe.with(at, &[byte]);
                }
            }
            let window = lab.memory(&pattern(length.max(1), 1)).slice(0, length).unwrap();
            let carry = match carry {
                0 => Carry::None,
                1 if length <= 8192 && length > 0 => Carry::InCapsule,
                2 => Carry::In,
                _ => Carry::Out,
            };
            if lab.links[link].host.submit(sqe, window, carry).is_none() {
                break;
            }
            lab.run();
        }
        lab.wait(2);
        let (admin, io) = lab.both();
        prop_assert_eq!(lab.fetch(io, read(0, 1), 512).map(|_| ()), Ok(()));
        prop_assert_eq!(lab.simple(admin, Sqe::new(0x18)).status, 0);
    }

    /// Noise on a new connection, or behind a Connect, never harms others.
    #[test]
    fn noise_ends_at_most_its_own_connection(
        connected: bool,
        noise in prop::collection::vec(any::<u8>(), 1..600),
        kind in 0u8..10,
    ) {
        let mut lab = Lab::new();
        let victim = lab.both();
        let link = if connected { lab.both().1 } else { lab.dial().unwrap() };
        let mut noise = noise;
        noise[0] = kind;
        let mut queue = lab.links[link].queue.take().unwrap();
        lab.context(|target, ctx| queue.receive(&noise, target, ctx));
        lab.links[link].queue = Some(queue);
        lab.run();
        lab.wait(1);
        prop_assert_eq!(lab.fetch(victim.1, read(0, 1), 512).map(|_| ()), Ok(()));
    }
}
