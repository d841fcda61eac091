//! Serves device models to QEMU as PCI functions, over vfio-user (`-device vfio-user-pci`).
//!
//! One process serves one or more functions, each on its own Unix socket, so that joined models (two bridges, two
//! ports of a network) share it. While one client is connected, another may disconnect and reconnect: its function is
//! then in its power-on state. When the last client has disconnected, the process prints the models' counters and ends.

mod cable;
mod connection;
mod connectx;
mod device;
mod interrupts;
mod memory;
mod message;
mod orders;
mod own;
mod own_host;
mod patch_cable;
mod portal;

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use models::dsa::{self, Dsa};
use models::enic::{self, Enic};
use models::ioat::{self, Ioat};
use models::ixgbe::{self, Ixgbe, IxgbeVf};
use models::ntb;
use models::ntb::amd::AmdNtb;
use models::ntb::intel::IntelNtb;
use models::ntb::switchtec::Switchtec;
use models::nvme::{self, Nvme};
use models::ptdma::{self, Ptdma};
use models::rapidio::{Answer, Board, Network, Topology};
use models::tsi721::{self, Tsi721};
use models::uhyve::{self, AsFunction, Uhyve};
use models::{Cable, Function, Nanoseconds};
use rapidio::enumeration::Role;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use cable::{FarEnd, OwnInterface, Wire};
use connection::Connection;
use device::Device;
use orders::Orders;
use own::OwnEndPoint;
use own_host::OwnHost;
use patch_cable::PatchCable;

/// Serves device models to QEMU as PCI functions, over vfio-user.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    model: Model,
}

