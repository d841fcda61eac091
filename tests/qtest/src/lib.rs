//! A QEMU machine without a running processor: Isthmus' drivers use its devices from this process. The machine's memory
//! is mapped here, and registers are accessed by the qtest protocol (QEMU: docs/devel/testing/qtest.rst). QEMU's device
//! models are independent of this project.
//!
//! Interrupt messages go to a word of memory, which [`Machine::take_interrupts`] polls. Only [`Machine::pass`] and the
//! machine's clock advance QEMU's virtual time.

mod connection;

use connection::Connection;
use drivers::hal::{
    Arena, Clock, ConfigRegionAccess, Instant, Interrupt, PciAddress, Platform, Registers, Window,
};
use drivers::inventory::Inventory;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// Bytes of memory, and the offset of the used part.
const MEMORY: usize = 64 << 20;
const FIRST: usize = 1 << 20;
/// Address of the first BAR.
const BARS: u32 = 0xe000_0000;

type Shared = Arc<Mutex<Connection>>;

/// The machine. Dropping it ends QEMU.
pub struct Machine {
    qemu: Child,
    connection: Shared,
    monitor: Connection,
    arena: Arena,
    messages: Window,
    raised: &'static AtomicU64,
    /// The other end of the cable.
    pub wire: UnixDatagram,
    directory: TempDir,
}

/// Starts a machine (q35) with this network interface by `qemu`. `model` is the model name of `-device`.
pub fn with_nic(qemu: Command, model: &str) -> std::io::Result<Machine> {
    let device = format!("{model},netdev=net0,mac=52:54:00:12:34:56,romfile=");
    start(qemu, |directory| {
        let shown = |name: &str| directory.join(name).display().to_string();
        let (ours, peer) = (shown("nic"), shown("peer"));
        let cable = format!(
            "dgram,id=net0,local.type=unix,local.path={ours},remote.type=unix,remote.path={peer}"
        );
        Ok(vec!["-netdev".into(), cable, "-device".into(), device])
    })
}

/// Starts a machine (q35) with this controller and disks of these sizes in MiB, each of which QEMU serves as `disk`
/// with the node `diskN`. `{n}` in the controller's and the disk's properties is the number. `debug`: rules of QEMU's
/// `blkdebug` for disk 0, as JSON.
pub fn with_disks(
    qemu: Command,
    controller: &str,
    disk: &str,
    mib: &[u64],
    debug: &str,
) -> std::io::Result<Machine> {
    start(qemu, |directory| {
        let mut words = vec!["-device".to_string(), controller.to_string()];
        for (n, mib) in mib.iter().enumerate() {
            let path = directory.join(format!("disk{n}"));
            File::create_new(&path)?.set_len(mib << 20)?;
            let file = format!("{{\"driver\":\"file\",\"filename\":\"{}\"}}", path.display());
            let file = match debug {
                "" => file,
                _ if n > 0 => file,
                rules => format!(
                    "{{\"driver\":\"blkdebug\",\"image\":{file},\"inject-error\":[{rules}]}}"
                ),
            };
            words.push("-blockdev".into());
            words.push(format!(
                "{{\"node-name\":\"disk{n}\",\"driver\":\"raw\",\"file\":{file},\"discard\":\"unmap\"}}"
            ));
            words.extend(["-device".into(), disk.replace("{n}", &n.to_string())]);
        }
        Ok(words)
    })
}

