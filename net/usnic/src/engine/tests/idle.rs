//! Costs of idle endpoints.

use super::world::{Setup, engine, sender};
use crate::engine::{Config, EndpointConfig};
use crate::wire::modex::Modex;
use core::net::Ipv4Addr;
use drivers::hal::Instant;

#[test]
fn idle_endpoint_takes_little_memory() {
    let size = size_of::<crate::engine::endpoint::Endpoint>();
    // Plus entries in tables, timers and lists.
    assert!(size + 256 <= 8192 / 4, "{size}");
}

/// A thousand idle endpoints have no deadlines and no entries in the ready queue, and do not slow down a busy one.
#[test]
fn thousand_idle_endpoints_cost_nothing() {
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
