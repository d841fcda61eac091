//! Resets, absence and return of a card, and what a physical function needs.

use super::*;
use std::time::Duration;

#[test]
fn a_card_that_was_pulled_out_works_again_after_its_return() {
    let mut bench = open(Config::default(), 1500);
    bench.machine.pull_out(true);
    bench.watch(3);
    let notices = bench.notices();
    assert!(
        matches!(&notices[..], [(Severity::Warning, _), (Severity::Error, why)]
        if why.contains("does not come back")),
        "{notices:?}"
    );
    assert_eq!(bench.port.transmit(&plain(&frame(1, 60))), Err(TransmitError::Full));
    assert!(bench.port.receive().is_none() && !bench.port.link_up() && !bench.port.pending());
    bench.watch(200);
    assert_eq!(bench.notices(), [], "reported once, however often it is tried");
    bench.machine.pull_out(false);
    bench.machine.hot_reset(Duration::from_secs(2));
    bench.watch(64);
    let notices = bench.notices();
    assert!(matches!(&notices[..], [(Severity::Information, _)]), "{notices:?}");
    bench.works(1);
    bench.port.set_interrupts(true);
    let raised = bench.port.counters().interrupts;
    bench.arrive([frame(1, 70)]);
    assert!(bench.port.counters().interrupts > raised, "vectors are routed again");
    assert_eq!(bench.complaints(), [""; 0]);
}

#[test]
fn a_hot_reset_or_all_ones_for_a_while_costs_no_restart() {
    type Act = fn(&Bench);
    let silent: Act = |bench| bench.inject(Fault::AllOnesForEver);
    let hot: Act = |bench| bench.machine.hot_reset(Duration::from_secs(5));
    for act in [silent, hot] {
        let mut bench = open(Config::default(), 1500);
        act(&bench);
        bench.watch(5);
        bench.repair();
        // The next try is made within a second of the pause so far.
        bench.watch(30);
        assert!(bench.port.link_up());
        bench.works(1);
        assert_eq!(bench.port.counters().resets, 1);
    }
}

#[test]
fn reset_may_take_a_minute_and_loses_no_setting() {
    let reset_time = 55_000_000_000;
    let machine = machine(Config { reset_time, ..Config::default() });
    /// Masks and severity of Advanced Error Reporting, and Device Control 2.
    const SETTINGS: [(u64, u32); 4] =
        [(0x108, 0x10_0000), (0x10c, 0x2030), (0x114, 0x2001), (0x78, 0x5)];
    let read = |machine: &Metal<Mlx5>, at: u64| {
        let mut bytes = [0; 4];
        machine.model(|card| models::Function::config(card).read(at, &mut bytes));
        u32::from_le_bytes(bytes)
    };
    for (at, value) in SETTINGS {
        let bytes = value.to_le_bytes();
        machine.model(|card| models::Function::config(card).write(at, &bytes));
        assert_eq!(read(&machine, at), value);
    }
    let mut bench = try_open(machine, Some(1500)).unwrap();
    for (at, value) in SETTINGS {
        assert_eq!(read(&bench.machine, at), value, "{at:#x}");
    }
    assert_eq!(read(&bench.machine, 0x58) & 0x0810, 0, "order is strict after the reset");
    bench.watch(1);
    bench.works(1);
    let machine = super::machine(Config { reset_time: 70_000_000_000, ..Config::default() });
    refused(machine, &["does not answer after its reset"]);
}

#[test]
fn physical_function_is_reachable_by_unicast_and_hears_no_echo_of_itself() {
    for device in [CONNECTX_5, CONNECTX_6_DX] {
        let machine = machine(Config { device, ..Config::default() });
        let mut bench = try_open(machine, Some(1500)).unwrap();
        bench.watch(1);
        bench.works(1);
        let mut solicitation = frame(1, 90);
        solicitation[..6].copy_from_slice(&[0x33, 0x33, 0xff, 1, 2, 3]);
        bench.send(&solicitation);
        assert!(bench.received().is_empty(), "its own multicast");
        assert_eq!(bench.complaints(), [""; 0]);
    }
}

#[test]
fn firmware_gets_as_much_memory_as_it_wants() {
    let pages = [100, 16_000, 5_000];
    let mut bench =
        try_open(Metal::new(Mlx5::new(Config { pages, ..Config::default() }), 128 << 20), None)
            .unwrap();
    assert!(bench.machine.model(|card| card.pages()) > 21_000);
    bench.watch(1);
    bench.works(1);
}

#[test]
fn failure_that_needs_a_cold_reset_is_named() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::Fatal(0x13));
    bench.watch(1);
    let notices = bench.notices();
    assert!(notices[0].1.contains("powering the machine off and on"), "{notices:?}");
}

#[test]
fn firmware_with_a_stuck_health_counter_is_reported_and_not_reset() {
    let mut bench = open(Config::default(), 1500);
    bench.inject(Fault::StuckHealth);
    bench.watch(8);
    assert_eq!(bench.notices(), []);
    bench.watch(20);
    let notices = bench.notices();
    assert!(
        matches!(&notices[..], [(Severity::Warning, why)] if why.contains("health counter")),
        "{notices:?}"
    );
    bench.works(1);
    bench.repair();
    bench.watch(2);
    assert_eq!((bench.notices(), bench.port.counters().resets), (vec![], 0));
}
