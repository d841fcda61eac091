//! The drivers of Intel's 82574, 82576 and its virtual function on the models, with and without faults.

use super::network_card::{NetworkCard, plain, try_open};
use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Severity, TransmitError, Window};
use metal::Metal;
use models::intel_nic::{Fault, Kind, MAC, Nic};

type Bench = super::network_card::Bench<Nic>;

const ALL: [Kind; 4] = [Kind::E1000e, Kind::Igb, Kind::IgbVf, Kind::E1000];

fn machine(kind: Kind) -> Metal<Nic> {
    let vectors = if kind == Kind::E1000 { 0 } else { 3 };
    Metal::new(Nic::new(kind, vectors), 8 << 20)
}

fn open(kind: Kind) -> Bench {
    try_open(machine(kind), None).unwrap()
}

fn jumbo(kind: Kind) -> Bench {
    try_open(machine(kind), Some(9000)).unwrap()
}

fn frame(n: usize, len: usize) -> Vec<u8> {
    Nic::frame(n, len)
}

#[test]
fn cards_are_found_with_their_address() {
    for (kind, driver) in ALL.into_iter().zip(["e1000e", "igb", "igbvf", "e1000"]) {
        let machine = machine(kind);
        assert_eq!(machine.find().take(Class::Port)[0].driver(), driver);
        let mut bench = try_open(machine, None).unwrap();
        assert_eq!((bench.port.mac(), bench.port.mtu()), (MAC, 1500));
        assert!(bench.port.link_up() && bench.port.wakes());
        assert_eq!(bench.complaints(), [""; 0]);
        if kind == Kind::IgbVf {
            assert_eq!(bench.machine.model(|nic| nic.granted()), (1522, true));
        }
    }
}

#[test]
fn frames_of_every_length_come_and_go_around_the_rings() {
    for kind in ALL {
        let mut bench = jumbo(kind);
        assert_eq!(bench.port.mtu(), 9000);
        bench.goes_around_the_rings(9000);
    }
}

#[test]
fn payload_is_sent_without_a_copy() {
    for kind in ALL {
        let mut bench = jumbo(kind);
        let part = |bench: &mut Bench, n: usize, len: usize| {
            if len == 0 {
                return Window::empty();
            }
            let window = bench.machine.arena().alloc(len, 64).unwrap().slice(0, len).unwrap();
            window.write(0, &frame(n, len)).unwrap();
            window
        };
        let lengths = [1, 300, 0, 4096];
        let windows: Vec<Window> =
            lengths.iter().enumerate().map(|(n, &len)| part(&mut bench, n, len)).collect();
        for header_len in [14, 47, 54, 96, 97, 192, 300, 1500] {
            for used in 0..=4 {
                for trailer_len in [0, 4, 16] {
                    let (header, trailer) = (frame(9, header_len), frame(5, trailer_len));
                    let payload = &windows[..used];
                    let packet = Packet { header: &header, payload, trailer: &trailer };
                    bench.port.transmit(&packet).unwrap();
                    bench.port.flush();
                    bench.machine.run();
                    let mut all = header.clone();
                    lengths
                        .iter()
                        .take(used)
                        .enumerate()
                        .for_each(|(n, &l)| all.extend(frame(n, l)));
                    all.extend(&trailer);
                    if all.len() < 60 {
                        all.resize(60, 0);
                    }
                    assert_eq!(bench.sent(), [all]);
                }
            }
        }
        assert_eq!(bench.complaints(), [""; 0]);
        let too_long = frame(0, 9019);
        assert_eq!(bench.port.transmit(&plain(&too_long)), Err(TransmitError::TooLarge));
        assert_eq!(bench.port.transmit(&plain(&[0; 13])), Err(TransmitError::TooLarge));
        let many = [windows[0]; 5];
        let packet = Packet { header: &[0; 20], payload: &many, trailer: &[] };
        assert_eq!(bench.port.transmit(&packet), Err(TransmitError::TooLarge));
    }
}

