//! Return of a card that was away, for all its queues.

use super::*;

#[test]
fn card_that_was_away_works_again_for_all_queues() {
    fn of<M: Model>() {
        let mut bench = open::<M>(2, &KEY);
        bench.machine.pull_out(true);
        bench.watch(3);
        assert_eq!(bench.notices(0).len(), 1);
        bench.machine.pull_out(false);
        bench.machine.hot_reset(SECOND);
        bench.watch(70);
        assert_eq!(bench.notices(0), ["the network card works again"]);
        bench.works();
        for (n, port) in bench.ports.iter_mut().enumerate() {
            let before = port.counters().interrupts;
            port.set_interrupts(true);
            for host in 0..16 {
                let mut frame = datagram(host, 7, 60);
                frame[..6].copy_from_slice(&port.mac());
                bench.machine.model(|model| model.arriving().push_back(frame));
            }
            bench.machine.run();
            assert!(port.counters().interrupts > before, "queue {n}");
        }
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Vmxnet3>();
}
