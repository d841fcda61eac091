//! Interrupts: raised for arrivals and completions while armed, and for no other event.

use super::*;

#[test]
fn arrivals_raise_interrupts_only_while_armed() {
    for vectors in [true, false] {
        let network = network("A=B", 1, Answer::Echo);
        let settings = Config { vectors, misplaced_table: vectors, ..Config::default() };
        let mut host = Host::on(&network, 0, settings);
        host.give_ids(IdSize::Small);
        host.open(BOX);
        host.turns(500);
        assert!(host.port.wakes());
        host.send(7, b"polled").unwrap();
        host.turns(5);
        assert_eq!(host.received().len(), 1);
        // With vectors, each cause may raise one interrupt before arming.
        let raised = host.port.counters().interrupts;
        assert!(raised <= u64::from(vectors), "{raised}: not armed");
        for round in 1..4 {
            host.port.set_interrupts(true);
            assert!(!host.port.pending());
            let before = host.port.counters().interrupts;
            host.send(7, b"halted").unwrap();
            host.port.flush();
            host.machine.run();
            assert!(host.port.counters().interrupts > before, "{vectors} {round}");
            assert!(host.port.pending());
            host.port.set_interrupts(false);
            host.turns(3);
            assert_eq!(host.received().len(), 1);
        }
        // A doorbell and the end of a maintenance request wake the loop as well.
        host.port.set_interrupts(true);
        let before = host.port.counters().interrupts;
        host.port.maintain(&Maintenance { to: 7, hops: 255, offset: 0, write: None }).unwrap();
        host.machine.run();
        assert!(host.port.counters().interrupts > before);
        assert!(host.complaints().is_empty());
    }
}

#[test]
fn a_lost_interrupt_loses_no_message() {
    let mut host = Host::with_board(Answer::Echo);
    host.machine.model(|bridge| bridge.inject(Fault::NoInterrupts));
    for _ in 0..4 {
        host.port.set_interrupts(true);
        let before = host.port.counters().interrupts;
        host.send(7, b"unheard").unwrap();
        host.port.flush();
        host.machine.run();
        assert_eq!(host.port.counters().interrupts, before);
        assert!(host.port.pending());
        host.port.set_interrupts(false);
        host.turns(3);
        assert_eq!(host.received().len(), 1);
    }
}

/// Arms interrupts as a loop does before it halts.
fn halt(host: &mut Host) {
    host.port.set_interrupts(true);
    assert!(!host.port.pending());
}

#[test]
fn sent_message_wakes_only_a_sender_that_waits_for_room() {
    for vectors in [true, false] {
        let network = network("A=B", 1, Answer::Take);
        let mut host = Host::on(&network, 0, Config { vectors, ..Config::default() });
        host.give_ids(IdSize::Small);
        host.open(BOX);
        host.turns(500);
        for _ in 0..200 {
            host.send(7, b"leaves").unwrap();
            host.port.flush();
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before);
            assert!(!host.port.pending());
            host.port.set_interrupts(false);
            host.turns(1);
        }
        assert_eq!(host.port.counters().tx_messages, 200);
        while host.send(7, b"fills").is_ok() {}
        assert!(!host.port.has_room(BOX, 1));
        host.port.flush();
        halt(&mut host);
        let before = host.port.counters().interrupts;
        host.machine.run();
        assert!(host.port.counters().interrupts > before, "{vectors}");
        assert!(host.port.pending());
        host.port.set_interrupts(false);
        host.turns(200);
        assert!(host.port.has_room(BOX, 127));
        assert_eq!(host.network().board(1).received.len(), 200 + 127);
    }
}

#[test]
fn failures_raise_an_interrupt_and_are_reported_at_once() {
    for vectors in [true, false] {
        let network = network("A=s0.0,B=s0.1", 1, Answer::Take);
        let mut host = Host::on(&network, 0, Config { vectors, ..Config::default() });
        host.port.set_own_id(IdSize::Small, 1);
        host.open(BOX);
        host.turns(500);
        // No device has id 9. Messages of the model time out after 5 ms.
        for _ in 0..3 {
            host.send(9, b"no target").unwrap();
            host.port.flush();
            host.machine.run();
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.machine.pass(Duration::from_millis(6));
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before + 1, "{vectors}");
            host.port.set_interrupts(false);
            let now = host.machine.pass(Duration::from_micros(1));
            host.port.poll(now);
            assert_eq!(host.undelivered(), [(9, Ended::Refused)]);
            host.turns(3);
        }
        assert_eq!(host.port.counters().restarts, 3);
        // A port-write raises an interrupt, too.
        {
            let mut network = host.network();
            let switch = network.switch(0);
            for (offset, value) in [
                (csr::ROUTE_ID, 1),
                (csr::ROUTE_PORT, 0),
                (0x1028, 1 << 16),
                (csr::COMPONENT_TAG, 2),
                (0x00f4_0104, 0x0800_0000),
            ] {
                switch.write(offset, value);
            }
        }
        for cut in [true, false, true] {
            halt(&mut host);
            let before = host.port.counters().interrupts;
            host.network().cut(End::Endpoint(1), cut);
            host.machine.run();
            assert_eq!(host.port.counters().interrupts, before + 1, "{vectors}");
            host.port.set_interrupts(false);
            let now = host.machine.pass(Duration::from_micros(1));
            host.port.poll(now);
            assert!(host.port.port_write().is_some());
            assert_eq!(host.port.port_write(), None);
        }
    }
}

#[test]
fn idle_loop_is_woken_once_a_second() {
    let mut host = Host::with_board(Answer::Take);
    host.seconds(1);
    let mut now = host.machine.pass(Duration::ZERO);
    let (end, before) = (now + Duration::from_secs(10), host.machine.accesses());
    let mut woken = 0;
    while now < end {
        woken += 1;
        halt(&mut host);
        let until = host.port.deadline().unwrap();
        now = host.machine.pass(until.since(now));
        host.machine.run();
        host.port.set_interrupts(false);
        host.port.poll(now);
        host.port.flush();
    }
    assert!(woken <= 11, "{woken} times");
    let accesses = host.machine.accesses() - before;
    assert!(accesses <= 11 * 8, "{accesses}");
}

#[test]
fn port_without_an_interrupt_does_not_wake() {
    let network = network("A=B", 1, Answer::Take);
    let model = Tsi721::new(Config::default(), network, 0);
    let mut machine = Metal::new(model, 8 << 20);
    machine.interrupts = 0;
    let device = machine.find().take(Class::RapidIo).remove(0);
    assert!(!device.open_rapidio(&mut machine).unwrap().wakes());
}