#[test]
fn full_queue_refuses_packets_until_it_has_room() {
    for kind in ALL {
        let mut bench = open(kind);
        let mut taken = 0;
        while bench.port.transmit(&plain(&frame(taken, 64))).is_ok() {
            taken += 1;
        }
        assert!(taken >= 240, "{taken}");
        assert!(!bench.port.has_room() && !bench.port.pending());
        assert_eq!(bench.port.counters().tx_full, 1);
        bench.port.set_interrupts(true);
        let before = bench.port.counters().interrupts;
        bench.port.flush();
        bench.machine.run();
        assert_eq!(bench.sent().len(), taken);
        assert!(bench.port.counters().interrupts > before, "{kind:?}");
        assert!(bench.port.has_room() && bench.port.pending());
        bench.port.set_interrupts(false);
        bench.works(1);
        assert!(!bench.port.pending());
    }
}

/// Large copies use up the copy memory before the ring is full.
#[test]
fn copies_wait_for_copy_memory() {
    let mut bench = jumbo(Kind::Igb);
    let one = frame(3, 9000);
    let mut taken = 0;
    while bench.port.transmit(&plain(&one)).is_ok() {
        taken += 1;
    }
    assert!((4..100).contains(&taken), "{taken}");
    for _ in 0..20 {
        bench.port.flush();
        bench.machine.run();
        assert!(bench.port.has_room());
        assert_eq!(bench.sent().len(), taken);
        taken = (0..5).filter(|_| bench.port.transmit(&plain(&one)).is_ok()).count();
        assert!(taken > 0);
    }
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    for kind in ALL {
        for vectors in [3, 0] {
            // A virtual function has MSI-X alone, a 82540EM has none.
            if matches!((kind, vectors), (Kind::IgbVf, 0) | (Kind::E1000, 3)) {
                continue;
            }
            let machine = Metal::new(Nic::new(kind, vectors), 8 << 20);
            let mut bench = try_open(machine, None).unwrap();
            assert!(bench.port.wakes());
            let raised = |bench: &Bench| bench.port.counters().interrupts;
            bench.arrive([frame(1, 60)]);
            bench.send(&frame(1, 60));
            assert_eq!(raised(&bench), 0, "{kind:?}: not armed");
            for round in 1..10 {
                assert_eq!(bench.received().len(), 1);
                bench.port.set_interrupts(true);
                assert!(!bench.port.pending());
                // Sent packets raise no interrupt while the queue has room.
                bench.send(&frame(1, 60));
                assert_eq!(raised(&bench), round - 1, "{kind:?} {vectors}");
                bench.arrive([frame(1, 60)]);
                assert_eq!(raised(&bench), round, "{kind:?} {vectors}");
                assert!(bench.port.pending());
                bench.port.set_interrupts(false);
                bench.send(&frame(1, 60));
            }
            assert_eq!(bench.complaints(), [""; 0]);
        }
    }
}

#[test]
fn a_lost_interrupt_loses_no_frame() {
    for kind in ALL {
        let mut bench = open(kind);
        bench.machine.model(|nic| nic.inject(Fault::NoInterrupts));
        bench.port.set_interrupts(true);
        bench.arrive([frame(1, 60)]);
        assert!(bench.port.pending());
        assert_eq!(bench.received().len(), 1);
        bench.machine.model(Nic::repair);
        bench.works(1);
    }
}

#[test]
fn card_without_an_interrupt_is_polled() {
    let mut machine = machine(Kind::E1000e);
    machine.interrupts = 0;
    let mut bench = try_open(machine, None).unwrap();
    assert!(!bench.port.wakes());
    bench.port.set_interrupts(true);
    bench.works(1);
}

#[test]
fn frames_may_be_held_and_released_in_any_order() {
    let mut bench = jumbo(Kind::E1000e);
    for round in 0..200 {
        let frames: Vec<Vec<u8>> =
            (0..9).map(|n| frame(n, 60 + (round * 997 + n * 2011) % 8900)).collect();
        bench.arrive(frames.clone());
        let mut held: Vec<_> = std::iter::from_fn(|| bench.port.receive()).collect();
        assert_eq!(held.len(), 9);
        for (one, wanted) in held.iter().zip(&frames) {
            assert_eq!(bench.port.bytes(one), wanted);
        }
        held.rotate_left(round % 9);
        held.swap(0, 5);
        held.into_iter().for_each(|one| bench.port.recycle(one));
        bench.port.flush();
    }
    assert_eq!(bench.port.counters().rx_errors, 0);
}

