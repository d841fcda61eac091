//! The whole gateway in this process, with one port, and a host at the other end of its cable: ARP and ICMP, storage
//! clients over RoCE, and TCP.

use crate::console::{Ended, Line, Run};
use crate::crash::Header;
use crate::gateway::test_cable::{Cable, Ends, bytes};
use crate::gateway::{Bringup, Facts, FromVmm, Gateway};
use crate::log_ring::LogRing;
use crate::machine::{Core, CrashPlace, Ipi, Machine};
use crate::randomness::EntropySources;
use core::cell::Cell;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use drivers::driver::OpenedPort;
use drivers::hal::{Arena, Instant, Interrupt, Platform, Registers, Window};
use drivers::inventory::Inventory;
use management::Operator;
use net::{Addressing, Interface};
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;
use roce::{Limits, PortConfig, Roce, TxBuffer};
use rtrs::{Name, client as transport};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use storage::rnbd::client::{self, Client, Losses};
use storage::rnbd::wire::AccessMode;
use verbs::{ConnectionManager, Ctx, Provider};

pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const STEP: Duration = Duration::from_micros(200);
/// 2026-01-01.
pub const TODAY: u64 = 1_767_225_600;
const ARENA: usize = 64 << 20;

/// The machine of the lab.
struct Board {
    now: Rc<Cell<Instant>>,
    unix: u64,
    pressed: Rc<Cell<bool>>,
}

impl Core for Board {
    fn now(&self) -> Instant {
        self.now.get()
    }
    fn halt_until(&mut self, _: Option<Instant>) {}
}

impl Line for Board {
    fn console_has_rung(&self) -> bool {
        false
    }
    fn console_read(&mut self, _: &mut [u8]) -> usize {
        0
    }
    fn console_write(&mut self, bytes: &[u8]) -> usize {
        bytes.len()
    }
}

struct NoIpi;

impl Ipi for NoIpi {
    fn ring(&self) {}
}

impl Machine for Board {
    fn ipi(&self) -> Box<dyn Ipi> {
        Box::new(NoIpi)
    }
    fn unix_seconds(&self) -> u64 {
        self.unix
    }
    fn power_off(&mut self, _: u8) -> ! {
        panic!("the machine is off")
    }
    fn power_button(&mut self) -> bool {
        self.pressed.take()
    }
    fn keep_crashes(&mut self, _: Option<Header>, _: Option<CrashPlace>) {}
    fn reboot(&mut self) -> ! {
        panic!("the machine reboots")
    }
}

/// A platform without devices.
struct NoDevices(Arena);

// SAFETY: there is no device that could write to memory, and nothing is mapped.
unsafe impl Platform for NoDevices {
    fn map_registers(&mut self, _: u64, _: usize) -> Option<Box<dyn Registers>> {
        None
    }
    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }
    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        None
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.0
    }
}

/// The gateway, and the host.
pub struct Lab {
    pub gateway: Gateway,
    now: Rc<Cell<Instant>>,
    pub pressed: Rc<Cell<bool>>,
    ends: Arc<Mutex<Ends>>,
    /// Longer frames are lost.
    pub longest: usize,
    pub interface: Interface,
    peer_port: Cable,
    peer_ends: Arc<Mutex<Ends>>,
    roce: Roce,
    tx: TxBuffer,
    client: Option<Client>,
    arena: Arena,
    rng: ChaCha12Rng,
}

fn bringup(config: &str, unix: u64, now: &Rc<Cell<Instant>>, pressed: &Rc<Cell<bool>>) -> Bringup {
    let facts = Facts {
        commit: "test",
        committed: TODAY - 1000,
        build_id: "test",
        boot: "test",
        cpus: 1,
        memory: 256 << 20,
        entropy: "test",
        heap_used: || 0,
    };
    Bringup {
        machine: Box::new(Board { now: now.clone(), unix, pressed: pressed.clone() }),
        spare: Vec::new(),
        platform: Box::new(NoDevices(Arena::on_heap(ARENA))),
        inventory: Inventory::default(),
        vmm: FromVmm { fw_cfg: Some(config.as_bytes().to_vec()), ..FromVmm::default() },
        crash: None,
        command_line: String::new(),
        command_line_cut: false,
        watchdog: None,
        rng: Box::new(ChaCha12Rng::from_seed([7; 32])),
        entropy: EntropySources::NONE,
        facts,
        log: Box::leak(Box::new(LogRing::new(100, || Instant::ZERO))),
    }
}

impl Lab {
    /// A gateway at 10.9.0.1 with this configuration besides.
    pub fn new(config: &str) -> Lab {
        Lab::at(config, TODAY)
    }

