//! Bring-up: machine, devices, randomness, configuration from the host.

#[cfg(not(feature = "uhyve"))]
use crate::platform::Pc;
use crate::platform::{self, Clock, Devices, power};
use appliance::crash;
use appliance::gateway::{Bringup, Facts};
use appliance::log_ring::LogRing;
use appliance::machine::{Machine, SpareCore};
use appliance::randomness::{EntropySources, Randomness, SEED};
use boot::tsc::{Tsc, Verdict};
use boot::{BootInfo, Protocol};
use drivers::driver::Class;
#[cfg(not(feature = "uhyve"))]
use drivers::fw_cfg;
use drivers::hal::Instant;
use drivers::inventory::Inventory;
use rand_core::RngCore;
use std::sync::OnceLock;

/// fw_cfg file with the host's configuration document.
#[cfg(not(feature = "uhyve"))]
const CONFIG_FILE: &str = "opt/isthmus/config";
/// fw_cfg file that names the config disk: `serial:…`, `pci:…`.
#[cfg(not(feature = "uhyve"))]
const CONFIG_DISK_FILE: &str = "opt/isthmus/config-disk";
/// QEMU's fw_cfg file with the I/O port of its pvpanic device, 16 bits.
#[cfg(not(feature = "uhyve"))]
const PVPANIC_FILE: &str = "etc/pvpanic-port";
/// Default port of the console.
#[cfg(not(feature = "uhyve"))]
const COM1: u16 = 0x3f8;
/// Replaces a document that could not be read. Like an invalid document it closes all that the document may restrict.
const NOT_READ: &[u8] = b"(not read)";
/// Capacity of the log, in messages.
const LOG_MESSAGES: usize = 2000;
/// Bytes of RAM for each message of the capacity: the log of a small machine is shorter.
const MEMORY_OF_MESSAGE: u64 = 64 << 10;

/// Sources from which generators are reseeded at run time.
const ENTROPY: EntropySources =
    EntropySources { cpu: platform::entropy_from_cpu, ticks: platform::tsc };

/// A machine on which the appliance refuses to start.
pub struct Refusal {
    /// The missing feature of the machine.
    pub reason: String,
    /// Exit code of the machine ([`power`]).
    pub code: u8,
}

/// Brings everything up.
pub fn bring_up(boot: &'static BootInfo) -> Result<Bringup, Refusal> {
    let command_line = boot.command_line();
    set_panic_policy(command_line);
    let mut log = None;
    let machine = platform::bring_up(boot, |clock| *log.insert(start_log(clock, boot)));
    let machine = machine.map_err(|reason| Refusal { reason, code: power::UNPROTECTED })?;
    let platform::Bringup {
        machine,
        mut devices,
        pci,
        #[cfg(not(feature = "uhyve"))]
        virtio_slots,
        spare,
        protection,
        crash,
        build_id,
    } = machine;
    let log = log.expect("bring-up starts the log");
    #[cfg(feature = "faults")]
    for word in command_line.split_ascii_whitespace() {
        if let Some(kind) = word.strip_prefix("isthmus.test.fault=") {
            platform::fault_injection::fault(kind);
        }
    }
    match Tsc::ask().verdict() {
        Verdict::Good => {}
        Verdict::Doubtful => log::warn!(
            "clock: the hypervisor does not advertise an invariant time-stamp counter (CPUID 0x80000007): time may drift after a migration to another host"
        ),
        Verdict::Unusable => {
            let reason = "no clock: this CPU's time-stamp counter changes its rate (CPUID 0x80000007, EDX bit 8 is clear): \
                          every timer would be wrong";
            return Err(Refusal { reason: reason.into(), code: power::REFUSED });
        }
    }
    log::info!(
        "memory: {} pages mapped, {} executable, {} read-only, none writable and executable",
        protection.pages,
        protection.executable,
        protection.read_only
    );
    let mut inventory = Inventory::default();
    #[cfg(feature = "uhyve")]
    let watchdog = scan_uhyve(pci, &mut inventory);
    #[cfg(not(feature = "uhyve"))]
    let mut watchdog = None;
    #[cfg(not(feature = "uhyve"))]
    if pci.has_host_bridge() {
        let pci = &*Box::leak(Box::new(pci));
        pci.roots().for_each(|(segment, roots)| inventory.scan_segment(segment, roots, pci));
        watchdog = platform::watchdog::find(pci, &mut devices);
    } else {
        inventory.scan_virtio_mmio(&virtio_slots, &mut devices);
    }
    #[cfg(not(feature = "uhyve"))]
    let machine = with_console(machine, &mut inventory, &mut devices);
    let (rng, entropy) = randomness(&mut inventory, &mut devices, &machine, machine.clock())?;
    let (fw_cfg, config_disk) = documents();
    let boot_protocol = match boot.protocol {
        Protocol::Pvh => "pvh",
        Protocol::Multiboot2 => "multiboot2",
        Protocol::Uhyve => "uhyve",
    };
    Ok(Bringup {
        machine: Box::new(machine),
        facts: Facts {
            commit: platform::commit(),
            committed: platform::committed(),
            build_id,
            boot: boot_protocol,
            cpus: spare.len() + 1,
            memory: platform::total_memory(boot),
            entropy,
            heap_used: crate::heap::used,
        },
        spare: spare.into_iter().map(|core| Box::new(core) as Box<dyn SpareCore>).collect(),
        platform: Box::new(devices),
        inventory,
        fw_cfg,
        config_disk,
        crash,
        command_line: command_line.into(),
        command_line_cut: boot.command_line_is_cut(),
        watchdog,
        rng,
        entropy: ENTROPY,
        log,
    })
}