#[test]
fn link_changes_are_noticed() {
    for kind in ALL {
        let mut bench = open(kind);
        for _ in 0..3 {
            bench.machine.model(|nic| nic.link = false);
            // The driver has not noticed yet.
            bench.port.transmit(&plain(&frame(0, 60))).unwrap();
            bench.port.flush();
            assert!(!bench.port.link_up() && bench.port.is_sending());
            // The chip is reset once, so that it releases memory, however long the link stays down.
            bench.watch(100);
            assert!(!bench.port.is_sending());
            bench.port.transmit(&plain(&frame(1, 60))).unwrap();
            assert!(!bench.port.is_sending(), "packets sent without a link are dropped");
            bench.machine.model(|nic| nic.link = true);
            bench.machine.run();
            assert!(bench.port.link_up());
            bench.port.transmit(&plain(&frame(2, 60))).unwrap();
            bench.port.flush();
            bench.machine.run();
            assert_eq!(bench.sent(), [frame(2, 60)]);
            bench.watch(1);
        }
        assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
    }
}

#[test]
fn all_ones_are_a_card_that_is_not_there() {
    for kind in ALL {
        let mut bench = open(kind);
        bench.send(&frame(0, 60));
        bench.machine.pull_out(true);
        assert!(!bench.port.link_up());
        let notices = bench.notices();
        assert_eq!(notices.len(), 1);
        assert!(
            notices[0].0 == Severity::Error && notices[0].1.contains("pulled out"),
            "{notices:?}"
        );
        bench.watch(5);
        while bench.port.transmit(&plain(&frame(0, 60))).is_ok() {}
        bench.port.flush();
        assert!(bench.received().is_empty() && !bench.port.has_room() && !bench.port.pending());
        assert_eq!(bench.notices(), []);
    }
}

#[test]
fn a_card_that_goes_while_it_is_opened_is_refused() {
    for kind in ALL {
        let mut machine = machine(kind);
        let device = machine.find().take(Class::Port).remove(0);
        let clock = machine.clock();
        machine.pull_out(true);
        assert!(device.open_port(&mut machine, &|_| None, &clock).is_err());
    }
}

#[test]
fn reset_that_never_ends_is_reported() {
    for (kind, wanted) in [
        (Kind::E1000e, "does not come out of reset"),
        (Kind::Igb, "does not come out of reset"),
        (Kind::IgbVf, "no answer from the physical function's driver"),
    ] {
        let machine = machine(kind);
        machine.model(|nic| nic.inject(Fault::StuckReset));
        let why = try_open(machine, None).err().unwrap();
        assert!(why.contains(wanted), "{why}");
        // The same while the card is in use.
        let mut bench = open(kind);
        bench.machine.model(|nic| {
            nic.inject(Fault::NeverReports);
            nic.inject(Fault::StuckReset);
        });
        bench.send(&frame(0, 60));
        bench.watch(20);
        let notices = bench.notices();
        assert!(notices[0].1.contains("does not send"), "{notices:?}");
        assert!(!bench.port.link_up());
        if kind == Kind::IgbVf {
            // The physical function's driver may recover.
            bench.machine.model(Nic::repair);
            bench.watch(40);
            bench.works(1);
        } else {
            assert!(notices[1].1.contains("does not come out of a reset"), "{notices:?}");
        }
    }
}

#[test]
fn address_is_read_from_the_eeprom_if_registers_have_none() {
    for kind in [Kind::E1000e, Kind::Igb] {
        let one = machine(kind);
        one.model(|nic| nic.inject(Fault::NoAddress));
        assert_eq!(try_open(one, None).unwrap().port.mac(), MAC);
        let one = machine(kind);
        one.model(|nic| nic.inject(Fault::EmptyEeprom));
        let why = try_open(one, None).err().unwrap();
        assert!(why.contains("no MAC address"), "{why}");
    }
}

