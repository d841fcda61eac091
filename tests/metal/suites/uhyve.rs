//! The virtio network driver, and uhyve's files and output, on the model of uhyve.

use drivers::driver::Class;
use drivers::hal::{
    Arena, Clock, ConfigRegionAccess, Instant, Interrupt, Packet, PciAddress, Platform, Port,
    Registers, TransmitError, Window,
};
use drivers::inventory::Inventory;
use drivers::uhyve::{FileError, Hypercalls, MOST_BYTES, Uhyve as Interface};
use models::uhyve::{End, Fault, MAC, Mapped, Net, Uhyve};
use models::{Machine as _, Unreachable};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bus address of the memory.
const MEMORY: u64 = 0x10_0000;
const HEADER: usize = 12;
const OURS: [u8; 6] = [0x5e, 0x11, 0xa2, 0x33, 0x44, 0x55];

/// The guest's memory and its interrupt counter.
struct Guest {
    memory: Window,
    raised: Option<&'static AtomicU64>,
}

impl Guest {
    fn part(&self, address: u64, len: usize) -> Result<Window, Unreachable> {
        let offset = address.checked_sub(MEMORY).ok_or(Unreachable(address))?;
        self.memory.slice(offset as usize, len).ok_or(Unreachable(address))
    }
}

impl models::Machine for Guest {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.part(address, into.len())?.read(0, into).map_err(|_| Unreachable(address))
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        self.part(address, bytes.len())?.write(0, bytes).map_err(|_| Unreachable(address))
    }

    fn interrupt(&mut self, _: models::Interrupt) -> bool {
        self.raised.is_some_and(|raised| {
            raised.fetch_add(1, Ordering::Relaxed);
            true
        })
    }
}

struct Inside {
    uhyve: Uhyve,
    guest: Guest,
}

/// A machine in uhyve.
#[derive(Clone)]
struct Shared(Arc<Mutex<Inside>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }
}

struct Machine {
    shared: Shared,
    arena: Arena,
}

impl Machine {
    fn new(net: Option<u16>) -> Self {
        Machine::with(Uhyve::new(net.map(|mtu| (MAC, mtu))))
    }

    fn with(uhyve: Uhyve) -> Self {
        const BYTES: usize = 8 << 20;
        let whole = vec![0u64; (BYTES + 4096) / 8].leak();
        let skipped = whole.as_ptr().addr().wrapping_neg() % 4096;
        let start = NonNull::from(&mut whole[skipped / 8..]).cast();
        // SAFETY: the memory is leaked, so mapped for ever, and the only reference to it has just ended.
        let memory = unsafe { Window::from_raw(start, MEMORY, BYTES) };
        let guest = Guest { memory, raised: None };
        let shared = Shared(Arc::new(Mutex::new(Inside { uhyve, guest })));
        Machine { shared, arena: Arena::new(memory) }
    }

    fn find(&self) -> Inventory {
        let mut inventory = Inventory::default();
        inventory.scan_pci(Box::leak(Box::new(self.shared.clone())));
        inventory
    }

    fn interface(&mut self) -> Interface {
        Interface::new(self.arena.alloc(4096, 4096).unwrap()).unwrap()
    }
}

