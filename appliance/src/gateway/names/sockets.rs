//! The sockets of queries: one of its own for each, at a random port, over UDP or TCP.

use crate::gateway::network::Network;
use core::net::SocketAddr;
use drivers::hal::Instant;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use net::dns::{Action, LONGEST_DATAGRAM, QueryId, Resolver};
use net::udp;
use rand_core::Rng;

/// Limits of connections on an interface.
const LIMITS: Limits = Limits { connections: 16, receive: 4 << 10, transmit: 1 << 10 };

/// The socket of a query.
enum Socket {
    Datagram(udp::Socket),
    Stream {
        connection: ConnectionHandle,
        /// The message, and how much of it was written.
        message: Vec<u8>,
        written: usize,
    },
}

/// A query with its socket, and the number of the interface.
struct Open {
    query: QueryId,
    interface: usize,
    socket: Socket,
}

/// The sockets of all queries.
#[derive(Default)]
pub(super) struct Sockets {
    open: Vec<Open>,
    /// Connectors by the number of the interface, made for its first connection.
    connectors: Vec<Option<Connector>>,
}

impl Sockets {
    /// Passes what has arrived to the resolver. Returns the amount.
    pub fn receive(
        &mut self,
        resolver: &mut Resolver,
        networks: &mut [Network],
        rng: &mut dyn Rng,
        now: Instant,
    ) -> usize {
        let mut count = 0;
        let mut bytes = [0; LONGEST_DATAGRAM];
        let mut failed = Vec::new();
        for one in &mut self.open {
            let Some(network) = networks.get_mut(one.interface) else { continue };
            let interface = &mut network.interface;
            match &mut one.socket {
                Socket::Datagram(socket) => {
                    while let Some((length, from)) = socket.receive(interface, &mut bytes) {
                        count += 1;
                        resolver.handle_datagram(one.query, from, &bytes[..length], rng, now);
                    }
                }
                Socket::Stream { connection, message, written } => {
                    let Some(Some(connector)) = self.connectors.get_mut(one.interface) else {
                        continue;
                    };
                    while connector.next_news(interface).is_some() {}
                    match connector.progress(interface, *connection) {
                        Progress::Opening => continue,
                        Progress::Gone => {
                            failed.push(one.query);
                            continue;
                        }
                        Progress::Open { .. } => {}
                    }
                    let rest = message.get(*written..).unwrap_or_default();
                    if !rest.is_empty() {
                        *written += connector.write(interface, *connection, rest).unwrap_or(0);
                    }
                    loop {
                        match connector.read(interface, *connection, &mut bytes) {
                            Ok(0) => break,
                            Ok(length) => {
                                count += 1;
                                let bytes = &bytes[..length];
                                if !resolver.handle_stream(one.query, bytes, rng, now) {
                                    break;
                                }
                            }
                            Err(_) => {
                                failed.push(one.query);
                                break;
                            }
                        }
                    }
                }
            }
        }
        for query in failed {
            count += 1;
            resolver.handle_failure(query, rng, now);
        }
        count
    }

    /// Does what the resolver asks for. Returns the number of actions.
    pub fn act(
        &mut self,
        resolver: &mut Resolver,
        networks: &mut [Network],
        rng: &mut dyn Rng,
        now: Instant,
    ) -> usize {
        let mut count = 0;
        while let Some(action) = resolver.next_action() {
            count += 1;
            let (query, sent) = match action {
                Action::Datagram { query, interface, to, port, message } => {
                    self.close(query, networks);
                    (query, self.send(query, interface, networks, to, port, &message))
                }
                Action::Stream { query, interface, to, message } => {
                    self.close(query, networks);
                    let seed = rng.next_u32() as u16;
                    (query, self.connect(query, interface, networks, to, seed, message))
                }
                Action::Close { query } => {
                    self.close(query, networks);
                    continue;
                }
            };
            if sent.is_none() {
                resolver.handle_failure(query, rng, now);
            }
        }
        count
    }

    fn send(
        &mut self,
        query: QueryId,
        number: usize,
        networks: &mut [Network],
        to: SocketAddr,
        port: u16,
        message: &[u8],
    ) -> Option<()> {
        let interface = &mut networks.get_mut(number)?.interface;
        let socket = udp::Socket::open(interface, port, LONGEST_DATAGRAM)?;
        let is_sent = socket.send(interface, to, message);
        self.open.push(Open { query, interface: number, socket: Socket::Datagram(socket) });
        is_sent.then_some(())
    }

    fn connect(
        &mut self,
        query: QueryId,
        number: usize,
        networks: &mut [Network],
        to: SocketAddr,
        seed: u16,
        message: Vec<u8>,
    ) -> Option<()> {
        let interface = &mut networks.get_mut(number)?.interface;
        if self.connectors.len() <= number {
            self.connectors.resize_with(number + 1, || None);
        }
        let connector = self.connectors.get_mut(number)?;
        let connector = connector.get_or_insert_with(|| Connector::new(LIMITS, seed));
        let connection = connector.connect(interface, to, false)?;
        let socket = Socket::Stream { connection, message, written: 0 };
        self.open.push(Open { query, interface: number, socket });
        Some(())
    }

    /// Closes the socket of a query, if it has one.
    fn close(&mut self, query: QueryId, networks: &mut [Network]) {
        let Some(at) = self.open.iter().position(|one| one.query == query) else { return };
        let Open { interface: number, socket, .. } = self.open.swap_remove(at);
        let Some(network) = networks.get_mut(number) else { return };
        match socket {
            Socket::Datagram(socket) => socket.close(&mut network.interface),
            Socket::Stream { connection, .. } => {
                if let Some(Some(connector)) = self.connectors.get_mut(number) {
                    connector.close(&mut network.interface, connection, true);
                }
            }
        }
    }
}
