//! The drivers of the 82599 and of its virtual function on their models, with and without faults.

use super::network_card::{Bench, NetworkCard, plain, try_open};
use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Severity, TransmitError, Window};
use metal::Metal;
use models::ixgbe::{Config, Fault, Ixgbe, IxgbeVf, MAC};

/// Common parts of both models.
pub trait Model: NetworkCard {
    const DRIVER: &'static str;
    const IS_VIRTUAL: bool;
    /// The register with the link state.
    const LINKS: u64;
    fn make(vectors: u16) -> Self;
    fn inject(&mut self, fault: Fault);
    fn repair(&mut self);
    fn link(&mut self) -> &mut bool;
}

macro_rules! model {
    ($name:ident, $driver:literal, $is_virtual:literal, $links:literal) => {
        impl Model for $name {
            const DRIVER: &'static str = $driver;
            const IS_VIRTUAL: bool = $is_virtual;
            const LINKS: u64 = $links;
            fn make(vectors: u16) -> Self {
                $name::new(Config { vectors, ..Config::default() })
            }
            fn inject(&mut self, fault: Fault) {
                $name::inject(self, fault);
            }
            fn repair(&mut self) {
                $name::repair(self);
            }
            fn link(&mut self) -> &mut bool {
                &mut self.link
            }
        }
    };
}

model!(Ixgbe, "ixgbe", false, 0x42a4);
model!(IxgbeVf, "ixgbevf", true, 0x10);