    /// As [`Lab::new`], with a real-time clock that shows `unix` seconds since 1970.
    pub fn at(config: &str, unix: u64) -> Lab {
        let now = Rc::new(Cell::new(Instant::ZERO + Duration::from_secs(1)));
        let pressed = Rc::new(Cell::new(false));
        let ends = Arc::new(Mutex::new(Ends::default()));
        let config = format!("{config}\n[[net]]\naddress = \"{OURS}/24\"\n");
        let port = OpenedPort::Plain(Box::new(Cable::new(OUR_MAC, ends.clone())));
        let gateway = Gateway::start_over(bringup(&config, unix, &now, &pressed), vec![port]);
        let mut rng = ChaCha12Rng::from_seed([8; 32]);
        let host = PortConfig { mac: HOST_MAC, addresses: vec![HOST.into()], mtu: 1500 };
        let mut roce = Roce::new(host, Limits::default(), &mut rng);
        roce.pin_neighbour(0, OURS.into(), OUR_MAC);
        let mut interface = Interface::new(HOST_MAC, 1500, [9; 32], now.get());
        let addresses = vec![format!("{HOST}/24").parse().unwrap()];
        let addressing = Addressing { addresses, ..Addressing::default() };
        interface.set_addressing(addressing, now.get()).unwrap();
        let peer_ends = Arc::new(Mutex::new(Ends::default()));
        let mut lab = Lab {
            gateway,
            now,
            pressed,
            ends,
            longest: usize::MAX,
            interface,
            peer_port: Cable::new(HOST_MAC, peer_ends.clone()),
            peer_ends,
            roce,
            tx: TxBuffer::new(),
            client: None,
            arena: Arena::on_heap(64 << 20),
            rng,
        };
        lab.pass(Duration::from_millis(300));
        lab
    }

    pub fn now(&self) -> Instant {
        self.now.get()
    }

    /// A frame arrives at the gateway.
    pub fn inject(&mut self, frame: Vec<u8>) {
        self.ends.lock().unwrap().arrives.push_back(frame);
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now.get() + time;
        while self.now.get() < end {
            self.step();
        }
    }

    /// Lets time pass until something is true.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Lab) -> bool) {
        let end = self.now.get() + Duration::from_secs(20);
        while !is_so(self) {
            assert!(self.now.get() < end, "{what}");
            self.step();
        }
    }

    /// One round of the gateway, and one of the host.
    pub fn step(&mut self) {
        self.now.set(self.now.get() + STEP);
        let now = self.now.get();
        self.gateway.round(now);
        let sent = core::mem::take(&mut self.ends.lock().unwrap().sent);
        for frame in sent.into_iter().filter(|frame| frame.len() <= self.longest) {
            // UDP to port 4791 is RoCE.
            let is_roce = frame.get(12..14) == Some(&[8, 0][..])
                && frame.get(23) == Some(&17)
                && frame.get(36..38) == Some(&4791u16.to_be_bytes()[..]);
            if is_roce {
                let _ = self.roce.handle_frame(0, &frame, now);
            } else {
                self.interface.handle_frame(&frame, now);
            }
        }
        self.poll_client(now);
        self.interface.poll(now);
        self.interface.transmit(&mut self.peer_port, |_| ());
        let mut arrives = core::mem::take(&mut self.peer_ends.lock().unwrap().sent);
        while self.roce.poll_transmit(0, now, &mut self.tx) {
            arrives.push_back(bytes(&self.tx.packet()));
        }
        arrives.retain(|frame| frame.len() <= self.longest);
        self.ends.lock().unwrap().arrives.extend(arrives);
    }

    fn poll_client(&mut self, now: Instant) {
        let Lab { roce, client, arena, rng, .. } = self;
        roce.handle_timeout(now);
        while let Some(event) = roce.poll_connection_event() {
            let mut ctx = Ctx { provider: &mut *roce, arena, now, rng };
            if let Some(client) = client {
                client.handle_connection_event(&event, &mut ctx);
            }
        }
        let mut ctx = Ctx { provider: &mut *roce, arena, now, rng };
        while client.as_mut().is_some_and(|client| client.poll(&mut ctx).is_some()) {}
    }

    /// The host maps a volume over a path to this port.
    pub fn map(&mut self, device: &str, mode: AccessMode, port: u16) {
        let now = self.now.get();
        let Lab { roce, arena, rng, .. } = self;
        let mut ctx = Ctx { provider: &mut *roce, arena, now, rng };
        let session = Name::new("host").unwrap();
        let (settings, paths) = (client::Config::default(), transport::Config::default());
        let mut client = Client::new(settings, paths, session, &mut ctx).unwrap();
        let to = SocketAddr::new(OURS.into(), port);
        client.transport_mut().add_path(IpAddr::from(HOST), to, &mut ctx).unwrap();
        client.map(Name::new(device).unwrap(), mode, Losses::ToFlush, &mut ctx).unwrap();
        self.client = Some(client);
    }

    /// Executes a command of the console. Returns its output.
    pub fn run(&mut self, line: &str) -> String {
        let mut output = String::new();
        let mut run = {
            let mut operator = Operator::console(&mut self.gateway.state);
            Run::start(line, &mut operator).unwrap()
        };
        loop {
            let polled = run.poll(&mut Operator::console(&mut self.gateway.state), &mut output);
            match polled {
                Ok(true) => {}
                Ok(false) => self.step(),
                Err(Ended(result)) => {
                    result.unwrap_or_else(|why| panic!("{line}: {why}"));
                    return output;
                }
            }
        }
    }
}
