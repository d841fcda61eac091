//! First read of a user after a fallback.

use super::*;
use crate::engine::Role;
use crate::testing::{World, ip};
use crate::wire::{Decline, Os, PeerId, Reason};
use core::cell::RefCell;
use net::tcp::Closed;

/// One TCP connection, and its received bytes.
struct One(RefCell<VecDeque<u8>>);

impl Tcp for One {
    type Name = ();
    fn next_news(&mut self, _: &mut Interface) -> Option<()> {
        None
    }
    fn read(&self, _: &mut Interface, (): (), into: &mut [u8]) -> Result<usize, Closed> {
        let mut arrived = self.0.borrow_mut();
        let count = arrived.len().min(into.len());
        into[..count].fill_with(|| arrived.pop_front().unwrap_or_default());
        Ok(count)
    }
    fn write(&self, _: &mut Interface, (): (), bytes: &[u8]) -> Result<usize, Closed> {
        Ok(bytes.len())
    }
    fn room(&self, _: &mut Interface, (): ()) -> usize {
        0
    }
    fn make_idle(&self, _: &mut Interface, (): ()) {}
    fn finish(&self, _: &mut Interface, (): ()) {}
    fn leave(&mut self, _: &mut Interface, (): (), _: bool, _: Instant) {}
    fn stop(self, _: &mut Interface) {}
}

/// The first read after a fallback, when `arrives` was received.
fn first_read(arrives: &[u8]) -> Result<Vec<u8>, Closed> {
    let mut interface = Interface::new([2; 6], 1500, [1; 32], Instant::ZERO);
    let mut w = World::new(1);
    let mut connections = Connections::new(One(RefCell::default()), 0, 0, false);
    let mut read = [0; 100];
    let id = w.with_engine(0, |engine, ctx, _| {
        let socket = engine.open(Role::Server, [ip(0, 0), ip(1, 0)], 0, ctx).unwrap();
        let end = SocketAddr::from(([10, 0, 0, 1], 7));
        let id = connections.insert((), (end, end), State::Handshake(socket), ctx.now);
        connections.handle_event(socket, Ready::FALLBACK, &mut interface, engine, ctx);
        id
    });
    let engine = &mut w.hosts[0].engine;
    assert_eq!(connections.read(id, &mut read, &mut interface, engine), Ok(0));
    connections.tcp.0.borrow_mut().extend(arrives);
    let count = connections.read(id, &mut read, &mut interface, engine)?;
    // Later the same bytes are application data.
    connections.tcp.0.borrow_mut().extend(arrives);
    assert!(connections.read(id, &mut read, &mut interface, engine).is_ok());
    Ok(read[..count].to_vec())
}

#[test]
fn crossing_declines_are_not_data() {
    let (peer_id, os) = (PeerId([7; 8]), Os::LINUX);
    for version in [1, 2] {
        let reason = Reason::TIMEOUT_CONFIRM_LINK;
        let decline = Decline { version, out_of_sync: false, peer_id, reason, os }.emit();
        assert_eq!(first_read(&decline), Err(Closed::Gone));
        let and_more = [&decline[..], b"GET /"].concat();
        assert_eq!(first_read(&and_more), Err(Closed::Gone));
        let other = [b"GET /", &decline[..]].concat();
        assert_eq!(first_read(&other), Ok(other));
    }
    assert_eq!(first_read(b"GET / HTTP/1.0"), Ok(b"GET / HTTP/1.0".to_vec()));
}
