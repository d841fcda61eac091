//! Network cards that were away: pulled out and put back, or reset by the machine.

use super::network_card::{Bench, NetworkCard, SECOND, plain, try_open};
use drivers::hal::{DeviceLife, DeviceState, Severity};
use metal::Metal;
use models::intel_nic::{self, Kind, Nic};
use models::ixgbe::{Config, Ixgbe, IxgbeVf};
use models::vmxnet3::{self, Vmxnet3};

fn open<M: NetworkCard>(model: M) -> Bench<M> {
    try_open(Metal::new(model, 32 << 20), None).unwrap()
}

fn nic(kind: Kind) -> Bench<Nic> {
    open(Nic::new(kind, if kind == Kind::E1000 { 0 } else { 3 }))
}

/// Takes the card away for ten seconds. Its registers may be lost.
fn goes_and_comes<M: NetworkCard>(mut bench: Bench<M>) {
    for lost in [true, false] {
        let drivers = M::DRIVERS;
        netsim::label!(drivers, lost);
        bench.send(&M::frame(0, 60));
        bench.machine.pull_out(true);
        bench.watch(10);
        assert_eq!(bench.notices().len(), 1, "reported once");
        let life = bench.port.life();
        assert_eq!(life.state, DeviceState::Absent);
        assert!(!life.reason.is_empty() && life.next_try.is_some());
        bench.machine.pull_out(false);
        if lost {
            bench.machine.hot_reset(SECOND);
        }
        bench.watch(70);
        let back = (Severity::Information, "the network card works again");
        assert_eq!(bench.notices(), [back]);
        assert!(bench.port.link_up());
        assert_eq!(bench.port.life(), DeviceLife::default());
        (0..300).for_each(|n| bench.works(n));
        let before = bench.port.counters().interrupts;
        bench.port.set_interrupts(true);
        bench.arrive([M::frame(1, 60)]);
        assert!(bench.port.counters().interrupts > before);
        bench.port.set_interrupts(false);
        assert_eq!(bench.received().len(), 1);
    }
}

#[test]
fn card_that_was_away_works_again_after_its_return() {
    for kind in [Kind::E1000e, Kind::Igb, Kind::IgbVf, Kind::E1000] {
        goes_and_comes(nic(kind));
    }
    goes_and_comes(open(Ixgbe::new(Config::default())));
    goes_and_comes(open(IxgbeVf::new(Config::default())));
    goes_and_comes(open(Vmxnet3::new(3)));
}

/// Replaces the card by one with another MAC address.
fn is_replaced<M: NetworkCard>(mut bench: Bench<M>, replace: impl FnOnce(&mut M)) {
    let mac = bench.port.mac();
    bench.machine.pull_out(true);
    bench.watch(2);
    assert_eq!(bench.notices().len(), 1);
    bench.machine.model(replace);
    bench.machine.pull_out(false);
    bench.machine.hot_reset(SECOND);
    bench.watch(200);
    let notices = bench.notices();
    assert!(notices.len() == 1 && notices[0].1.contains("another network"), "{notices:?}");
    assert!(!bench.port.link_up() && bench.port.mac() == mac);
    while bench.port.transmit(&plain(&M::frame(0, 60))).is_ok() {}
    assert!(bench.sent().is_empty());
}

#[test]
fn another_card_in_the_slot_is_not_used() {
    for kind in [Kind::E1000e, Kind::Igb] {
        let other = intel_nic::Fault::Address([2, 0, 0, 0, 0, 9]);
        is_replaced(nic(kind), |nic| nic.inject(other));
    }
    is_replaced(open(Vmxnet3::new(3)), |nic| nic.inject(vmxnet3::Fault::NoAddress));
}
