//! A machine at the other end of the bridge: NTRDMA over a TCP connection, and a client of the
//! appliance's volumes on it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use drivers::hal;
use drivers::ntb::Stream;
use ntrdma::{Config, Layout, Ntrdma, State};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use rtrs::Name;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use storage::rnbd::client::{self, Client, Losses, Notice, RemoteVolume};
use storage::rnbd::wire::{AccessMode, PORT};
use storage::volume::{Operation, Request, Volume};
use verbs::{ConnectionManager, Provider};

/// Bytes of memory of the client.
const ARENA: usize = 64 << 20;
/// Longest sleep, because the provider has to show regularly that it is alive.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The appliance's peer.
pub struct Machine {
    socket: TcpStream,
    stream: Stream,
    ntrdma: Ntrdma,
    ends: [IpAddr; 2],
    arena: hal::Arena,
    rng: ChaCha12Rng,
    started: Instant,
    buffer: Vec<u8>,
    mapped: Option<(Client, RemoteVolume)>,
}

impl Machine {
    /// Connects to an appliance. `ends` are the addresses of this machine and of the appliance; each exposes `memory`
    /// bytes.
    pub fn connect(appliance: SocketAddr, ends: [IpAddr; 2], memory: usize) -> Result<Machine> {
        let socket = TcpStream::connect(appliance).context("could not connect to the appliance")?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let mut seed = [0; 32];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut seed)?;
        let mut rng = ChaCha12Rng::from_seed(seed);
        let exposed = hal::Arena::on_heap(memory + 4096).alloc(memory, 4096);
        let exposed = exposed.with_context(|| format!("no {memory} bytes of memory"))?;
        let layout = Layout::within(memory).context("the memory is too small for the link")?;
        let lost = Duration::from_secs(5);
        let config = Config { layout, lost, ..Config::new(u64::from(seed[0]), ends[0], ends[1]) };
        let ntrdma = Ntrdma::new(config, exposed, &mut rng)
            .map_err(|why| anyhow!("the shared memory cannot be used: {why}"))?;
        let mut stream = Stream::new(exposed);
        stream.open();
        Ok(Machine {
            socket,
            stream,
            ntrdma,
            ends,
            arena: hal::Arena::on_heap(ARENA),
            rng,
            started: Instant::now(),
            buffer: vec![0; 64 << 10],
            mapped: None,
        })
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.ntrdma.link() == State::Up
    }

    /// Bytes of the mapped volume; 0 while the appliance has not opened it.
    pub fn size(&self) -> u64 {
        self.mapped.as_ref().map_or(0, |(_, volume)| 512 * volume.geometry().sectors)
    }

    /// Maps a volume for reading.
    pub fn map(&mut self, volume: &str) -> Result<()> {
        let name =
            |text| Name::new(text).map_err(|why| anyhow!("{text:?} is not a valid name: {why:?}"));
        let (session, volume) = (name("host")?, name(volume)?);
        let now = self.now();
        let Machine { ntrdma, arena, rng, .. } = self;
        let mut ctx = verbs::Ctx { provider: ntrdma, arena, now, rng };
        let (config, transport) = Default::default();
        let client: client::Config = config;
        let mut client = Client::new(client, transport, session, &mut ctx)
            .map_err(|why| anyhow!("could not create the client: {why:?}"))?;
        let (_, volume) = client
            .map(volume, AccessMode::ReadOnly, Losses::ToFlush, &mut ctx)
            .map_err(|why| anyhow!("{why}"))?;
        let to = SocketAddr::new(self.ends[1], PORT);
        client
            .transport_mut()
            .add_path(self.ends[0], to, &mut ctx)
            .map_err(|why| anyhow!("could not add a path: {why:?}"))?;
        self.mapped = Some((client, volume));
        Ok(())
    }

    /// Reads `count` times `size` bytes, `depth` at once, over the whole volume, and returns the time
    /// taken.
    pub fn read(&mut self, size: usize, depth: usize, count: u64) -> Result<Duration> {
        let all = self.arena.alloc(depth * size, 4096).context("no memory for reads")?;
        let places = (self.size() / size as u64).max(1);
        let mut free: Vec<u64> = (0..depth as u64).collect();
        let (mut begun, mut ended) = (0, 0);
        let from = Instant::now();
        while ended < count {
            let Some((_, volume)) = &mut self.mapped else { bail!("no volume is mapped") };
            while begun < count
                && let Some(tag) = free.pop()
            {
                let data = all.slice(tag as usize * size, size).context("beyond the buffer")?;
                let sector = begun % places * size as u64 / 512;
                let request = Request { tag: tag.into(), operation: Operation::Read, sector, data };
                volume.submit(&request).map_err(|why| anyhow!("a read was refused: {why:?}"))?;
                begun += 1;
            }
            while let Some(done) = volume.poll() {
                done.result.map_err(|why| anyhow!("a read failed: {why:?}"))?;
                free.push(done.tag.word);
                ended += 1;
            }
            self.turn()?;
        }
        self.arena.free(all);
        Ok(from.elapsed())
    }

    fn now(&self) -> hal::Instant {
        hal::Instant::from_nanos(self.started.elapsed().as_nanos() as u64 + 1)
    }

    /// Receives data, runs the engines, and sends data; sleeps if there was nothing to do.
    pub fn turn(&mut self) -> Result<()> {
        let arrived = self.receive()?;
        let was_up = self.is_up();
        let mut done = self.work() || arrived;
        ensure!(self.is_up() || !was_up, "the link went down");
        done |= self.send()?;
        if !done {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !self.stream.outgoing().is_empty());
            poll(&mut [PollFd::new(&self.socket, flags)], Some(&NAP))?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<bool> {
        let mut any = false;
        loop {
            match self.socket.read(&mut self.buffer) {
                Ok(0) => {
                    bail!(
                        "the appliance has closed the connection: see `show log` on the appliance"
                    )
                }
                Ok(count) => self.stream.receive(&self.buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error).context("the connection is lost"),
            }
            any = true;
            if let Some(wrong) = self.stream.wrong() {
                bail!("{wrong}");
            }
        }
    }

    fn work(&mut self) -> bool {
        let now = self.now();
        let Machine { ntrdma, arena, rng, stream, mapped, .. } = self;
        ntrdma.handle_timeout(now);
        let more = ntrdma.poll(stream, now);
        let mut ctx = verbs::Ctx { provider: ntrdma, arena, now, rng };
        let Some((client, _)) = mapped else { return more };
        while ctx.provider.poll_event().is_some() {}
        while let Some(event) = ctx.provider.poll_connection_event() {
            client.handle_connection_event(&event, &mut ctx);
        }
        while let Some(notice) = client.poll(&mut ctx) {
            if let Notice::DeviceRefused { errno, .. } = notice {
                println!("the appliance refused to open the volume: {errno:?}");
            }
        }
        ntrdma.poll(stream, now) || more
    }

    fn send(&mut self) -> Result<bool> {
        let mut any = false;
        while !self.stream.outgoing().is_empty() {
            match self.socket.write(self.stream.outgoing()) {
                Ok(count) => self.stream.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("the connection is lost"),
            }
            any = true;
        }
        Ok(any)
    }
}