// SAFETY: the model writes to memory by copies, at the addresses that the driver has programmed.
unsafe impl Platform for Machine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        Some(Box::new(Mapped256 { shared: self.shared.clone(), address, len }))
    }

    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        panic!("uhyve's device has a line")
    }

    fn route_line(&mut self, line: u8) -> Option<Interrupt> {
        assert_eq!(line, 11);
        let raised: &'static AtomicU64 = Box::leak(Box::default());
        self.shared.lock().guest.raised = Some(raised);
        // SAFETY: the address is never written to.
        Some(unsafe { Interrupt::new(0, 0, raised) })
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

impl ConfigRegionAccess for Shared {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        let Inside { uhyve, guest } = &mut *self.lock();
        uhyve.port_out(0xcf8, &select(address, offset), guest);
        let mut bytes = [0; 4];
        uhyve.port_in(0xcfc, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let Inside { uhyve, guest } = &mut *self.lock();
        uhyve.port_out(0xcf8, &select(address, offset), guest);
        uhyve.port_out(0xcfc, &value.to_le_bytes(), guest);
    }
}

fn select(address: PciAddress, offset: u16) -> [u8; 4] {
    let place = u32::from(address.bus()) << 16
        | u32::from(address.device()) << 11
        | u32::from(address.function()) << 8;
    (1 << 31 | place | u32::from(offset & 0xfc)).to_le_bytes()
}

/// The hypercall ports.
struct Ports(Shared);

impl Hypercalls for Ports {
    fn call(&mut self, port: u16, parameters: u32) {
        let Inside { uhyve, guest } = &mut *self.0.lock();
        uhyve.port_out(port, &parameters.to_le_bytes(), guest);
    }
}

struct Mapped256 {
    shared: Shared,
    address: u64,
    len: usize,
}

macro_rules! access {
    ($read:ident, $write:ident, $t:ty) => {
        fn $read(&self, offset: usize) -> $t {
            let mut bytes = [0; size_of::<$t>()];
            self.shared.lock().uhyve.memory_in(self.address + offset as u64, &mut bytes);
            <$t>::from_le_bytes(bytes)
        }

        fn $write(&self, offset: usize, value: $t) {
            let Inside { uhyve, guest } = &mut *self.shared.lock();
            uhyve.memory_out(self.address + offset as u64, &value.to_le_bytes(), guest);
        }
    };
}

impl Registers for Mapped256 {
    fn len(&self) -> usize {
        self.len
    }
    access!(read8, write8, u8);
    access!(read16, write16, u16);
    access!(read32, write32, u32);
    access!(read64, write64, u64);
}

struct Never;

impl Clock for Never {
    fn now(&self) -> Instant {
        Instant::ZERO
    }
}

struct Bench {
    machine: Machine,
    port: Box<dyn Port + Send>,
}

fn try_open(mut machine: Machine, mtu: Option<u16>) -> Result<Bench, String> {
    let mut found = machine.find();
    assert_eq!(found.unclaimed, []);
    let device = found.take(Class::Port).remove(0);
    assert_eq!(
        (device.driver(), device.location().to_string().as_str()),
        ("virtio_net", "pci:0000:00:00.0")
    );
    let port = device.open_port(&mut machine, &|_| mtu, &Never).map_err(|why| why.to_string())?;
    Ok(Bench { machine, port })
}

fn open() -> Bench {
    try_open(Machine::new(Some(1500)), None).unwrap()
}

fn frame(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256 + n) as u8).collect()
}

impl Bench {
    fn net<T>(&self, look: impl FnOnce(&mut Net) -> T) -> T {
        look(self.machine.shared.lock().uhyve.net.as_mut().unwrap())
    }

    fn run(&self) {
        let Inside { uhyve, guest } = &mut *self.machine.shared.lock();
        uhyve.run(guest);
    }

    fn inject(&self, fault: Fault) {
        self.machine.shared.lock().uhyve.fault = Some(fault);
    }

    fn arrive(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let framed = frames.into_iter().map(|frame| [&[0; HEADER], &frame[..]].concat());
        self.net(|net| net.tap.arriving.extend(framed));
        self.run();
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        self.port.receive_each(usize::MAX, &mut |bytes| {
            all.push(bytes.to_vec());
            true
        });
        self.port.flush();
        all
    }

    fn transmit(&mut self, header: &[u8]) -> Result<(), TransmitError> {
        let sent = self.port.transmit(&Packet { header, payload: &[], trailer: &[] });
        self.port.flush();
        sent
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        self.net(|net| net.tap.sent.drain(..).map(|frame| frame[HEADER..].to_vec()).collect())
    }

    /// Checks that uhyve is running and has no complaints.
    fn is_content(&self) {
        let Inside { uhyve, .. } = &*self.machine.shared.lock();
        assert_eq!(uhyve.world.end, None);
        assert_eq!(uhyve.world.complaints, [""; 0]);
    }
}

#[test]
fn device_is_found_and_set_up_in_uhyves_order() {
    for (mtu, wanted, expected) in
        [(1500, None, 1486), (1486, None, 1486), (9000, Some(9000), 1486), (1400, Some(1500), 1400)]
    {
        let mut bench = try_open(Machine::new(Some(mtu)), wanted).unwrap();
        assert_eq!((bench.port.mac(), bench.port.mtu()), (OURS, expected));
        assert!(bench.port.link_up() && bench.port.wakes());
        assert!(bench.net(|net| net.is_live()));
        bench.is_content();
    }
}