/// Starts a machine with devices, whose arguments `devices` gives for the directory of its files.
fn start(
    mut qemu: Command,
    devices: impl FnOnce(&std::path::Path) -> std::io::Result<Vec<String>>,
) -> std::io::Result<Machine> {
    let directory = tempfile::Builder::new().prefix("isthmus-qtest-").tempdir()?;
    let path = |name: &str| directory.path().join(name);
    let file = File::create_new(path("memory"))?;
    file.set_len(MEMORY as u64)?;
    let file = File::options().read(true).write(true).open(path("memory"))?;
    let listeners = [UnixListener::bind(path("qtest"))?, UnixListener::bind(path("qmp"))?];
    let wire = UnixDatagram::bind(path("peer"))?;
    wire.set_nonblocking(true)?;
    let shown = |name: &str| path(name).display().to_string();
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-accel", "qtest"]);
    qemu.args(["-machine", "q35,memory-backend=ram", "-m", "64M", "-qtest-log", "/dev/null"]);
    let memory =
        format!("memory-backend-file,id=ram,size=64M,share=on,mem-path={}", shown("memory"));
    qemu.args(["-object", &memory]);
    qemu.args(["-qtest", &format!("unix:{}", shown("qtest"))]);
    qemu.args(["-qmp", &format!("unix:{}", shown("qmp"))]);
    qemu.args(devices(directory.path())?);
    let mut child = qemu.stdin(Stdio::null()).spawn()?;
    let accepted = listeners.map(|listener| connection::accept(&listener, &mut child));
    let [connection, monitor] = accepted;
    let mut monitor = monitor?;
    monitor.line()?;
    monitor.ask("{\"execute\":\"qmp_capabilities\"}")?;
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let start = unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        mmap(std::ptr::null_mut(), MEMORY, access, MapFlags::SHARED, &file, 0)
    }?;
    let start = NonNull::new(start.cast::<u8>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
    // SAFETY: the mapping is never removed, and no reference to it is ever made.
    let memory = unsafe { Window::from_raw(start, 0, MEMORY) };
    let usable = memory.slice(FIRST, MEMORY - FIRST).ok_or(std::io::ErrorKind::OutOfMemory)?;
    let mut arena = Arena::new(usable);
    let messages = arena.alloc(64, 64).ok_or(std::io::ErrorKind::OutOfMemory)?;
    messages.fill(0);
    let raised: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(0)));
    let connection = Arc::new(Mutex::new(connection?));
    Ok(Machine { qemu: child, connection, monitor, arena, messages, raised, wire, directory })
}

impl Machine {
    /// Assigns addresses to BARs as firmware does, and runs the inventory of drivers.
    pub fn find(&self) -> Inventory {
        let access: &'static Access = Box::leak(Box::new(Access(self.connection.clone())));
        let mut next = BARS;
        for device in 1..31 {
            place_bars(access, PciAddress::new(0, 0, device, 0), &mut next);
        }
        let mut inventory = Inventory::default();
        inventory.scan_pci(access);
        inventory
    }

    /// Advances the devices' time, and returns it.
    pub fn pass(&self, time: Duration) -> Instant {
        let answer = with(&self.connection, |c| c.ask(&format!("clock_step {}", time.as_nanos())));
        let nanos = answer.trim_start_matches("OK ").trim().parse().unwrap_or(0);
        Instant::from_nanos(nanos)
    }

    /// The machine's clock. Each read advances it by a millisecond.
    pub fn clock(&self) -> impl Clock + use<> {
        QemuClock(self.connection.clone())
    }

    /// Plugs the cable in, or unplugs it.
    pub fn set_link(&mut self, up: bool) {
        let arguments = format!("{{\"name\":\"net0\",\"up\":{up}}}");
        let command = format!("{{\"execute\":\"set_link\",\"arguments\":{arguments}}}");
        self.monitor.ask(&command).expect("QEMU's monitor answers");
    }

