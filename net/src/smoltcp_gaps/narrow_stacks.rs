//! smoltcp interfaces with a smaller MTU: smoltcp segments by the MTU of its interface, which cannot change.

use crate::link::{Framing, Link, Queue, to_smoltcp};
use crate::routes::Routes;
use alloc::vec::Vec;
use drivers::hal::Instant;
use smoltcp::iface::{Config, Interface};
use smoltcp::wire::HardwareAddress;

/// Cached interfaces with a smaller MTU. If more sizes are in use, interfaces are made again.
const NARROW: usize = 8;

/// smoltcp interfaces with an MTU below that of the port.
#[derive(Default)]
pub struct NarrowStacks {
    stacks: Vec<(usize, u64, Interface)>,
    next: usize,
}

impl NarrowStacks {
    /// The interface with this MTU.
    pub fn of(&mut self, mtu: usize, routes: &Routes, now: Instant) -> &mut Interface {
        let wanted = (mtu, routes.generation);
        let found = self.stacks.iter().position(|(mtu, routes, _)| (*mtu, *routes) == wanted);
        let at = found.unwrap_or_else(|| {
            let made = (mtu, routes.generation, narrow(mtu, routes, now));
            if self.stacks.len() < NARROW {
                self.stacks.push(made);
                return self.stacks.len() - 1;
            }
            self.next = (self.next + 1) % NARROW;
            self.stacks[self.next] = made;
            self.next
        });
        &mut self.stacks[at].2
    }
}

#[cold]
fn narrow(mtu: usize, routes: &Routes, now: Instant) -> Interface {
    let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
    let mut queue = Queue::new(1, 1);
    let mut link = Link { received: None, queue: &mut queue, mtu, framing };
    let config = Config::new(HardwareAddress::Ip);
    let mut stack = Interface::new(config, &mut link, to_smoltcp(now));
    stack.update_ip_addrs(|list| list.extend(routes.addresses.iter().copied()));
    stack
}
