//! A network card that is a model, and its port: what the suites of all of them do.

use drivers::hal::{Notice, Packet, Platform, Port, Severity};
use drivers::registry::Class;
use metal::Metal;
use models::{Function, enic, intel_nic, ixgbe, mlx5, vmxnet3};
use std::collections::VecDeque;
use std::time::Duration;

pub const SECOND: Duration = Duration::from_secs(1);

/// What the models have.
pub trait NetworkCard: Function + Send + 'static {
    const MAC: [u8; 6];
    /// Whichever of our drivers takes it.
    const DRIVERS: &'static [&'static str];
    /// Frames from the wire that it has not taken yet.
    fn arriving(&mut self) -> &mut VecDeque<Vec<u8>>;
    /// Frames that went to the wire.
    fn sent(&mut self) -> &mut Vec<Vec<u8>>;
    /// What its driver did that it must not.
    fn complaints(&self) -> Vec<String>;

    /// A frame for the port, so that it passes filters, of a type that no card knows.
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
network_card!(intel_nic::Nic, intel_nic::MAC, ["e1000e", "igb", "igbvf"], field);
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

/// Opens what is in the machine; or why not.
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
            assert_eq!(machine.arena().available(), free, "memory is given back");
            let enabled = machine.model(|card| {
                let mut command = [0; 2];
                card.config().read(4, &mut command);
                command[0] & 4 != 0
            });
            assert!(!enabled, "it can still reach memory");
            Err(why.to_string())
        }
    }
}

impl<M: NetworkCard> Bench<M> {
    /// These frames come from the wire.
    pub fn arrive(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.machine.model(|card| card.arriving().extend(frames));
        self.machine.run();
    }

    /// All that is received.
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

    /// What went to the wire since.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        self.machine.model(|card| std::mem::take(card.sent()))
    }

    /// So many seconds pass, in which nobody but the port's keeper looks.
    pub fn watch(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            self.machine.run();
            self.port.watch(now);
            self.machine.run();
        }
    }

    /// What the driver has to tell.
    pub fn notices(&mut self) -> Vec<(Severity, &'static str)> {
        let port = &mut self.port;
        let one = |told: Notice| (told.severity, told.text);
        std::iter::from_fn(|| port.notice()).map(one).collect()
    }

    /// A frame goes each way.
    pub fn works(&mut self, n: usize) {
        let one = M::frame(n, 100 + n);
        self.sent();
        self.send(&one);
        assert!(self.sent() == [one.clone()], "{n}");
        self.arrive([one.clone()]);
        assert!(self.received() == [one], "{n}");
    }

    /// Frames of every length that fits the MTU, each way, more of them than the rings have places.
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