/// Defines a test for both models.
macro_rules! both {
    ($(#[$comment:meta])* fn $name:ident<$model:ident>() $body:block) => {
        $(#[$comment])*
        #[test]
        fn $name() {
            fn of<$model: Model>() $body
            of::<Ixgbe>();
            of::<IxgbeVf>();
        }
    };
}

fn machine<M: Model>() -> Metal<M> {
    Metal::new(M::make(3), 8 << 20)
}

/// A machine whose function has a fault from the beginning.
fn faulty<M: Model>(fault: Fault) -> Metal<M> {
    let machine = machine::<M>();
    machine.model(|nic| nic.inject(fault));
    machine
}

fn why_not<M: Model>(fault: Fault) -> String {
    try_open(faulty::<M>(fault), None).err().unwrap()
}

fn open<M: Model>() -> Bench<M> {
    try_open(machine(), None).unwrap()
}

fn jumbo<M: Model>() -> Bench<M> {
    try_open(machine(), Some(9000)).unwrap()
}

/// A frame to the port that passes the filters.
fn frame(n: usize, len: usize) -> Vec<u8> {
    Ixgbe::frame(n, len)
}

impl<M: Model> Bench<M> {
    fn inject(&self, fault: Fault) {
        self.machine.model(|nic| nic.inject(fault));
    }

    fn is_content(&self) {
        assert_eq!(self.complaints(), [""; 0], "{}", M::DRIVER);
    }
}

both! {
    fn cards_are_found_with_their_address<M>() {
        let machine = machine::<M>();
        assert_eq!(machine.find().take(Class::Port)[0].driver(), M::DRIVER);
        let mut bench = try_open(machine, None).unwrap();
        assert_eq!((bench.port.mac(), bench.port.mtu()), (MAC, 1500));
        assert!(bench.port.link_up() && bench.port.wakes());
        bench.is_content();
    }
}

both! {
    fn frames_of_every_length_come_and_go_around_the_rings<M>() {
        let mut bench = jumbo::<M>();
        assert_eq!(bench.port.mtu(), 9000);
        bench.goes_around_the_rings(9000);
    }
}

both! {
    fn payload_is_sent_without_a_copy<M>() {
        let mut bench = jumbo::<M>();
        let lengths = [1, 300, 4096, 2000];
        let windows: Vec<Window> = (0..)
            .zip(lengths)
            .map(|(n, len)| {
                let window = bench.machine.arena().alloc(len, 64).unwrap().slice(0, len).unwrap();
                window.write(0, &vec![n as u8 + 1; len]).unwrap();
                window
            })
            .collect();
        for header_len in [14, 47, 54, 96, 97, 192, 300, 1500] {
            for used in 0..=4 {
                for trailer_len in [0, 4, 16] {
                    let (header, trailer) = (frame(9, header_len), vec![5; trailer_len]);
                    let payload = &windows[..used];
                    let packet = Packet { header: &header, payload, trailer: &trailer };
                    bench.port.transmit(&packet).unwrap();
                    bench.port.flush();
                    bench.machine.run();
                    let mut all = header.clone();
                    (0..used).for_each(|n| all.extend(vec![n as u8 + 1; lengths[n]]));
                    all.extend(&trailer);
                    all.resize(all.len().max(60), 0);
                    assert_eq!(bench.sent(), [all]);
                }
            }
        }
        bench.is_content();
        assert_eq!(bench.port.transmit(&plain(&frame(0, 9019))), Err(TransmitError::TooLarge));
        assert_eq!(bench.port.transmit(&plain(&[0; 13])), Err(TransmitError::TooLarge));
    }
}

both! {
    fn full_queue_refuses_packets_until_it_has_room<M>() {
        let mut bench = open::<M>();
        for _ in 0..3 {
            let mut taken = 0;
            while bench.port.transmit(&plain(&frame(taken, 64))).is_ok() {
                taken += 1;
            }
            assert!(taken >= 240, "{taken}");
            assert!(!bench.port.has_room() && !bench.port.pending());
            bench.port.set_interrupts(true);
            let before = bench.port.counters().interrupts;
            bench.port.flush();
            bench.machine.run();
            assert_eq!(bench.sent().len(), taken);
            assert!(bench.port.counters().interrupts > before, "{}", M::DRIVER);
            assert!(bench.port.has_room() && bench.port.pending());
            bench.port.set_interrupts(false);
            bench.works(1);
            assert!(!bench.port.pending());
        }
        bench.is_content();
    }
}

both! {
    fn interrupts_are_raised_only_when_armed<M>() {
        for vectors in [3, 0] {
            // A virtual function always has its vectors.
            let mut bench = try_open(Metal::new(M::make(vectors), 8 << 20), None).unwrap();
            assert!(bench.port.wakes());
            let raised = |bench: &Bench<M>| bench.port.counters().interrupts;
            bench.arrive([frame(1, 60)]);
            bench.send(&frame(1, 60));
            assert_eq!(raised(&bench), 0, "{}: not armed", M::DRIVER);
            for round in 1..10 {
                assert_eq!(bench.received().len(), 1);
                bench.port.set_interrupts(true);
                assert!(!bench.port.pending());
                // Sent packets raise no interrupt while the queue has room.
                bench.send(&frame(1, 60));
                assert_eq!(raised(&bench), round - 1, "{} {vectors}", M::DRIVER);
                bench.arrive([frame(1, 60)]);
                assert_eq!(raised(&bench), round, "{} {vectors}", M::DRIVER);
                assert!(bench.port.pending());
                bench.port.set_interrupts(false);
                bench.send(&frame(1, 60));
            }
            bench.is_content();
        }
    }
}

both! {
    fn a_lost_interrupt_loses_no_frame<M>() {
        let mut bench = open::<M>();
        bench.inject(Fault::NoInterrupts);
        bench.port.set_interrupts(true);
        bench.arrive([frame(1, 60)]);
        assert!(bench.port.pending());
        assert_eq!(bench.received().len(), 1);
        bench.machine.model(M::repair);
        bench.works(1);
    }
}

both! {
    fn card_without_an_interrupt_is_polled<M>() {
        let mut machine = machine::<M>();
        machine.interrupts = 0;
        let mut bench = try_open(machine, None).unwrap();
        assert!(!bench.port.wakes());
        bench.port.set_interrupts(true);
        bench.works(1);
        bench.is_content();
    }
}

both! {
    fn frames_may_be_held_and_released_in_any_order<M>() {
        let mut bench = jumbo::<M>();
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
        bench.is_content();
    }
}

both! {
    fn link_changes_are_noticed<M>() {
        let mut bench = open::<M>();
        for _ in 0..3 {
            bench.machine.model(|nic| *nic.link() = false);
            // The driver has not noticed yet.
            bench.port.transmit(&plain(&frame(0, 60))).unwrap();
            bench.port.flush();
            assert!(!bench.port.link_up() && bench.port.is_sending());
            // The chip is reset once, so that it releases memory, however long the link stays down.
            bench.watch(100);
            assert!(!bench.port.is_sending());
            bench.port.transmit(&plain(&frame(1, 60))).unwrap();
            assert!(!bench.port.is_sending(), "packets sent without a link are dropped");
            bench.machine.model(|nic| *nic.link() = true);
            bench.machine.run();
            assert!(bench.port.link_up());
            bench.port.transmit(&plain(&frame(2, 60))).unwrap();
            bench.port.flush();
            bench.machine.run();
            assert_eq!(bench.sent(), [frame(2, 60)]);
            bench.watch(1);
        }
        assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
        bench.is_content();
    }
}

both! {
    fn all_ones_are_a_card_that_is_not_there<M>() {
        for pulled in [true, false] {
            let mut bench = open::<M>();
            bench.send(&frame(0, 60));
            match pulled {
                true => bench.machine.pull_out(true),
                false => bench.inject(Fault::AllOnes),
            }
            assert!(!bench.port.link_up());
            let news = bench.notices();
            assert_eq!(news.len(), 1);
            assert!(news[0].0 == Severity::Error && news[0].1.contains("pulled out"), "{news:?}");
            bench.watch(5);
            while bench.port.transmit(&plain(&frame(0, 60))).is_ok() {}
            bench.port.flush();
            assert!(bench.received().is_empty() && !bench.port.has_room());
            assert!(!bench.port.pending());
            assert_eq!(bench.notices(), []);
        }
        let why = why_not::<M>(Fault::AllOnes);
        assert!(why.contains("does not answer"), "{why}");
    }
}

both! {
    fn a_card_that_goes_while_it_is_opened_is_refused<M>() {
        let mut machine = machine::<M>();
        let device = machine.find().take(Class::Port).remove(0);
        let clock = machine.clock();
        machine.pull_out(true);
        assert!(device.open_port(&mut machine, &|_| None, &clock).is_err());
    }
}

both! {
    fn reset_that_never_ends_is_reported<M>() {
        let wanted = match M::IS_VIRTUAL {
            true => "no answer from the physical function's driver",
            false => "does not come out of reset",
        };
        let why = why_not::<M>(Fault::StuckReset);
        assert!(why.contains(wanted), "{why}");
        // The same while the card is in use.
        let mut bench = open::<M>();
        bench.inject(Fault::NeverReports);
        bench.inject(Fault::StuckReset);
        bench.send(&frame(0, 60));
        bench.watch(20);
        let news = bench.notices();
        assert!(news[0].1.contains("does not send"), "{news:?}");
        assert!(!bench.port.link_up());
        if M::IS_VIRTUAL {
            // The physical function's driver may recover.
            bench.machine.model(M::repair);
            bench.watch(40);
            bench.works(1);
        } else {
            assert!(news[1].1.contains("does not come out of a reset"), "{news:?}");
        }
    }
}

both! {
    fn a_card_that_does_not_report_is_reset_and_goes_on<M>() {
        let mut bench = open::<M>();
        bench.works(0);
        bench.inject(Fault::NeverReports);
        bench.send(&frame(0, 60));
        bench.sent();
        bench.watch(10);
        let news = bench.notices();
        assert_eq!(news.len(), 2, "{}: {news:?}", M::DRIVER);
        assert!(news[0].0 == Severity::Warning && news[0].1.contains("does not send"), "{news:?}");
        assert!(news[1].1.contains("works again"), "{news:?}");
        assert_eq!(bench.port.counters().resets, 1);
        (0..2000).for_each(|n| bench.works(n % 1000));
        bench.watch(100);
        assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 1));
        bench.is_content();
    }
}

