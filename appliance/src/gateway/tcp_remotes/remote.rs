//! One remote volume over TCP: its client, and the TCP connections of it.

use super::engine::{Action, Client, End, Engine, News};
use crate::config::Remote;
use crate::gateway::network::Network;
use core::cmp::Ordering;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use management::status::{NbdStatus, NvmeHostStatus};
use net::connector::{ConnectionHandle, Connector, Limits, Owner, Progress};
use net::dns::{Endpoint, Host, Lookup, Resolver};
use rand_core::Rng;
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of a connection's buffers in each direction, and of those of all connections of a remote. 10 Gb/s over a round
/// trip of 200 µs fit.
const BUFFER: core::ops::RangeInclusive<usize> = 64 << 10..=256 << 10;
const BUFFERS: usize = 1 << 20;
/// Most bytes that a connection moves in each direction in a round.
const SHARE: usize = 256 << 10;
/// Most actions of a client in a round.
const MOST_ACTIONS: usize = 64;
/// Failures of a server's requests that are logged in a minute, and as many possible losses.
const MOST_ERRORS: u32 = 3;
/// Changes of its connections that are logged in a minute.
const MOST_CHANGES: u32 = 12;
const MINUTE: Duration = Duration::from_secs(60);

/// A TCP connection: number of its interface, and its name there.
#[derive(Clone, Copy)]
struct Link {
    interface: usize,
    handle: ConnectionHandle,
    /// The server's end.
    to: SocketAddr,
    is_open: bool,
}

/// Lines of the log in the present minute, which a server may cause.
#[derive(Default)]
struct Lines {
    since: Instant,
    count: u32,
}

impl Lines {
    /// Whether this one is logged, and the end of its text: the last one says that no more follow.
    fn next(&mut self, most: u32, now: Instant) -> Option<&'static str> {
        if now.since(self.since) >= MINUTE {
            *self = Lines { since: now, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        match self.count.cmp(&most) {
            Ordering::Less => Some(""),
            Ordering::Equal => Some("; the next ones are not logged for up to a minute"),
            Ordering::Greater => None,
        }
    }
}

/// Result of [`TcpRemote::poll`].
#[derive(Default)]
pub(super) struct Polled {
    /// Amount of work.
    pub moved: usize,
    /// Bytes are left.
    pub has_more: bool,
    /// The geometry may have changed.
    pub changed: bool,
}

/// A remote volume.
pub(super) struct TcpRemote {
    pub name: String,
    pub client: Client,
    pub engine: Rc<RefCell<dyn Engine>>,
    addresses: Vec<Endpoint>,
    /// By interface.
    connectors: Vec<Option<Connector>>,
    /// By connection of the client.
    links: Vec<Option<Link>>,
    /// Connectors that were made since this was read last.
    pub new_owners: Vec<(usize, Owner)>,
    /// Its entry among the timers.
    pub due: Option<Instant>,
    /// The operator has removed it; it disconnects.
    pub is_removed: bool,
    /// Attempts to connect, which select one of several addresses of a name.
    attempts: usize,
    /// By address: the failure that was logged last, until it is up.
    logged: Vec<Option<String>>,
    errors: Lines,
    losses: Lines,
    changes: Lines,
}

impl TcpRemote {
    /// A remote without a connection.
    pub fn new(remote: &Remote, client: Client) -> TcpRemote {
        let links = (0..client.connections()).map(|_| None).collect();
        let port = remote.kind.port();
        TcpRemote {
            name: remote.name.to_string(),
            engine: client.engine(),
            client,
            addresses: remote.address.iter().map(|one| one.endpoint(port)).collect(),
            connectors: Vec::new(),
            links,
            new_owners: Vec::new(),
            due: None,
            is_removed: false,
            attempts: 0,
            logged: vec![None; remote.address.len()],
            errors: Lines::default(),
            losses: Lines::default(),
            changes: Lines::default(),
        }
    }

    /// Status for reports, of a remote over NBD.
    pub fn nbd_status(&self) -> Option<NbdStatus<'_>> {
        let Client::Nbd(client) = &self.client else { return None };
        let client = client.borrow();
        Some(NbdStatus {
            name: &self.name,
            export: client.name().to_string(),
            address: self.address(client.status().path),
            settings: *client.settings(),
            geometry: client.geometry(),
            status: client.status(),
        })
    }

