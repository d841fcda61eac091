//! The appliance's engines in this process, on a wire to a Linux guest: the image's own code (RoCE, RTRS, RNBD, the
//! control plane) without its kernel and drivers. A failure here is a protocol fault, which a debugger can inspect.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use drivers::hal::{Arena, Instant, Packet, Port};
use launch::qemu::Nic;
use net::hosts::Hosts;
use net::{Addressing, Class, Interface};
use perf_responders::tcp_control::TcpControl;
use perf_responders::{rping, tools};
use rand::RngExt;
use rand::rngs::StdRng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::Name;
use rtrs::client as transport;
use rtrs::server::Config;
use smcr::echo::Echo;
use smcr::engine::{Config as SmcConfig, Device, Engine};
use smcr::wire::Eid;
use storage::rnbd::client::{self, Client, Losses, Notice};
use storage::rnbd::server::{Export, Server};
use storage::rnbd::wire::{AccessMode, PORT};
use storage::volume::{RamVolume, Volume, Volumes};
use tempfile::TempDir;
use verbs::{ConnectionManager, Ctx, PathMtu, Provider};

use crate::dialer::Dialer;
use crate::port::DgramPort;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The engines, running on a thread of their own; they stop when this is dropped.
pub struct Engines {
    setup: Setup,
    stop: Arc<AtomicBool>,
    mute: Arc<AtomicBool>,
    reached: Arc<Reached>,
    thread: Option<JoinHandle<Result<Vec<String>>>>,
    ours: PathBuf,
    theirs: PathBuf,
    _directory: TempDir,
}

/// Progress of the engines as clients of the guest.
#[derive(Debug, Default)]
struct Reached {
    /// The guest's disk is open.
    mapped: AtomicBool,
    /// An echo from the guest over SMC-R was correct.
    dialed: AtomicBool,
}

/// How long the guest's servers may take to respond.
const PATIENCE: Duration = Duration::from_secs(60);

/// Configuration of the engines.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Ethernet MTU.
    pub mtu: usize,
    /// The storage server's settings.
    pub storage: Config,
    /// Size of the volume `ram0` in bytes.
    pub volume: usize,
    /// One of this many frames to the guest is lost; 0: none. Frames from the guest are never lost, because rdma_rxe as
    /// a requester does not survive that with several requests in flight.
    pub loss: u32,
    /// Size code of SMC-R receive buffers, see `SmcConfig`.
    pub rmb_size: u8,
    /// Address that the engines connect to as an SMC-R client.
    pub dial: Option<SocketAddr>,
    /// `ram0` is not a RAM volume, but `/dev/ram0` of the guest's rnbd-server.
    pub remote: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            mtu: 1500,
            storage: Config::default(),
            volume: 64 << 20,
            loss: 0,
            rmb_size: 2,
            dial: None,
            remote: false,
        }
    }
}

impl Engines {
    /// Starts the engines at 10.0.0.1 and fd00::1, with a volume exported as `ram0`.
    pub fn start(setup: Setup) -> Result<Engines> {
        let directory = tempfile::Builder::new().prefix("isthmus-engines-").tempdir()?;
        let (ours, theirs) = (directory.path().join("ours"), directory.path().join("theirs"));
        let mut engines = Engines {
            setup,
            stop: Arc::default(),
            mute: Arc::default(),
            reached: Arc::default(),
            thread: None,
            ours,
            theirs,
            _directory: directory,
        };
        engines.run()?;
        Ok(engines)
    }

    fn run(&mut self) -> Result<()> {
        let port = DgramPort::new(&self.ours, &self.theirs, MAC, self.setup.mtu)?;
        let setup = self.setup;
        let (stop, mute) = (Arc::clone(&self.stop), Arc::clone(&self.mute));
        let reached = Arc::clone(&self.reached);
        let thread = std::thread::spawn(move || {
            let mut world = World::new(port, &setup, reached)?;
            while !stop.load(Ordering::Relaxed) {
                world.round(mute.load(Ordering::Relaxed));
            }
            world.report.push(format!("{:?}", world.roce.counters()));
            world.report.push(format!("{} sessions of tools", world.tools.sessions()));
            world.report.push(format!("{:?}", world.smc.counters()));
            world.report.extend(world.dialer.map(|dialer| dialer.outcome));
            let served = world.echo.each_ref().map(|echo| echo.served);
            world.report.push(format!("SMC and TCP connections of echo, discard: {served:?}"));
            Ok(world.report)
        });
        self.thread = Some(thread);
        Ok(())
    }

