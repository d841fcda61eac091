//! The driver of Cisco's VIC on the model, with and without faults.

use super::network_card::{NetworkCard, plain, try_open};
use drivers::driver::Class;
use drivers::hal::{Packet, Platform, TransmitError, UdpFlow, Window};
use metal::Metal;
use models::enic::{Config, Enic, Fault, MAC, NEWER_VIRTUAL, PHYSICAL, VIRTUAL};

type Bench = super::network_card::Bench<Enic>;

/// The steered flow.
const FLOW: UdpFlow = UdpFlow { address: [10, 1, 0, 1], port: 4000 };

fn machine(settings: Config) -> Metal<Enic> {
    Metal::new(Enic::new(settings), 8 << 20)
}

/// Configurations with each command interface: ring and mailbox.
fn each_command_interface() -> [Config; 2] {
    [true, false].map(|devcmd2| Config { devcmd2, ..Config::default() })
}

fn open(settings: Config, mtu: u16) -> Bench {
    let mut bench = try_open(machine(settings), Some(mtu)).unwrap();
    bench.watch(1);
    bench
}

/// A frame of this length to the interface.
fn frame(n: usize, len: usize) -> Vec<u8> {
    Enic::frame(n, len)
}

/// A UDP datagram to this flow.
fn datagram(flow: UdpFlow, n: u8) -> Vec<u8> {
    let mut frame = frame(n.into(), 60);
    frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 0]);
    frame[20..24].copy_from_slice(&[0, 0, 8, 17]);
    frame[30..34].copy_from_slice(&flow.address);
    frame[36..38].copy_from_slice(&flow.port.to_be_bytes());
    frame
}

impl Bench {
    fn inject(&self, fault: Fault) {
        self.machine.model(|nic| nic.inject(fault));
    }
}

#[test]
fn interfaces_are_found_with_their_address() {
    for device in [PHYSICAL, VIRTUAL] {
        for settings in each_command_interface() {
            let settings = Config { device, ..settings };
            let mut bench = try_open(machine(settings), None).unwrap();
            assert_eq!((bench.port.mac(), bench.port.mtu()), (MAC, 9000));
            bench.machine.run();
            assert!(bench.port.link_up() && bench.port.wakes());
            bench.works(1);
            assert_eq!(bench.complaints(), [""; 0]);
        }
    }
    // It is registered with the physical function by a channel that the driver does not have.
    let newer = machine(Config { device: NEWER_VIRTUAL, ..Config::default() });
    assert!(newer.find().take(Class::Port).is_empty());
    let settings = Config { mtu: 1400, ..Config::default() };
    assert_eq!(
        try_open(machine(settings), Some(9000)).unwrap().port.mtu(),
        1400,
        "limited by the port"
    );
}

