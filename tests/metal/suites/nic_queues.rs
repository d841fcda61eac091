//! Network cards with several queue pairs, each a port for a core of its own: distribution of frames, interrupts, and
//! resets of the shared chip.

mod returns;

use super::network_card::{NetworkCard, SECOND, plain};
use drivers::driver::Class;
use drivers::hal::{HashKey, Notice, Packet, Platform, Port};
use metal::Metal;
use models::intel_nic::{Fault, Kind, Nic};
use models::ixgbe::{self, Ixgbe, IxgbeVf};
use models::mlx5::{self, Mlx5};
use models::vmxnet3::{self, Vmxnet3};
use models::{Function, intel_nic};
use std::collections::VecDeque;

const KEY: HashKey = [
    0xda56_5a6d,
    0xc20e_5b25,
    0x3d25_6741,
    0xb08f_a343,
    0xcb2b_cad0,
    0xb430_3bae,
    0xa42d_cb77,
    0x0cf2_3080,
    0x3bb7_426a,
    0xfa01_acbe,
];

/// Common interface of the card models.
trait Model: NetworkCard {
    fn make() -> Self;
    /// Makes the queue (or the whole port, in models without a fault per queue) stop sending until a reset.
    fn hang(&mut self, queue: usize);
    fn set_link(&mut self, up: bool);
}

struct Card<const KIND: u8>(Nic);
type E1000e = Card<0>;
type Igb = Card<1>;
type IgbVf = Card<2>;

impl<const KIND: u8> Function for Card<KIND> {
    fn config(&mut self) -> &mut models::ConfigSpace {
        self.0.config()
    }
    fn bars(&self) -> &[models::Bar] {
        self.0.bars()
    }
    fn interrupts(&self) -> models::Interrupts {
        self.0.interrupts()
    }
    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        self.0.read(bar, offset, into);
    }
    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: models::Nanoseconds,
        machine: &mut dyn models::Machine,
    ) {
        self.0.write(bar, offset, bytes, now, machine);
    }
    fn poll(
        &mut self,
        now: models::Nanoseconds,
        machine: &mut dyn models::Machine,
    ) -> Option<models::Nanoseconds> {
        self.0.poll(now, machine)
    }
    fn reset(&mut self) {
        Function::reset(&mut self.0);
    }
    fn counters(&self) -> Vec<(String, u64)> {
        self.0.counters()
    }
}

impl<const KIND: u8> NetworkCard for Card<KIND> {
    const MAC: [u8; 6] = intel_nic::MAC;
    const DRIVERS: &'static [&'static str] = Nic::DRIVERS;
    fn arriving(&mut self) -> &mut VecDeque<Vec<u8>> {
        &mut self.0.arriving
    }
    fn sent(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.0.sent
    }
    fn complaints(&self) -> Vec<String> {
        NetworkCard::complaints(&self.0)
    }
}

impl<const KIND: u8> Model for Card<KIND> {
    fn make() -> Self {
        let (kind, vectors) = [(Kind::E1000e, 5), (Kind::Igb, 25), (Kind::IgbVf, 3)][KIND as usize];
        Card(intel_nic::Nic::new(kind, vectors))
    }
    fn hang(&mut self, queue: usize) {
        self.0.inject(Fault::QueueHangs(queue));
    }
    fn set_link(&mut self, up: bool) {
        self.0.link = up;
    }
}

macro_rules! ixgbe_model {
    ($name:ident) => {
        impl Model for $name {
            fn make() -> Self {
                $name::new(ixgbe::Config::default())
            }
            fn hang(&mut self, _: usize) {
                self.inject(ixgbe::Fault::NeverReports);
            }
            fn set_link(&mut self, up: bool) {
                self.link = up;
            }
        }
    };
}
ixgbe_model!(Ixgbe);
ixgbe_model!(IxgbeVf);

impl Model for Vmxnet3 {
    fn make() -> Self {
        Vmxnet3::new(25)
    }
    fn hang(&mut self, queue: usize) {
        self.inject(vmxnet3::Fault::QueueHangs(queue));
    }
    fn set_link(&mut self, up: bool) {
        self.link = up;
    }
}

impl Model for Mlx5 {
    fn make() -> Self {
        Mlx5::new(mlx5::Config::default())
    }
    fn hang(&mut self, queue: usize) {
        self.inject(mlx5::Fault::QueueHangs(queue));
    }
    fn set_link(&mut self, up: bool) {
        self.link = up;
    }
}