#[test]
fn frames_of_every_length_come_and_go_around_the_rings() {
    for fault in [None, Some(Fault::Unlucky)] {
        let mut bench = open();
        fault.into_iter().for_each(|fault| bench.inject(fault));
        for n in 0..3000 {
            let one = frame(n, 60 + n * 37 % (1486 + 14 - 60 + 1));
            bench.arrive([one.clone()]);
            assert!(bench.received() == [one.clone()], "{n}: {}", one.len());
            bench.transmit(&one).unwrap();
            bench.run();
            assert!(bench.sent() == [one], "{n}");
        }
        let counters = bench.port.counters();
        assert_eq!(
            (counters.rx_frames, counters.tx_frames, counters.interrupts),
            (3000, 3000, 3000)
        );
        assert_eq!((counters.rx_errors, counters.tx_full), (0, 0));
        assert_eq!(bench.net(|net| (net.cut, net.dead_threads.clone())), (0, [None, None]));
        bench.is_content();
    }
}

/// With more frames than buffers, the thread waits for a notification of new buffers.
#[test]
fn frames_beyond_the_buffers_arrive_later() {
    for fault in [None, Some(Fault::Unlucky)] {
        let mut bench = open();
        fault.into_iter().for_each(|fault| bench.inject(fault));
        let all: Vec<_> = (0..1000).map(|n| frame(n, 100 + n % 1000)).collect();
        bench.arrive(all.clone());
        let mut received = Vec::new();
        for _ in 0..100 {
            received.extend(bench.received());
            bench.run();
        }
        assert!(received == all, "{}", received.len());
        bench.is_content();
    }
}

#[test]
fn frames_too_long_for_uhyve_are_truncated_or_refused() {
    let mut bench = open();
    bench.arrive([frame(1, 1514)]);
    assert_eq!(bench.net(|net| net.cut), 1);
    assert!(bench.received() == [frame(1, 1514)[..1500].to_vec()]);
    assert_eq!(bench.transmit(&frame(2, 1600)), Err(TransmitError::TooLarge));
    bench.is_content();
}

/// No interrupt reports new room, so the loop must not halt.
#[test]
fn a_queue_that_never_completes_is_full_and_asks_to_be_polled() {
    let mut bench = open();
    bench.inject(Fault::NeverCompletes);
    let full = (0..1000).find(|&n| bench.transmit(&frame(n, 60)) == Err(TransmitError::Full));
    bench.run();
    assert!(full.is_some_and(|n| n >= 80));
    assert!(bench.port.pending(), "the loop must not halt");
    assert_eq!(bench.transmit(&frame(1, 60)), Err(TransmitError::Full));
    for _ in 0..3 {
        bench.port.watch(Instant::ZERO);
        bench.run();
    }
    bench.is_content();
}

/// A reset would stop the device, but end uhyve.
#[test]
fn a_device_that_writes_garbage_is_given_up_and_not_reset() {
    let mut bench = open();
    bench.inject(Fault::Garbage);
    for n in 0..5 {
        bench.arrive([frame(n, 60)]);
        let _ = bench.transmit(&frame(n, 60));
        bench.run();
        assert!(bench.received().is_empty());
        bench.port.watch(Instant::ZERO);
    }
    for n in 0..1000 {
        let _ = bench.transmit(&frame(n, 60));
    }
    assert!(!bench.port.link_up());
    assert!(bench.port.counters().rx_errors > 0);
    assert!(bench.net(|net| net.is_live()));
    let Bench { machine, port } = bench;
    drop(port);
    assert_eq!(machine.shared.lock().uhyve.world.end, None);
}

#[test]
fn registers_that_read_as_ones_are_not_a_device_and_do_no_harm_later() {
    let machine = Machine::new(Some(1500));
    machine.shared.lock().uhyve.fault = Some(Fault::AllOnes);
    assert!(machine.find().take(Class::Port).is_empty());
    let mut machine = Machine::new(Some(1500));
    let device = machine.find().take(Class::Port).remove(0);
    machine.shared.lock().uhyve.fault = Some(Fault::AllOnes);
    let error = device.open_port(&mut machine, &|_| None, &Never).err().unwrap();
    assert_eq!(error.to_string(), "device has no usable virtio device ID");
    let mut bench = open();
    bench.inject(Fault::AllOnes);
    let _ = bench.port.link_up();
    bench.port.watch(Instant::ZERO);
    bench.arrive([frame(1, 60)]);
    assert!(bench.received() == [frame(1, 60)]);
    bench.is_content();
}

