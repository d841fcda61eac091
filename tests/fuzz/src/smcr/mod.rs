//! The messaging gateway, SMC-R over RoCE, with a malicious peer: CLC over TCP, then LLC, CDC and WRITEs on the links.
//! The attacker uses an unmodified engine and queue pairs, so that handshakes succeed and every packet has a valid PSN
//! and ICRC. The input changes or replaces its messages in flight. The gateway's users echo the data that they read. A
//! second peer, the victim, has its own connection.
//!
//! Invariants: nothing panics; no packet and no CLC byte for the attacker contains bytes of others ([`leak`]); the
//! victim keeps its connection, and reads exactly its own data; after all connections have ended, all memory is free.

mod host;
mod lies;
mod world;

use crate::input::Input;
use std::time::Duration;
use world::{Flight, World};

const GATEWAY: usize = 0;
const ATTACKER: usize = 1;
const VICTIM: usize = 2;
const HOSTS: usize = 3;
/// Ports of each host. The second port is for second links.
const PORTS: usize = 2;
/// Memory of each host's arena.
const ARENA: usize = 512 << 10;
const EVENTS: usize = 250;
/// Most TCP connections of the attacker in an input.
const CONNECTIONS: usize = 8;
/// Bytes that a user of the gateway moves at a time.
const PIECE: usize = 4096;

/// Runs a list of events.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.byte();
    netsim::with_memory(HOSTS * ARENA, |memory| {
        let mut world = World::new(memory, how);
        world.connect_peers();
        input.events(EVENTS, |input| world.event(input));
        world.end();
    });
}

impl World {
    fn event(&mut self, input: &mut Input<'_>) {
        match input.byte() % 14 {
            0..=3 => self.carry(Some(input)),
            4 => (0..=input.byte() % 32).for_each(|_| self.carry(None)),
            5 => {
                self.wire.pop_front();
            }
            6 => {
                if let Some(Flight { from, to, port, frame }) = self.wire.front() {
                    let again = Flight { from: *from, to: *to, port: *port, frame: frame.clone() };
                    self.wire.push_back(again);
                }
            }
            7 => {
                // The victim's network is lossless, and faster than any timer.
                self.carry_victims();
                self.now = self.now + Duration::from_nanos(1 << (input.byte() % 36));
                self.work();
                self.carry_victims();
            }
            8 => {
                let n = input.below(CONNECTIONS);
                let len = usize::from(input.word()) % 2048;
                self.attacker_writes(n, &vec![input.byte() & 0x7f; len]);
            }
            9 => {
                if self.tcp.len() <= CONNECTIONS {
                    self.connect(ATTACKER, input.byte() & 1 == 1);
                }
            }
            10 => self.close(input),
            11 => self.change_clc(input),
            12 => {
                self.victim_writes(usize::from(input.byte()) * 4);
                self.victim_reads();
            }
            _ => self.settle(),
        }
    }

    /// The gateway or the attacker ends a connection between them, in one of several ways.
    fn close(&mut self, input: &mut Input<'_>) {
        let n = input.below(CONNECTIONS);
        let how = input.byte();
        let Some(tcp) = self.tcp.iter().filter(|tcp| tcp.peer == ATTACKER).nth(n) else { return };
        let side = usize::from(how >> 7);
        let Some(socket) = tcp.ends[side] else { return };
        let host = [GATEWAY, ATTACKER][side];
        let now = self.now;
        self.hosts[host].with(now, |engine, ctx| {
            match how % 4 {
                0 => engine.shutdown(socket, ctx),
                1 => engine.close(socket, ctx),
                2 => engine.abort(socket, ctx),
                _ => engine.handle_tcp_gone(socket, ctx),
            }
            engine.flush(ctx);
        });
    }
}

/// Lists of events that reach deep, for every set-up of the world.
pub fn corpus() -> Vec<Vec<u8>> {
    let talk = [8, 0, 1, 0, 0x33, 4, 20];
    let cursor = |kind: u8| [8, 0, 0, 200, 0x44, 4, 1, 0, 0, kind, 0, 50, 13];
    let llc = |kind: u8| [8, 0, 0, 10, 0x11, 4, 1, 0, 3, kind, 1, 0, 0, 0, 0, 0, 13];
    let another = [9, 0, 11, 1, 7, 1, 0, 20, 9, 13, 8, 1, 0, 50, 0x55, 13];
    let confirm = |kind: u8| [9, 0, 4, 5, 11, 1, 2, kind, 1, 1, 1, 13, 8, 1, 0, 50, 0x55, 13];
    let end = [10, 0, 1, 13, 9, 1, 13, 10, 1, 0x82, 13];
    // An abort with the token of the victim's connection, after as much data as over the attacker's connection.
    let name = [12, 50, 13, 8, 0, 0, 200, 0x44, 4, 0, 0, 0x80, 5, 0x20, 7, 192, 13];
    let mut lists = Vec::new();
    for how in 0..16u8 {
        let moved = cursor(how % 8);
        lists.push([&[how][..], &talk, &moved, &llc(how % 8), &talk].concat());
        lists.push([&[how][..], &talk, &another, &[12, 50], &end, &llc(128 | (how % 8))].concat());
        lists.push([&[how][..], &confirm(how % 10), &talk].concat());
        lists.push([&[how][..], &name, &talk].concat());
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unmodified peers work, so that the attacker starts from established connections.
    #[test]
    fn both_peers_connect_and_read_their_own_bytes() {
        for how in 0..16 {
            netsim::with_memory(HOSTS * ARENA, |memory| {
                let mut world = World::new(memory, how);
                world.connect_peers();
                let links = if how & 4 == 0 { 1 } else { 2 };
                let groups: Vec<_> = world.hosts[GATEWAY].engine.groups().collect();
                assert_eq!(groups.len(), 2, "how {how}");
                assert!(groups.iter().all(|group| group.links == links), "how {how}: {groups:?}");
                assert_eq!(world.victim, (100, 100), "how {how}");
                let socket = world.socket(0).expect("the socket is open");
                let attacker = &world.hosts[ATTACKER].engine;
                let status = attacker.socket_status(socket).expect("the socket exists");
                assert_eq!(status.bytes, (300, 300), "how {how}");
                world.end();
            });
        }
    }
}