#[test]
fn size_of_completions_that_an_earlier_system_left_is_undone() {
    for settings in each_command_interface() {
        let machine = machine(settings);
        machine.model(|nic| nic.entry_size = 64);
        let mut bench = try_open(machine, Some(1500)).unwrap();
        bench.watch(1);
        (0..100).for_each(|n| bench.works(n % 10));
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn frames_of_every_length_come_and_go_around_the_rings() {
    for (settings, mtu) in each_command_interface().into_iter().zip([1500, 9000]) {
        let mut bench = open(settings, mtu);
        bench.goes_around_the_rings(mtu.into());
    }
}

#[test]
fn payload_is_sent_without_a_copy() {
    let mut bench = open(Config::default(), 9000);
    let lengths = [1, 300, 4096];
    let mut part = |n: usize| {
        let window = bench.machine.arena().alloc(lengths[n], 64).unwrap();
        let window = window.slice(0, lengths[n]).unwrap();
        window.write(0, &frame(n, lengths[n].max(6))[..lengths[n]]).unwrap();
        window
    };
    let windows: [Window; 3] = [part(0), part(1), part(2)];
    for round in 0..500 {
        let header = frame(9, 14 + round % 90);
        let payload = &windows[..round % 4];
        let trailer = &[1, 2, 3, 4][..if round % 2 == 0 { 4 } else { 0 }];
        bench.port.transmit(&Packet { header: &header, payload, trailer }).unwrap();
        bench.port.flush();
        bench.machine.run();
        let mut all = header.clone();
        let parts = (0..payload.len()).map(|n| frame(n, lengths[n].max(6))[..lengths[n]].to_vec());
        parts.for_each(|part| all.extend(part));
        all.extend(trailer);
        all.resize(all.len().max(60), 0);
        assert!(bench.sent() == [all], "{round}");
    }
    let too_long = frame(0, 9019);
    assert_eq!(bench.port.transmit(&plain(&too_long)), Err(TransmitError::TooLarge));
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn full_queue_refuses_packets_until_it_has_room() {
    for vectors in [8, 1] {
        let mut bench = open(Config { vectors, ..Config::default() }, 1500);
        let mut taken = 0;
        while bench.port.transmit(&plain(&frame(taken, 64))).is_ok() {
            taken += 1;
        }
        assert!(taken >= 240 && !bench.port.has_room() && !bench.port.pending());
        bench.port.set_interrupts(true);
        bench.port.flush();
        bench.machine.run();
        assert_eq!(bench.sent().len(), taken);
        assert_eq!(bench.port.counters().interrupts, 1, "{vectors}");
        assert!(bench.port.has_room() && bench.port.pending());
        assert!(!bench.port.is_sending());
        bench.port.set_interrupts(false);
        bench.works(1);
    }
}

#[test]
fn a_burst_without_an_end_is_reported_now_and_then() {
    let mut bench = open(Config::default(), 1500);
    for n in 0..2000 {
        if bench.port.transmit(&plain(&frame(n, 64))).is_err() {
            bench.port.flush();
            bench.machine.run();
            bench.port.transmit(&plain(&frame(n, 64))).unwrap();
        }
    }
    bench.port.flush();
    assert!(bench.port.is_sending());
    bench.machine.run();
    assert!(!bench.port.is_sending());
    assert_eq!(bench.sent().len(), 2000);
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    let mut bench = open(Config::default(), 1500);
    let raised = |bench: &Bench| bench.port.counters().interrupts;
    bench.arrive([frame(1, 60)]);
    assert_eq!(raised(&bench), 0, "not armed");
    assert_eq!(bench.received().len(), 1);
    for n in 1..100 {
        bench.port.set_interrupts(true);
        assert_eq!((raised(&bench), bench.port.pending()), (n - 1, false));
        bench.arrive([frame(1, 60), frame(2, 60)]);
        assert_eq!(raised(&bench), n);
        assert!(bench.port.pending());
        bench.port.set_interrupts(false);
        bench.arrive([frame(1, 60)]);
        assert_eq!((raised(&bench), bench.received().len()), (n, 3));
    }
    // A frame that arrives before arming raises an interrupt.
    bench.arrive([frame(1, 60)]);
    bench.port.set_interrupts(true);
    assert!(bench.port.pending());
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_lost_interrupt_loses_no_frame() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::NoInterrupts);
    bench.port.set_interrupts(true);
    bench.arrive([frame(1, 60)]);
    assert_eq!(bench.port.counters().interrupts, 0);
    assert!(bench.port.pending());
    assert_eq!(bench.received().len(), 1);
}

#[test]
fn interface_with_only_intx_is_polled() {
    let settings = Config { vectors: 0, ..Config::default() };
    let mut bench = open(settings, 1500);
    assert!(!bench.port.wakes());
    bench.works(1);
}

#[test]
fn unusable_interface_is_refused_with_the_cause() {
    let few = Config { receive_queues: 0, ..Config::default() };
    for (settings, fault, wanted) in [
        (Config::default(), Fault::NoTable, "no resource table"),
        (Config::default(), Fault::TableBeyondBar, "wrong about its work queues"),
        (Config::default(), Fault::TableWithoutEnd, "wrong about its end"),
        (Config::default(), Fault::NoCompletionQueues, "too few completion queues"),
        (few, Fault::NoInterrupts, "too few receive queues"),
        (Config::default(), Fault::NoAddress, "no MAC address"),
        (Config::default(), Fault::AllOnes, "all ones"),
        (Config::default(), Fault::StaysInProgress, "does not complete opening"),
        (Config::default(), Fault::NeverDone(9), "GET_MAC_ADDR: no answer within 3 s"),
        (Config::default(), Fault::NeverDone(23), "within 3 s"),
        (Config::default(), Fault::Fails(35, 1), "INIT: an argument is invalid"),
        (Config::default(), Fault::Fails(21, 2), "NOTIFY: it cannot access memory"),
        (Config::default(), Fault::Fails(28, 77), "ENABLE_WAIT: error 77"),
    ] {
        for devcmd2 in [true, false] {
            let machine = machine(Config { devcmd2, ..settings });
            machine.model(|nic| nic.inject(fault));
            let why = try_open(machine, None).err().unwrap_or_else(|| format!("{fault:?} works"));
            // The driver does not wait for INIT on the ring, so it does not notice the failure.
            if devcmd2 && fault == Fault::Fails(35, 1) {
                continue;
            }
            assert!(why.contains(wanted), "{fault:?}: {why}");
        }
    }
    let mut machine = machine(Config::default());
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    machine.pull_out(true);
    assert!(device.open_port(&mut machine, &|_| None, &clock).is_err());
}

#[test]
fn open_without_memory_is_refused() {
    for kib in [4, 16, 64, 256] {
        let machine = Metal::new(Enic::new(Config::default()), kib << 10);
        let why = try_open(machine, None).err().unwrap_or_else(|| format!("{kib} KiB are enough"));
        assert!(why.contains("give the machine more memory"), "{why}");
    }
}

#[test]
fn mailbox_replaces_a_failing_command_ring() {
    for fault in [Fault::ResultColour, Fault::Fails(57, 1)] {
        let machine = machine(Config::default());
        machine.model(|nic| nic.inject(fault));
        let mut bench = try_open(machine, Some(1500)).unwrap();
        bench.watch(1);
        bench.works(1);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn all_ones_are_an_interface_that_is_not_there() {
    for settings in each_command_interface() {
        let mut bench = open(settings, 1500);
        bench.machine.pull_out(true);
        bench.watch(3);
        let notices = bench.notices();
        assert!(notices.len() == 1 && notices[0].1.contains("removed"), "{notices:?}");
        while bench.port.transmit(&plain(&frame(0, 60))).is_ok() {}
        assert!(!bench.port.link_up() && !bench.port.has_room() && !bench.port.pending());
        assert!(bench.received().is_empty());
    }
}

#[test]
fn interface_removed_during_a_reset_is_given_up() {
    for settings in each_command_interface() {
        let mut bench = open(settings, 1500);
        bench.inject(Fault::QueueError(0));
        bench.watch(1);
        bench.machine.pull_out(true);
        bench.watch(9);
        let notices = bench.notices();
        assert!(notices.len() == 2 && notices[1].1.contains("removed"), "{notices:?}");
    }
}

#[test]
fn link_changes_are_noticed() {
    let mut bench = open(Config::default(), 1500);
    for _ in 0..3 {
        bench.machine.model(|nic| nic.link = false);
        bench.machine.run();
        bench.send(&frame(0, 60));
        assert!(!bench.port.link_up());
        bench.watch(100);
        bench.machine.model(|nic| nic.link = true);
        bench.machine.run();
        assert!(bench.port.link_up());
        bench.watch(1);
        bench.works(1);
    }
    assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
}

#[test]
fn an_interface_that_hangs_stops_or_loses_its_place_is_reset_and_goes_on() {
    for settings in each_command_interface() {
        for (fault, wanted) in [
            (Fault::NeverCompletes, "does not send"),
            (Fault::CompletionColour, "does not send"),
            (Fault::CompletesAnother(3), "not in order"),
            (Fault::CompletesTwice, "not in order"),
            (Fault::CompletesQueue(1), "not in order"),
            (Fault::ReceivesAt(3), "not in order"),
            (Fault::ReceivesTwice, "not in order"),
            (Fault::ReceiveColour, "not in order"),
            (Fault::QueueError(0), "stopped a queue"),
            (Fault::Fatal, "reported a fatal error"),
            (Fault::NotifySum, "wrong checksum"),
            (Fault::NeverDone(4), "does not complete commands"),
        ] {
            let mut bench = open(settings, 1500);
            bench.works(0);
            bench.inject(fault);
            bench.arrive([frame(0, 60), frame(1, 60), frame(2, 60)]);
            bench.received();
            for n in 0..3 {
                // Before the reset the queue may be full.
                let _ = bench.port.transmit(&plain(&frame(n, 60)));
                bench.port.flush();
                bench.machine.run();
            }
            bench.watch(if fault == Fault::NotifySum { 3 } else { 2 });
            if fault == Fault::NeverDone(4) {
                bench.watch(2);
            }
            bench.machine.model(|nic| nic.faults_that_last_end());
            bench.watch(15);
            let notices = bench.notices();
            assert!(notices.len() == 2 && notices[0].1.contains(wanted), "{fault:?}: {notices:?}");
            assert!(notices[1].1.contains("works again"), "{notices:?}");
            assert_eq!(bench.port.counters().resets, 1);
            assert!(bench.port.link_up());
            bench.sent();
            (0..1500).for_each(|n| bench.works(n % 1000));
            assert_eq!(bench.notices(), []);
            assert_eq!(bench.complaints(), [""; 0], "{fault:?}");
        }
    }
}

#[test]
fn interface_that_fails_a_reset_is_given_up() {
    for settings in each_command_interface() {
        for fault in [
            Fault::StaysInProgress,
            Fault::StuckRunning,
            Fault::NeverDone(19),
            Fault::NeverDone(28),
            Fault::Fails(21, 4),
        ] {
            let mut bench = open(settings, 1500);
            bench.inject(fault);
            bench.inject(Fault::QueueError(0));
            bench.watch(30);
            let notices = bench.notices();
            assert!(
                notices[1].1.contains("does not come back from a reset"),
                "{fault:?}: {notices:?}"
            );
            assert!(!bench.port.link_up());
            assert!(bench.port.transmit(&plain(&frame(0, 60))).is_err());
            bench.machine.model(|nic| nic.repair());
            bench.arrive([frame(0, 60)]);
            assert!(bench.received().is_empty(), "the device cannot reach memory");
        }
    }
}

#[test]
fn frame_held_across_a_reset_has_no_bytes() {
    let mut bench = open(Config::default(), 1500);
    bench.arrive([frame(0, 60)]);
    let held = bench.port.receive().unwrap();
    assert_eq!(bench.port.bytes(&held), frame(0, 60));
    bench.inject(Fault::QueueError(0));
    bench.watch(15);
    assert!(bench.port.bytes(&held).is_empty());
    bench.port.recycle(held);
    (0..1500).for_each(|n| bench.works(n % 1000));
}

#[test]
fn wrong_lengths_and_damaged_frames_are_counted_and_dropped() {
    let mut bench = open(Config::default(), 1500);
    for fault in [
        Fault::Length(0),
        Fault::Length(13),
        Fault::Length(1519),
        Fault::Length(0x3fff),
        Fault::Damaged,
        Fault::NoEnd,
    ] {
        bench.inject(fault);
        bench.arrive([frame(0, 60), frame(1, 61), frame(2, 9000)]);
        assert!(bench.received() == [frame(1, 61)], "{fault:?}");
    }
    assert_eq!(bench.port.counters().rx_errors, 12);
    bench.works(1);
}

#[test]
fn frames_without_a_buffer_are_counted() {
    let mut bench = open(Config::default(), 1500);
    bench.arrive((0..2000).map(|n| frame(n, 60)));
    bench.watch(2);
    let received = bench.received().len();
    assert_eq!(bench.port.counters().rx_missed as usize + received, 2000);
    bench.works(1);
}

#[test]
fn frames_may_be_held_and_released_in_any_order() {
    let mut bench = open(Config::default(), 1500);
    for round in 0..300 {
        let frames: Vec<Vec<u8>> = (0..9).map(|n| frame(n, 60 + n)).collect();
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
}

#[test]
fn a_steered_flow_has_buffers_of_its_own() {
    for settings in each_command_interface() {
        let mut bench = open(settings, 1500);
        assert!(bench.port.steer(FLOW, bench.machine.arena()));
        bench.watch(3);
        assert_eq!(bench.machine.model(|nic| nic.filters()), 1);
        // A flood of other frames uses up all other buffers.
        bench.arrive((0..2000).map(|n| frame(n, 60)));
        let ours: Vec<Vec<u8>> = (0..9).map(|n| datagram(FLOW, n)).collect();
        bench.arrive(ours.clone());
        let all = bench.received();
        assert_eq!(all[..9], ours, "first and complete");
        assert!(all.len() < 2000 && all[9..].iter().all(|one| !ours.contains(one)));
        // Datagrams to other ports and addresses are not steered.
        let other = UdpFlow { port: 4001, ..FLOW };
        let mixed = [frame(1, 60), datagram(other, 1), datagram(FLOW, 2)];
        bench.arrive(mixed.clone());
        let held: Vec<_> = std::iter::from_fn(|| bench.port.receive()).collect();
        let bytes: Vec<_> = held.iter().map(|one| bench.port.bytes(one).to_vec()).collect();
        assert_eq!(bytes, [2, 0, 1].map(|n| mixed[n].clone()));
        held.into_iter().rev().for_each(|one| bench.port.recycle(one));
        for n in 0..1500u32 {
            bench.arrive([datagram(FLOW, n as u8)]);
            assert_eq!(bench.received(), [datagram(FLOW, n as u8)]);
        }
        // The flow is steered again after a reset.
        bench.inject(Fault::QueueError(1));
        bench.watch(15);
        assert_eq!(bench.notices().len(), 2);
        assert_eq!(bench.machine.model(|nic| nic.filters()), 1);
        bench.arrive((0..2000).map(|n| frame(n, 60)).chain([datagram(FLOW, 7)]));
        assert_eq!(bench.received()[0], datagram(FLOW, 7));
        bench.port.unsteer(FLOW);
        bench.watch(3);
        assert_eq!(bench.machine.model(|nic| nic.filters()), 0);
        bench.arrive([frame(1, 60), datagram(FLOW, 7)]);
        assert_eq!(bench.received(), [frame(1, 60), datagram(FLOW, 7)]);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn filters_that_are_refused_leave_everything_as_it_was() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::Fails(58, 10));
    assert!(bench.port.steer(FLOW, bench.machine.arena()));
    bench.watch(3);
    let notices = bench.notices();
    assert!(notices.len() == 1 && notices[0].1.contains("refuses a filter"), "{notices:?}");
    bench.arrive([frame(1, 60), datagram(FLOW, 7)]);
    assert_eq!(bench.received(), [frame(1, 60), datagram(FLOW, 7)]);
    bench.port.unsteer(FLOW);
    bench.works(1);

    let settings = Config { receive_queues: 1, ..Config::default() };
    let mut bench = open(settings, 1500);
    assert!(!bench.port.steer(FLOW, bench.machine.arena()), "no second queue");
    bench.works(1);
}

#[test]
fn filters_come_and_go_while_the_firmware_is_slow() {
    for settings in each_command_interface() {
        let mut bench = open(settings, 1500);
        let flow = |port| UdpFlow { port, ..FLOW };
        for round in 0..36u16 {
            for n in 0..4 {
                assert!(bench.port.steer(flow(n), bench.machine.arena()), "{round}");
            }
            bench.watch(u32::from(round % 7));
            (0..4).for_each(|n| bench.port.unsteer(flow(n)));
            bench.watch(u32::from(round % 3));
        }
        bench.watch(20);
        assert_eq!(bench.machine.model(|nic| nic.filters()), 0);
        bench.works(1);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}