both! {
    fn repeated_resets_are_reported_once<M>() {
        let mut bench = open::<M>();
        bench.inject(Fault::NeverReportsAgain);
        for _ in 0..20 {
            bench.send(&frame(0, 60));
            bench.watch(10);
        }
        let news = bench.notices();
        assert!(bench.port.counters().resets >= 10);
        assert!(news.len() < 10, "{news:?}");
        assert!(news.iter().any(|(_, text)| text.contains("again and again")), "{news:?}");
        bench.machine.model(M::repair);
        bench.watch(10);
        bench.works(1);
    }
}

both! {
    /// The driver polls the enable bit a limited number of times. A queue that does not work is noticed in use.
    fn queues_that_are_never_enabled_do_not_hang_the_driver<M>() {
        let mut bench = try_open(faulty::<M>(Fault::NeverEnabled), None).unwrap();
        bench.send(&frame(0, 60));
        bench.watch(10);
        let news = bench.notices();
        assert!(news[0].1.contains("does not send"), "{news:?}");
        bench.machine.model(M::repair);
        bench.inject(Fault::NeverReports);
        bench.send(&frame(0, 60));
        bench.watch(10);
        bench.works(1);
    }
}

both! {
    fn duplicate_or_misplaced_report_does_no_harm<M>() {
        let mut bench = open::<M>();
        bench.inject(Fault::ReportsTwice);
        (0..3000).for_each(|n| bench.works(n % 1000));
        bench.inject(Fault::ReportsAnother(5));
        bench.send(&frame(0, 60));
        bench.watch(10);
        let news = bench.notices();
        assert!(news[0].1.contains("does not send"), "{news:?}");
        (0..3000).for_each(|n| bench.works(n % 1000));
        assert_eq!(bench.port.counters().resets, 1);
    }
}

