//! The driver of ConnectX on the model, with and without faults. The model's behaviour on errors is a guess, so these
//! cases show that the driver copes with the model, not with a card.

use super::network_card::{NetworkCard, plain, try_open};
use drivers::hal::{Packet, Platform, Severity, TransmitError, Window};
use metal::Metal;
use models::mlx5::{
    CONNECTX_4_LX, CONNECTX_4_LX_VIRTUAL, CONNECTX_5, CONNECTX_5_VIRTUAL, CONNECTX_6_DX, Config,
    Fault, MAC, Mlx5,
};

mod returns;

type Bench = super::network_card::Bench<Mlx5>;

fn machine(settings: Config) -> Metal<Mlx5> {
    Metal::new(Mlx5::new(settings), 16 << 20)
}

fn faulty(faults: &[Fault]) -> Metal<Mlx5> {
    let machine = machine(Config::default());
    machine.model(|card| faults.iter().for_each(|fault| card.inject(*fault)));
    machine
}

fn refused(machine: Metal<Mlx5>, words: &[&str]) {
    let why = try_open(machine, None).err().expect("it is no good");
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
}

fn open(settings: Config, mtu: u16) -> Bench {
    let mut bench = try_open(machine(settings), Some(mtu)).unwrap();
    bench.watch(1);
    bench
}

/// A frame of this length to the interface.
fn frame(n: usize, len: usize) -> Vec<u8> {
    Mlx5::frame(n, len)
}

impl Bench {
    fn inject(&self, fault: Fault) {
        self.machine.model(|card| card.inject(fault));
    }

    fn repair(&self) {
        self.machine.model(Mlx5::repair);
    }

    /// Checks that the card was reset with a notice of these words, and works again.
    fn came_back(&mut self, words: &str) {
        // A reset takes a tenth of a second, and the firmware's start some more.
        self.watch(3);
        let notices = self.notices();
        let [(Severity::Warning, why), .., (Severity::Information, back)] = &notices[..] else {
            panic!("{notices:?}")
        };
        assert!(why.contains(words) && back.contains("works again"), "{notices:?}");
        assert_eq!(self.port.counters().resets, 1);
        self.watch(1);
        self.works(1);
        assert_eq!(self.notices(), []);
    }
}

#[test]
fn cards_are_found_with_their_address() {
    for device in
        [CONNECTX_4_LX, CONNECTX_4_LX_VIRTUAL, CONNECTX_5, CONNECTX_5_VIRTUAL, CONNECTX_6_DX]
    {
        let mut bench = try_open(machine(Config { device, ..Config::default() }), None).unwrap();
        assert_eq!((bench.port.mac(), bench.port.mtu()), (MAC, 1500));
        bench.machine.run();
        assert!(bench.port.link_up() && bench.port.wakes());
        bench.works(1);
        assert_eq!(bench.complaints(), [""; 0]);
    }
    let settings = Config { mtu: 1400, ..Config::default() };
    assert_eq!(
        try_open(machine(settings), Some(9000)).unwrap().port.mtu(),
        1400,
        "limited by the port"
    );
}

