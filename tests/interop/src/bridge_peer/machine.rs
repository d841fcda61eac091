//! The peer machine: the project's drivers on the model's function, a private I/OAT engine, NTRDMA, and an RNBD client
//! that reads from a volume of the image.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use drivers::driver::Class;
use drivers::hal::{self, Arena, Platform, Window};
use drivers::ntb::Ntb;
use memmap2::MmapMut;
use metal::{MEMORY, Metal};
use models::Function;
use models::ioat::{self, Ioat};
use ntrdma::{Config, Layout, Ntrdma};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rtrs::Name;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use storage::rnbd::client::{self, Client, Losses, RemoteVolume};
use storage::rnbd::wire::{AccessMode, PORT};
use storage::volume::{Operation, Request, Volume};
use verbs::{ConnectionManager, Provider};

use super::function::Remote;
use super::liar::{Liar, corrupt};
use super::{Attacks, Kind};

/// Bytes of memory; most of it is never touched.
const BYTES: u64 = 192 << 20;
/// Reads in flight.
const DEPTH: usize = 4;
/// Bytes of a read.
const READ: usize = 16 << 10;
/// End of the control structures in the memory that the image exposes.
const CONTROL: u64 = 0x4000;
/// Bytes of a Switchtec page, the range of its first lookup-table window.
const PAGE: u64 = 4096;

/// The peer machine of the image.
pub struct Machine {
    kind: Kind,
    memory: OwnedFd,
    metal: Metal<Remote>,
    engine: Metal<Ioat>,
    liar: Liar,
    /// Offset of the window in its BAR.
    window_at: u64,
    ntrdma: Ntrdma,
    arena: Arena,
    mapped: Option<(Client, RemoteVolume)>,
    buffers: Window,
    free: Vec<u64>,
    rng: StdRng,
    last: Instant,
    now: hal::Instant,
    /// Reads that have succeeded.
    pub reads: u64,
}

impl Machine {
    /// Connects to the second side of the bridge.
    pub fn start(kind: Kind, socket: &Path, seed: u64) -> Result<Machine> {
        let memory = memfd_create("isthmus-bridge-peer", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, BYTES)?;
        // SAFETY: only this machine and its function have the file, and it never shrinks.
        let mapped = unsafe { MmapMut::map_mut(&memory)? };
        let start = NonNull::from(Box::leak(Box::new(mapped)).as_mut()).cast();
        // SAFETY: leaked, so it stays mapped for ever, and nothing borrows it.
        let all = unsafe { Window::from_raw(start, MEMORY, BYTES as usize) };
        let twin = kind.twin();
        let bars = twin.bars().to_vec();
        let bar = bars.iter().find(|bar| bar.index == 2).context("no window")?.size;
        let remote = Remote::connect(socket, twin, memory.as_fd(), MEMORY, BYTES)?;
        let mut metal = Metal::with_memory(remote, all);
        metal.interrupts = 0;
        // Only the engine writes to the window, never the processor.
        let nowhere = metal.arena().alloc(bar as usize, 4096).context("no memory")?;
        metal.put_behind(2, nowhere);
        let device = metal.find().take(Class::Bridge).remove(0);
        let mut bridge =
            device.open_bridge(&mut metal, None, true).map_err(|why| anyhow!("{why}"))?;
        let settings = ioat::Config { device: 0x2021, channels: 1, version: 0x34, fault: None };
        let mut engine = metal.beside(Ioat::new(settings));
        let device = engine.find().take(Class::Dma).remove(0);
        let clock = engine.clock();
        let mut channels = device.open_dma(&mut engine, &clock).map_err(|why| anyhow!("{why}"))?;
        let taken = bridge.use_engine(channels.remove(0), metal.arena());
        anyhow::ensure!(taken, "no memory for the engine");
        let mut rng = StdRng::seed_from_u64(seed);
        let exposed = bridge.exposed();
        let layout = Layout::within(exposed.len()).context("the bridge is too small")?;
        let [own, image] = Self::ends();
        let usual = Config::new(seed, own, image);
        let config = Config { layout, lost: Duration::from_secs(2), ..usual };
        let ntrdma = Ntrdma::new(config, exposed, &mut rng).map_err(|why| anyhow!("{why}"))?;
        let buffers = metal.arena().alloc(DEPTH * READ, 4096).context("no memory for reads")?;
        let window_at = bridge.window().bus_address() % bar;
        let arena = metal.arena().share();
        Ok(Machine {
            kind,
            memory,
            metal,
            engine,
            liar: Liar::new(bridge, rng.next_u64()),
            window_at,
            ntrdma,
            arena,
            mapped: None,
            buffers,
            free: (0..DEPTH as u64).collect(),
            rng,
            last: Instant::now(),
            now: hal::Instant::from_nanos(1),
            reads: 0,
        })
    }

    fn ends() -> [IpAddr; 2] {
        [2, 1].map(|n| Ipv4Addr::new(10, 9, 0, n).into())
    }

    /// Corrupted writes so far.
    pub fn corrupted(&self) -> u64 {
        self.liar.corrupted
    }