#[test]
fn a_card_that_does_not_report_is_reset_and_goes_on() {
    for kind in ALL {
        let mut bench = open(kind);
        bench.works(0);
        bench.machine.model(|nic| nic.inject(Fault::NeverReports));
        bench.send(&frame(0, 60));
        bench.sent();
        bench.watch(10);
        let notices = bench.notices();
        assert_eq!(notices.len(), 2, "{kind:?}: {notices:?}");
        assert!(
            notices[0].0 == Severity::Warning && notices[0].1.contains("does not send"),
            "{notices:?}"
        );
        assert!(notices[1].1.contains("works again"), "{notices:?}");
        assert_eq!(bench.port.counters().resets, 1);
        (0..2000).for_each(|n| bench.works(n % 1000));
        bench.watch(100);
        assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 1));
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn repeated_resets_are_reported_once() {
    let mut bench = open(Kind::Igb);
    bench.machine.model(|nic| nic.inject(Fault::NeverReportsAgain));
    for _ in 0..20 {
        bench.send(&frame(0, 60));
        bench.watch(10);
    }
    let notices = bench.notices();
    assert!(bench.port.counters().resets >= 10);
    assert!(notices.len() < 10, "{notices:?}");
    assert!(notices.iter().any(|(_, text)| text.contains("again and again")), "{notices:?}");
    bench.machine.model(Nic::repair);
    bench.watch(10);
    bench.works(1);
}

#[test]
fn duplicate_or_misplaced_report_does_no_harm() {
    for kind in ALL {
        let mut bench = open(kind);
        bench.machine.model(|nic| nic.inject(Fault::ReportsTwice));
        (0..3000).for_each(|n| bench.works(n % 1000));
        bench.machine.model(|nic| nic.inject(Fault::ReportsAnother(5)));
        bench.send(&frame(0, 60));
        bench.watch(10);
        let notices = bench.notices();
        assert!(notices[0].1.contains("does not send"), "{notices:?}");
        (0..3000).for_each(|n| bench.works(n % 1000));
        assert_eq!(bench.port.counters().resets, 1);
    }
}

#[test]
fn wrong_lengths_are_counted_and_dropped() {
    for kind in ALL {
        let mut bench = jumbo(kind);
        for length in [0, 13, 2049, 9019, u16::MAX] {
            let before = bench.port.counters().rx_errors;
            bench.machine.model(|nic| nic.inject(Fault::Length(length)));
            bench.arrive([frame(0, 60), frame(1, 61)]);
            assert_eq!(bench.received(), [frame(1, 61)], "{length}");
            assert_eq!(bench.port.counters().rx_errors, before + 1, "{length}");
            // The wrong length is in the last of several buffers.
            bench.machine.model(|nic| nic.inject(Fault::Length(length)));
            bench.arrive([frame(0, 5000), frame(1, 5001)]);
            let received = bench.received();
            assert_eq!(received.last(), Some(&frame(1, 5001)), "{length}");
            assert!(received.iter().all(|one| one.len() <= 9018), "{length}");
        }
        bench.works(1);
    }
}

#[test]
fn frames_longer_than_agreed_are_dropped() {
    let mut bench = open(Kind::E1000e);
    bench.arrive([frame(0, 1519), frame(1, 1518), frame(2, 16_000), frame(3, 60)]);
    assert_eq!(bench.received(), [frame(1, 1518), frame(3, 60)]);
    assert_eq!(bench.port.counters().rx_errors, 2);
}