#[derive(clap::Subcommand)]
enum Model {
    /// Intel I/OAT: a DMA engine
    Ioat {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// PCI device id, hexadecimal: 0e20 has version 3.2, 0b00 has 3.4
        #[arg(long, default_value = "0e20", value_parser = hexadecimal)]
        device: u16,
        /// Channels, 1 to 8
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
        channels: u8,
        /// Version, hexadecimal
        #[arg(long, default_value = "32", value_parser = hexadecimal)]
        version: u16,
        /// Fault to inject
        #[arg(long, value_parser = fault)]
        fault: Option<ioat::Fault>,
    },
    /// Two of Intel's non-transparent bridges, back to back
    IntelNtb {
        #[command(flatten)]
        bridge: BridgeOptions,
        /// PCI device id, hexadecimal: 201c is third generation, 347e and 0db4 are fourth
        #[arg(long, default_value = "201c", value_parser = hexadecimal)]
        device: u16,
        /// PCI revision, hexadecimal: a 347e below revision 10 is Ice Lake's
        #[arg(long, default_value = "4", value_parser = hexadecimal)]
        revision: u16,
        /// Fault to inject
        #[arg(long, value_parser = named(&ntb::intel::Fault::NAMED))]
        fault: Option<ntb::intel::Fault>,
    },
    /// The two sides of AMD's non-transparent bridge
    AmdNtb {
        #[command(flatten)]
        bridge: BridgeOptions,
        /// PCI device id, hexadecimal: 148b has two windows, 145b three
        #[arg(long, default_value = "148b", value_parser = hexadecimal)]
        device: u16,
        /// Fault to inject
        #[arg(long, value_parser = named(&ntb::amd::Fault::NAMED))]
        fault: Option<ntb::amd::Fault>,
    },
    /// Two partitions of a Switchtec switch, with a non-transparent bridge between them
    Switchtec {
        #[command(flatten)]
        bridge: BridgeOptions,
        /// Entries of the lookup table
        #[arg(long, default_value_t = 8)]
        entries: usize,
        /// Fault to inject
        #[arg(long, value_parser = named(&ntb::switchtec::Fault::NAMED))]
        fault: Option<ntb::switchtec::Fault>,
    },
    /// AMD's PTDMA: a DMA engine
    Ptdma {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// Fault to inject
        #[arg(long, value_parser = named(&ptdma::Fault::NAMED))]
        fault: Option<ptdma::Fault>,
    },
    /// Intel's DSA: a DMA engine, whose portals are memory that QEMU maps
    Dsa {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// Fault to inject
        #[arg(long, value_parser = named(&dsa::Fault::NAMED))]
        fault: Option<dsa::Fault>,
    },
    /// An NVMe drive with a namespace in memory
    Nvme {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// MiB of the namespace
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024))]
        size: u64,
        /// Bytes of a block, as log2
        #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(9..=12))]
        block: u8,
    },
    /// Cisco's VIC: an Ethernet interface
    Enic {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// PCI device id, hexadecimal: 0043 is a physical function, 0071 and 02b7 are virtual ones
        #[arg(long, default_value = "0043", value_parser = hexadecimal)]
        device: u16,
        /// The last byte of its MAC address
        #[arg(long, default_value_t = 3)]
        number: u8,
        /// MTU of the port
        #[arg(long, default_value_t = 9000)]
        mtu: u16,
        /// Offer the register mailbox only, without the command ring (devcmd2)
        #[arg(long)]
        mailbox: bool,
        /// MSI-X vectors; 0: INTx only
        #[arg(long, default_value_t = 8)]
        vectors: u16,
        /// Fault to inject
        #[arg(long, value_parser = enic_fault)]
        fault: Option<enic::Fault>,
        /// Connect the cable to Isthmus' own driver on another model in this process; it has this IPv4 address, and
        /// answers ARP and ping
        #[arg(long)]
        own_address: Option<Ipv4Addr>,
        /// Connect the cable to another process: frames as datagrams, from the Unix socket OURS to PEER
        #[arg(long, num_args = 2, value_names = ["OURS", "PEER"], conflicts_with = "own_address")]
        wire: Option<Vec<PathBuf>>,
    },
    /// Intel 82599: one or two functions, on one wire
    Ixgbe {
        /// The Unix sockets to listen on
        #[arg(num_args = 1..=2, required = true)]
        sockets: Vec<PathBuf>,
        /// Number of virtual functions: the last sockets; the model simulates their physical functions
        #[arg(long, default_value_t = 0)]
        virtual_functions: usize,
        /// The last byte of the first function's MAC address
        #[arg(long, default_value_t = 1)]
        number: u8,
        /// MSI-X vectors of a physical function; 0: MSI only
        #[arg(long, default_value_t = 64)]
        vectors: u16,
        /// Fault to inject into the first function
        #[arg(long, value_parser = named(&ixgbe::Fault::NAMED))]
        fault: Option<ixgbe::Fault>,
        /// Connect the only function's wire to another process: frames as datagrams, from the Unix socket OURS to PEER
        #[arg(long, num_args = 2, value_names = ["OURS", "PEER"])]
        wire: Option<Vec<PathBuf>>,
    },
    /// ConnectX functions: one or two, on one wire
    Mlx5(connectx::Options),
    /// uhyve's network device and hypercalls, in one function
    Uhyve {
        /// The Unix socket to listen on
        socket: PathBuf,
        /// The host file that the guest sees as /isthmus.toml
        #[arg(long)]
        config: Option<PathBuf>,
        /// MTU of the TAP device
        #[arg(long, default_value_t = 1500)]
        mtu: u16,
        /// Fault to inject
        #[arg(long, value_parser = named(&uhyve::Fault::NAMED))]
        fault: Option<uhyve::Fault>,
        /// Connect the TAP device to another process: frames as datagrams, from the Unix socket OURS to PEER
        #[arg(long, num_args = 2, value_names = ["OURS", "PEER"])]
        wire: Option<Vec<PathBuf>>,
    },
    /// Tsi721 bridges on a RapidIO network, a function each; the other end points are boards
    Tsi721 {
        /// The Unix sockets to listen on, for end points A, B, ...
        #[arg(required = true)]
        sockets: Vec<PathBuf>,
        /// Links between end points and switch ports: A=B, or A=s0.0,B=s0.5,s0.4=s1.3; third-generation switches are
        /// r0, ...
        #[arg(long, default_value = "A=B")]
        topology: Topology,
        /// MSI-X instead of MSI. Linux 6.12 confuses the vectors
        #[arg(long)]
        vectors: bool,
        /// Run Isthmus as the next end point in this process: driver, enumeration, rionet (answers ARP and ping) and
        /// rio_cm (echo on channel 10). A number: the enumerating host with that id; `agent`: an agent
        #[arg(long, value_parser = own::role)]
        own: Option<Role>,
        /// IPv4 address of Isthmus' end point
        #[arg(long, default_value = "10.1.0.9")]
        own_address: Ipv4Addr,
    },
}

