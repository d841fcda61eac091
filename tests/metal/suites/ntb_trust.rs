//! Bridges over which the other machine reaches all memory stay closed; a malicious machine writes every register that it
//! can, on models.

use drivers::hal::{Platform, Registers};
use drivers::registry::Class;
use metal::Metal;
use metal::bridges::*;
use models::ntb::switchtec::Switchtec;
use netsim::Rng;
use std::time::Duration;

/// Bytes of registers that are written: all of those that lead anywhere, of any of the bridges.
const REGISTERS: usize = 0x2_0000;
/// What memory holds that nobody may change.
const PATTERN: u8 = 0x5a;
/// Where in the victim's memory the peer would like to write.
const AIMS: [u64; 3] = [0x10_0000, 0x40_0000, 0x80_0000];

/// A machine that does as it likes with its side of a bridge.
struct Liar<M: Joined> {
    machine: Metal<M>,
    registers: Box<dyn Registers>,
    window: Box<dyn Registers>,
    len: usize,
    window_len: usize,
}

impl<M: Joined> Liar<M> {
    fn new(mut machine: Metal<M>) -> Self {
        let device = machine.find().take(Class::Bridge).remove(0);
        let drivers::device::Bus::Pci(function) = device.bus() else { panic!("not of PCI") };
        let bars = function.bars();
        function.enable();
        let (own, window) = (bars.get(0).unwrap(), bars.get(2).unwrap());
        let (len, window_len) = (own.size.min(REGISTERS as u64) as usize, window.size as usize);
        let registers = machine.map_registers(own.address, len).unwrap();
        let window = machine.map_registers(window.address, window_len).unwrap();
        Liar { machine, registers, window, len, window_len }
    }

    /// Has every register lead to `aim`, 64 bits at a time.
    fn sweep(&self, aim: u64, rng: &mut Rng) {
        // As a translation, as a limit, as an entry of a table, as operations on control blocks.
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

    /// Writes through its window.
    fn scribble(&self) {
        for at in (0..self.window_len).step_by(0x1_0000) {
            self.window.write64(at, 0xdead_dead_dead_dead);
            self.window.write64(at + 0xfff8, 0xdead_dead_dead_dead);
        }
    }
}

/// Whether a malicious peer changes memory of a machine beyond what `exposed` says.
fn is_changed<M: Joined>(
    victim: &Metal<M>,
    liar: &Liar<M>,
    exposed: Option<(u64, u64)>,
    seed: u64,
) -> bool {
    let mut rng = Rng::new(seed);
    let all = victim.memory(metal::MEMORY, MEMORY);
    let (skip, len) = exposed.unwrap_or((metal::MEMORY, 0));
    let mut before = vec![0; MEMORY];
    all.read(0, &mut before).unwrap();
    for aim in AIMS {
        liar.sweep(aim, &mut rng);
        liar.scribble();
        for machine in [&liar.machine, victim] {
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
    let [mut victim, liar] = machines(functions, MEMORY);
    victim.memory(metal::MEMORY, MEMORY).fill(PATTERN);
    let device = victim.find().take(Class::Bridge).remove(0);
    let free = victim.arena().available();
    // Firmware may have left it enabled.
    let drivers::device::Bus::Pci(function) = device.bus() else { panic!("not of PCI") };
    function.enable();
    let why = device.open_bridge(&mut victim, None, false).err().expect("it stays closed");
    let why = why.to_string();
    assert!(why.contains("all memory") && why.contains("trust = \"peer\""), "{why}");
    assert_eq!(victim.arena().available(), free);
    assert!(!is_changed(&victim, &Liar::new(liar), None, 1), "the peer reached memory");
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

/// What the trust is for; and that the malicious peer of these tests would be seen.
#[test]
fn the_peer_of_an_open_amd_bridge_reaches_all_memory() {
    let [mut victim, liar] = machines(amd(), MEMORY);
    let bridge = open(&mut victim).unwrap();
    let exposed = bridge.exposed();
    let exposed = (exposed.bus_address(), exposed.len() as u64);
    assert!(is_changed(&victim, &Liar::new(liar), Some(exposed), 1));
}

/// Intel's hold the peer to what is exposed, without a word of trust.
#[test]
fn the_peer_of_an_intel_bridge_reaches_what_is_exposed_alone() {
    for functions in [gen3(), ice_lake(), sapphire_rapids(), granite_rapids()] {
        let [mut victim, liar] = machines(functions, MEMORY);
        victim.memory(metal::MEMORY, MEMORY).fill(PATTERN);
        let device = victim.find().take(Class::Bridge).remove(0);
        let bridge = device.open_bridge(&mut victim, None, false).unwrap();
        let exposed = bridge.exposed();
        let exposed = (exposed.bus_address(), exposed.len() as u64);
        assert!(!is_changed(&victim, &Liar::new(liar), Some(exposed), 1));
    }
}
