//! The TCP connections of the target's queues.

use crate::gateway::network::Network;
use ::nvme::tcp::TcpQueue;
use ::nvme::{Context, Ends, QueueId, Target};
use net::tcp::{Closed, Listener, Stream};
use std::collections::{HashMap, VecDeque};

/// Most bytes that a connection moves in each direction in a round.
const SHARE: usize = 256 << 10;
/// Most connections that are served in a round.
const SERVED: usize = 64;

/// Place of a connection: its interface, its listener there, and its name.
pub(super) type Place = (usize, usize, Stream);

/// The interfaces, and their listeners.
pub(super) struct Io<'a> {
    pub networks: &'a mut [Network],
    pub listeners: &'a mut [Vec<Listener>],
}

struct Connection {
    place: Place,
    queue: TcpQueue,
    /// It is on the list of connections to serve.
    is_ready: bool,
}

/// All connections.
#[derive(Default)]
pub(super) struct Connections {
    all: Vec<Option<Connection>>,
    free: Vec<usize>,
    by_place: HashMap<Place, usize>,
    by_queue: HashMap<QueueId, usize>,
    ready: VecDeque<usize>,
}

impl Connections {
    /// Number of connections.
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Whether connections wait to be served.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Opens a queue for a new connection. False if the target refuses it.
    pub fn open(
        &mut self,
        target: &mut Target,
        place: Place,
        ends: Ends,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(queue) = TcpQueue::open(target, ends, ctx) else { return false };
        let id = queue.id();
        let connection = Connection { place, queue, is_ready: false };
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[index] = Some(connection);
        self.by_place.insert(place, index);
        self.by_queue.insert(id, index);
        self.mark_index(index);
        true
    }

    /// Marks a connection to be served, after an event.
    pub fn mark(&mut self, place: Place) {
        if let Some(&index) = self.by_place.get(&place) {
            self.mark_index(index);
        }
    }

    fn mark_index(&mut self, index: usize) {
        if let Some(Some(connection)) = self.all.get_mut(index)
            && !core::mem::replace(&mut connection.is_ready, true)
        {
            self.ready.push_back(index);
        }
    }

    /// Marks the connections of queues for which the target has something.
    fn mark_queues(&mut self, target: &mut Target, ctx: &mut Context<'_>) {
        while let Some(id) = target.next_ready() {
            let Some(&index) = self.by_queue.get(&id) else { continue };
            if let Some(Some(connection)) = self.all.get_mut(index) {
                connection.queue.advance(target, ctx);
            }
            self.mark_index(index);
        }
    }

    /// Serves connections with events or with something to send. Returns the amount of work.
    pub fn poll(&mut self, target: &mut Target, io: &mut Io<'_>, ctx: &mut Context<'_>) -> usize {
        let mut done = 0;
        self.mark_queues(target, ctx);
        for _ in 0..self.ready.len().min(SERVED) {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(Some(connection)) = self.all.get_mut(index) else { continue };
            connection.is_ready = false;
            let served = connection.serve(target, io, ctx);
            match served {
                Served::Idle => done += 1,
                Served::More => {
                    done += 1;
                    self.mark_index(index);
                }
                Served::Over(how) => {
                    done += 1;
                    self.end(index, how, target, io, ctx);
                }
            }
            self.mark_queues(target, ctx);
        }
        done
    }

    fn end(
        &mut self,
        index: usize,
        how: Option<Closed>,
        target: &mut Target,
        io: &mut Io<'_>,
        ctx: &mut Context<'_>,
    ) {
        let Some(connection) = self.all.get_mut(index).and_then(Option::take) else { return };
        let Connection { place, queue, .. } = connection;
        self.free.push(index);
        self.by_place.remove(&place);
        self.by_queue.remove(&queue.id());
        let (at, number, stream) = place;
        if let (Some(network), Some(listener)) = (
            io.networks.get_mut(at),
            io.listeners.get_mut(at).and_then(|listeners| listeners.get_mut(number)),
        ) {
            match how {
                // What was written is sent: the reason of the end may be in it.
                None => listener.close(&mut network.interface, stream, ctx.now),
                Some(_) => listener.abort(&mut network.interface, stream, ctx.now),
            }
        }
        queue.close(target, ctx);
    }
}

/// Result of serving a connection.
enum Served {
    /// Nothing moves at present.
    Idle,
    /// It has moved its share.
    More,
    /// It has ended: by the target, or as the host has closed it.
    Over(Option<Closed>),
}

impl Connection {
    /// Moves bytes in both directions until nothing moves, or its share is used.
    fn serve(&mut self, target: &mut Target, io: &mut Io<'_>, ctx: &mut Context<'_>) -> Served {
        let (at, number, stream) = self.place;
        let (Some(network), Some(listener)) = (
            io.networks.get_mut(at),
            io.listeners.get(at).and_then(|listeners| listeners.get(number)),
        ) else {
            return Served::Over(None);
        };
        let interface = &mut network.interface;
        let queue = &mut self.queue;
        // A host closes a connection in both directions. It may be back over another one already, so commands of this
        // one that were received and not read must not be executed any more.
        if listener.is_closed_by_peer(interface, stream) {
            return Served::Over(Some(Closed::Finished));
        }
        let (mut received, mut sent) = (0, 0);
        loop {
            let read = match queue.takes_bytes() {
                true => {
                    listener.read_with(interface, stream, |bytes| queue.receive(bytes, target, ctx))
                }
                false => Ok(0),
            };
            let mut moved = 0;
            match read {
                Ok(count) => {
                    received += count;
                    moved += count;
                }
                Err(how) => return Served::Over(Some(how)),
            }
            if queue.wants_transmit() {
                let filled = listener
                    .write_with(interface, stream, |space| queue.transmit(space, target, ctx));
                match filled {
                    Ok(count) => {
                        sent += count;
                        moved += count;
                    }
                    Err(how) => return Served::Over(Some(how)),
                }
            }
            if queue.is_finished() {
                return Served::Over(None);
            }
            if moved == 0 {
                return Served::Idle;
            }
            if received >= SHARE || sent >= SHARE {
                return Served::More;
            }
        }
    }
}
