//! Hosts with RoCE engines that connect to each other by the connection manager, and send, write,
//! read and add, while frames are lost, duplicated, reordered and corrupted, ways are cut, links go
//! down, keys are revoked, connections end, and hosts lose power and come back.
//!
//! What is checked: each SEND is delivered once and in order; each WRITE, READ and atomic is exact;
//! no byte changes that was not granted to whoever changed it (against a shadow of all memory);
//! where nothing worse happens than lost frames nothing fails; when all is well again everything
//! ends within its timers, new connections work, and after all connections are over no resource is
//! held any more.

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

/// The scenario of a seed. Panics if anything is wrong.
pub fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let hosts = rng.within(2..5) as usize;
    netsim::with_memory(hosts * host::MEMORY, |memory| {
        world::World::new(hosts, memory, rng).run();
    });
}

/// Prints a frame that is sent.
fn print(event: &netsim::Event<'_>) {
    let micros = event.at.as_nanos() as f64 / 1000.0;
    let (from, to, fate) = (event.from.node, event.to.node, event.fate);
    let what = Frame::parse(event.bytes)
        .and_then(|frame| Bth::parse(frame.transport()))
        .map_or_else(|error| error.to_string(), |bth| bth.to_string());
    println!("{micros:12.3} us  {from} > {to}  {what} ({} bytes): {fate:?}", event.bytes.len());
}