/// Options that all bridges share.
#[derive(clap::Args)]
struct BridgeOptions {
    /// The Unix sockets to listen on: upstream or primary side, other side; with --engine then the two engines in the
    /// same order
    #[arg(num_args = 1..=4, required = true)]
    sockets: Vec<PathBuf>,
    /// Add a DMA engine to each side, which writes to the bridge's windows. PCI device id, hexadecimal: 1498 is PTDMA,
    /// 0b25 is DSA, others are I/OAT
    #[arg(long, value_parser = hexadecimal, conflicts_with = "own_address")]
    engine: Option<u16>,
    /// Bytes of each window, as log2
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(12..=30))]
    window: u8,
    /// Run Isthmus as the other side's host in this process (its drivers, and `ntb_netdev` over them); it has this IPv4
    /// address, and answers ARP and ping
    #[arg(long)]
    own_address: Option<Ipv4Addr>,
}

impl BridgeOptions {
    fn window(&self) -> u64 {
        1 << self.window
    }

    fn serve<F: Function + Send + 'static>(self, functions: [F; 2]) -> Result<()> {
        let boxed = |function: F| Box::new(function) as Box<dyn Function>;
        let [first, second] = functions;
        match (self.own_address, self.engine, &self.sockets[..]) {
            (None, None, [a, b]) => {
                serve(vec![(a.clone(), boxed(first)), (b.clone(), boxed(second))])
            }
            (None, Some(device), [a, b, c, d]) => {
                let engine = || -> Box<dyn Function> {
                    if device == ptdma::DEVICE {
                        return Box::new(Ptdma::new(None));
                    }
                    if device == dsa::DEVICE {
                        return Box::new(Dsa::new(None));
                    }
                    let (channels, version) = (2, 0x34);
                    Box::new(Ioat::new(ioat::Config { device, channels, version, fault: None }))
                };
                let all = vec![
                    (a.clone(), boxed(first)),
                    (b.clone(), boxed(second)),
                    (c.clone(), engine()),
                    (d.clone(), engine()),
                ];
                serve_neighbours(all, &[(2, 0), (3, 1)], || None)
            }
            (Some(address), None, [socket]) => {
                let mut own = OwnHost::new(second, address);
                serve_with(vec![(socket.clone(), boxed(first))], || Some(own.turn()))?;
                println!("{}", own.describe());
                Ok(())
            }
            _ => bail!("give two sockets, or four with --engine, or one with --own-address"),
        }
    }
}

/// A parser that looks a value up by its name.
fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: &'static [(&'static str, T); N],
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let known = all.iter().find(|(name, _)| *name == text);
        let names = || all.each_ref().map(|(name, _)| *name).join(", ");
        known.map(|(_, one)| *one).ok_or_else(|| format!("accepted: {}", names()))
    }
}

fn hexadecimal(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 16).map_err(|error| error.to_string())
}

fn fault(text: &str) -> Result<ioat::Fault, String> {
    let known = ioat::Fault::ALL.iter().find(|(name, _)| *name == text);
    let names = || ioat::Fault::ALL.map(|(name, _)| name).join(", ");
    known.map(|(_, fault)| *fault).ok_or_else(|| format!("accepted: {}", names()))
}

fn enic_fault(text: &str) -> Result<enic::Fault, String> {
    let known = enic::Fault::NAMED.iter().find(|(name, _)| *name == text);
    let names = || enic::Fault::NAMED.map(|(name, _)| name).join(", ");
    known.map(|(_, fault)| *fault).ok_or_else(|| format!("accepted: {}", names()))
}