struct Bench<M> {
    machine: Metal<M>,
    /// A port for each queue.
    ports: Vec<Box<dyn Port + Send>>,
}

/// Opens a card with all its queues, up to `cores`.
fn open<M: Model>(cores: usize, key: &HashKey) -> Bench<M> {
    let mut machine = Metal::new(M::make(), 32 << 20);
    machine.interrupts = 1 + cores as u32;
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let mut first = device.open_port(&mut machine, &|_| Some(9000), &clock).unwrap();
    let mut ports = first.split(cores - 1, key, &mut machine, &clock);
    ports.insert(0, first);
    for port in &mut ports {
        let interrupt = machine.allocate_interrupt().unwrap();
        assert!(port.route(&interrupt));
        assert_eq!(port.mtu(), 9000);
    }
    assert!(ports.iter().all(|port| port.mac() == ports[0].mac()));
    let mut bench = Bench { machine, ports };
    // The first health check of each port.
    bench.watch(1);
    assert!(bench.ports.iter().all(|port| port.wakes()));
    bench
}

/// A datagram from a host's port to the RoCE port, with contents that identify it.
fn datagram(host: u8, port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, host, 8, 0];
    let total = (28 + len) as u16;
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, host, 10, 0, 0, 1]);
    frame.extend(port.to_be_bytes());
    frame.extend([0x12, 0xb7]);
    frame.extend((8 + len as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..len).map(|i| i as u8));
    frame
}

/// A datagram from a host's port to the RoCE port over IPv6.
fn datagram_6(host: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1, host, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24];
    frame.extend([17, 64]);
    for last in [host, 1] {
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    frame.extend(port.to_be_bytes());
    frame.extend([0x12, 0xb7, 0, 24, 0, 0]);
    frame.extend([9; 16]);
    frame
}

impl<M: Model> Bench<M> {
    fn received(&mut self, queue: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.ports[queue].receive_each(usize::MAX, &mut |bytes| {
            all.push(bytes.to_vec());
            true
        });
        self.ports[queue].flush();
        all
    }

    fn arrive(&mut self, mut frame: Vec<u8>) {
        frame[..6].copy_from_slice(&self.ports[0].mac());
        self.machine.model(|model| model.arriving().push_back(frame));
        self.machine.run();
    }

    /// The queue that receives a frame. Checks that exactly one does, with the frame unchanged.
    fn queue_of(&mut self, mut frame: Vec<u8>) -> usize {
        frame[..6].copy_from_slice(&self.ports[0].mac());
        self.arrive(frame.clone());
        let got: Vec<_> = (0..self.ports.len()).map(|queue| self.received(queue)).collect();
        let queue = got.iter().position(|got| !got.is_empty()).expect("a queue has the frame");
        assert!(got[queue] == [frame] && got.iter().map(Vec::len).sum::<usize>() == 1);
        queue
    }

    fn send(&mut self, queue: usize, bytes: &[u8]) {
        self.ports[queue].transmit(&plain(bytes)).unwrap();
        self.ports[queue].flush();
        self.machine.run();
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        self.machine.model(|model| std::mem::take(model.sent()))
    }

    /// Advances the time by seconds, with health checks of these ports only.
    fn watch_some(&mut self, seconds: u32, owners: &[usize]) {
        for _ in 0..seconds {
            let now = self.machine.pass(SECOND);
            self.machine.run();
            for &owner in owners {
                self.ports[owner].watch(now);
                self.machine.run();
            }
        }
    }

    fn watch(&mut self, seconds: u32) {
        let all: Vec<usize> = (0..self.ports.len()).collect();
        self.watch_some(seconds, &all);
    }

    fn notices(&mut self, queue: usize) -> Vec<&'static str> {
        let port = &mut self.ports[queue];
        std::iter::from_fn(|| port.notice()).map(|notices: Notice| notices.text).collect()
    }

    /// Checks that each queue sends and receives.
    fn works(&mut self) {
        self.sent();
        for queue in 0..self.ports.len() {
            let one = datagram(queue as u8, 5, 100 + queue);
            self.send(queue, &one);
            assert!(self.sent() == [one], "queue {queue}");
        }
        let mut reached = vec![false; self.ports.len()];
        (0..64).for_each(|host| reached[self.queue_of(datagram(host, 7, 60))] = true);
        assert!(reached.iter().all(|&reached| reached), "{reached:?}");
    }
}

