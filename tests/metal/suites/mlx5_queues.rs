//! Several queue pairs of a ConnectX: cards with fewer resources than requested, failures while the card is split, and
//! interrupts. `nic_queues` has the tests that all cards share.

use drivers::driver::Class;
use drivers::hal::{HashKey, Packet, Platform, Port};
use metal::Metal;
use models::mlx5::{Config, Fault, MAC, Mlx5};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const KEY: HashKey = [0x6d5a_56da, 0x255b_0ec2, 9, 8, 7, 6, 5, 4, 3, 2];

struct Bench {
    machine: Metal<Mlx5>,
    ports: Vec<Box<dyn Port + Send>>,
}

/// Splits a card with these faults. Missing capabilities are missing from the beginning, other faults are injected
/// before the split.
fn split(settings: Config, faults: &[Fault], more: usize) -> Bench {
    let mut machine = Metal::new(Mlx5::new(settings), 48 << 20);
    machine.interrupts = 16;
    let lacks = |fault: &&Fault| matches!(fault, Fault::Lacks(..));
    machine.model(|card| faults.iter().filter(lacks).for_each(|fault| card.inject(*fault)));
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let mut first = device.open_port(&mut machine, &|_| Some(1500), &clock).unwrap();
    machine.model(|card| faults.iter().for_each(|fault| card.inject(*fault)));
    let mut ports = first.split(more, &KEY, &mut machine, &clock);
    machine.model(Mlx5::repair);
    ports.insert(0, first);
    for port in &mut ports {
        let interrupt = machine.allocate_interrupt().unwrap();
        assert!(port.route(&interrupt));
    }
    let mut bench = Bench { machine, ports };
    bench.watch(1);
    bench
}

/// A packet from a host.
fn packet(host: u8) -> Vec<u8> {
    let mut frame = [&MAC[..], &[2, 0, 0, 0, 1, host, 8, 0, 0x45, 0, 0, 60]].concat();
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 0, 0, 1]);
    frame.resize(74, host);
    frame
}

impl Bench {
    fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            self.machine.run();
            for port in &mut self.ports {
                port.watch(now);
                self.machine.run();
            }
        }
    }

    fn arrive(&self, frame: Vec<u8>) {
        self.machine.model(|card| card.arriving.push_back(frame));
        self.machine.run();
    }

    fn received(&mut self, queue: usize) -> usize {
        let count = self.ports[queue].receive_each(usize::MAX, &mut |_| true);
        self.ports[queue].flush();
        count
    }

    /// The queue of a host's packets.
    fn queue_of(&mut self, host: u8) -> usize {
        self.arrive(packet(host));
        let counts: Vec<usize> = (0..self.ports.len()).map(|queue| self.received(queue)).collect();
        assert_eq!(counts.iter().sum::<usize>(), 1, "{counts:?}");
        counts.iter().position(|&count| count == 1).unwrap()
    }

    /// Sends a frame.
    fn sends(&mut self, queue: usize, host: u8) -> Vec<u8> {
        let frame = packet(host);
        let packet = Packet { header: &frame, payload: &[], trailer: &[] };
        self.ports[queue].transmit(&packet).unwrap();
        self.ports[queue].flush();
        self.machine.run();
        frame
    }

    /// Checks that each queue sends and receives, and that the model has no complaints.
    fn works(&mut self) {
        self.machine.model(|card| card.sent.clear());
        let mut reached = vec![false; self.ports.len()];
        (0..64).for_each(|host| reached[self.queue_of(host)] = true);
        assert!(reached.iter().all(|&reached| reached), "{reached:?}");
        for queue in 0..self.ports.len() {
            let frame = self.sends(queue, queue as u8);
            let sent = self.machine.model(|card| std::mem::take(&mut card.sent));
            assert!(sent == [frame], "queue {queue}");
        }
        assert!(self.ports.iter_mut().all(|port| port.link_up()));
        assert_eq!(self.machine.model(|card| card.complaints.clone()), [""; 0]);
    }
}

/// The number of queues is limited by the scarcest resource.
#[test]
fn card_with_fewer_resources_has_fewer_queues() {
    let some = Config::default();
    let vectors = |vectors| Config { vectors, ..some };
    for (settings, faults, queues) in [
        (some, &[][..], 4),
        (vectors(1), &[], 1),
        (vectors(3), &[], 3),
        // No hash table; too few event queues, doorbell pages, completion queues, send queues, receive queues.
        (some, &[Fault::Lacks(0, 0x393, 5)], 1),
        (some, &[Fault::Lacks(0, 0x470, 16), Fault::Lacks(0, 0xfc, 4)], 1),
        (some, &[Fault::Few(0x301, 2)], 2),
        (some, &[Fault::Few(0x802, 3)], 3),
        (some, &[Fault::Few(0x400, 5)], 2),
        (some, &[Fault::Few(0x904, 1)], 1),
        (some, &[Fault::Few(0x908, 3)], 3),
    ] {
        let mut bench = split(settings, faults, 3);
        assert_eq!(bench.ports.len(), queues, "{faults:?}");
        bench.works();
        // The card has the same queues after a reset.
        bench.machine.model(|card| card.inject(Fault::AllOnes));
        bench.watch(4);
        assert_eq!(bench.ports[0].counters().resets, 1, "{faults:?}");
        bench.works();
    }
}