    /// Sends a frame to the interface.
    pub fn send(&self, frame: &[u8]) {
        while let Err(error) = self.wire.send_to(frame, self.directory.path().join("nic")) {
            assert!(error.raw_os_error().is_some(), "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Receives the next frame from the interface, if one comes soon.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 1 << 14];
        for _ in 0..5000 {
            if let Ok(length) = self.wire.recv(&mut frame) {
                frame.truncate(length);
                return Some(frame);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// The contents of disk `n`.
    pub fn disk(&self, n: usize) -> std::io::Result<Vec<u8>> {
        std::fs::read(self.directory.path().join(format!("disk{n}")))
    }

    /// Counts an interrupt if messages have arrived, or lines were raised, since the last call. Several count once.
    pub fn take_interrupts(&self) {
        let lines = with(&self.connection, |c| Ok(c.take_raised()));
        if self.messages.load32(0) != 0 || lines > 0 {
            self.messages.store32(0, 0);
            self.raised.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Fails only if QEMU has already ended.
        _ = self.qemu.kill();
        _ = self.qemu.wait();
    }
}

fn with<T>(connection: &Shared, work: impl FnOnce(&mut Connection) -> std::io::Result<T>) -> T {
    let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut connection).expect("QEMU answers")
}

/// Assigns addresses from `next` on to all memory BARs of a function.
fn place_bars(access: &Access, address: PciAddress, next: &mut u32) {
    // SAFETY: no driver uses the function's BARs yet.
    let (read, write) =
        unsafe { (|at| access.read(address, at), |at, value| access.write(address, at, value)) };
    if read(0) == u32::MAX || read(0x0c) >> 16 & 0x7f != 0 {
        return;
    }
    let mut at = 0x10;
    while at < 0x28 {
        let flags = read(at);
        write(at, u32::MAX);
        let mask = read(at) & !0xf;
        let wide = flags & 6 == 4;
        if flags & 1 == 0 && mask != 0 {
            let size = mask.wrapping_neg();
            *next = next.next_multiple_of(size);
            write(at, *next);
            *next += size;
        }
        at += if wide { 8 } else { 4 };
    }
}

// SAFETY: QEMU's models write to memory by copies, at the addresses that drivers have programmed. They hold no
// reference.
unsafe impl Platform for Machine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        Some(Box::new(Mapped { connection: self.connection.clone(), address, len }))
    }

    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }

    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        // SAFETY: the address is a word of memory that is reserved for interrupt messages.
        Some(unsafe { Interrupt::new(self.messages.bus_address(), 0x55, self.raised) })
    }

    fn route_line(&mut self, _: u8) -> Option<Interrupt> {
        // Without firmware no line is assigned: QEMU reports each input of the I/O APIC.
        with(&self.connection, |c| c.ask("irq_intercept_in /machine/q35/ioapic"));
        // SAFETY: nothing writes to the address: the device has a line, and no messages.
        Some(unsafe { Interrupt::new(0, 0, self.raised) })
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

struct QemuClock(Shared);

impl Clock for QemuClock {
    fn now(&self) -> Instant {
        let answer = with(&self.0, |c| c.ask("clock_step 1000000"));
        Instant::from_nanos(answer.trim_start_matches("OK ").trim().parse().unwrap_or(0))
    }
}

/// Configuration space, by the ports 0xcf8 and 0xcfc.
struct Access(Shared);

fn select(address: PciAddress, offset: u16) -> Option<u32> {
    let function = u32::from(address.device()) << 11 | u32::from(address.function()) << 8;
    let bus = u32::from(address.bus()) << 16;
    (offset < 256).then(|| 1 << 31 | bus | function | u32::from(offset & 0xfc))
}

impl ConfigRegionAccess for Access {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        let Some(select) = select(address, offset) else { return u32::MAX };
        with(&self.0, |c| {
            c.ask(&format!("outl 0xcf8 {select:#x}"))?;
            c.number("inl 0xcfc").map(|value| value as u32)
        })
    }

    unsafe fn write(&self, address: PciAddress, offset: u16, value: u32) {
        let Some(select) = select(address, offset) else { return };
        with(&self.0, |c| {
            c.ask(&format!("outl 0xcf8 {select:#x}"))?;
            c.ask(&format!("outl 0xcfc {value:#x}")).map(drop)
        });
    }
}

/// Registers at a bus address.
struct Mapped {
    connection: Shared,
    address: u64,
    len: usize,
}

impl Mapped {
    fn load(&self, offset: usize, size: usize, letter: char) -> u64 {
        if offset + size > self.len {
            return u64::MAX;
        }
        let at = self.address + offset as u64;
        with(&self.connection, |c| c.number(&format!("read{letter} {at:#x}")))
    }

    fn store(&self, offset: usize, size: usize, letter: char, value: u64) {
        if offset + size <= self.len {
            let at = self.address + offset as u64;
            with(&self.connection, |c| c.ask(&format!("write{letter} {at:#x} {value:#x}")));
        }
    }
}

macro_rules! access {
    ($read:ident, $write:ident, $t:ty, $letter:expr) => {
        fn $read(&self, offset: usize) -> $t {
            self.load(offset, size_of::<$t>(), $letter) as $t
        }

        fn $write(&self, offset: usize, value: $t) {
            self.store(offset, size_of::<$t>(), $letter, value.into());
        }
    };
}

impl Registers for Mapped {
    fn len(&self) -> usize {
        self.len
    }
    access!(read8, write8, u8, 'b');
    access!(read16, write16, u16, 'w');
    access!(read32, write32, u32, 'l');
    access!(read64, write64, u64, 'q');
}
