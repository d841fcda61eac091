use super::side::LINK_BELL;
use super::*;
use crate::testing::{TestMachine, TestMemory};

const WINDOW: u64 = 1 << 13;

/// Two machines with an active link. The first exposes a window of its memory to the other.
struct World {
    functions: [IntelNtb; 2],
    machines: [TestMachine; 2],
    memory: [Arc<TestMemory>; 2],
    now: Nanoseconds,
}

impl World {
    fn new(fault: Option<Fault>) -> Self {
        World::of(Config { fault, ..Config::new(DEVICE, WINDOW) })
    }

    fn of(settings: Config) -> Self {
        let mut functions = IntelNtb::pair(settings);
        let machines = [0; 2].map(|_| TestMachine::new(0));
        let memory = [0; 2].map(|_| TestMemory::new(1 << 16));
        for (function, memory) in functions.iter_mut().zip(&memory) {
            function.attach(memory.clone());
        }
        let mut world = World { functions, machines, memory, now: 0 };
        for n in 0..2 {
            world.functions[n].config.write(0x04, &6u16.to_le_bytes());
            world.functions[n].config.write(0x18, &(WINDOW as u32 * 16).to_le_bytes());
        }
        world.poll();
        world.write(0, 0x10, &0x4000u64.to_le_bytes());
        world.write(0, 0x18, &(WINDOW * 16 + 0x1000).to_le_bytes());
        (0..2).for_each(|n| world.write(n, 0, &0x154u32.to_le_bytes()));
        if settings.device != DEVICE {
            for n in 0..2 {
                world.write(n, 0xb050, &0u16.to_le_bytes());
                world.write(n, 0xb0d4, &8u32.to_le_bytes());
            }
        }
        world
    }

    fn poll(&mut self) {
        for (function, machine) in self.functions.iter_mut().zip(&mut self.machines) {
            function.poll(self.now, machine);
        }
    }

    fn write(&mut self, n: usize, offset: u64, bytes: &[u8]) {
        self.functions[n].write(0, offset, bytes, self.now, &mut self.machines[n]);
    }

