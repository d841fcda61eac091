//! Hosts with RoCE engines connect by the connection manager, and use SEND, WRITE, READ and atomics, while frames are
//! lost, duplicated, reordered and corrupted, paths are cut, links go down, keys are revoked, connections end, and
//! hosts lose power and reboot.
//!
//! Checks: each SEND is delivered once and in order; each WRITE, READ and atomic is exact; peers change only memory
//! that was granted to them (compared with a shadow of all memory); if only frames are lost, nothing fails; after all
//! faults have ended, everything ends within its timers and new connections work; after all connections have ended, no
//! resource is in use.

mod check;
mod completions;
pub mod grid;
mod hear;
mod host;
mod memory;
mod post;
mod side;
mod strikes;
mod target;
mod world;

use netsim::Rng;
use roce::wire::bth::Bth;
use roce::wire::frame::Frame;

/// Runs the scenario of a seed. Panics on a fault.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let hosts = rng.within(2..5) as usize;
    netsim::with_memory(hosts * host::MEMORY, |memory| {
        world::World::new(hosts, memory, rng).run();
    });
}

/// Prints a sent frame.
fn print(event: &netsim::Event<'_>) {
    let micros = event.at.as_nanos() as f64 / 1000.0;
    let (from, to, fate) = (event.from.node, event.to.node, event.fate);
    let what = Frame::parse(event.bytes)
        .and_then(|frame| Bth::parse(frame.transport()))
        .map_or_else(|error| error.to_string(), |bth| bth.to_string());
    println!("{micros:12.3} us  {from} > {to}  {what} ({} bytes): {fate:?}", event.bytes.len());
}