#[test]
fn without_a_network_device_reads_return_the_last_access() {
    let machine = Machine::new(None);
    let mut found = machine.find();
    assert!(!found.has(Class::Port));
    assert!(found.take(Class::Disks).is_empty());
    assert!(found.unclaimed.iter().all(|one| one.id.0 == 0), "{:?}", found.unclaimed);
    assert_eq!(machine.shared.lock().uhyve.world.end, None);
}

/// A driver that follows only the virtio standard makes uhyve, and so the model, panic.
#[test]
fn model_panics_like_uhyve_for_a_standard_driver() {
    let bench = open();
    // SAFETY: a model.
    let write = |status: u8| {
        let Inside { uhyve, guest } = &mut *bench.machine.shared.lock();
        uhyve.memory_out(0xfe00_0000 + 0x9c, &[status], guest);
    };
    write(0);
    let end = bench.machine.shared.lock().uhyve.world.end.clone();
    assert!(matches!(end, Some(End::Panic(_))), "{end:?}");
}

#[test]
fn output_is_printed_in_pieces_that_fit() {
    let mut machine = Machine::new(None);
    let interface = machine.interface();
    let text = frame(3, 10_000);
    let mut rest = &text[..];
    while !rest.is_empty() {
        let printed = interface.print(&mut Ports(machine.shared.clone()), rest);
        assert!((1..=4096).contains(&printed));
        rest = &rest[printed..];
    }
    assert_eq!(interface.print(&mut Ports(machine.shared.clone()), &[]), 0);
    assert!(machine.shared.lock().uhyve.host.output == text);
    interface.exit(&mut Ports(machine.shared.clone()), -7);
    assert_eq!(machine.shared.lock().uhyve.world.end, Some(End::Exit(-7)));
}

#[test]
fn files_are_read_completely_or_return_an_error() {
    let mut machine = Machine::new(None);
    let interface = machine.interface();
    let mut ports = Ports(machine.shared.clone());
    let map = |mapped: Option<Mapped>, lies: i64| {
        let host = &mut machine.shared.lock().uhyve.host;
        host.files = mapped.into_iter().map(|file| ("/a".to_string(), file)).collect();
        host.lies = lies;
    };
    for len in [0, 1, 4031, 4032, 4033, 20_000, MOST_BYTES] {
        let content = frame(len, len);
        map(Some(Mapped::File(content.clone())), 0);
        assert!(interface.read_file(&mut ports, "/a") == Ok(Some(content)), "{len}");
    }
    map(None, 0);
    assert_eq!(interface.read_file(&mut ports, "/a"), Ok(None));
    map(Some(Mapped::File(frame(0, MOST_BYTES + 1))), 0);
    assert_eq!(interface.read_file(&mut ports, "/a"), Err(FileError::TooLarge));
    for (mapped, error) in [
        (Mapped::Forbidden, FileError::Host("open", 1)),
        (Mapped::Directory, FileError::Host("read", 21)),
        (Mapped::Broken(5), FileError::Host("read", 5)),
    ] {
        map(Some(mapped), 0);
        assert_eq!(interface.read_file(&mut ports, "/a"), Err(error));
        assert!(error.to_string().contains("--file-mapping"), "{error}");
    }
    for lies in [5000, i64::MAX / 2] {
        map(Some(Mapped::File(frame(0, 100))), lies);
        assert_eq!(interface.read_file(&mut ports, "/a"), Err(FileError::Nonsense));
    }
    let inside = machine.shared.lock();
    assert_eq!((inside.uhyve.host.open_files(), &inside.uhyve.world.end), (0, &None));
}

#[test]
fn memory_beyond_32_bit_addresses_is_not_used() {
    let mut machine = Machine::new(None);
    let window = machine.arena.alloc(4096, 4096).unwrap();
    assert!(Interface::new(window.slice(0, 64).unwrap()).is_none());
    // SAFETY: the same memory with another bus address, which is never accessed.
    let far = unsafe { Window::from_raw(window.as_ptr(), 0xffff_ffff, 4096) };
    assert!(Interface::new(far).is_none());
    let mut guest = Guest { memory: window, raised: None };
    assert!(guest.read(0, &mut [0]).is_err());
}