    fn read(&mut self, n: usize, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.functions[n].read(0, offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn up(fault: Option<Fault>) -> Self {
        let mut world = World::new(fault);
        world.now += TRAINING;
        world.poll();
        world.poll();
        assert_eq!(world.link(), [Generation::Third.link_up(); 2]);
        world
    }

    fn link(&self) -> [u16; 2] {
        [0, 1].map(|n| {
            let mut bytes = [0; 2];
            self.functions[n].config.read(LINK_STATUS as u64, &mut bytes);
            u16::from_le_bytes(bytes)
        })
    }
}

#[test]
fn link_training_takes_time_and_raises_an_interrupt() {
    let mut world = World::new(None);
    world.poll();
    assert_eq!(world.link(), [0; 2]);
    world.now += TRAINING;
    world.poll();
    world.poll();
    assert_eq!(world.link(), [Generation::Third.link_up(); 2]);
    assert_eq!(world.read(0, 0x40), LINK_BELL);
    assert_eq!(
        world.machines[0].interrupts,
        [Interrupt::Msix(0)],
        "vector of the link after a reset"
    );
    world.functions[1].reset();
    world.poll();
    assert_eq!(world.link(), [0; 2]);
}

#[test]
fn writes_are_translated_and_doorbells_stay_ordered() {
    let mut world = World::up(None);
    world.write(0, 0x40, &u64::MAX.to_le_bytes());
    for (offset, len) in [(0u64, 8usize), (0xff8, 8), (0xffc, 8), (0x1000, 4)] {
        world.functions[1].write(2, offset, &[7; 8][..len], 0, &mut world.machines[1]);
    }
    world.functions[1].write(4, 0, &[7; 8], 0, &mut world.machines[1]);
    world.write(1, 0x180, &9u32.to_le_bytes());
    world.write(1, 0x100, &1u32.to_le_bytes());
    assert_eq!(world.memory[0].0.lock().unwrap()[0x4000], 0, "posted");
    world.poll();
    let memory = world.memory[0].0.lock().unwrap().clone();
    assert!(memory[0x4000..0x4008] == [7; 8] && memory[0x4ff8..0x5000] == [7; 8]);
    assert_eq!(memory.iter().filter(|&&byte| byte == 7).count(), 16);
    let missed = world.functions[1].counters().into_iter().find(|(name, _)| name == "missed");
    assert_eq!(missed.unwrap().1, 3);
    assert_eq!((world.read(0, 0x80) as u32, world.read(0, 0x40)), (9, 1));
    assert_eq!(world.machines[0].interrupts.last(), Some(&Interrupt::Msix(1)));
}

#[test]
fn masked_doorbells_interrupt_when_unmasked() {
    let mut world = World::up(None);
    world.write(0, 0x48, &0xffff_ffffu64.to_le_bytes());
    world.machines[0].interrupts.clear();
    world.write(1, 0x100, &1u32.to_le_bytes());
    world.poll();
    assert!(world.machines[0].interrupts.is_empty());
    world.write(0, 0x48, &0u64.to_le_bytes());
    world.poll();
    assert_eq!(world.machines[0].interrupts, [Interrupt::Msix(1)]);
}

#[test]
fn faults_are_detectable() {
    let mut world = World::new(Some(Fault::NoLimit));
    assert_eq!(world.read(0, 0x18), 0);
    world = World::new(Some(Fault::NoTranslation));
    assert_eq!(world.read(0, 0x10), 0);
    for fault in [Fault::NoBell, Fault::NoInterrupt] {
        let mut world = World::up(Some(fault));
        world.machines[0].interrupts.clear();
        world.write(0, 0x40, &u64::MAX.to_le_bytes());
        world.write(1, 0x100, &1u32.to_le_bytes());
        world.poll();
        assert!(world.machines[0].interrupts.is_empty());
        assert_eq!(world.read(0, 0x40), u64::from(fault == Fault::NoInterrupt));
    }
}

#[test]
fn loads_see_earlier_writes() {
    let mut world = World::up(None);
    world.functions[1].write(2, 16, &[9; 4], 0, &mut world.machines[1]);
    let mut bytes = [0; 8];
    world.functions[1].read(2, 12, &mut bytes);
    assert_eq!(bytes, [0, 0, 0, 0, 9, 9, 9, 9]);
    world.functions[1].read(2, 0xffc, &mut bytes);
    assert_eq!(bytes, [0xff; 8], "beyond the limit");
}

/// A fourth-generation pair with an active link.
fn fourth(revision: u8) -> World {
    let settings = Config { revision, ..Config::new(GEN4, WINDOW) };
    let mut world = World::of(settings);
    assert_eq!(world.read(0, 0xb0d4) as u32, 8, "training in progress");
    world.poll();
    world.now += TRAINING;
    world.poll();
    world.poll();
    world
}

#[test]
fn fourth_generation_link_doorbell_stays_until_slot_status_is_cleared() {
    for (revision, downstream) in [(4, 0x1200), (0x20, 0x4200)] {
        let mut world = fourth(revision);
        assert_eq!(world.read(0, 0xb4c0) as u32, 0x200);
        assert_eq!(world.read(1, 0xb4c0) as u32, downstream);
        assert_eq!(world.read(0, 0xb052) as u16, 0x2104);
        assert_eq!(world.machines[0].interrupts, [Interrupt::Msix(0)]);
        world.write(0, 0x40, &LINK_BELL.to_le_bytes());
        assert_eq!(world.read(0, 0x40), LINK_BELL, "slot status reports a change");
        world.write(0, 0xb05a, &0x100u16.to_le_bytes());
        world.write(0, 0x40, &LINK_BELL.to_le_bytes());
        assert_eq!(world.read(0, 0x40), 0);
        world.write(1, 0x8084, &7u32.to_le_bytes());
        world.write(1, 0x104, &1u32.to_le_bytes());
        world.poll();
        assert_eq!((world.read(0, 0x84) as u32, world.read(0, 0x40)), (7, 2));
        world.write(1, 0xb050, &0x10u16.to_le_bytes());
        assert_eq!((world.read(0, 0xb052) as u16, world.read(1, 0xb0d4) as u32), (0, 0));
    }
}

#[test]
fn only_ice_lake_aligns_translations_to_the_bar() {
    for (revision, lands) in [(4, 0x4000), (0x20, 0x5000)] {
        let mut world = fourth(revision);
        world.write(0, 0x10, &0x5000u64.to_le_bytes());
        world.write(0, 0x74, &12u16.to_le_bytes());
        world.functions[1].write(2, 0, &[7; 4], 0, &mut world.machines[1]);
        world.functions[1].write(2, 0x1000, &[7; 4], 0, &mut world.machines[1]);
        world.poll();
        let memory = world.memory[0].0.lock().unwrap();
        assert_eq!(memory[lands], 7);
        assert_eq!(memory.iter().filter(|&&byte| byte == 7).count(), 4, "beyond its index");
    }
}
