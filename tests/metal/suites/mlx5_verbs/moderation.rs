//! Event moderation: the provider enables it by the number of completions that a halting loop finds per wake-up.

use super::*;
use models::Function;

impl Bench {
    /// Wakes node 1's loop after this time by this number of WRITEs with an immediate.
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

    /// Number of moderation commands to node 1's card.
    fn moderation_commands(&self) -> u64 {
        let counters = self.node(1).machine.model(|card| card.counters());
        let found = counters.iter().find(|(name, _)| name == "command.MODIFY_CQ");
        found.map_or(0, |(_, count)| *count)
    }
}

#[test]
fn moderation_follows_the_completions_per_wake_up() {
    const GAP: Duration = Duration::from_micros(40);
    let mut bench = Bench::new(false);
    // The provider decides every 64 wake-ups.
    (0..3 * 64).for_each(|_| bench.wakes(1, GAP));
    assert_eq!(bench.moderation_commands(), 0);
    // Several completions per wake-up; then more, as moderation would cause.
    (0..64).for_each(|_| bench.wakes(3, 3 * GAP));
    (0..2).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.moderation_commands(), 1);
    (0..200).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.moderation_commands(), 1, "moderation stays on");
    (0..130).for_each(|_| bench.wakes(1, GAP));
    assert_eq!(bench.moderation_commands(), 2, "moderation ends");
    // After a reset the card has no moderation, and the provider enables it again.
    bench.inject(1, Fault::AllOnes);
    bench.pair.run(Duration::from_secs(3));
    assert!(bench.device(1).is_active());
    bench.again();
    (0..64).for_each(|_| bench.wakes(3, 3 * GAP));
    (0..2).for_each(|_| bench.wakes(6, 6 * GAP));
    assert_eq!(bench.moderation_commands(), 3);
    assert_eq!(bench.pair.complaints(), [""; 0]);
}
