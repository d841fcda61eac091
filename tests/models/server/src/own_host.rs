//! Isthmus as the host at the other end of a bridge, in this process: its drivers of the bridge and of an I/OAT engine,
//! and an Ethernet port over them (`ntb_netdev`) that answers ARP and ping. The peer is a stock Linux in a guest.

use std::net::Ipv4Addr;
use std::time::Instant as Moment;

use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Port};
use drivers::ntb::transport::NtbNetdev;
use metal::Metal;
use models::ioat::{self, Ioat};
use models::{Function, Nanoseconds};

use crate::own::{answer_arp, answer_ping};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MTU: usize = 9000;
const MEMORY: usize = 24 << 20;
/// Rounds of the loop per call, and the longest pause between calls.
const TURNS: usize = 4;
const REST: Nanoseconds = 100_000;

/// The host in this process.
pub struct OwnHost<F> {
    machine: Metal<F>,
    engine: Metal<Ioat>,
    port: NtbNetdev,
    address: Ipv4Addr,
    then: Moment,
    pings: u64,
}

impl<F: Function + Send + 'static> OwnHost<F> {
    /// Creates a host with this side of a bridge.
    pub fn new(function: F, address: Ipv4Addr) -> Self {
        let window = function.bars().iter().map(|bar| bar.size).max().unwrap_or(0);
        let mut machine = Metal::new(function, MEMORY);
        // The engine writes to the window. The processor never does, because its writes could not be told from the
        // engine's here.
        let nowhere = machine.arena().alloc(window as usize, 4096).expect("there is memory enough");
        machine.put_behind(2, nowhere);
        let device = machine.find().take(Class::Bridge).remove(0);
        let mut bridge =
            device.open_bridge(&mut machine, None, true).expect("the model is a good device");
        let settings = ioat::Config { device: 0x2021, channels: 1, version: 0x34, fault: None };
        let mut engine = machine.beside(Ioat::new(settings));
        let device = engine.find().take(Class::Dma).remove(0);
        let clock = engine.clock();
        let mut channels =
            device.open_dma(&mut engine, &clock).expect("the model is a good device");
        assert!(bridge.use_engine(channels.remove(0), machine.arena()), "there is memory enough");
        let port = NtbNetdev::new(bridge, MAC, MTU, machine.arena());
        let port = port.expect("the bridge is large enough");
        OwnHost { machine, engine, port, address, then: Moment::now(), pings: 0 }
    }

    /// State and counters, as lines.
    pub fn describe(&self) -> String {
        format!(
            "own.pings {}\nown.ups {}\nown.violations {}\nown {:?} {:?}",
            self.pings,
            self.port.ups(),
            self.port.violations(),
            self.port.state(),
            self.port.counters(),
        )
    }

    /// Runs some rounds of the loop. Returns the delay until the next call.
    pub fn turn(&mut self) -> Nanoseconds {
        (0..TURNS).for_each(|_| self.one_turn());
        REST
    }

    fn one_turn(&mut self) {
        let now = Moment::now();
        let passed = now - std::mem::replace(&mut self.then, now);
        self.engine.pass(passed);
        let now = self.machine.pass(passed);
        self.engine.run();
        self.machine.run();
        self.port.poll(now);
        while let Some(frame) = self.port.receive() {
            let mut bytes = self.port.bytes(&frame).to_vec();
            self.port.recycle(frame);
            let is_answered = match bytes.get(12..14) {
                Some([8, 6]) => answer_arp(&mut bytes, MAC, self.address),
                Some([8, 0]) => answer_ping(&mut bytes, self.address),
                _ => false,
            };
            if is_answered {
                self.pings += u64::from(bytes[13] == 0);
                bytes.copy_within(6..12, 0);
                bytes[6..12].copy_from_slice(&MAC);
                // Ethernet is lossy: without room the answer is dropped.
                let _ = self.port.transmit(&Packet { header: &bytes, payload: &[], trailer: &[] });
            }
        }
        self.port.flush();
    }
}
