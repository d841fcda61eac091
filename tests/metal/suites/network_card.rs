//! Common parts of the suites of network cards: a modelled card and its port.

use drivers::driver::Class;
use drivers::hal::{Notice, Packet, Platform, Port, Severity};
use metal::Metal;
use models::{Function, enic, intel_nic, ixgbe, mlx5, vmxnet3};
use std::collections::VecDeque;
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);

/// Common interface of the card models.
pub trait NetworkCard: Function + Send + 'static {
    const MAC: [u8; 6];
    /// Drivers that accept the card.
    const DRIVERS: &'static [&'static str];
    /// Frames from the wire, not received yet.
    fn arriving(&mut self) -> &mut VecDeque<Vec<u8>>;
    /// Frames that were sent to the wire.
    fn sent(&mut self) -> &mut Vec<Vec<u8>>;
    /// The driver's violations of the device's rules.
    fn complaints(&self) -> Vec<String>;

    /// A frame to the port that passes filters, with an Ethertype that no card parses.
    fn frame(n: usize, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256 + n) as u8).collect();
        let header = [&Self::MAC[..], &Self::MAC, &[0x88, 0xb5]].concat();
        for at in (0..6).chain(12..14).filter(|&at| at < len) {
            bytes[at] = header[at];
        }
        bytes
    }
}

macro_rules! network_card {
    ($model:ty, $mac:expr, $drivers:expr, $complaints:tt) => {
        impl NetworkCard for $model {
            const MAC: [u8; 6] = $mac;
            const DRIVERS: &'static [&'static str] = &$drivers;
            fn arriving(&mut self) -> &mut VecDeque<Vec<u8>> {
                &mut self.arriving
            }
            fn sent(&mut self) -> &mut Vec<Vec<u8>> {
                &mut self.sent
            }
            fn complaints(&self) -> Vec<String> {
                network_card!($complaints self)
            }
        }
    };
    (field $card:ident) => { $card.complaints.clone() };
    (method $card:ident) => { Self::complaints($card).to_vec() };
}

network_card!(enic::Enic, enic::MAC, ["enic"], field);
network_card!(mlx5::Mlx5, mlx5::MAC, ["mlx5"], field);
network_card!(vmxnet3::Vmxnet3, vmxnet3::MAC, ["vmxnet3"], field);
network_card!(intel_nic::Nic, intel_nic::MAC, ["e1000", "e1000e", "igb", "igbvf"], field);
network_card!(ixgbe::Ixgbe, ixgbe::MAC, ["ixgbe"], method);
network_card!(ixgbe::IxgbeVf, ixgbe::MAC, ["ixgbevf"], method);

pub fn plain(header: &[u8]) -> Packet<'_> {
    Packet { header, payload: &[], trailer: &[] }
}

/// A card and its port.
pub struct Bench<M> {
    pub machine: Metal<M>,
    pub port: Box<dyn Port + Send>,
}

/// Opens the card of a machine. An error is the reason.
pub fn try_open<M: NetworkCard>(
    mut machine: Metal<M>,
    mtu: Option<u16>,
) -> Result<Bench<M>, String> {
    let device = machine.find().take(Class::Port).remove(0);
    assert!(M::DRIVERS.contains(&device.driver()), "{}", device.driver());
    let free = machine.arena().available();
    let clock = machine.clock();
    match device.open_port(&mut machine, &|_| mtu, &clock) {
        Ok(port) => Ok(Bench { machine, port }),
        Err(why) => {
            assert_eq!(machine.arena().available(), free, "memory is freed");
            let enabled = machine.model(|card| {
                let mut command = [0; 2];
                card.config().read(4, &mut command);
                command[0] & 4 != 0
            });
            assert!(!enabled, "bus mastering is still enabled");
            Err(why.to_string())
        }
    }
}

impl<M: NetworkCard> Bench<M> {
    /// Delivers frames from the wire.
    pub fn arrive(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.machine.model(|card| card.arriving().extend(frames));
        self.machine.run();
    }

    /// Receives all frames.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.port.receive_each(usize::MAX, &mut |bytes| {
            all.push(bytes.to_vec());
            true
        });
        self.port.flush();
        all
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.port.transmit(&plain(bytes)).unwrap();
        self.port.flush();
        self.machine.run();
    }

    /// Takes the frames that were sent to the wire.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        self.machine.model(|card| std::mem::take(card.sent()))
    }

    /// Advances the time by this many seconds, with only the health check of the port.
    pub fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            self.machine.run();
            self.port.watch(now);
            self.machine.run();
        }
    }

    /// The driver's notices.
    pub fn notices(&mut self) -> Vec<(Severity, &'static str)> {
        let port = &mut self.port;
        let one = |notice: Notice| (notice.severity, notice.text);
        std::iter::from_fn(|| port.notice()).map(one).collect()
    }

    /// Checks that a frame is sent and a frame is received.
    pub fn works(&mut self, n: usize) {
        let one = M::frame(n, 100 + n);
        self.sent();
        self.send(&one);
        assert!(self.sent() == [one.clone()], "{n}");
        self.arrive([one.clone()]);
        assert!(self.received() == [one], "{n}");
    }

    /// Sends and receives frames of every length up to the MTU, more of them than the rings have entries.
    pub fn goes_around_the_rings(&mut self, mtu: usize) {
        let drivers = M::DRIVERS;
        netsim::label!(drivers, mtu);
        for n in 0..3000 {
            let one = M::frame(n, 60 + n * 37 % (mtu + 18 - 60 + 1));
            self.arrive([one.clone()]);
            assert!(self.received() == [one.clone()], "{n}: {}", one.len());
            self.send(&one);
            assert!(self.sent() == [one], "{n}");
        }
        let counters = self.port.counters();
        assert_eq!((counters.rx_frames, counters.tx_frames), (3000, 3000));
        assert_eq!((counters.rx_errors, counters.resets, counters.tx_full), (0, 0, 0));
        assert_eq!(self.complaints(), [""; 0]);
    }

    pub fn complaints(&self) -> Vec<String> {
        self.machine.model(|card| card.complaints())
    }
}
