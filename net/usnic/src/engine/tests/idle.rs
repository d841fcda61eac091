//! Cost follows work.

use super::world::{Setup, engine, sender};
use crate::engine::{Config, EndpointConfig};
use crate::wire::modex::Modex;
use core::net::Ipv4Addr;
use drivers::hal::Instant;

#[test]
fn an_idle_endpoint_is_small() {
    let size = size_of::<crate::engine::endpoint::Endpoint>();
    // Names, timers and lists besides.
    assert!(size + 256 <= 8192 / 4, "{size}");
}

/// A thousand endpoints that rest: no deadline, nothing ready, and a busy one moves as if it were alone.
#[test]
fn a_thousand_idle_endpoints_have_nothing_to_do() {
    let config = Config { endpoints: 1001, ..Setup::default().config };
    let setup = Setup { config, ..Setup::default() };
    let now = Instant::from_nanos(1_000_000_000);
    let (mut engine, _) = engine(&setup, 0, 1, now);
    let mut ids = std::vec::Vec::new();
    for n in 0..1001u32 {
        let modex =
            Modex { address: Ipv4Addr::from_bits(0x0a01_0000 + n), ..engine.modex(0).unwrap() };
        let config = EndpointConfig::new(0, sender(0), sender(1), modex);
        ids.push(engine.add_endpoint(&config, now).unwrap());
    }
    assert_eq!(engine.deadline(), None);
    assert!(engine.poll_transmit(now).is_none());
    engine.send(ids[500], 1, b"x", now).unwrap();
    let to = *engine.poll_transmit(now).unwrap().to.ip();
    assert_eq!(to, Ipv4Addr::from_bits(0x0a01_0000 + 500));
    assert!(engine.shared.ready.len() <= 1);
    ids.into_iter().for_each(|id| engine.remove(id));
    assert_eq!(engine.deadline(), None);
}
