//! Unsignaled key changes.

use super::*;
use models::Function;

/// Number of key changes on node 1's card.
fn changes(bench: &Bench) -> u64 {
    let counters = bench.node(1).machine.model(|card| card.counters());
    let found = counters.iter().find(|(name, _)| name == "request.25");
    found.map_or(0, |(_, count)| *count)
}

/// More key changes than spare keys, without polls of a completion queue: the provider collects completed changes when
/// keys run short, so the domain needs no more keys. Old keys are revoked, and no key is promised twice.
#[test]
fn keys_of_unsignaled_changes_are_reclaimed() {
    let mut bench = Bench::new(false);
    let memory = bench.pair.memory(1, 64);
    let Bench { pair, pd, rng, .. } = &mut bench;
    let device = &mut pair.nodes[1].device;
    let made = device.register_chunks(pd[1], 2, 32, Some(memory), rng).unwrap();
    let (before, mut keys) = (changes(&bench), Vec::new());
    for id in 0..600 {
        let by = KeyRequest { qp: bench.qp[1], id, signaled: false };
        let Bench { pair, rng, .. } = &mut bench;
        let change = pair.nodes[1].device.rotate_chunk_key(made.id, 1, by, rng);
        let Ok(KeyChange::Promised(rkey)) = change else { panic!("{change:?} after {id}") };
        keys.push(rkey);
        if id % 10 == 9 {
            bench.device(1).flush();
            bench.pair.nodes[1].machine.run();
        }
    }
    assert_eq!(changes(&bench) - before, 2 * 600, "one key is revoked for each new one");
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(1), []);
    let last = *keys.last().unwrap();
    assert_eq!(bench.device(1).chunk_key(made.id, 1), Ok(last));
    let to = RemoteAddress { address: made.address + 32, rkey: last };
    bench.post(0, 1, write(to));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), [(1, Status::Success)]);
    bench.post(0, 2, write(RemoteAddress { rkey: keys[598], ..to }));
    bench.pair.run(MILLISECOND);
    assert_eq!(bench.ends(0), [(2, Status::RemoteAccess)]);
    assert_eq!(bench.pair.complaints(), [""; 0]);
}