    /// Drops all frames in both directions from now on, or stops doing so.
    pub fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::Relaxed);
    }

    /// Stops the engines without notifying the guest, and starts them without any previous state.
    pub fn restart(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("not running")?;
        thread.join().map_err(|_| anyhow!("the engines panicked"))??;
        std::fs::remove_file(&self.ours)?;
        self.stop.store(false, Ordering::Relaxed);
        self.run()
    }

    /// Waits until the engines have mapped the guest's disk.
    pub fn wait_mapped(&self) -> Result<()> {
        ensure!(self.setup.remote, "the engines map nothing");
        wait_for(&self.reached.mapped).context("the engines have not mapped the guest's disk")
    }

    /// Waits until the engines have received their echo from the guest, if `dial` is set.
    pub fn wait_dialed(&self) -> Result<()> {
        if self.setup.dial.is_none() {
            return Ok(());
        }
        wait_for(&self.reached.dialed).context("the engines have received no echo from the guest")
    }

    /// The interface of the guest at the other end.
    pub fn nic(&self) -> Nic {
        Nic::Dgram { ours: self.theirs.clone(), peer: self.ours.clone() }
    }

    /// Stops the engines, and returns their report.
    pub fn stop(mut self) -> Result<Vec<String>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().map_err(|_| anyhow!("the engines panicked"))?
    }
}