/// A port's owner may hold frames and release them in any order, for longer than a lap of the ring.
#[test]
fn frames_may_be_held_by_each_owner() {
    fn of<M: Model>() {
        let mut bench = open::<M>(2, &KEY);
        for queue in 0..2 {
            let host =
                (0..64).find(|&host| bench.queue_of(datagram(host, 7, 60)) == queue).unwrap();
            for round in 0..300 {
                let mut wanted: Vec<_> =
                    (0..9).map(|n| datagram(host, n, 60 + usize::from(n))).collect();
                wanted.iter_mut().for_each(|one| one[..6].copy_from_slice(&bench.ports[0].mac()));
                wanted.iter().for_each(|one| bench.arrive(one.clone()));
                let port = &mut bench.ports[queue];
                let mut held: Vec<_> = std::iter::from_fn(|| port.receive()).collect();
                let got: Vec<_> = held.iter().map(|one| port.bytes(one).to_vec()).collect();
                assert!(got == wanted, "queue {queue}, round {round}: {} frames", got.len());
                held.rotate_left(round % 9);
                held.swap(0, 5);
                held.into_iter().for_each(|one| port.recycle(one));
                port.flush();
            }
        }
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Vmxnet3>();
}

fn each_host_has_a_queue<M: Model>(cores: usize, queues: usize) {
    let mut bench = open::<M>(cores, &KEY);
    assert_eq!(bench.ports.len(), queues);
    let mut hosts = vec![0; queues];
    for host in 0..64 {
        let queue = bench.queue_of(datagram(host, 4791, 64));
        hosts[queue] += 1;
        // Independent of source port, frame length and fragmentation.
        for (port, len) in [(1, 64), (40_000, 900), (65_535, 1400), (9, 8000)] {
            assert_eq!(bench.queue_of(datagram(host, port, len)), queue);
        }
        let mut part = datagram(host, 77, 900);
        part[20] = 0x20;
        assert_eq!(bench.queue_of(part), queue);
        let queue = bench.queue_of(datagram_6(host, 4791));
        assert_eq!(bench.queue_of(datagram_6(host, 33)), queue);
    }
    assert!(hosts.iter().all(|&hosts| hosts >= 64 / queues / 3), "{hosts:?}");
    // A frame without IP addresses goes to any queue.
    let mut arp = vec![2; 12];
    arp.extend([8, 6]);
    arp.resize(60, 0);
    bench.queue_of(arp);
    let frames: u64 = bench.ports.iter().map(|port| port.counters().rx_frames).sum();
    assert_eq!(frames, 64 * 8 + 1);
    assert_eq!(bench.machine.model(|model| model.complaints()), [""; 0]);
}

#[test]
fn one_queue_receives_all_frames_of_a_host() {
    each_host_has_a_queue::<E1000e>(2, 2);
    each_host_has_a_queue::<E1000e>(4, 2);
    each_host_has_a_queue::<Igb>(2, 2);
    each_host_has_a_queue::<Igb>(3, 3);
    each_host_has_a_queue::<Igb>(8, 8);
    each_host_has_a_queue::<Ixgbe>(2, 2);
    each_host_has_a_queue::<Ixgbe>(5, 5);
    each_host_has_a_queue::<Vmxnet3>(2, 2);
    each_host_has_a_queue::<Vmxnet3>(4, 4);
    // vmxnet3's number of queues is a power of two.
    each_host_has_a_queue::<Vmxnet3>(7, 4);
    each_host_has_a_queue::<Mlx5>(2, 2);
    each_host_has_a_queue::<Mlx5>(5, 5);
    each_host_has_a_queue::<Mlx5>(9, 8);
}

/// The physical function sets the hash of all its virtual functions, and may include ports.
#[test]
fn virtual_functions_have_one_queue() {
    fn of<M: Model>() {
        let mut machine = Metal::new(M::make(), 8 << 20);
        let device = machine.find().take(Class::Port).remove(0);
        let clock = machine.clock();
        let mut port = device.open_port(&mut machine, &|_| None, &clock).unwrap();
        assert!(port.split(3, &KEY, &mut machine, &clock).is_empty());
        let mut frame = datagram(1, 1, 60);
        frame[..6].copy_from_slice(&port.mac());
        machine.model(|model| model.arriving().push_back(frame));
        machine.run();
        assert_eq!(port.receive_each(9, &mut |_| true), 1);
    }
    of::<IgbVf>();
    of::<IxgbeVf>();
}

/// Each further queue needs a vector and memory.
#[test]
fn a_card_without_vectors_has_no_further_queues() {
    for (vectors, queues) in [(0, 0), (3, 0), (4, 1), (6, 2)] {
        let card = Card::<1>(Nic::new(Kind::Igb, vectors));
        let mut machine = Metal::new(card, 32 << 20);
        let device = machine.find().take(Class::Port).remove(0);
        let clock = machine.clock();
        let mut port = device.open_port(&mut machine, &|_| None, &clock).unwrap();
        assert_eq!(port.split(3, &KEY, &mut machine, &clock).len(), queues, "{vectors}");
    }
    let mut machine = Metal::new(Igb::make(), 2 << 20);
    let device = machine.find().take(Class::Port).remove(0);
    let clock = machine.clock();
    let mut port = device.open_port(&mut machine, &|_| None, &clock).unwrap();
    while machine.arena().alloc(64 << 10, 4096).is_some() {}
    let free = machine.arena().available();
    assert!(port.split(3, &KEY, &mut machine, &clock).is_empty());
    assert_eq!(machine.arena().available(), free, "memory is freed");
}

#[test]
fn hash_key_selects_the_queue_of_a_host() {
    fn of<M: Model>() {
        let spread = |key: &HashKey| {
            let mut bench = open::<M>(2, key);
            (0..64).map(|host| bench.queue_of(datagram(host, 1, 60))).collect::<Vec<_>>()
        };
        let other = KEY.map(|word| word.rotate_left(5) ^ 0x1357_9bdf);
        assert_eq!(spread(&KEY), spread(&KEY));
        assert_ne!(spread(&KEY), spread(&other));
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Vmxnet3>();
    of::<Mlx5>();
}

#[test]
fn each_queue_interrupts_its_own_core_only_when_armed() {
    fn of<M: Model>() {
        let mut bench = open::<M>(2, &KEY);
        let host = |bench: &mut Bench<M>, wanted: usize| {
            (0..64).find(|&host| bench.queue_of(datagram(host, 1, 60)) == wanted).unwrap()
        };
        let hosts = [host(&mut bench, 0), host(&mut bench, 1)];
        let raised =
            |bench: &Bench<M>| [0, 1].map(|queue| bench.ports[queue].counters().interrupts);
        assert_eq!(raised(&bench), [0, 0], "not armed");
        for round in 1..9 {
            for (queue, host) in hosts.into_iter().enumerate() {
                // vmxnet3 raises an interrupt that is pending from before at once.
                bench.ports[queue].set_interrupts(true);
                let before = raised(&bench);
                assert!(!bench.ports[queue].pending());
                bench.arrive(datagram(hosts[1 - queue], 1, 60));
                assert_eq!(raised(&bench), before, "{round}: only the other queue's frame");
                bench.arrive(datagram(host, 1, 60));
                let mut wanted = before;
                wanted[queue] += 1;
                assert_eq!(raised(&bench), wanted, "{round}: {queue}");
                // Disarming the other queue does not affect this one.
                bench.ports[1 - queue].set_interrupts(true);
                bench.ports[1 - queue].set_interrupts(false);
                let got = [bench.received(0).len(), bench.received(1).len()];
                assert_eq!(got, [1, 1]);
                bench.ports[queue].set_interrupts(true);
                bench.arrive(datagram(host, 1, 60));
                wanted[queue] += 1;
                assert_eq!(raised(&bench)[queue], wanted[queue], "{round}: {queue} again");
                bench.received(queue);
                bench.ports[queue].set_interrupts(false);
            }
        }
        assert_eq!(bench.machine.model(|model| model.complaints()), [""; 0]);
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Vmxnet3>();
}

#[test]
fn hung_queue_resets_the_chip_and_all_queues_recover() {
    fn of<M: Model>(queue: usize) {
        let mut bench = open::<M>(2, &KEY);
        for round in 1..4 {
            bench.machine.model(|model| model.hang(queue));
            bench.send(queue, &datagram(1, 1, 60));
            assert!(bench.ports[queue].is_sending());
            // Three checks; 15 for a card with PFC.
            bench.watch(22);
            assert_eq!(bench.ports[0].counters().resets, round, "queue {queue}");
            let notices = bench.notices(0);
            assert!(notices.len() == 2 && notices[0].contains("does not send"), "{notices:?}");
            assert!(bench.notices(1).is_empty());
            assert!(!bench.ports[0].is_sending() && !bench.ports[1].is_sending());
            bench.works();
        }
        bench.watch(20);
        assert_eq!(bench.ports[0].counters().resets, 3, "no further resets");
    }
    for queue in 0..2 {
        of::<E1000e>(queue);
        of::<Igb>(queue);
        of::<Ixgbe>(queue);
        of::<Vmxnet3>(queue);
        of::<Mlx5>(queue);
    }
}

/// A loop that was busy for long finds its rings unchanged. The chip does not access them before.
#[test]
fn chip_is_set_up_once_all_loops_have_noticed_the_reset() {
    fn of<M: Model>() {
        let mut bench = open::<M>(3.min(open::<M>(3, &KEY).ports.len()), &KEY);
        let last = bench.ports.len() - 1;
        let others: Vec<usize> = (0..last).collect();
        bench.machine.model(|model| model.hang(0));
        bench.send(0, &datagram(1, 1, 60));
        bench.watch_some(30, &others);
        assert!(!bench.ports[0].link_up(), "one loop has not noticed");
        assert!(bench.ports[last].pending(), "pending before a halt");
        // No interrupt would report that the chip is live again.
        assert!(
            bench.ports[1..last].iter().all(|port| !port.wakes()),
            "a halted loop would not be woken"
        );
        assert!(bench.notices(0).iter().all(|text| !text.contains("not come out")));
        // The loop continues for a while, and its frames are dropped.
        for n in 0..40 {
            let packet = datagram(n, 1, 300);
            let packet = Packet { header: &packet, payload: &[], trailer: &[] };
            _ = bench.ports[last].transmit(&packet);
        }
        assert!(bench.ports[last].is_sending(), "its frames are not reported as sent");
        bench.machine.run();
        bench.sent();
        assert!(bench.received(last).is_empty());
        assert!(!bench.ports[last].is_sending());
        bench.watch(3);
        assert!(bench.ports.iter_mut().all(|port| port.link_up()));
        assert!(bench.sent().is_empty(), "queued frames are dropped");
        bench.works();
        assert_eq!(bench.ports[0].counters().resets, 1);
        assert_eq!(bench.machine.model(|model| model.complaints()), [""; 0]);
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Vmxnet3>();
    of::<Mlx5>();
}

#[test]
fn link_changes_are_noticed_by_all_queues() {
    fn of<M: Model>() {
        let mut bench = open::<M>(2, &KEY);
        for _ in 0..3 {
            bench.machine.model(|model| model.set_link(false));
            // The driver has not noticed yet.
            for queue in 0..2 {
                bench.send(queue, &datagram(1, 1, 60));
            }
            // A reset drops the queued frames, and releases their memory.
            bench.watch(60);
            for port in &mut bench.ports {
                assert!(!port.link_up() && !port.is_sending());
            }
            bench.machine.model(|model| model.set_link(true));
            bench.watch(4);
            assert!(bench.ports.iter_mut().all(|port| port.link_up()));
            bench.works();
        }
        assert_eq!(bench.ports[0].counters().resets, 0);
        assert!(bench.notices(0).is_empty() && bench.notices(1).is_empty());
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Mlx5>();
}

/// A frame in a wrong queue is received there. The core's loop handles frames of other cores' hosts.
#[test]
fn frame_in_the_wrong_queue_is_received() {
    let mut bench = open::<Igb>(2, &KEY);
    for queue in [0, 1, 1, 0] {
        bench.machine.model(|card| card.0.inject(Fault::WrongQueue(queue)));
        assert_eq!(bench.queue_of(datagram(1, 1, 60)), queue);
    }
    // A queue without a port drops the frame.
    bench.machine.model(|card| card.0.inject(Fault::WrongQueue(2)));
    bench.arrive(datagram(1, 1, 60));
    assert!(bench.received(0).is_empty() && bench.received(1).is_empty());
    bench.works();
}

#[test]
fn removed_card_is_gone_for_all_queues() {
    fn of<M: Model>() {
        let mut bench = open::<M>(2, &KEY);
        bench.machine.pull_out(true);
        bench.watch(3);
        assert!(bench.ports.iter_mut().all(|port| !port.link_up()));
        let notices = bench.notices(0);
        let gone = |text: &str| text.contains("pulled out") || text.contains("was removed");
        assert!(notices.len() == 1 && gone(notices[0]), "{notices:?}");
        for port in &mut bench.ports {
            let frame = datagram(1, 1, 60);
            let packet = Packet { header: &frame, payload: &[], trailer: &[] };
            while port.transmit(&packet).is_ok() {}
            port.flush();
            assert!(!port.is_sending() && port.receive().is_none());
            port.set_interrupts(true);
        }
        assert!(bench.notices(1).is_empty());
    }
    of::<E1000e>();
    of::<Igb>();
    of::<Ixgbe>();
    of::<Vmxnet3>();
}
