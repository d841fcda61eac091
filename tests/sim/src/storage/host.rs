//! A host: RNBD client, and the users of its volumes.

use super::gateway::{Port, roce, transmit};
use super::user::{User, WRITER};
use drivers::hal::{Arena, Instant, Window};
use netsim::Rng;
use roce::{Roce, TxBuffer};
use rtrs::Name;
use rtrs::client as transport;
use std::net::SocketAddr;
use storage::rnbd::client::{self, Client, Losses, RemoteVolume};
use storage::rnbd::wire::{AccessMode, PORT};
use verbs::{ConnectionManager, Ctx, Provider};

/// A host.
pub struct Host {
    pub roce: Roce,
    /// The packets that its ports are sending.
    tx: Vec<TxBuffer>,
    pub client: Client,
    pub users: Vec<(User, RemoteVolume)>,
    pub arena: Arena,
    pub rng: Rng,
    /// Name for the trace.
    name: usize,
}

impl Host {
    /// A host that maps `disk` and `ram` of a gateway, over one path for each of its ports.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        name: usize,
        ports: &[Port],
        gateway: &[Port],
        mtu: usize,
        settings: (client::Config, transport::Config),
        memory: Window,
        mut rng: Rng,
        now: Instant,
    ) -> Self {
        let mut roce = roce(ports, mtu, gateway, &mut rng);
        let mut arena = Arena::new(memory);
        let mut ctx = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let session = Name::new(&format!("host{name}")).expect("a name");
        let client = Client::new(settings.0, settings.1, session, &mut ctx).expect("room");
        let tx = ports.iter().map(|_| TxBuffer::new()).collect();
        let mut host = Host { roce, tx, client, users: Vec::new(), arena, rng, name };
        for (port, to) in ports.iter().zip(gateway) {
            let Host { roce, client, arena, rng, .. } = &mut host;
            let mut ctx = Ctx { provider: roce, arena, now, rng };
            let to = SocketAddr::new(to.ip, PORT);
            client.transport_mut().add_path(port.ip, to, &mut ctx).expect("the path is new");
        }
        host
    }

    /// Maps a device for a user.
    pub fn map(&mut self, device: &str, now: Instant, user: impl FnOnce(&mut Arena, Rng) -> User) {
        let user = user(&mut self.arena, self.rng.fork());
        let Host { roce, client, arena, rng, .. } = self;
        let mut ctx = Ctx { provider: roce, arena, now, rng };
        let device = Name::new(device).expect("a name");
        let mode = if self.name == WRITER { AccessMode::ReadWrite } else { AccessMode::ReadOnly };
        let (_, volume) = client.map(device, mode, Losses::ToFlush, &mut ctx).expect("room");
        self.users.push((user, volume));
    }

    /// Calls `f` with the transport and its context.
    pub fn with_transport<T>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut transport::Client, &mut Ctx<'_, Roce>) -> T,
    ) -> T {
        let Host { roce, client, arena, rng, .. } = self;
        act(client.transport_mut(), &mut Ctx { provider: roce, arena, now, rng })
    }

    /// Whether all its users are done.
    pub fn is_done(&self) -> bool {
        self.users.iter().all(|(user, _)| user.is_done())
    }
}

impl netsim::Node for Host {
    fn handle_frame(&mut self, port: usize, frame: &[u8], now: Instant) {
        self.roce.handle_frame(port, frame, now);
    }
    fn poll_transmit(&mut self, port: usize, now: Instant) -> Option<Vec<u8>> {
        transmit(&mut self.roce, &mut self.tx[port], port, now)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        let engines = [self.roce.poll_timeout(), self.client.poll_timeout()];
        let users = self.users.iter().map(|(user, _)| user.next());
        engines.into_iter().chain(users).flatten().min()
    }
    fn work(&mut self, now: Instant) {
        self.roce.handle_timeout(now);
        while let Some(event) = self.roce.poll_connection_event() {
            let Host { roce, client, arena, rng, .. } = self;
            let mut ctx = Ctx { provider: roce, arena, now, rng };
            client.handle_connection_event(&event, &mut ctx);
        }
        // Completions let users submit more.
        for _ in 0..2 {
            let Host { roce, client, arena, rng, .. } = self;
            let mut ctx = Ctx { provider: roce, arena, now, rng };
            while let Some(notice) = client.poll(&mut ctx) {
                if netsim::tracing() {
                    println!("{:>12} host {}: {notice}", now.as_nanos() / 1000, self.name);
                }
            }
            for (user, volume) in &mut self.users {
                user.work(volume, now);
            }
        }
        let Host { roce, client, arena, rng, .. } = self;
        let mut ctx = Ctx { provider: roce, arena, now, rng };
        while client.poll(&mut ctx).is_some() {}
    }
}