/// QEMU's configuration document, and the name of the config disk.
#[cfg(not(feature = "uhyve"))]
fn documents() -> (Option<Vec<u8>>, Option<String>) {
    let fw_cfg = fw_cfg::read_file(&mut platform::Ports, CONFIG_FILE).unwrap_or_else(|error| {
        log::error!("fw_cfg: {error}");
        Some(NOT_READ.into())
    });
    let config_disk =
        fw_cfg::read_file(&mut platform::Ports, CONFIG_DISK_FILE).unwrap_or_else(|error| {
            log::error!("fw_cfg: {CONFIG_DISK_FILE}: {error}");
            // The name is unknown. This value acts as the name of a disk that is missing.
            Some(NOT_READ.into())
        });
    let config_disk = config_disk.map(|name| String::from_utf8_lossy(&name).trim().to_string());
    let pvpanic = fw_cfg::read_file(&mut platform::Ports, PVPANIC_FILE).unwrap_or(None);
    if let Some(&[low, high]) = pvpanic.as_deref().and_then(|port| port.first_chunk()) {
        platform::last_words::set_pvpanic(u16::from_le_bytes([low, high]));
    }
    (fw_cfg, config_disk)
}

/// uhyve's configuration document.
#[cfg(feature = "uhyve")]
fn documents() -> (Option<Vec<u8>>, Option<String>) {
    use platform::uhyve::{CONFIG_FILE, Ports, with_console_memory};
    let read = with_console_memory(|uhyve| {
        uhyve.read_file(&mut Ports, CONFIG_FILE).unwrap_or_else(|error| {
            log::error!("{CONFIG_FILE}: {error}");
            Some(NOT_READ.into())
        })
    });
    (read, None)
}

/// Scans for devices under uhyve, which has at most a network device.
#[cfg(feature = "uhyve")]
fn scan_uhyve(
    pci: platform::ConfigSpace,
    inventory: &mut Inventory,
) -> Option<Box<dyn appliance::machine::Watchdog>> {
    let pci = &*Box::leak(Box::new(pci));
    pci.roots().for_each(|(segment, roots)| inventory.scan_segment(segment, roots, pci));
    // If there is no network device, reads from its address return the last value written to any port.
    inventory.unclaimed.retain(|one| one.id.0 != 0);
    if !inventory.has(Class::Port) {
        log::error!("uhyve runs without a network device: start it with --net tap:NAME");
    }
    None
}