fn main() -> Result<()> {
    match Arguments::parse().model {
        Model::Ioat { socket, device, channels, version, fault } => {
            let settings = ioat::Config { device, channels, version: version as u8, fault };
            serve(vec![(socket, Box::new(Ioat::new(settings)))])
        }
        Model::IntelNtb { bridge, device, revision, fault } => {
            let window = bridge.window();
            let revision = revision as u8;
            bridge.serve(IntelNtb::pair(ntb::intel::Config { device, revision, window, fault }))
        }
        Model::AmdNtb { bridge, device, fault } => {
            let window = bridge.window();
            bridge.serve(AmdNtb::pair(ntb::amd::Config { device, window, fault }))
        }
        Model::Switchtec { bridge, entries, fault } => {
            let window = bridge.window();
            bridge.serve(Switchtec::pair(ntb::switchtec::Config { window, entries, fault }))
        }
        Model::Ptdma { socket, fault } => serve(vec![(socket, Box::new(Ptdma::new(fault)))]),
        Model::Dsa { socket, fault } => serve(vec![(socket, Box::new(Dsa::new(fault)))]),
        Model::Nvme { socket, size, block } => {
            let namespaces = vec![nvme::Shape::new(1, size << (20 - block), block)];
            let settings = nvme::Config { namespaces, ..nvme::Config::default() };
            serve(vec![(socket, Box::new(Nvme::new(settings)))])
        }
        Model::Enic { socket, device, number, mtu, mailbox, vectors, fault, own_address, wire } => {
            let [a, b, c, d, e, _] = enic::MAC;
            let mac = [a, b, c, d, e, number];
            let devcmd2 = !mailbox;
            let settings =
                enic::Config { device, mac, mtu, vectors, devcmd2, ..enic::Config::default() };
            let mut far = match (own_address, wire.as_deref()) {
                (Some(address), _) => FarEnd::Own(Box::new(OwnInterface::new(settings, address))),
                (_, Some([ours, peer])) => FarEnd::Wire(Wire::new(ours, peer.clone())?),
                _ => FarEnd::Unplugged,
            };
            let cable = Arc::new(Mutex::new(Cable::default()));
            let mut nic = Enic::new(settings).with_cable(cable.clone());
            fault.into_iter().for_each(|fault| nic.inject(fault));
            serve_with(vec![(socket, Box::new(nic))], || far.turn(&cable))?;
            far.describe().into_iter().for_each(|line| println!("{line}"));
            Ok(())
        }
        Model::Uhyve { socket, config, mtu, fault, wire } => {
            let mut far = match wire.as_deref() {
                Some([ours, peer]) => FarEnd::Wire(Wire::new(ours, peer.clone())?),
                _ => FarEnd::Unplugged,
            };
            let config = config.map(fs::read).transpose().context("could not read --config")?;
            let make = move || {
                let mut uhyve = Uhyve::new(Some((uhyve::MAC, mtu)));
                uhyve.fault = fault;
                let file = config.clone().map(uhyve::Mapped::File);
                uhyve.host.files.extend(file.map(|file| ("/isthmus.toml".into(), file)));
                uhyve
            };
            let cable = Arc::new(Mutex::new(Cable::default()));
            let function = AsFunction::new(make, cable.clone());
            serve_with(vec![(socket, Box::new(function))], || far.turn(&cable))
        }
        Model::Ixgbe { sockets, virtual_functions, number, vectors, fault, wire } => {
            let wire = match wire.as_deref() {
                Some([ours, peer]) => Some(Wire::new(ours, peer.clone())?),
                _ => None,
            };
            let physical = sockets.len().saturating_sub(virtual_functions);
            let mut cable = PatchCable::new(sockets.len(), wire);
            let mut functions = Vec::new();
            for (index, socket) in sockets.into_iter().enumerate() {
                let [a, b, c, d, e, _] = ixgbe::MAC;
                let mac = [a, b, c, d, e, number.wrapping_add(index as u8)];
                let settings = ixgbe::Config { mac, vectors };
                let fault = fault.filter(|_| index == 0);
                let function: Box<dyn Function> = if index < physical {
                    let mut nic = Ixgbe::new(settings).with_cable(cable.end(index));
                    fault.into_iter().for_each(|fault| nic.inject(fault));
                    Box::new(nic)
                } else {
                    let mut nic = IxgbeVf::new(settings).with_cable(cable.end(index));
                    fault.into_iter().for_each(|fault| nic.inject(fault));
                    Box::new(nic)
                };
                functions.push((socket, function));
            }
            serve_with(functions, || cable.turn())
        }
        Model::Mlx5(options) => options.serve(),
        Model::Tsi721 { sockets, topology, vectors, own, own_address } => {
            let board = |_| Board::new(Answer::Echo, 1 << 16);
            let functions = sockets.len() + usize::from(own.is_some());
            let network = Network::new(&topology, functions, board);
            let network = Arc::new(Mutex::new(network));
            let settings = tsi721::Config { vectors, ..tsi721::Config::default() };
            let function = |me| Box::new(Tsi721::new(settings, network.clone(), me));
            let function = |(me, socket)| (socket, function(me) as Box<dyn Function>);
            let me = sockets.len();
            let mut own = own.map(|role| OwnEndPoint::new(&network, me, role, own_address));
            let functions = sockets.into_iter().enumerate().map(function).collect();
            serve_with(functions, || own.as_mut().map(OwnEndPoint::turn))?;
            if let Some(own) = own {
                println!("{}", own.describe());
            }
            let network = network.lock().map_err(|_| anyhow!("a model panicked"))?;
            for line in network.describe() {
                println!("{line}");
            }
            Ok(())
        }
    }
}

/// A function, its socket and its client.
struct Served {
    listener: UnixListener,
    device: Rc<RefCell<Device>>,
    connection: Option<Connection>,
}