both! {
    fn wrong_lengths_are_counted_and_dropped<M>() {
        let mut bench = jumbo::<M>();
        for length in [0, 13, 2049, 9019, u16::MAX] {
            let before = bench.port.counters().rx_errors;
            bench.inject(Fault::Length(length));
            bench.arrive([frame(0, 60), frame(1, 61)]);
            assert_eq!(bench.received(), [frame(1, 61)], "{length}");
            assert_eq!(bench.port.counters().rx_errors, before + 1, "{length}");
            // The wrong length is in the last of several buffers.
            bench.inject(Fault::Length(length));
            bench.arrive([frame(0, 5000), frame(1, 5001)]);
            let received = bench.received();
            assert_eq!(received.last(), Some(&frame(1, 5001)), "{length}");
            assert!(received.iter().all(|one| one.len() <= 9018), "{length}");
        }
        bench.works(1);
    }
}

both! {
    fn damaged_and_unterminated_frames_are_dropped<M>() {
        let mut bench = jumbo::<M>();
        bench.inject(Fault::Damaged);
        bench.arrive([frame(0, 3000), frame(1, 61)]);
        assert_eq!(bench.received(), [frame(1, 61)]);
        // The next frame's end is taken as this frame's.
        bench.inject(Fault::NoEnd);
        bench.arrive([frame(0, 60), frame(1, 61), frame(2, 62)]);
        assert_eq!(bench.received(), [frame(2, 62)]);
        // A frame without an end beyond the longest frame.
        (0..7).for_each(|_| bench.inject(Fault::NoEnd));
        bench.arrive((0..9).map(|n| frame(n, 60 + n)));
        assert_eq!(bench.received(), [frame(8, 68)]);
        assert_eq!(bench.port.counters().rx_errors, 3, "{}", M::DRIVER);
        (0..1500).for_each(|n| bench.works(n % 1000));
    }
}

