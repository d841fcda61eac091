use super::*;
use crate::testing::{TestMachine, TestMemory};

const WINDOW: u64 = 1 << 20;
const OPERATION: Nanoseconds = 20_000_000;

struct World {
    functions: [Switchtec; 2],
    machines: [TestMachine; 2],
    memory: [Arc<TestMemory>; 2],
    now: Nanoseconds,
}

impl World {
    fn new() -> Self {
        let mut functions = Switchtec::pair(Config::new(WINDOW));
        let machines = [0; 2].map(|_| TestMachine::new(0));
        let memory = [0; 2].map(|_| TestMemory::new(1 << 18));
        for (function, memory) in functions.iter_mut().zip(&memory) {
            function.attach(memory.clone());
            function.config.write(0x04, &6u16.to_le_bytes());
        }
        let mut world = World { functions, machines, memory, now: 0 };
        world.poll();
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

    fn write32(&mut self, n: usize, offset: u64, value: u32) {
        self.write(n, offset, &value.to_le_bytes());
    }

    fn through(&mut self, n: usize, offset: u64) {
        self.functions[n].write(2, offset, &[7; 4], self.now, &mut self.machines[n]);
    }

    fn read(&mut self, n: usize, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.functions[n].read(0, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Advances time until operations complete.
    fn pass(&mut self) {
        self.now += OPERATION;
        self.poll();
    }
}

/// The control block of a partition.
fn control(partition: u64) -> u64 {
    CONTROL + CONTROL_SIZE * partition
}

#[test]
fn lock_waits_for_the_other_host() {
    let mut world = World::new();
    world.write32(0, control(1) + 4, 1);
    assert_eq!(world.read(0, control(1)), 3);
    world.pass();
    assert_eq!((world.read(0, control(1)), world.read(1, control(1))), (2, 1));
    world.write32(1, control(1) + 4, 1);
    world.pass();
    assert_eq!(world.read(1, control(1)), 3);
    world.write32(0, control(1) + 4, 2);
    assert_eq!(world.read(0, control(1)), 4);
    world.pass();
    assert_eq!((world.read(0, control(1)), world.read(1, control(1))), (1, 2));
    world.write32(0, control(1) + 0x40 + 32, 0x10);
    assert_eq!(world.read(0, control(1) + 0x40 + 32), 1, "this host does not hold the lock");
    assert_eq!(
        (world.functions[0].waited(), world.functions[1].counters().last().unwrap().1),
        (1, 1)
    );
}

#[test]
fn windows_use_the_other_hosts_translations() {
    let mut world = World::new();
    world.write32(0, control(1) + 4, 1);
    world.pass();
    // 8 entries of 64 KiB, then the direct window.
    world.write32(0, control(1) + 0x60, 0x30 | 16 << 8 | 7 << 14);
    world.write32(0, control(1) + 0x64, 16 | 0x8000);
    world.write(0, control(1) + 0x68, &0x1_0000u64.to_le_bytes());
    world.write(0, control(1) + 0x1000, &0x2_0001u64.to_le_bytes());
    world.write32(0, control(1) + 4, 2);
    world.pass();
    world.through(1, 0x10);
    world.through(1, 0x8_0000 + 0x20);
    let mut bytes = [0; 4];
    world.functions[1].read(2, 0x10, &mut bytes);
    assert_eq!(bytes, [7; 4]);
    for offset in [0x1_0000, 0x8_0000 + 0x8000] {
        world.through(1, offset);
    }
    world.poll();
    let memory = world.memory[0].0.lock().unwrap().clone();
    assert_eq!((memory[0x2_0010], memory[0x1_0020]), (7, 7));
    assert_eq!(memory.iter().filter(|&&byte| byte == 7).count(), 8);
    let counters = world.functions[1].counters();
    assert_eq!(counters.iter().find(|(name, _)| name == "missed").unwrap().1, 2);
}

#[test]
fn doorbells_and_messages_arrive_where_masks_permit() {
    let mut world = World::new();
    let bells = |partition: u64| BELLS + BELLS_SIZE * partition;
    world.write(0, bells(0) + 0x1008, &(0x0fff_ffffu64 << 32).to_le_bytes());
    world.write(1, bells(1) + 0x1020, &[1; 60]);
    world.write(1, bells(1) + 0x105c, &[2; 4]);
    world.write(1, bells(1) + 0x1018, &(1u64 << 60 | 2 << 32).to_le_bytes());
    world.write32(1, bells(1) + 0x1060, 0x0302_0100);
    world.write32(1, bells(1) + 0x108c, 0x101);
    world.write(0, bells(0) + 0x1000, &(3u64 << 32 | 1).to_le_bytes());
    world.write32(0, bells(0) + 0x1068, 9);
    world.poll();
    assert_eq!(world.read(1, bells(1) + 0x1014), 3, "partition 0 rings the upper ones");
    assert_eq!(world.read(1, bells(1) + 0x1010), 0);
    assert_eq!(world.read(1, bells(1) + 0x1088), 9);
    assert_eq!(world.read(1, bells(1) + 0x108c), 0x101);
    assert_eq!(world.machines[1].interrupts, [Interrupt::Msix(1), Interrupt::Msix(2)]);
    world.write(1, bells(1) + 0x108c, &[1]);
    assert_eq!(world.read(1, bells(1) + 0x108c), 0x100);
    world.write(1, bells(1) + 0x1018, &(1u64 << 60 | 3 << 32).to_le_bytes());
    world.poll();
    assert_eq!(world.machines[1].interrupts.last(), Some(&Interrupt::Msix(1)));
}

#[test]
fn late_doorbells_arrive_after_a_message() {
    let mut world = World::new();
    world.functions[0].inject(Some(Fault::LateBells));
    let bells = |partition: u64| BELLS + BELLS_SIZE * partition;
    world.write(0, bells(0) + 0x1008, &(1u64 << 32).to_le_bytes());
    world.write32(1, bells(1) + 0x1060, 0x0302_0100);
    world.write(0, bells(0) + 0x1000, &(1u64 << 32).to_le_bytes());
    world.write32(0, bells(0) + 0x1068, 9);
    world.poll();
    assert_eq!((world.read(1, bells(1) + 0x1014), world.read(1, bells(1) + 0x1088)), (0, 9));
    world.now += LATE;
    world.poll();
    assert_eq!(world.read(1, bells(1) + 0x1014), 1);
}