/// Serves the functions until all their clients have disconnected.
fn serve(functions: Vec<(PathBuf, Box<dyn Function>)>) -> Result<()> {
    serve_with(functions, || None)
}

/// Serves the functions, and also calls `also`, which returns the nanoseconds until its next call.
fn serve_with(
    functions: Vec<(PathBuf, Box<dyn Function>)>,
    also: impl FnMut() -> Option<Nanoseconds>,
) -> Result<()> {
    serve_neighbours(functions, &[], also)
}

/// Serves functions of one guest. In each pair of `neighbours` the first function can write to the BARs of the second.
fn serve_neighbours(
    functions: Vec<(PathBuf, Box<dyn Function>)>,
    neighbours: &[(usize, usize)],
    mut also: impl FnMut() -> Option<Nanoseconds>,
) -> Result<()> {
    let started = Instant::now();
    let now = || started.elapsed().as_nanos() as Nanoseconds;
    let mut all = functions
        .into_iter()
        .map(|(path, function)| {
            let listener = listen(&path)?;
            let device = Device::new(function).context("no memory for portals")?;
            let device = Rc::new(RefCell::new(device));
            Ok(Served { listener, device, connection: None })
        })
        .collect::<Result<Vec<_>>>()?;
    let is_written = Rc::new(Cell::new(false));
    for &(writer, target) in neighbours {
        all[writer].device.borrow_mut().set_neighbour(&all[target].device, is_written.clone());
    }
    let (mut seen, mut orders) = (0, Orders::new());
    while seen == 0 || all.iter().any(|served| served.connection.is_some()) {
        let due = poll_all(&all, &is_written, now);
        let again = also();
        let due = due.map(|at| at.saturating_sub(now()));
        wait(&all, &orders, [due, again].into_iter().flatten().min())?;
        while let Some(line) = orders.next()? {
            println!("{}", execute(&line, &all));
        }
        for served in &mut all {
            match &mut served.connection {
                Some(connection) => {
                    if !connection.serve(&mut served.device.borrow_mut(), now)? {
                        served.connection = None;
                        served.device.borrow_mut().detach_client();
                    }
                }
                None => match served.listener.accept() {
                    Ok((stream, _)) => {
                        served.connection = Some(Connection::new(stream)?);
                        seen += 1;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("could not accept a client"),
                },
            }
        }
    }
    print!("{}", counters(&all));
    Ok(())
}

/// The models' counters: a name and a number a line.
fn counters(all: &[Served]) -> String {
    let mut lines = String::new();
    for (number, served) in all.iter().enumerate() {
        for (name, count) in served.device.borrow().function().counters() {
            lines += &format!("function{number}.{name} {count}\n");
        }
    }
    lines
}

/// Executes a command: `counters`, or a function's number and a command of its model. The last line of the reply
/// begins with `done` or `refused`.
fn execute(line: &str, all: &[Served]) -> String {
    if line == "counters" {
        return counters(all) + "done";
    }
    let (number, words) = line.split_once(' ').unwrap_or((line, ""));
    let function = number.parse().ok().and_then(|number: usize| all.get(number));
    match function.map(|served| served.device.borrow_mut().order(words)) {
        Some(Ok(())) => "done".to_string(),
        Some(Err(why)) => format!("refused: {why}"),
        None => format!("refused: there is no function {number}"),
    }
}

/// Polls all functions until none has written to another. Returns the time of the next work.
fn poll_all(
    all: &[Served],
    is_written: &Cell<bool>,
    now: impl Fn() -> Nanoseconds,
) -> Option<Nanoseconds> {
    loop {
        is_written.set(false);
        let polled = all.iter().filter_map(|served| served.device.borrow_mut().poll(now()));
        let due = polled.min();
        if !is_written.get() {
            return due;
        }
    }
}

fn listen(path: &Path) -> Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(anyhow!("could not remove {}: {error}", path.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path);
    let listener = listener.with_context(|| format!("could not listen on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Waits for a client, a message or a command, for `nanoseconds` at most.
fn wait(all: &[Served], orders: &Orders, nanoseconds: Option<Nanoseconds>) -> Result<()> {
    let mut polled: Vec<PollFd<'_>> = orders.polled().into_iter().collect();
    for served in all {
        let fd = match &served.connection {
            Some(connection) => connection.fd(),
            None => served.listener.as_fd(),
        };
        polled.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }
    let limit = nanoseconds
        .map(|n| Timespec { tv_sec: (n / 1_000_000_000) as _, tv_nsec: (n % 1_000_000_000) as _ });
    match poll(&mut polled, limit.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("could not wait for clients"),
    }
}
