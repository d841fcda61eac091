//! What the appliance starts with: machine, devices, randomness, configuration from the host.

use crate::platform::{self, Clock, Devices, power};
use appliance::gateway::{Bringup, Facts};
use appliance::log_ring::LogRing;
use appliance::machine::SpareCore;
use boot::{BootInfo, Protocol};
use drivers::found::Found;
use drivers::fw_cfg;
use drivers::hal::Instant;
use drivers::virtio::Kind;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::sync::OnceLock;

/// The file by which the host hands over a document.
const CONFIG_FILE: &str = "opt/isthmus/config";
/// Messages that the log keeps.
const LOG_MESSAGES: usize = 128;

/// Why the appliance does not start.
pub struct Refusal {
    /// What the machine lacks.
    pub reason: String,
    /// How the machine ends.
    pub code: u8,
}

/// Brings everything up. Faults that a test asks for are provoked on the way.
pub fn bring_up(boot: &'static BootInfo) -> Result<Bringup, Refusal> {
    let machine =
        platform::bring_up(boot).map_err(|reason| Refusal { reason, code: power::UNPROTECTED })?;
    let platform::Bringup { machine, mut devices, pci, virtio_slots, spare, protection } = machine;
    let log = start_log(machine.clock());
    let command_line = boot.command_line();
    let provoked = command_line.split_ascii_whitespace();
    for kind in provoked.filter_map(|word| word.strip_prefix("isthmus.test.fault=")) {
        platform::provoke_fault(kind);
    }
    if boot.command_line_truncated {
        log::error!("command line: longer than {} bytes; its end is lost", command_line.len());
    }
    log::info!(
        "memory: {} pages mapped, {} executable, {} read-only, none writable and executable",
        protection.pages,
        protection.executable,
        protection.read_only
    );
    let mut found = Found::default();
    if pci.has_host_bridge() {
        found.scan_pci(&pci, &mut devices);
    } else {
        found.scan_mmio(&virtio_slots, &mut devices);
    }
    let (rng, entropy) = randomness(&mut found, &mut devices, machine.clock())?;
    let fw_cfg = fw_cfg::read_file(&mut platform::Ports, CONFIG_FILE).unwrap_or_else(|error| {
        log::error!("fw_cfg: {error}");
        None
    });
    let boot_protocol = match boot.protocol {
        Protocol::Pvh => "pvh",
        Protocol::Multiboot2 => "multiboot2",
    };
    let cpus = spare.len() + 1;
    Ok(Bringup {
        machine: Box::new(machine),
        spare: spare.into_iter().map(|core| Box::new(core) as Box<dyn SpareCore>).collect(),
        platform: Box::new(devices),
        found,
        fw_cfg,
        command_line: command_line.into(),
        rng,
        facts: Facts {
            boot: boot_protocol,
            cpus,
            memory: platform::total_memory(boot),
            entropy,
            heap_used: crate::heap::used,
        },
        log,
    })
}

/// The log, stamped by the machine's clock, taking what the `log` crate's macros say.
fn start_log(clock: Clock) -> &'static LogRing {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    static LOG: OnceLock<LogRing> = OnceLock::new();
    let now = || CLOCK.get().map_or(Instant::ZERO, Clock::now);
    CLOCK.get_or_init(|| clock);
    let log = LOG.get_or_init(|| LogRing::new(LOG_MESSAGES, now));
    // Fails only when it was called before.
    let _ = log::set_logger(log);
    log::set_max_level(log::LevelFilter::Info);
    log
}

/// A CSPRNG seeded by the CPU or by a virtio source; without either the appliance does not start,
/// because its keys would be guessable.
fn randomness(
    found: &mut Found,
    devices: &mut Devices,
    clock: Clock,
) -> Result<(Box<dyn RngCore>, &'static str), Refusal> {
    let seeded = |seed| Box::new(ChaCha12Rng::from_seed(seed));
    if let Some(seed) = platform::entropy_from_cpu() {
        return Ok((seeded(seed), "cpu"));
    }
    let mut reason = String::from(
        "no source of entropy: the CPU has neither RDSEED nor RDRAND, and there is no virtio-rng \
         device; give the machine one of them (QEMU: -device virtio-rng-pci)",
    );
    for device in found.take(Kind::Entropy) {
        let location = device.location();
        let mut seed = [0; 32];
        let read = device
            .into_entropy(devices)
            .map_err(|error| error.to_string())
            .and_then(|mut source| source.read(&mut seed, &clock).map_err(|e| e.to_string()));
        match read {
            Ok(()) => return Ok((seeded(seed), "virtio-rng")),
            Err(why) => reason = format!("no source of entropy: {location}: {why}"),
        }
    }
    Err(Refusal { reason, code: power::REFUSED })
}