#[test]
fn damaged_and_unterminated_frames_are_dropped() {
    for kind in ALL {
        let mut bench = jumbo(kind);
        bench.machine.model(|nic| nic.inject(Fault::Damaged));
        bench.arrive([frame(0, 3000), frame(1, 61)]);
        assert_eq!(bench.received(), [frame(1, 61)]);
        // The next frame's end is taken as this frame's.
        bench.machine.model(|nic| nic.inject(Fault::NoEnd));
        bench.arrive([frame(0, 60), frame(1, 61), frame(2, 62)]);
        assert_eq!(bench.received(), [frame(2, 62)]);
        // A frame without an end beyond the longest frame.
        bench.machine.model(|nic| (0..7).for_each(|_| nic.inject(Fault::NoEnd)));
        bench.arrive((0..9).map(|n| frame(n, 60 + n)));
        assert_eq!(bench.received(), [frame(8, 68)]);
        assert_eq!(bench.port.counters().rx_errors, 3, "{kind:?}");
        (0..1500).for_each(|n| bench.works(n % 1000));
    }
}

#[test]
fn a_card_that_receives_in_the_wrong_place_is_reset() {
    for kind in ALL {
        let mut bench = open(kind);
        bench.machine.model(|nic| nic.inject(Fault::ReceivesAt(3)));
        bench.arrive([frame(0, 60)]);
        assert_eq!(bench.received().len(), 0);
        bench.watch(10);
        let notices = bench.notices();
        assert!(notices[0].1.contains("not in order"), "{kind:?}: {notices:?}");
        assert_eq!(bench.port.counters().resets, 1);
        (0..1500).for_each(|n| bench.works(n % 1000));
    }
}

#[test]
fn a_frame_that_is_written_twice_comes_once() {
    for kind in ALL {
        let mut bench = open(kind);
        for n in 0..2000 {
            bench.machine.model(|nic| nic.inject(Fault::ReceivesTwice));
            bench.works(n % 1000);
        }
        assert_eq!(bench.port.counters().rx_frames, 2000);
    }
}

#[test]
fn frames_without_a_buffer_are_counted() {
    let mut bench = open(Kind::E1000e);
    bench.arrive((0..2000).map(|n| frame(n, 60)));
    bench.watch(1);
    let received = bench.received().len();
    assert!((100..2000).contains(&received));
    assert_eq!(bench.port.counters().rx_missed as usize + received, 2000);
    bench.works(1);
}

#[test]
fn silent_or_refusing_physical_function_is_blamed() {
    for (fault, wanted) in [
        (Fault::Deaf, "gets no answer"),
        (Fault::Refuses(1), "refused a reset"),
        (Fault::Refuses(5), "refused frames of that length"),
        (Fault::Refuses(6), "refused multicast"),
    ] {
        let machine = machine(Kind::IgbVf);
        machine.model(|nic| nic.inject(fault));
        let why = try_open(machine, None).err().unwrap();
        assert!(why.contains(wanted), "{why}");
    }
}

#[test]
fn a_virtual_function_follows_its_physical_one() {
    let mut bench = open(Kind::IgbVf);
    bench.works(1);
    bench.machine.model(|nic| nic.reset_physical_function());
    bench.watch(10);
    let notices = bench.notices();
    assert!(
        notices[0].1.contains("set up anew") && notices[1].1.contains("works again"),
        "{notices:?}"
    );
    bench.works(2);
    // An unsolicited message is no reason for a reset, but the loss of the virtual function's state is.
    bench.machine.model(|nic| nic.ping(false));
    bench.watch(10);
    assert_eq!(bench.notices(), []);
    bench.machine.model(|nic| nic.ping(true));
    bench.watch(10);
    assert!(bench.notices()[0].1.contains("set up anew"));
    bench.works(2);
    // The physical function stays away for long.
    bench.machine.model(|nic| {
        nic.reset_physical_function();
        nic.inject(Fault::Deaf);
    });
    bench.watch(60);
    assert!(!bench.port.link_up());
    bench.machine.model(Nic::repair);
    bench.watch(40);
    bench.works(3);
    assert!(bench.port.link_up());
}

#[test]
fn a_port_that_is_dropped_touches_no_memory() {
    for kind in ALL {
        let Bench { machine, port } = open(kind);
        drop(port);
        assert!(!machine.model(|nic| models::Function::config(nic).is_bus_master()), "{kind:?}");
    }
}