both! {
    /// The reader of a packet checks its checksums.
    fn frames_with_wrong_checksums_are_delivered<M>() {
        let mut bench = open::<M>();
        let mut one = frame(1, 60);
        one[12..34].copy_from_slice(&[
            8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 1, 2, 10, 1, 0, 1, 10, 1, 0, 2,
        ]);
        bench.arrive([one.clone()]);
        assert_eq!(bench.received(), [one]);
        assert_eq!(bench.port.counters().rx_errors, 0);
    }
}

both! {
    fn a_card_that_receives_in_the_wrong_place_is_reset<M>() {
        let mut bench = open::<M>();
        bench.inject(Fault::ReceivesAt(3));
        bench.arrive([frame(0, 60)]);
        assert_eq!(bench.received().len(), 0);
        bench.watch(10);
        let news = bench.notices();
        assert!(news[0].1.contains("not in order"), "{}: {news:?}", M::DRIVER);
        assert_eq!(bench.port.counters().resets, 1);
        (0..1500).for_each(|n| bench.works(n % 1000));
    }
}

both! {
    fn a_frame_that_is_written_twice_comes_once<M>() {
        let mut bench = open::<M>();
        for n in 0..2000 {
            bench.inject(Fault::ReceivesTwice);
            bench.works(n % 1000);
        }
        assert_eq!(bench.port.counters().rx_frames, 2000);
    }
}

both! {
    fn a_port_that_is_dropped_touches_no_memory<M>() {
        let Bench { machine, port } = open::<M>();
        drop(port);
        assert!(!machine.model(|nic| nic.config().is_bus_master()), "{}", M::DRIVER);
    }
}

both! {
    /// The register reports a link that is down as up: packets stay in the queue, and the card is reset.
    fn stuck_link_bit_does_no_harm<M>() {
        let mut bench = open::<M>();
        bench.inject(Fault::StuckBit(M::LINKS, 30, false));
        assert!(!bench.port.link_up());
        bench.watch(10);
        bench.machine.model(M::repair);
        assert!(bench.port.link_up());
        bench.works(1);
        bench.inject(Fault::StuckBit(M::LINKS, 30, true));
        bench.machine.model(|nic| *nic.link() = false);
        assert!(bench.port.link_up());
        bench.send(&frame(0, 60));
        bench.watch(10);
        let news = bench.notices();
        assert!(news[0].1.contains("does not send"), "{news:?}");
    }
}

#[test]
fn frames_without_a_buffer_are_counted() {
    let mut bench = open::<Ixgbe>();
    bench.arrive((0..2000).map(|n| frame(n, 60)));
    bench.watch(1);
    let received = bench.received().len();
    assert!((100..2000).contains(&received));
    assert_eq!(bench.port.counters().rx_missed as usize + received, 2000);
    bench.works(1);
}

#[test]
fn frames_for_other_addresses_are_filtered() {
    let mut bench = open::<Ixgbe>();
    let to = |mac: [u8; 6]| {
        let mut one = frame(0, 60);
        one[..6].copy_from_slice(&mac);
        one
    };
    let (broadcast, group) = (to([0xff; 6]), to([0x33, 0x33, 0, 0, 0, 1]));
    bench.arrive([to([2, 0, 0, 0, 0, 1]), broadcast.clone(), group.clone(), frame(1, 1519)]);
    assert_eq!(bench.received(), [broadcast, group]);
}

#[test]
fn address_is_read_from_the_eeprom_if_registers_have_none() {
    assert_eq!(try_open(faulty::<Ixgbe>(Fault::NoAddress), None).unwrap().port.mac(), MAC);
    let why = why_not::<Ixgbe>(Fault::EmptyEeprom);
    assert!(why.contains("no MAC address"), "{why}");
}

