//! The driver of vmxnet3 on the model, with and without faults.

use super::network_card::{NetworkCard, plain, try_open};
use drivers::driver::Class;
use drivers::hal::{Packet, Platform, TransmitError, Window};
use metal::Metal;
use models::vmxnet3::{Fault, MAC, Vmxnet3};

type Bench = super::network_card::Bench<Vmxnet3>;

fn machine() -> Metal<Vmxnet3> {
    Metal::new(Vmxnet3::new(3), 8 << 20)
}

fn open(mtu: u16) -> Bench {
    try_open(machine(), Some(mtu)).unwrap()
}

fn frame(n: usize, len: usize) -> Vec<u8> {
    Vmxnet3::frame(n, len)
}

#[test]
fn frames_of_every_length_come_and_go_around_the_rings() {
    for mtu in [1500, 9000] {
        let mut bench = open(mtu);
        assert_eq!((bench.port.mac(), bench.port.mtu()), (MAC, mtu.into()));
        assert!(bench.port.link_up() && bench.port.wakes());
        bench.goes_around_the_rings(mtu.into());
    }
    assert_eq!(open(9216).port.mtu(), 9000, "limited by the device");
}

#[test]
fn payload_is_sent_without_a_copy() {
    let mut bench = open(9000);
    let lengths = [1, 300, 4096];
    let mut part = |n: usize| {
        let window = bench.machine.arena().alloc(lengths[n], 64).unwrap();
        let window = window.slice(0, lengths[n]).unwrap();
        window.write(0, &frame(n, lengths[n])).unwrap();
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
        (0..payload.len()).for_each(|n| all.extend(frame(n, lengths[n])));
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
    let mut bench = open(1500);
    let mut taken = 0;
    while bench.port.transmit(&plain(&frame(taken, 64))).is_ok() {
        taken += 1;
    }
    assert!(taken >= 240 && !bench.port.has_room() && !bench.port.pending());
    bench.port.set_interrupts(true);
    bench.port.flush();
    bench.machine.run();
    assert_eq!(bench.sent().len(), taken);
    assert_eq!(bench.port.counters().interrupts, 1);
    assert!(bench.port.has_room() && bench.port.pending());
    bench.port.set_interrupts(false);
    bench.works(1);
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    for vectors in [3, 0] {
        let mut bench = try_open(Metal::new(Vmxnet3::new(vectors), 8 << 20), None).unwrap();
        let raised = |bench: &Bench| bench.port.counters().interrupts;
        bench.arrive([frame(1, 60)]);
        assert_eq!(raised(&bench), 0, "not armed");
        assert_eq!(bench.received().len(), 1);
        bench.port.set_interrupts(true);
        let before = raised(&bench);
        bench.arrive([frame(1, 60)]);
        assert_eq!(raised(&bench), before + 1);
        assert!(bench.port.pending());
        bench.port.set_interrupts(false);
        bench.arrive([frame(1, 60)]);
        assert_eq!(raised(&bench), before + 1);
    }
}

#[test]
fn a_lost_interrupt_loses_no_frame() {
    let mut bench = open(1500);
    bench.machine.model(|nic| nic.inject(Fault::NoInterrupts));
    bench.port.set_interrupts(true);
    bench.arrive([frame(1, 60)]);
    assert!(bench.port.pending());
    assert_eq!(bench.received().len(), 1);
}

#[test]
fn unusable_device_is_refused_with_the_cause() {
    for (fault, wanted) in [
        (Fault::NoVersion, "not version 1"),
        (Fault::NoAddress, "no MAC address"),
        (Fault::NotActive, "refuses to be activated"),
    ] {
        let machine = machine();
        machine.model(|nic| nic.inject(fault));
        let why = try_open(machine, None).err().unwrap();
        assert!(why.contains(wanted), "{why}");
    }
    let mut machine = machine();
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    machine.pull_out(true);
    assert!(device.open_port(&mut machine, &|_| None, &clock).is_err());
}

#[test]
fn all_ones_are_a_device_that_is_not_there() {
    let mut bench = open(1500);
    bench.machine.pull_out(true);
    bench.watch(3);
    let notices = bench.notices();
    assert!(notices.len() == 1 && notices[0].1.contains("removed"), "{notices:?}");
    while bench.port.transmit(&plain(&frame(0, 60))).is_ok() {}
    assert!(!bench.port.link_up() && !bench.port.has_room() && !bench.port.pending());
}

#[test]
fn link_changes_are_noticed() {
    let mut bench = open(1500);
    for _ in 0..3 {
        bench.machine.model(|nic| nic.link = false);
        bench.send(&frame(0, 60));
        bench.watch(100);
        assert!(!bench.port.link_up());
        bench.machine.model(|nic| nic.link = true);
        bench.machine.run();
        assert!(bench.port.link_up());
        assert_eq!(bench.sent().len(), 1);
        bench.watch(1);
    }
    assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
}

#[test]
fn a_device_that_hangs_stops_or_loses_its_place_is_reset_and_goes_on() {
    for (fault, wanted) in [
        (Fault::NeverCompletes, "does not send"),
        (Fault::CompletesAnother(3), "not in order"),
        (Fault::CompletesTwice, "not in order"),
        (Fault::ReceivesAt(3), "not in order"),
        (Fault::Stopped, "stopped a queue"),
    ] {
        let mut bench = open(1500);
        bench.works(0);
        bench.machine.model(|nic| nic.inject(fault));
        bench.arrive([frame(0, 60)]);
        bench.received();
        bench.send(&frame(0, 60));
        bench.send(&frame(1, 60));
        bench.watch(1);
        bench.machine.model(|nic| nic.faults_that_last_end());
        bench.watch(9);
        let notices = bench.notices();
        assert!(notices.len() == 2 && notices[0].1.contains(wanted), "{fault:?}: {notices:?}");
        assert!(notices[1].1.contains("works again"), "{notices:?}");
        assert_eq!(bench.port.counters().resets, 1);
        bench.sent();
        (0..3000).for_each(|n| bench.works(n % 1000));
        assert_eq!(bench.notices(), []);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn a_device_that_is_not_activated_after_a_reset_is_given_up() {
    let mut bench = open(1500);
    bench.machine.model(|nic| {
        nic.inject(Fault::NeverCompletes);
        nic.inject(Fault::NotActive);
    });
    bench.send(&frame(0, 60));
    bench.watch(10);
    let notices = bench.notices();
    assert!(notices[1].1.contains("not activated after a reset"), "{notices:?}");
    assert!(!bench.port.link_up());
}

#[test]
fn wrong_lengths_and_damaged_frames_are_counted_and_dropped() {
    let mut bench = open(1500);
    for fault in [
        Fault::Length(0),
        Fault::Length(13),
        Fault::Length(1519),
        Fault::Length(0x3fff),
        Fault::Damaged,
    ] {
        bench.machine.model(|nic| nic.inject(fault));
        bench.arrive([frame(0, 60), frame(1, 61), frame(2, 9000)]);
        assert!(bench.received() == [frame(1, 61)], "{fault:?}");
    }
    assert_eq!(bench.port.counters().rx_errors, 10);
    bench.works(1);
}

#[test]
fn frames_without_a_buffer_are_counted() {
    let mut bench = open(1500);
    bench.arrive((0..2000).map(|n| frame(n, 60)));
    bench.watch(1);
    let received = bench.received().len();
    assert_eq!(bench.port.counters().rx_missed as usize + received, 2000);
    bench.works(1);
}

#[test]
fn frames_may_be_held_and_released_in_any_order() {
    let mut bench = open(1500);
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
    }
}