fn wait_for(flag: &AtomicBool) -> Result<()> {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !flag.load(Ordering::Relaxed) {
        ensure!(std::time::Instant::now() < deadline, "nothing within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

impl Drop for Engines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The engines, which one loop drives.
struct World {
    port: DgramPort,
    start: std::time::Instant,
    interface: Interface,
    roce: Roce,
    storage: Server,
    /// Maps the guest's volume.
    remote: Option<Client>,
    rping: rping::Server,
    tools: tools::Server,
    front: TcpControl,
    smc: Engine,
    echo: [Echo; 2],
    dialer: Option<Dialer>,
    seen: u64,
    volumes: Volumes,
    arena: Arena,
    rng: StdRng,
    tx: TxBuffer,
    tx_waits: bool,
    loss: u32,
    report: Vec<String>,
    reached: Arc<Reached>,
}

impl World {
    fn new(port: DgramPort, setup: &Setup, reached: Arc<Reached>) -> Result<World> {
        let mut rng: StdRng = rand::make_rng();
        let mut interface = Interface::new(MAC, setup.mtu, [1; 32], Instant::ZERO);
        let addresses = ["10.0.0.1/24".parse(), "fd00::1/64".parse()];
        let addresses = addresses.into_iter().collect::<Result<Vec<net::Cidr>, _>>();
        let addresses = addresses.map_err(|()| anyhow!("an invalid address"))?;
        let addressing = Addressing { addresses, ..Addressing::default() };
        interface.set_addressing(addressing, Instant::ZERO).map_err(|error| anyhow!("{error}"))?;
        let addresses: Vec<IpAddr> = vec!["10.0.0.1".parse()?, "fd00::1".parse()?];
        let config = PortConfig { mac: MAC, addresses, mtu: setup.mtu };
        let mut roce = Roce::new(config, Limits::default(), &mut rng);
        let mut arena = Arena::on_heap(setup.volume + (384 << 20));
        let mut volumes = Volumes::new();
        let name = || Name::new("ram0").map_err(|_| anyhow!("ram0 is not a valid name"));
        let memory = arena.alloc(setup.volume, 4096).context("no memory for the volume")?;
        let mut remote = None;
        let mut volume: Box<dyn Volume> = Box::new(RamVolume::new(memory, false));
        if setup.remote {
            let (client, mapped) = map_remote(&mut roce, &mut arena, &mut rng)?;
            remote = Some(client);
            volume = mapped;
        }
        let volume = volumes.add(name()?, volume);
        let volume = volume.context("the volume's name is taken")?;
        let mut storage =
            Server::new(setup.storage, 64, &mut roce).map_err(|error| anyhow!("{error:?}"))?;
        let export = Export {
            name: name()?,
            volume,
            read_only: false,
            allow: Vec::new(),
            hosts: Default::default(),
            limiter: Default::default(),
        };
        storage.add_export(export, &volumes).map_err(|error| anyhow!("{error:?}"))?;
        let rping = rping::Server::new(&mut roce).map_err(|error| anyhow!("{error:?}"))?;
        let tools = tools::Server::new(&mut roce).map_err(|error| anyhow!("{error:?}"))?;
        let front = TcpControl::new(&mut interface);
        let eid = Eid::new("LAB.SMC.EID").context("an invalid EID")?;
        let smc = SmcConfig { eids: vec![eid], rmb_size: setup.rmb_size, ..SmcConfig::default() };
        let path_mtu = PathMtu::for_ethernet(setup.mtu).context("the MTU is too small for RoCE")?;
        let ip: std::net::Ipv4Addr = "10.0.0.1".parse()?;
        let device = Device { ip, address: ip.into(), mac: MAC, path_mtu, pnet: None };
        let now = Instant::ZERO;
        let mut context = Ctx { provider: &mut roce, arena: &mut arena, now, rng: &mut rng };
        let smc = Engine::new(smc, vec![device], &mut context).map_err(|e| anyhow!("{e:?}"))?;
        let limits = net::tcp::Limits { connections: 64, receive: 4096, transmit: 4096 };
        let all = Hosts::default();
        let echo = [false, true].map(|discard| {
            Echo::new(&mut interface, discard, true, (limits, 64), &all, discard.into())
        });
        Ok(World {
            port,
            start: std::time::Instant::now(),
            interface,
            roce,
            storage,
            remote,
            rping,
            tools,
            front,
            smc,
            echo,
            dialer: setup.dial.map(Dialer::new),
            seen: 0,
            volumes,
            arena,
            rng,
            tx: TxBuffer::new(),
            tx_waits: false,
            loss: setup.loss,
            report: Vec::new(),
            reached,
        })
    }

    fn round(&mut self, mute: bool) {
        let now = Instant::from_nanos(self.start.elapsed().as_nanos() as u64);
        let mut worked = false;
        for _ in 0..64 {
            let Some(frame) = self.port.receive() else { break };
            worked = true;
            if mute {
                self.port.recycle(frame);
                continue;
            }
            let bytes = self.port.bytes(&frame);
            if let Some(&mac) = bytes.get(6..).and_then(|rest| rest.first_chunk()) {
                // The guest is alone on the wire.
                self.roce.pin_neighbour(0, GUEST, mac);
            }
            match net::classify(bytes) {
                Class::Roce => drop(self.roce.handle_frame(0, bytes, now)),
                _ => self.interface.handle_frame(bytes, now),
            }
            self.port.recycle(frame);
        }
        self.interface.poll(now);
        self.interface.transmit(&mut self.port, |_| ());
        let (roce, rng) = (&mut self.roce, &mut self.rng);
        let mut context = Ctx { provider: roce, arena: &mut self.arena, now, rng };
        while let Some(event) = context.provider.poll_connection_event() {
            let remote = &mut self.remote;
            if !self.storage.handle_connection_event(&event, &mut context)
                && !remote
                    .as_mut()
                    .is_some_and(|client| client.handle_connection_event(&event, &mut context))
                && !self.tools.handle_connection_event(&event, &mut context)
            {
                let Ctx { provider, arena, rng, .. } = &mut context;
                self.rping.handle_connection_event(&event, *provider, arena, now, *rng);
            }
        }
        worked |= self.storage.poll(&mut self.volumes, &mut context);
        if let Some(client) = &mut self.remote {
            while let Some(notice) = client.poll(&mut context) {
                if matches!(notice, Notice::DeviceOpen { .. }) {
                    self.reached.mapped.store(true, Ordering::Relaxed);
                }
                self.report.push(format!("remote: {notice}"));
            }
            // Completions of the remote volume are answered in the same round.
            worked |= self.storage.poll(&mut self.volumes, &mut context);
        }
        worked |= self.rping.poll(context.provider, now) > 0;
        worked |= self.tools.poll(&mut context) > 0;
        worked |= self.smc.poll(&mut context) > 0;
        let timers = self.smc.handle_timeout(&mut context, &mut self.interface);
        if timers || self.interface.activity() != self.seen {
            for echo in &mut self.echo {
                echo.poll(&mut self.interface, &mut self.smc, &mut context);
            }
        }
        if let Some(dialer) = &mut self.dialer {
            dialer.poll(&mut self.interface, &mut self.smc, &mut context);
            if dialer.outcome == "dialer: fine" {
                self.reached.dialed.store(true, Ordering::Relaxed);
            }
        }
        while let Some((id, ready, _)) = self.smc.poll_event() {
            let (interface, smc) = (&mut self.interface, &mut self.smc);
            let [echo, discard] = &mut self.echo;
            if let Some(dialer) = &mut self.dialer
                && dialer.handle_event(id, ready, interface, smc, &mut context)
            {
                continue;
            }
            if !echo.handle_event(id, ready, interface, smc, &mut context) {
                discard.handle_event(id, ready, interface, smc, &mut context);
            }
        }
        self.smc.flush(&mut context);
        let due = [self.front.poll_timeout(), self.tools.poll_timeout()];
        let due = due.into_iter().flatten().any(|at| at <= now);
        if due || self.interface.activity() != self.seen {
            self.front.poll(&mut self.interface, &mut self.tools, &mut context);
            self.interface.poll(now);
            self.seen = self.interface.activity();
        }
        while let Some(notice) = self.smc.poll_notice() {
            self.report.push(notice.to_string());
        }
        while let Some(notice) = self.storage.transport_mut().poll_notice() {
            self.report.push(notice.to_string());
        }
        if self.roce.poll_timeout().is_some_and(|deadline| deadline <= now) {
            self.roce.handle_timeout(now);
        }
        worked |= self.transmit(now, mute);
        if !worked {
            self.port.wait(Duration::from_millis(1));
        }
    }

    fn transmit(&mut self, now: Instant, mute: bool) -> bool {
        let mut worked = false;
        for _ in 0..64 {
            if !self.tx_waits && !self.roce.poll_transmit(0, now, &mut self.tx) {
                break;
            }
            let lost = mute || self.loss > 0 && self.rng.random_ratio(1, self.loss);
            self.tx_waits = !lost && self.port.transmit(&self.tx.packet()).is_err();
            if self.tx_waits {
                break;
            }
            worked = true;
        }
        worked
    }
}

/// The guest's address.
const GUEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// A client that maps the guest's volume.
fn map_remote(
    roce: &mut Roce,
    arena: &mut Arena,
    rng: &mut StdRng,
) -> Result<(Client, Box<dyn Volume>)> {
    let mut context = Ctx { provider: roce, arena, now: Instant::ZERO, rng };
    let name = |name| Name::new(name).map_err(|_| anyhow!("{name} is not a valid name"));
    let (devices, session) = (client::Config::default(), transport::Config::default());
    let mut client = Client::new(devices, session, name("isthmus")?, &mut context)
        .map_err(|error| anyhow!("{error:?}"))?;
    let (mode, losses) = (AccessMode::ReadWrite, Losses::ToFlush);
    let (_, volume) = client
        .map(name("/dev/ram0")?, mode, losses, &mut context)
        .map_err(|error| anyhow!("{error}"))?;
    let from = "10.0.0.1".parse()?;
    client
        .transport_mut()
        .add_path(from, SocketAddr::new(GUEST, PORT), &mut context)
        .map_err(|error| anyhow!("{error}"))?;
    Ok((client, Box::new(volume)))
}

/// Gathers the bytes of a frame, for [`DgramPort`].
pub(crate) fn gather(packet: &Packet<'_>, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(packet.header);
    for window in packet.payload {
        let start = into.len();
        into.resize(start + window.len(), 0);
        window.read(0, &mut into[start..]).expect("a window holds its own length");
    }
    into.extend_from_slice(packet.trailer);
}
