//! Whether the card is asked to hold back events of completions, by what a loop finds that halts as soon as it can.

use super::*;
use models::Function;

impl Bench {
    /// A halt of node 1's loop is ended after so long, by so many WRITEs with an immediate.
    fn wakes(&mut self, count: u64, time: Duration) {
        for id in 0..count {
            let qp = self.qp[1];
            self.device(1).post_recv(qp, &RecvRequest { id, into: &[] }).unwrap();
            let to = RemoteAddress { address: 0, rkey: 0 };
            let payload = Payload::Windows(&[]);
            self.post(0, id, SendOperation::Write { payload, to, immediate: Some(7) });
        }
        self.pair.run(time);
        let now = self.pair.now();
        self.device(1).mind(now);
        let ids = (0..count).map(|id| (id, Status::Success));
        assert_eq!(self.ends(1), ids.collect::<Vec<_>>());
        self.ends(0);
        self.device(1).rearm();
    }

    /// How often the card of node 1 was asked.
    fn asked(&self) -> u64 {
        let counters = self.node(1).machine.model(|card| card.counters());
        let asked = counters.iter().find(|(name, _)| name == "command.MODIFY_CQ");
        asked.map_or(0, |(_, count)| *count)
    }
}

#[test]
fn events_are_held_back_where_many_come_and_no_more_where_one_comes() {
    const GAP: Duration = Duration::from_micros(40);
    let mut bench = Bench::new(false);
    // It is decided after 64 wake-ups.
    (0..3 * 64).for_each(|_| bench.wakes(1, GAP));
    assert_eq!(bench.asked(), 0);
    // Several at a time; then more, which the card would bring about.
    (0..64).for_each(|_| bench.wakes(3, 3 * GAP));
    (0..2).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.asked(), 1);
    (0..200).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.asked(), 1, "it pays");
    (0..130).for_each(|_| bench.wakes(1, GAP));
    assert_eq!(bench.asked(), 2, "it ends");
    // The card that comes back from a reset holds nothing back, and is asked anew.
    bench.inject(1, Fault::AllOnes);
    bench.pair.run(Duration::from_secs(3));
    assert!(bench.device(1).is_active());
    bench.again();
    (0..64).for_each(|_| bench.wakes(3, 3 * GAP));
    (0..2).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.asked(), 3);
    assert_eq!(bench.pair.complaints(), [""; 0]);
}