    /// Status for reports, of a remote over NVMe/TCP.
    pub fn nvme_status(&self) -> Option<NvmeHostStatus<'_>> {
        let Client::Nvme(client) = &self.client else { return None };
        let client = client.borrow();
        Some(NvmeHostStatus {
            name: &self.name,
            subsystem: client.identity().subsystem.clone(),
            addresses: self.addresses.iter().map(ToString::to_string).collect(),
            settings: *client.settings(),
            geometry: client.geometry(),
            status: client.status(),
        })
    }

    fn address(&self, path: u16) -> String {
        self.addresses.get(usize::from(path)).map(ToString::to_string).unwrap_or_default()
    }

    /// When [`TcpRemote::poll`] is due without an event.
    pub fn deadline(&self) -> Option<Instant> {
        self.engine.borrow().deadline()
    }

    /// Resets all connections.
    pub fn stop(&mut self, networks: &mut [Network]) {
        self.links.fill(None);
        for (network, connector) in networks.iter_mut().zip(self.connectors.drain(..)) {
            if let Some(connector) = connector {
                connector.stop(&mut network.interface);
            }
        }
    }

    /// Runs the client, and moves bytes of its connections.
    pub fn poll(
        &mut self,
        networks: &mut [Network],
        resolver: &mut Resolver,
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Polled {
        let engine = self.engine.clone();
        let client = &mut *engine.borrow_mut();
        let mut polled = Polled::default();
        for (network, connector) in networks.iter_mut().zip(&mut self.connectors) {
            let Some(connector) = connector else { continue };
            while connector.next_news(&mut network.interface).is_some() {
                polled.moved += 1;
            }
        }
        client.poll(rng, now);
        for connection in 0..self.links.len() {
            self.serve(client, connection, networks, rng, now, &mut polled);
        }
        // Replies may have made room for requests on other connections.
        for connection in 0..self.links.len() {
            if client.wants_transmit(connection) {
                self.serve(client, connection, networks, rng, now, &mut polled);
            }
        }
        for _ in 0..MOST_ACTIONS {
            let Some(action) = client.next_action(now) else { break };
            polled.moved += 1;
            match action {
                Action::Connect { connection, path, beside } => {
                    let made = match beside {
                        None => self.connect(path, networks, resolver, rng, now),
                        Some(other) => self.connect_beside(other, networks, rng),
                    };
                    match made {
                        Some(link) => self.links[connection] = Some(link),
                        None => client.closed(connection, End::NoRoute, now),
                    }
                }
                Action::Close { connection, abort } => self.close(connection, abort, networks),
            }
        }
        while let Some(news) = client.next_news() {
            polled.changed |= matches!(news, News::Up { .. } | News::Grown { .. });
            self.log(news, now);
        }
        // Completions wait for the users of the volume.
        polled.moved += client.done();
        polled
    }

    /// Starts to connect to an address of the server.
    fn connect(
        &mut self,
        path: u16,
        networks: &mut [Network],
        resolver: &mut Resolver,
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Option<Link> {
        let server = self.addresses.get(usize::from(path))?;
        let mut addresses = match &server.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match resolver.lookup(name, now) {
                Lookup::Known(addresses) => addresses,
                Lookup::Pending | Lookup::Failed(_) => return None,
            },
        };
        // Attempts try the addresses of a name in turn.
        let first = self.attempts % addresses.len().max(1);
        addresses.rotate_left(first);
        self.attempts = self.attempts.wrapping_add(1);
        let port = server.port;
        let mut all = addresses.into_iter().map(|address| SocketAddr::new(address, port));
        all.find_map(|to| self.connect_to(to, networks, rng))
    }

    /// Starts to connect to the address of another connection. A name may lead to several servers, and a flush at one
    /// does not cover writes at another.
    fn connect_beside(
        &mut self,
        other: usize,
        networks: &mut [Network],
        rng: &mut dyn Rng,
    ) -> Option<Link> {
        let Link { to, .. } = (*self.links.get(other)?)?;
        self.connect_to(to, networks, rng)
    }

    fn connect_to(
        &mut self,
        to: SocketAddr,
        networks: &mut [Network],
        rng: &mut dyn Rng,
    ) -> Option<Link> {
        let connections = 2 * self.links.len() + 2;
        let buffer = (BUFFERS / self.links.len()).clamp(*BUFFER.start(), *BUFFER.end());
        let limits = Limits { connections, receive: buffer, transmit: buffer };
        for (interface, network) in networks.iter_mut().enumerate() {
            if network.interface.next_hop(to.ip()).is_none() {
                continue;
            }
            if self.connectors.len() <= interface {
                self.connectors.resize_with(interface + 1, || None);
            }
            let network = &mut network.interface;
            let connector = self.connectors[interface].get_or_insert_with(|| {
                let mut connector = Connector::new(limits, rng.next_u32() as u16);
                self.new_owners.push((interface, connector.owner(network)));
                connector
            });
            if let Some(handle) = connector.connect(network, to, false) {
                return Some(Link { interface, handle, to, is_open: false });
            }
        }
        None
    }

    fn close(&mut self, connection: usize, abort: bool, networks: &mut [Network]) {
        let Some(link) = self.links.get_mut(connection).and_then(Option::take) else { return };
        if let (Some(network), Some(Some(connector))) =
            (networks.get_mut(link.interface), self.connectors.get_mut(link.interface))
        {
            connector.close(&mut network.interface, link.handle, abort);
        }
    }

    /// Moves bytes of a connection in both directions until nothing moves, or its share is used.
    fn serve(
        &mut self,
        client: &mut dyn Engine,
        connection: usize,
        networks: &mut [Network],
        rng: &mut dyn Rng,
        now: Instant,
        polled: &mut Polled,
    ) {
        let Some(link) = &mut self.links[connection] else { return };
        let (Some(network), Some(Some(connector))) =
            (networks.get_mut(link.interface), self.connectors.get_mut(link.interface))
        else {
            return;
        };
        let (interface, handle) = (&mut network.interface, link.handle);
        let end = match connector.progress(interface, handle) {
            Progress::Opening => return,
            Progress::Gone if !link.is_open => Some(End::Refused),
            Progress::Gone => Some(End::Closed),
            Progress::Open { .. } => None,
        };
        if let Some(end) = end {
            polled.moved += 1;
            client.closed(connection, end, now);
            return self.close(connection, true, networks);
        }
        if !core::mem::replace(&mut link.is_open, true) {
            client.connected(connection, rng, now);
        }
        let (mut received, mut sent) = (0, 0);
        loop {
            let read = connector.read_with(interface, handle, |bytes| {
                client.receive(connection, bytes, now);
                bytes.len()
            });
            let Ok(mut moved) = read else {
                polled.moved += 1;
                client.closed(connection, End::Closed, now);
                return self.close(connection, true, networks);
            };
            received += moved;
            if client.wants_transmit(connection) {
                let filled = connector
                    .write_with(interface, handle, |space| client.transmit(connection, space, now));
                // A server that has closed its end is found by the next read.
                let count = filled.unwrap_or(0);
                (sent, moved) = (sent + count, moved + count);
            }
            polled.moved += usize::from(moved > 0);
            if moved == 0 {
                return;
            }
            if received >= SHARE || sent >= SHARE {
                polled.has_more = true;
                return;
            }
        }
    }

    /// Logs news. While an address stays down, each reason is logged once.
    fn log(&mut self, news: News, now: Instant) {
        let name = &self.name;
        match news {
            News::Up { path, is_only } => {
                let all = self.logged.iter_mut().enumerate();
                let rest = all.filter(|(number, _)| is_only || *number == usize::from(path));
                rest.for_each(|(_, logged)| *logged = None);
                if let Some(end) = self.changes.next(MOST_CHANGES, now) {
                    log::info!("remote {name}: connected to {}{end}", self.address(path));
                }
            }
            News::Down { path, why } => {
                let Some(logged) = self.logged.get_mut(usize::from(path)) else { return };
                if self.is_removed || logged.as_ref() == Some(&why) {
                    return;
                }
                *logged = Some(why.clone());
                if let Some(end) = self.changes.next(MOST_CHANGES, now) {
                    log::warn!("remote {name}: {}: {why}{end}", self.address(path));
                }
            }
            News::Changed { path, what } => {
                if let Some(end) = self.changes.next(MOST_CHANGES, now) {
                    log::info!("remote {name}: {}: {what}{end}", self.address(path));
                }
            }
            News::Grown { before, now: size } => {
                if let Some(end) = self.changes.next(MOST_CHANGES, now) {
                    log::info!("remote {name}: grew from {before} to {size} bytes{end}");
                }
            }
            News::WritesLost => {
                if let Some(end) = self.losses.next(MOST_ERRORS, now) {
                    log::warn!(
                        "remote {name}: the server may have lost writes that it had acknowledged, because it was not \
                         asked to flush them before its connection ended: the next flush fails{end}"
                    );
                }
            }
            News::Failed(what) => {
                if let Some(end) = self.errors.next(MOST_ERRORS, now) {
                    log::warn!("remote {name}: the server answered a request with {what}{end}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_a_server_causes_are_counted_by_the_minute() {
        let mut lines = Lines::default();
        let start = Instant::ZERO + MINUTE;
        let said: Vec<_> = (0..5).map(|_| lines.next(3, start).map(str::is_empty)).collect();
        assert_eq!(said, [Some(true), Some(true), Some(false), None, None]);
        assert_eq!(lines.next(3, start + MINUTE), Some(""));
    }
}
