//! Faults of the network and of the hosts.

use super::side::State;
use super::world::{Action, World};
use netsim::{Faults, Place};
use std::time::Duration;
use verbs::{ConnectionManager, MemoryVerbs};

/// Delay of a slow link, in latencies.
const SLOWDOWN: u32 = 49;

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub enum Undo {
    Cut { from: usize, to: usize },
    Mute(usize),
    Down(usize),
    Faults,
    Latency { from: usize, to: usize },
}

fn place(node: usize) -> Place {
    Place { node, port: 0 }
}

impl World {
    /// Causes a random fault.
    pub fn strike(&mut self) {
        let hosts = self.hosts.len() as u64;
        let a = self.rng.within(0..hosts) as usize;
        let b = (a + self.rng.within(1..hosts) as usize) % self.hosts.len();
        // Some faults last longer than all retries.
        let longest = self.rng.pick(&[1_000, 30_000, 600_000, 6_000_000]);
        let lasts = Duration::from_micros(self.rng.within(100..longest));
        let what = self.rng.within(0..10);
        self.trace(&format!("strike {what} at {a}, {b} for {lasts:?}"));
        let undo = match what {
            0 => {
                self.network.link_mut(place(a), place(b)).cut = true;
                Undo::Cut { from: a, to: b }
            }
            1 => {
                self.network.link_mut(place(a), place(b)).cut = true;
                self.network.link_mut(place(b), place(a)).cut = true;
                self.later(lasts, Action::Undo(Undo::Cut { from: b, to: a }));
                Undo::Cut { from: a, to: b }
            }
            2 => {
                self.network.mute(a, true);
                Undo::Mute(a)
            }
            3 => {
                self.network.set_faults(Faults {
                    loss: 300,
                    duplication: 100,
                    reordering: 300,
                    corruption: 100,
                });
                Undo::Faults
            }
            4 => {
                self.set_link(a, false);
                Undo::Down(a)
            }
            5 => {
                // Strikes of the same link do not add up.
                self.network.link_mut(place(a), place(b)).delay = SLOWDOWN * self.latency;
                Undo::Latency { from: a, to: b }
            }
            6 => {
                self.power_off(a);
                let off = Duration::from_micros(self.rng.within(0..30_000));
                return self.later(off, Action::Boot(a));
            }
            _ => return self.strike_connection(what),
        };
        self.later(lasts, Action::Undo(undo));
    }

    /// Causes a fault of an established connection.
    fn strike_connection(&mut self, what: u64) {
        let up: Vec<usize> =
            (0..self.sides.len()).filter(|&n| self.sides[n].state == State::Up).collect();
        if up.is_empty() {
            return;
        }
        let number = self.rng.pick(&up);
        let side = &self.sides[number];
        let now = self.network.now;
        let machine = self.hosts[side.host].up();
        match what {
            7 => machine
                .roce
                .disconnect(side.connection, now)
                .expect("the connection is established"),
            8 => self.tear_down(number),
            _ => {
                machine.roce.revoke_key(side.window.id).expect("the region is registered");
                if let Some(peer) = side.peer {
                    self.sides[peer].refusable = true;
                }
            }
        }
    }

    /// Ends a fault.
    pub fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Cut { from, to } => self.network.link_mut(place(from), place(to)).cut = false,
            Undo::Mute(node) => self.network.mute(node, false),
            Undo::Down(node) => self.set_link(node, true),
            Undo::Faults => self.network.set_faults(self.faults),
            Undo::Latency { from, to } => {
                self.network.link_mut(place(from), place(to)).delay = Duration::ZERO;
            }
        }
    }

    /// Sets the link of a host up or down, and notifies the host.
    pub fn set_link(&mut self, host: usize, up: bool) {
        self.network.set_up(place(host), up);
        self.hosts[host].link = up;
        if let Some(machine) = &mut self.hosts[host].machine {
            machine.roce.set_link(0, up);
        }
    }

    /// A host loses power.
    pub fn power_off(&mut self, host: usize) {
        if self.hosts[host].machine.is_none() {
            return;
        }
        self.check_host(host);
        self.check_count(host);
        self.hosts[host].machine = None;
        for side in &mut self.sides {
            if side.host == host {
                side.state = State::Gone;
            }
        }
    }
}