/// If the firmware refuses or does not answer a command of the split, the card keeps one queue, and allocates no memory
/// for others.
#[test]
fn card_that_cannot_be_split_keeps_one_queue() {
    let free = split(Config::default(), &[], 0).machine.arena().available();
    for fault in [
        Fault::Fails(0x916, 4),
        Fault::Fails(0x933, 4),
        Fault::Fails(0x936, 4),
        Fault::Fails(0x301, 0xf),
        Fault::Few(0x802, 1),
        Fault::Delivers(0x900, 6),
        Fault::NeverAnswers(0x930),
    ] {
        let mut bench = split(Config::default(), &[fault], 1);
        assert_eq!(bench.ports.len(), 1, "{fault:?}");
        bench.works();
        assert_eq!(bench.machine.arena().available(), free, "{fault:?}");
    }
}

#[test]
fn a_card_that_is_gone_while_it_is_split_is_given_up() {
    let mut bench = split(Config::default(), &[Fault::AllOnesForEver], 1);
    assert_eq!(bench.ports.len(), 1);
    bench.watch(3);
    assert!(!bench.ports[0].link_up() && bench.ports[0].receive().is_none());
    let notices: Vec<&str> =
        std::iter::from_fn(|| bench.ports[0].notice()).map(|n| n.text).collect();
    assert!(matches!(&notices[..], [why] if why.contains("does not come back")), "{notices:?}");
}

/// An armed queue raises one interrupt at the core that armed it, also after a reset, which clears the routing of
/// interrupts.
#[test]
fn each_queue_interrupts_its_own_core() {
    let mut bench = split(Config::default(), &[], 1);
    for resets in 0..3 {
        let hosts =
            [0, 1].map(|queue| (0..64).find(|&host| bench.queue_of(host) == queue).unwrap());
        let raised = |bench: &Bench| [0, 1].map(|queue| bench.ports[queue].counters().interrupts);
        for round in 0..200 {
            let queue = round % 2;
            let before = raised(&bench);
            bench.ports[queue].set_interrupts(true);
            assert!(!bench.ports[queue].pending(), "{round}");
            bench.arrive(packet(hosts[1 - queue]));
            assert_eq!(raised(&bench), before, "{round}: only the other queue's frame");
            bench.arrive(packet(hosts[queue]));
            bench.arrive(packet(hosts[queue]));
            let mut wanted = before;
            wanted[queue] += 1;
            assert_eq!(raised(&bench), wanted, "{round}");
            bench.ports[queue].set_interrupts(false);
            assert_eq!([bench.received(queue), bench.received(1 - queue)], [2, 1], "{round}");
        }
        assert_eq!(bench.ports[0].counters().resets, resets);
        bench.machine.model(|card| card.inject(Fault::Fatal(1)));
        bench.watch(4);
        bench.works();
    }
}

/// After a reset, another core's queue has no buffers until that core has polled it. Frames that arrive before are
/// dropped.
#[test]
fn core_that_polls_late_after_a_reset_receives_again() {
    for early in [Fault::AllOnes, Fault::Fatal(1)] {
        let mut bench = split(Config::default(), &[], 1);
        let host = (0..64).find(|&host| bench.queue_of(host) == 1).unwrap();
        bench.machine.model(|card| card.inject(early));
        let mut seconds = 0;
        while seconds == 0 || !bench.ports[0].link_up() {
            let now = bench.machine.pass(SECOND);
            bench.ports[0].watch(now);
            bench.machine.run();
            // The core runs a round during the reset, a round in which it learns that its queue is stopped, and no
            // round once the card is live again.
            if seconds == 0 {
                assert_eq!(bench.received(1), 0);
                bench.sends(1, host);
                bench.ports[1].set_interrupts(true);
                assert!(!bench.ports[1].wakes(), "a core that halts now is not woken");
            }
            if seconds == 1 {
                assert_eq!(bench.received(1), 0);
                assert!(
                    !bench.ports[1].wakes(),
                    "a core that halts now is not woken by the live card"
                );
            }
            seconds += 1;
            assert!(seconds < 10, "the card is not back");
        }
        assert_eq!(bench.ports[0].counters().resets, 1);
        bench.arrive(packet(host));
        bench.ports[1].flush();
        bench.arrive(packet(host));
        bench.watch(1);
        assert!(bench.ports[1].wakes() && bench.received(1) == 0);
        bench.works();
        assert_eq!(bench.ports[0].counters().resets, 1);
    }
}

/// The card is reset if it stops a further queue, or if that queue's completions are wrong.
#[test]
fn errors_of_a_further_queue_cause_a_reset() {
    for fault in [Fault::ReceiveFails(1), Fault::ReceivesAt(1), Fault::Opcode(9)] {
        let mut bench = split(Config::default(), &[], 1);
        let host = (0..64).find(|&host| bench.queue_of(host) == 1).unwrap();
        bench.machine.model(|card| card.inject(fault));
        bench.arrive(packet(host));
        assert_eq!(bench.received(1), 0);
        bench.watch(4);
        assert_eq!(bench.ports[0].counters().resets, 1, "{fault:?}");
        bench.works();
    }
}

#[test]
fn closing_all_ports_leaves_the_card_reset() {
    let mut bench = split(Config::default(), &[], 2);
    bench.works();
    let Bench { machine, mut ports } = bench;
    drop(ports.remove(0));
    machine.run();
    assert_eq!(machine.model(|card| (card.pages(), card.left().len())), (0, 0));
    // The remaining ports send and receive no frames.
    for port in &mut ports {
        assert!(port.receive().is_none() && !port.link_up());
        let frame = packet(1);
        let packet = Packet { header: &frame, payload: &[], trailer: &[] };
        while port.transmit(&packet).is_ok() {}
        port.flush();
        assert!(!port.is_sending());
    }
    assert_eq!(machine.model(|card| card.complaints.clone()), [""; 0]);
}
