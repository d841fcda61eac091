//! Bring-up: machine, devices, randomness, configuration from the host.

use crate::platform::{self, Clock, Devices, board, power};
use appliance::crash;
use appliance::gateway::{Bringup, Facts};
use appliance::log_ring::LogRing;
use appliance::machine::{Machine, SpareCore};
use appliance::randomness::{EntropySources, Randomness, SEED};
use boot::tsc::{Tsc, Verdict};
use boot::{BootInfo, Protocol};
use drivers::driver::Class;
use drivers::hal::Instant;
use drivers::inventory::Inventory;
use rand_core::Rng;
use std::sync::OnceLock;

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
    let watchdog = board::find_devices(pci, &virtio_slots, &mut inventory, &mut devices);
    let machine = board::with_console(machine, &mut inventory, &mut devices);
    let (rng, entropy) = randomness(&mut inventory, &mut devices, &machine, machine.clock())?;
    let vmm = board::documents(boot);
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
        vmm,
        crash,
        command_line: command_line.into(),
        command_line_cut: boot.command_line_is_cut(),
        watchdog,
        rng,
        entropy: ENTROPY,
        log,
    })
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

/// A CSPRNG seeded by the CPU, all virtio sources, and the time. Without any source the appliance does not start,
/// because its keys would be guessable.
fn randomness(
    inventory: &mut Inventory,
    devices: &mut Devices,
    machine: &dyn Machine,
    clock: Clock,
) -> Result<(Box<dyn Rng>, &'static str), Refusal> {
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
