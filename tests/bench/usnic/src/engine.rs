//! The calls of the engine, each in its own function. Only instructions within these functions are counted, without the
//! transport of datagrams between the engines.

use drivers::hal::{Instant, Window};
use std::net::SocketAddrV4;
use usnic::{Completion, EndpointId, Engine, Transmit};

#[inline(never)]
pub fn send(engine: &mut Engine, id: EndpointId, tag: u8, message: &[u8], now: Instant) {
    engine.send(id, tag, message, now).expect("room");
}

#[inline(never)]
pub fn put(
    engine: &mut Engine,
    id: EndpointId,
    address: u64,
    windows: [Window; 2],
    cookie: u64,
    now: Instant,
) {
    engine.put(id, address, windows, cookie, now).expect("room");
}

#[inline(never)]
pub fn poll_transmit(engine: &mut Engine, now: Instant) -> Option<&Transmit> {
    engine.poll_transmit(now)
}

#[inline(never)]
pub fn receive(
    engine: &mut Engine,
    from: SocketAddrV4,
    to_port: u16,
    datagram: &[u8],
    now: Instant,
) {
    engine.receive(0, from, to_port, datagram, now);
}

#[inline(never)]
pub fn next_news(engine: &mut Engine) -> Option<EndpointId> {
    engine.next_news()
}

#[inline(never)]
pub fn take_and_release(engine: &mut Engine, id: EndpointId) {
    let message = engine.take_message(id).expect("it has arrived");
    engine.release(message);
}

#[inline(never)]
pub fn next_completion(engine: &mut Engine, id: EndpointId) -> Option<Completion> {
    engine.next_completion(id)
}