/// Sets the panic policy from the command line. It applies until a configuration is read.
fn set_panic_policy(command_line: &str) {
    let policy = command_line.split_ascii_whitespace();
    let policy = policy.filter_map(|word| word.strip_prefix("isthmus.system.on_panic="));
    if let Some(policy) = policy.filter_map(|policy| policy.parse().ok()).next_back() {
        crash::set_policy(policy);
    }
}

/// Starts the log, which receives the messages of the `log` crate's macros and stamps them by `clock`.
fn start_log(clock: Clock, boot: &BootInfo) -> &'static LogRing {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    static LOG: OnceLock<LogRing> = OnceLock::new();
    let now = || CLOCK.get().map_or(Instant::ZERO, Clock::now);
    CLOCK.get_or_init(|| clock);
    let messages = LOG_MESSAGES.min((platform::total_memory(boot) / MEMORY_OF_MESSAGE) as usize);
    let log = LOG.get_or_init(|| LogRing::new(messages, now));
    // Fails only if a logger is set already.
    let _ = log::set_logger(log);
    log::set_max_level(log::LevelFilter::Info);
    log
}

/// Selects the console: the serial port, else virtio-console.
#[cfg(not(feature = "uhyve"))]
fn with_console(mut machine: Pc, inventory: &mut Inventory, devices: &mut Devices) -> Pc {
    match machine.serial_port() {
        Some(COM1) => return machine,
        Some(port) => {
            log::info!("console: the serial port at {port:#x}");
            return machine;
        }
        None => {}
    }
    for device in inventory.take(Class::Console) {
        let location = device.location();
        match device.open_console(devices) {
            Ok(console) => {
                log::info!("console: {location}");
                machine.set_console(console);
                return machine;
            }
            Err(why) => log::error!("console: {location}: {why}"),
        }
    }
    log::warn!(
        "console: no serial port and no virtio-console: configure the appliance over the network"
    );
    machine
}

/// A CSPRNG seeded by the CPU, all virtio sources, and the time. Without any source the appliance does not start,
/// because its keys would be guessable.
fn randomness(
    inventory: &mut Inventory,
    devices: &mut Devices,
    machine: &dyn Machine,
    clock: Clock,
) -> Result<(Box<dyn RngCore>, &'static str), Refusal> {
    let mut random = Randomness::new([0; SEED], ENTROPY);
    let mut time = [0; SEED];
    time[..8].copy_from_slice(&platform::tsc().to_le_bytes());
    time[8..16].copy_from_slice(&machine.unix_seconds().to_le_bytes());
    random.absorb(&time);
    let (mut has_cpu, mut has_virtio) = (false, false);
    if let Some(seed) = platform::entropy_from_cpu() {
        random.absorb(&seed);
        has_cpu = true;
    }
    let mut reason = String::from(
        "no source of entropy: the CPU has neither RDSEED nor RDRAND, and there is no virtio-rng \
         device; give the machine one of them (QEMU: -device virtio-rng-pci)",
    );
    for device in inventory.take(Class::Entropy) {
        let location = device.location();
        let mut seed = [0; 32];
        let read = device
            .open_entropy(devices)
            .map_err(|error| error.to_string())
            .and_then(|mut source| source.read(&mut seed, &clock).map_err(|e| e.to_string()));
        match read {
            Ok(()) => {
                random.absorb(&seed);
                has_virtio = true;
            }
            Err(why) => reason = format!("no source of entropy: {location}: {why}"),
        }
    }
    let sources = match (has_cpu, has_virtio) {
        (true, true) => "cpu, virtio-rng",
        (true, false) => "cpu",
        (false, true) => "virtio-rng",
        (false, false) => return Err(Refusal { reason, code: power::REFUSED }),
    };
    Ok((Box::new(random), sources))
}
