//! Changes of keys that nobody is told of.

use super::*;
use models::Function;

/// Changes of keys that the card of node 1 was asked for.
fn changes(bench: &Bench) -> u64 {
    let counters = bench.node(1).machine.model(|card| card.counters());
    let asked = counters.iter().find(|(name, _)| name == "request.25");
    asked.map_or(0, |(_, count)| *count)
}

/// More than keys are spare, and nobody looks into a completion queue meanwhile: what is done is taken in when keys run
/// short, so that no more come to the domain. Each key that was dies, and a key is promised once.
#[test]
fn keys_come_back_though_nobody_is_told() {
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
    assert_eq!(changes(&bench) - before, 2 * 600, "one is taken back for each that is given");
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