#[test]
fn frames_of_every_length_come_and_go_around_the_rings() {
    for mtu in [1500, 9000] {
        let mut bench = open(Config::default(), mtu);
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
        window.write(0, &frame(n, lengths[n].max(14))[..lengths[n]]).unwrap();
        window
    };
    let windows: [Window; 3] = [part(0), part(1), part(2)];
    for round in 0..800 {
        let header = frame(9, 14 + round % 90);
        let payload = &windows[..round % 4];
        let trailer = &[1, 2, 3, 4][..if round % 2 == 0 { 4 } else { 0 }];
        bench.port.transmit(&Packet { header: &header, payload, trailer }).unwrap();
        bench.port.flush();
        bench.machine.run();
        let mut all = header.clone();
        let parts = (0..payload.len()).map(|n| frame(n, lengths[n].max(14))[..lengths[n]].to_vec());
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
fn burst_rings_one_doorbell() {
    let mut bench = open(Config::default(), 1500);
    let frames: Vec<_> = (0..200).map(|n| frame(n, 64 + n)).collect();
    let (accesses, reads) = (bench.machine.accesses(), bench.machine.reads());
    frames.iter().for_each(|one| bench.port.transmit(&plain(one)).unwrap());
    bench.port.flush();
    assert_eq!(bench.machine.accesses() - accesses, 1);
    bench.machine.run();
    assert!(bench.sent() == frames);
    bench.arrive(frames.clone());
    assert!(bench.received() == frames);
    assert_eq!(bench.machine.accesses() - accesses, 1, "receives have no doorbell");
    assert_eq!(bench.machine.reads(), reads);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_full_queue_refuses_and_has_room_again() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::NeverSends);
    let one = frame(1, 64);
    let mut taken = 0;
    let refused = loop {
        match bench.port.transmit(&plain(&one)) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
        assert!(taken < 100_000);
    };
    assert_eq!(refused, TransmitError::Full);
    bench.port.flush();
    assert!(!bench.port.has_room() && !bench.port.pending() && bench.port.is_sending());
    bench.repair();
    bench.send_again();
    assert!(bench.port.has_room() && bench.port.pending());
    assert_eq!(bench.sent().len(), taken);
    assert!(!bench.port.is_sending());
    bench.works(3);
    assert_eq!(bench.port.counters().tx_full, 1);
    assert_eq!(bench.complaints(), [""; 0]);
}

impl Bench {
    /// Makes the model process its send queues without a doorbell.
    fn send_again(&mut self) {
        self.machine.model(|card| card.wake());
        self.machine.run();
    }
}

#[test]
fn frames_may_be_released_in_any_order() {
    let mut bench = open(Config::default(), 1500);
    for round in 0..200 {
        let frames: Vec<_> = (0..5).map(|n| frame(round + n, 100 + n)).collect();
        bench.arrive(frames.clone());
        let mut held = Vec::new();
        while let Some(one) = bench.port.receive() {
            assert!(bench.port.bytes(&one) == frames[held.len()]);
            held.push(one);
        }
        assert_eq!(held.len(), 5);
        [3, 0, 2, 0, 0].into_iter().for_each(|n| {
            let one = held.remove(n.min(held.len() - 1));
            bench.port.recycle(one);
        });
        bench.port.flush();
    }
    bench.works(1);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_lost_interrupt_loses_no_frame() {
    let mut bench = open(Config::default(), 1500);
    bench.machine.model(|card| card.inject(Fault::NoInterrupts));
    for n in 0..10 {
        bench.port.set_interrupts(true);
        let raised = bench.port.counters().interrupts;
        bench.arrive([frame(n, 70), frame(n, 71)]);
        assert_eq!(bench.port.counters().interrupts, raised);
        assert!(bench.port.pending());
        bench.port.set_interrupts(false);
        assert_eq!(bench.received().len(), 2);
    }
}

#[test]
fn interrupts_are_raised_only_when_armed() {
    let mut bench = open(Config::default(), 1500);
    let raised = bench.port.counters().interrupts;
    for n in 0..10 {
        bench.works(n);
    }
    assert_eq!(bench.port.counters().interrupts, raised);
    for n in 0..10 {
        bench.port.set_interrupts(true);
        assert!(!bench.port.pending());
        bench.arrive([frame(n, 70), frame(n, 71)]);
        assert_eq!(bench.port.counters().interrupts, raised + n as u64 + 1, "{n}");
        assert!(bench.port.pending());
        bench.port.set_interrupts(false);
        assert_eq!(bench.received().len(), 2);
    }
    // A frame that arrived before arming raises an interrupt at once.
    bench.arrive([frame(1, 70)]);
    bench.port.set_interrupts(true);
    assert!(bench.port.pending());
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn link_changes_are_reported_by_events() {
    let mut bench = open(Config::default(), 1500);
    assert!(bench.port.link_up());
    for up in [false, true] {
        bench.machine.model(|card| card.link = up);
        bench.watch(1);
        assert_eq!(bench.port.link_up(), up);
    }
    bench.works(1);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn frames_for_other_addresses_do_not_arrive() {
    let mut bench = open(Config::default(), 1500);
    let to = |address: [u8; 6]| {
        let mut one = frame(1, 80);
        one[..6].copy_from_slice(&address);
        one
    };
    let multicast = to([1, 0, 0x5e, 1, 2, 3]);
    let broadcast = to([0xff; 6]);
    bench.arrive([to([2, 2, 2, 2, 2, 2]), multicast.clone(), broadcast.clone()]);
    assert!(bench.received() == [multicast, broadcast]);
}

#[test]
fn commands_may_complete_late_and_out_of_order() {
    for fault in [Fault::Late(3_000_000), Fault::OutOfOrder] {
        let mut bench = try_open(faulty(&[fault]), Some(1500)).unwrap();
        bench.watch(1);
        bench.works(1);
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn firmware_gets_requested_pages_and_returns_them() {
    // A command waits for the pages.
    let mut bench = try_open(faulty(&[Fault::AsksForPages(700)]), Some(1500)).unwrap();
    let [boot, init, regular] = Config::default().pages.map(|count| count as usize);
    // The driver needs 2^13 queue pairs instead of 2^17.
    let pairs = Config::default().pages_for_pairs as usize >> 4;
    let all = boot + init + pairs + regular + 700;
    bench.watch(2);
    let has = |bench: &Bench| bench.machine.model(|card| card.pages());
    assert_eq!(has(&bench), all);
    // No command is outstanding.
    let before = has(&bench);
    bench.machine.ask_for_pages(50);
    bench.watch(2);
    assert_eq!(has(&bench), before + 50);
    let free = bench.machine.arena().available();
    bench.machine.ask_for_pages(-120);
    bench.watch(2);
    assert_eq!(has(&bench), before - 70);
    // Returned pages are supplied before new ones are allocated.
    bench.machine.ask_for_pages(100);
    bench.watch(2);
    assert_eq!(has(&bench), before + 30);
    assert_eq!(bench.machine.arena().available(), free);
    bench.works(1);
    assert_eq!(bench.complaints(), [""; 0]);
}

trait AsksForPages {
    fn ask_for_pages(&self, count: i32);
}

impl AsksForPages for Metal<Mlx5> {
    fn ask_for_pages(&self, count: i32) {
        self.model(|card| card.want_pages(count));
        self.run();
    }
}

#[test]
fn start_up_failures_are_distinguished() {
    refused(faulty(&[Fault::NeverReady]), &["does not come up", "power the machine off"]);
    refused(faulty(&[Fault::AllOnesForEver]), &["does not answer"]);
    refused(faulty(&[Fault::OtherRevision]), &["revision 6, not 5", "update"]);
    refused(faulty(&[Fault::Lacks(0, 0x1b6, 2)]), &["InfiniBand", "LINK_TYPE_P1"]);
    refused(faulty(&[Fault::Lacks(0, 0x21c, 1)]), &["eth_net_offloads"]);
    refused(faulty(&[Fault::Lacks(0, 0x1a6, 1)]), &["nic_flow_table"]);
    refused(faulty(&[Fault::Lacks(0, 0x290, 16)]), &["max_wqe_sz_sq"]);
    refused(faulty(&[Fault::Lacks(7, 0x200, 1)]), &["ft_support"]);
    let mac = [0; 6];
    refused(machine(Config { mac, ..Config::default() }), &["no MAC address"]);
    let min_inline = 2;
    refused(machine(Config { min_inline, ..Config::default() }), &["min_wqe_inline_mode"]);
    // A slow start is within the time limit.
    let start_up = 30_000_000_000;
    try_open(machine(Config { start_up, ..Config::default() }), None).unwrap();
}

#[test]
fn failure_or_timeout_of_each_command_is_reported() {
    let opcodes = {
        let bench = open(Config::default(), 1500);
        bench.machine.model(|card| card.commands_seen())
    };
    assert!(opcodes.len() > 25, "{opcodes:x?}");
    for opcode in opcodes {
        refused(faulty(&[Fault::Fails(opcode, 4)]), &["refused", "bad system state"]);
        refused(faulty(&[Fault::Delivers(opcode, 6)]), &["delivery status 0x6"]);
        refused(faulty(&[Fault::NeverAnswers(opcode)]), &["does not answer the command"]);
    }
}

#[test]
fn untrusted_function_works_and_is_reported() {
    let machine = machine(Config { trusted: false, ..Config::default() });
    let mut bench = try_open(machine, Some(1500)).unwrap();
    let notices = bench.notices();
    assert!(matches!(&notices[..], [(Severity::Warning, why)] if why.contains("trust on")));
    bench.works(1);
}

#[test]
fn too_little_memory_is_an_error() {
    for memory in [256 << 10, 2 << 20, 4 << 20] {
        let machine = Metal::new(Mlx5::new(Config::default()), memory);
        refused(machine, &["DMA arena has no"]);
    }
    let pages = [33, 20_000, 0];
    let machine = Metal::new(Mlx5::new(Config { pages, ..Config::default() }), 16 << 20);
    let why = try_open(machine, None).err().unwrap();
    assert!(why.contains("pages of memory") || why.contains("DMA arena"), "{why}");
}

#[test]
fn firmware_that_fails_is_reset() {
    let mut bench = open(Config::default(), 1500);
    bench.works(0);
    bench.inject(Fault::Fatal(8));
    bench.watch(1);
    bench.came_back("reported a fatal error");
    let counters = bench.port.counters();
    assert_eq!((counters.rx_frames, counters.tx_frames), (2, 2), "counters survive the reset");
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn registers_that_read_as_all_ones_cause_a_reset() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::AllOnes);
    bench.watch(1);
    bench.came_back("does not answer any more");
}

#[test]
fn a_queue_that_does_not_send_is_reset() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::NeverSends);
    bench.send(&frame(1, 100));
    // Flow control may pause it.
    bench.watch(14);
    assert_eq!(bench.notices(), []);
    bench.watch(1);
    bench.repair();
    bench.watch(1);
    bench.came_back("does not send");
}

#[test]
fn queue_errors_cause_a_reset() {
    let send = |bench: &mut Bench| bench.send(&frame(1, 100));
    let receive = |bench: &mut Bench| {
        bench.arrive([frame(1, 100)]);
        assert!(bench.received().is_empty());
    };
    type Act = fn(&mut Bench);
    let cases: [(Fault, Act, &str); 6] = [
        (Fault::SendFails(4), send, "stopped a queue"),
        (Fault::CompletesAnother(1), send, "stopped a queue"),
        (Fault::ReceiveFails(1), receive, "not in order"),
        (Fault::ReceivesAt(1), receive, "not in order"),
        (Fault::Opcode(9), receive, "not in order"),
        (Fault::OwnerBit, receive, "not in order"),
    ];
    for (fault, act, words) in cases {
        let mut bench = open(Config::default(), 1500);
        bench.inject(fault);
        act(&mut bench);
        if fault == Fault::OwnerBit {
            // The frame is not noticed until a later one arrives.
            bench.repair();
            bench.arrive([frame(2, 100)]);
            bench.watch(2);
        }
        bench.watch(1);
        bench.came_back(words);
    }
}

#[test]
fn impossible_lengths_are_errors() {
    let mut bench = open(Config::default(), 1500);
    for length in [0, 13, 1519, u32::MAX] {
        bench.inject(Fault::Length(length));
        bench.arrive([frame(1, 100)]);
        assert!(bench.received().is_empty(), "{length}");
    }
    assert_eq!(bench.port.counters().rx_errors, 4);
    bench.works(1);
}

#[test]
fn frames_that_are_held_across_a_reset_are_empty() {
    let mut bench = open(Config::default(), 1500);
    bench.arrive([frame(1, 100)]);
    let held = bench.port.receive().unwrap();
    bench.inject(Fault::Fatal(1));
    bench.watch(4);
    assert!(bench.port.bytes(&held).is_empty());
    bench.port.recycle(held);
    bench.works(1);
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn card_that_fails_repeatedly_is_reset_each_time() {
    let mut bench = open(Config::default(), 1500);
    for _ in 0..6 {
        bench.inject(Fault::Fatal(1));
        bench.watch(4);
    }
    let notices = bench.notices();
    assert_eq!(bench.port.counters().resets, 6);
    assert!(notices.iter().any(|(severity, _)| *severity == Severity::Error), "{notices:?}");
    bench.works(1);
}

#[test]
fn closing_a_port_frees_all_memory() {
    let mut bench = open(Config::default(), 1500);
    bench.works(1);
    let Bench { mut machine, port } = bench;
    drop(port);
    machine.run();
    assert_eq!(
        machine.model(|card| (card.pages(), card.left().len())),
        (0, 0),
        "the card was reset"
    );
    // All memory was freed.
    assert!(machine.arena().alloc(15 << 20, 4096).is_some());
}