#[test]
fn link_needs_a_module_in_the_cage() {
    let mut bench = try_open(faulty::<Ixgbe>(Fault::NoModule), None).unwrap();
    bench.watch(5);
    assert!(!bench.port.link_up());
    bench.machine.model(|nic| nic.repair());
    assert!(bench.port.link_up());
    bench.works(1);
    bench.watch(5);
    assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
    bench.is_content();
}

/// Stuck bits of the registers that a reset waits for.
#[test]
fn waits_for_stuck_bits_are_bounded() {
    // Bus mastering reads as active: the reset proceeds. The EEPROM is not loaded, or reads so.
    for (at, bit, set) in [(0x0008, 19, true), (0x1_0010, 9, false), (0x8d04, 0, false)] {
        let mut bench = try_open(faulty::<Ixgbe>(Fault::StuckBit(at, bit, set)), None).unwrap();
        bench.works(1);
    }
    for (at, bit, set) in [(0x2f00, 3, false), (0x0000, 26, true)] {
        let why = why_not::<Ixgbe>(Fault::StuckBit(at, bit, set));
        assert!(why.contains("does not come out of reset"), "{at:#x}: {why}");
    }
    // The EEPROM, which has the only address, does not answer.
    let machine = faulty::<Ixgbe>(Fault::StuckBit(0x1_0014, 1, false));
    machine.model(|nic| nic.inject(Fault::NoAddress));
    let why = try_open(machine, None).err().unwrap();
    assert!(why.contains("no MAC address"), "{why}");
}

#[test]
fn silent_or_refusing_physical_function_is_blamed() {
    for (fault, wanted) in [
        (Fault::Deaf, "gets no answer"),
        (Fault::Unnamed, "has no MAC address: give it one on the host"),
        (Fault::Refuses(8), "refused interface 1.1"),
        (Fault::OldInterface(0), "refused interface 1.1"),
        (Fault::Refuses(5), "refused frames of that length"),
    ] {
        let why = why_not::<IxgbeVf>(fault);
        assert!(why.contains(wanted), "{why}");
    }
}

/// The functions agree on the newest common interface, and on all multicast or listed groups.
#[test]
fn a_virtual_function_agrees_with_its_physical_one() {
    let granted = |machine: Metal<IxgbeVf>| {
        let mut bench = try_open(machine, Some(9000)).unwrap();
        bench.works(1);
        bench.is_content();
        let mut group = frame(0, 60);
        group[..6].copy_from_slice(&[0x33, 0x33, 0xff, MAC[3], MAC[4], MAC[5]]);
        bench.arrive([group.clone()]);
        assert_eq!(bench.received(), [group]);
        bench.machine.model(|nic| nic.granted())
    };
    assert_eq!(granted(machine()), (5, 9018, 2, 0));
    assert_eq!(granted(faulty(Fault::Distrusts)), (5, 9018, 1, 2));
    assert_eq!(granted(faulty(Fault::OldInterface(3))), (3, 9018, 2, 0));
    assert_eq!(granted(faulty(Fault::OldInterface(2))), (2, 9018, 0, 2));
    assert_eq!(granted(faulty(Fault::Refuses(12))), (5, 9018, 0, 2));
    let machine = faulty::<IxgbeVf>(Fault::OldInterface(2));
    machine.model(|nic| nic.inject(Fault::Refuses(3)));
    let why = try_open(machine, None).err().unwrap();
    assert!(why.contains("refused multicast"), "{why}");
}

#[test]
fn a_virtual_function_follows_its_physical_one() {
    let mut bench = open::<IxgbeVf>();
    bench.works(1);
    bench.machine.model(|nic| nic.reset_physical_function());
    bench.watch(10);
    let news = bench.notices();
    assert!(news[0].1.contains("set up anew") && news[1].1.contains("works again"), "{news:?}");
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
    bench.machine.model(|nic| nic.repair());
    bench.watch(40);
    bench.works(3);
    assert!(bench.port.link_up());
}