    /// Maps a volume read-only.
    pub fn map(&mut self, volume: &str) -> Result<()> {
        let name =
            |text| Name::new(text).map_err(|why| anyhow!("{text:?} is not a valid name: {why:?}"));
        let (session, volume) = (name("liar")?, name(volume)?);
        let Machine { ntrdma, arena, rng, now, .. } = self;
        let mut ctx = verbs::Ctx { provider: ntrdma, arena, now: *now, rng };
        let (config, transport) = Default::default();
        let config: client::Config = config;
        let mut client = Client::new(config, transport, session, &mut ctx)
            .map_err(|why| anyhow!("no client: {why:?}"))?;
        let (_, volume) = client
            .map(volume, AccessMode::ReadOnly, Losses::ToFlush, &mut ctx)
            .map_err(|why| anyhow!("{why}"))?;
        let [own, image] = Self::ends();
        let to = SocketAddr::new(image, PORT);
        let added = client.transport_mut().add_path(own, to, &mut ctx);
        added.map_err(|why| anyhow!("no path: {why:?}"))?;
        self.mapped = Some((client, volume));
        Ok(())
    }

    /// Runs one turn of the loop, with these attacks.
    pub fn turn(&mut self, attacks: &Attacks) {
        let passed = self.last.elapsed();
        self.last += passed;
        self.engine.pass(passed);
        self.now = self.metal.pass(passed);
        self.engine.run();
        self.metal.run();
        self.liar.one_in = attacks.corrupt_one_in;
        self.work();
        self.engine.run();
        if attacks.scribbles {
            (0..4).for_each(|_| self.scribble());
        }
        if attacks.signals {
            self.signal();
        }
    }

    fn work(&mut self) {
        let now = self.now;
        let Machine { ntrdma, arena, rng, liar, mapped, .. } = self;
        ntrdma.handle_timeout(now);
        ntrdma.poll(liar, now);
        if let Some((client, volume)) = mapped {
            let mut ctx = verbs::Ctx { provider: ntrdma, arena, now, rng };
            while ctx.provider.poll_event().is_some() {}
            while let Some(event) = ctx.provider.poll_connection_event() {
                client.handle_connection_event(&event, &mut ctx);
            }
            while client.poll(&mut ctx).is_some() {}
            while let Some(done) = volume.poll() {
                self.reads += u64::from(done.result.is_ok());
                self.free.push(done.tag.word);
            }
            let places = 512 * volume.geometry().sectors / READ as u64;
            while places > 0
                && let Some(tag) = self.free.pop()
            {
                let data = self.buffers.slice(tag as usize * READ, READ).unwrap_or(Window::empty());
                let sector = rng.random_range(0..places) * READ as u64 / 512;
                let request = Request { tag: tag.into(), operation: Operation::Read, sector, data };
                if volume.submit(&request).is_err() {
                    self.free.push(tag);
                    break;
                }
            }
        }
        ntrdma.poll(liar, now);
    }

    /// Overwrites a word of the memory that the image exposes, most often among doorbells and commands, and now and
    /// then a whole page.
    fn scribble(&mut self) {
        let Machine { metal, rng, .. } = self;
        let bytes = self.liar.window().len() as u64;
        let end = if rng.random_range(0..4) > 0 { CONTROL } else { bytes };
        let mut at = self.window_at + rng.random_range(0..end / 4) * 4;
        if self.kind == Kind::Switchtec && rng.random_range(0..8) == 0 {
            at = rng.random_range(0..PAGE / 4) * 4;
        }
        let from =
            if rng.random() { at } else { self.window_at + rng.random_range(0..end / 4) * 4 };
        let page = (rng.random_range(0..64) == 0).then(|| {
            let mut noise = vec![0; 4096];
            rng.fill_bytes(&mut noise);
            (self.window_at + rng.random_range(0..bytes / 4096) * 4096, noise)
        });
        metal.model(|remote| {
            let mut there = [0; 4];
            let client = remote.client();
            // Errors are ignored: the place may not be accessible at the moment.
            let _ = client.read(2, from, &mut there);
            let value = corrupt(rng, u32::from_le_bytes(there));
            let _ = client.write(2, at, &value.to_le_bytes());
            if let Some((at, noise)) = page {
                let _ = client.write(2, at, &noise);
            }
        });
    }

    /// Writes a scratchpad, rings doorbells in bursts, and toggles the link.
    fn signal(&mut self) {
        let count = self.liar.scratchpads();
        let n = self.rng.random_range(0..count);
        let value = corrupt(&mut self.rng, self.liar.scratchpad(n));
        self.liar.inner.set_peer_scratchpad(n, value);
        let times = if self.rng.random_range(0..16) == 0 { 64 } else { 1 };
        (0..times).for_each(|_| self.liar.inner.ring());
        if self.rng.random_range(0..8) == 0 {
            let writes = self.kind.link_writes(&mut self.rng);
            self.metal.model(|remote| {
                for (offset, bytes) in writes {
                    let _ = remote.client().write(0, offset, &bytes);
                }
            });
        }
    }

    /// Resets the function under its driver.
    pub fn reset_function(&mut self) {
        self.metal.model(Function::reset);
    }

    /// Describes the machine's state, for a failing test.
    pub fn describe(&self) -> String {
        format!(
            "link {:?} (bridge {}), {} reads, {} corrupted writes, {:?}",
            self.ntrdma.link(),
            self.liar.link(),
            self.reads,
            self.liar.corrupted,
            self.ntrdma.counters()
        )
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The bus scan leaks the function, so dropping it does not close the connection.
        self.metal.model(|remote| remote.client().close());
        // Windows live for ever, so the address range stays mapped; only its pages are freed.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = fallocate(&self.memory, flags, 0, BYTES);
    }
}
