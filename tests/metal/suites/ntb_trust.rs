//! Trust in bridges: a bridge that gives the peer access to all memory stays closed without `trust`. On the models, a
//! malicious peer writes every register that it can.

use drivers::driver::Class;
use drivers::hal::{Platform, Registers};
use metal::Metal;
use metal::bridges::*;
use models::ntb::switchtec::Switchtec;
use netsim::Rng;
use std::time::Duration;

/// Bytes of registers that the peer writes: all registers with an effect, of any bridge.
const REGISTERS: usize = 0x2_0000;
/// Contents of memory that must stay unchanged.
const PATTERN: u8 = 0x5a;
/// Addresses of the victim's memory that the peer attacks.
const AIMS: [u64; 3] = [0x10_0000, 0x40_0000, 0x80_0000];

/// A malicious machine at its side of a bridge.
struct Attacker<M: Joined> {
    machine: Metal<M>,
    registers: Box<dyn Registers>,
    window: Box<dyn Registers>,
    len: usize,
    window_len: usize,
}

impl<M: Joined> Attacker<M> {
    fn new(mut machine: Metal<M>) -> Self {
        let device = machine.find().take(Class::Bridge).remove(0);
        let drivers::driver::Bus::Pci(function) = device.bus() else { panic!("not of PCI") };
        let bars = function.bars();
        function.prepare();
        function.enable_bus_master();
        let (own, window) = (bars.get(0).unwrap(), bars.get(2).unwrap());
        let (len, window_len) = (own.size.min(REGISTERS as u64) as usize, window.size as usize);
        let registers = machine.map_registers(own.address, len).unwrap();
        let window = machine.map_registers(window.address, window_len).unwrap();
        Attacker { machine, registers, window, len, window_len }
    }

    /// Writes `aim` to every register, 64 bits at a time.
    fn sweep(&self, aim: u64, rng: &mut Rng) {
        // Values of translations, limits, table entries and control block operations.
        for value in [aim, aim | 1, aim | 3, u64::MAX, 1, 2] {
            for at in (0..self.len).step_by(8) {
                self.registers.write64(at, value);
            }
            self.machine.pass(Duration::from_millis(20));
            self.machine.run();
        }
        for _ in 0..2000 {
            let at = rng.within(0..self.len as u64 / 4) as usize * 4;
            let values = [aim as u32, 0, 1, 2, u32::MAX, rng.within(0..1 << 32) as u32];
            self.registers.write32(at, rng.pick(&values));
        }
        for at in (0..self.len).step_by(8) {
            self.registers.write64(at, aim);
        }
    }

    /// Writes through the window.
    fn scribble(&self) {
        for at in (0..self.window_len).step_by(0x1_0000) {
            self.window.write64(at, 0xdead_dead_dead_dead);
            self.window.write64(at + 0xfff8, 0xdead_dead_dead_dead);
        }
    }
}

/// Whether a malicious peer changes memory of a machine outside `exposed`.
fn is_changed<M: Joined>(
    victim: &Metal<M>,
    attacker: &Attacker<M>,
    exposed: Option<(u64, u64)>,
    seed: u64,
) -> bool {
    let mut rng = Rng::new(seed);
    let all = victim.memory(metal::MEMORY, MEMORY);
    let (skip, len) = exposed.unwrap_or((metal::MEMORY, 0));
    let mut before = vec![0; MEMORY];
    all.read(0, &mut before).unwrap();
    for aim in AIMS {
        attacker.sweep(aim, &mut rng);
        attacker.scribble();
        for machine in [&attacker.machine, victim] {
            machine.pass(Duration::from_millis(20));
            machine.run();
        }
    }
    let mut after = vec![0; MEMORY];
    all.read(0, &mut after).unwrap();
    let inside = (skip - metal::MEMORY) as usize..(skip - metal::MEMORY + len) as usize;
    before.iter().zip(&after).enumerate().any(|(n, (a, b))| a != b && !inside.contains(&n))
}

fn a_bridge_without_trust_keeps_the_peer_from_all_memory<M: Joined>(functions: [M; 2]) {
    let [mut victim, attacker] = machines(functions, MEMORY);
    victim.memory(metal::MEMORY, MEMORY).fill(PATTERN);
    let device = victim.find().take(Class::Bridge).remove(0);
    let free = victim.arena().available();
    // Firmware may have left bus mastering enabled.
    let drivers::driver::Bus::Pci(function) = device.bus() else { panic!("not of PCI") };
    function.prepare();
    function.enable_bus_master();
    let why = device.open_bridge(&mut victim, None, false).err().expect("the bridge stays closed");
    let why = why.to_string();
    assert!(why.contains("all memory") && why.contains("trust = \"peer\""), "{why}");
    assert_eq!(victim.arena().available(), free);
    assert!(!is_changed(&victim, &Attacker::new(attacker), None, 1), "the peer reached memory");
}

#[test]
fn an_amd_bridge_without_trust_keeps_the_peer_from_all_memory() {
    a_bridge_without_trust_keeps_the_peer_from_all_memory(amd());
    a_bridge_without_trust_keeps_the_peer_from_all_memory(amd_with_three_windows());
}

#[test]
fn a_switchtec_bridge_without_trust_keeps_the_peer_from_all_memory() {
    a_bridge_without_trust_keeps_the_peer_from_all_memory::<Switchtec>(switchtec());
}

/// A trusted bridge exposes all memory. This also shows that the tests detect the malicious peer.
#[test]
fn peer_of_an_open_amd_bridge_reaches_all_memory() {
    let [mut victim, attacker] = machines(amd(), MEMORY);
    let bridge = open(&mut victim).unwrap();
    let exposed = bridge.exposed();
    let exposed = (exposed.bus_address(), exposed.len() as u64);
    assert!(is_changed(&victim, &Attacker::new(attacker), Some(exposed), 1));
}

/// Intel's bridges confine the peer to the exposed memory, and need no trust.
#[test]
fn peer_of_an_intel_bridge_reaches_only_exposed_memory() {
    for functions in [gen3(), ice_lake(), sapphire_rapids(), granite_rapids()] {
        let [mut victim, attacker] = machines(functions, MEMORY);
        victim.memory(metal::MEMORY, MEMORY).fill(PATTERN);
        let device = victim.find().take(Class::Bridge).remove(0);
        let bridge = device.open_bridge(&mut victim, None, false).unwrap();
        let exposed = bridge.exposed();
        let exposed = (exposed.bus_address(), exposed.len() as u64);
        assert!(!is_changed(&victim, &Attacker::new(attacker), Some(exposed), 1));
    }
}
