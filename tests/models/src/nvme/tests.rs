use super::*;
use crate::testing::TestMachine;

const ADMIN: [u64; 2] = [0x1000, 0x2000];
const IO: [u64; 2] = [0x3000, 0x4000];
const DATA: u64 = 0x8000;

/// A controller, driven by the test.
struct Driver {
    nvme: Nvme,
    machine: TestMachine,
    tails: [u32; 2],
    heads: [u32; 2],
}

impl Driver {
    fn new(settings: Config) -> Self {
        let mut nvme = Nvme::new(settings);
        nvme.config.write(0x04, &6u16.to_le_bytes());
        let machine = TestMachine::new(1 << 16);
        let mut driver = Driver { nvme, machine, tails: [0; 2], heads: [0; 2] };
        driver.write(0x24, 3 << 16 | 3);
        driver.write(0x28, ADMIN[0] as u32);
        driver.write(0x30, ADMIN[1] as u32);
        driver.write(0x14, 0x46_0001);
        driver.poll();
        assert_eq!(driver.read(0x1c), READY);
        assert_eq!(driver.command(0, 5, 0, IO[1], [7 << 16 | 1, 1 << 16 | 3, 0]), 0);
        assert_eq!(driver.command(0, 1, 0, IO[0], [7 << 16 | 1, 1 << 16 | 1, 0]), 0);
        driver
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.nvme.write(0, offset, &value.to_le_bytes(), 0, &mut self.machine);
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.nvme.read(0, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn poll(&mut self) {
        self.nvme.poll(0, &mut self.machine);
    }

    /// Runs a command on queue 0 or 1, and returns its status field.
    fn command(&mut self, queue: usize, opcode: u8, nsid: u32, prp: u64, ten: [u32; 3]) -> u16 {
        let (bases, entries) = if queue == 0 { (ADMIN, 4) } else { (IO, 8) };
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[2] = 0x55;
        bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
        bytes[24..32].copy_from_slice(&prp.to_le_bytes());
        for (n, word) in ten.iter().enumerate() {
            bytes[40 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let tail = &mut self.tails[queue];
        self.machine.write(bases[0] + 64 * u64::from(*tail), &bytes).unwrap();
        *tail = (*tail + 1) % entries;
        let (tail, doorbell) = (*tail, 0x1000 + 8 * queue as u64);
        self.write(doorbell, tail);
        self.poll();
        let at = (bases[1] + 16 * u64::from(self.heads[queue])) as usize;
        let last = number(&self.machine.memory[at + 12..at + 16]) as u32;
        assert_eq!(last & 0xffff, 0x55);
        self.heads[queue] = (self.heads[queue] + 1) % entries;
        let head = self.heads[queue];
        self.write(doorbell + 4, head);
        (last >> 17) as u16
    }
}

#[test]
fn blocks_are_written_cached_flushed_and_read() {
    let mut driver = Driver::new(Config::default());
    driver.machine.memory[DATA as usize..][..512].fill(7);
    assert_eq!(driver.command(1, 1, 1, DATA, [5, 0, 0]), 0);
    assert_eq!(driver.nvme.namespace(1).unwrap().medium()[5 * 512], 0xa5, "in the cache");
    assert_eq!(driver.command(1, 2, 1, DATA + 0x1000, [5, 0, 0]), 0);
    assert_eq!(driver.machine.memory[DATA as usize + 0x1000 + 511], 7);
    assert_eq!(driver.command(1, 0, 1, 0, [0; 3]), 0);
    assert_eq!(driver.nvme.namespace(1).unwrap().medium()[5 * 512], 7);
    assert_eq!(driver.command(1, 1, 1, DATA, [6, 0, 1 << 30]), 0);
    assert_eq!(driver.nvme.namespace(1).unwrap().medium()[6 * 512], 7, "force unit access");
    assert_eq!(driver.command(1, 1, 1, DATA, [8, 0, 0]), 0);
    driver.nvme.cut_power();
    assert_eq!(driver.nvme.namespace(1).unwrap().medium()[8 * 512], 0xa5, "lost");
    assert_eq!(driver.nvme.complaints, [""; 0]);
}

#[test]
fn invalid_commands_are_refused() {
    let mut driver = Driver::new(Config::default());
    assert_eq!(driver.command(1, 2, 1, DATA, [4096, 0, 0]), 0x4080, "past the end");
    assert_eq!(driver.command(1, 2, 2, DATA, [0; 3]), 0x400b, "no such namespace");
    assert_eq!(driver.command(1, 2, 1, DATA + 2, [0; 3]), 0x4013, "not aligned");
    assert_eq!(driver.command(1, 2, 1, DATA, [0, 0, 0xfff]), 0x4002, "more than MDTS");
    assert_eq!(driver.command(1, 0x7f, 1, DATA, [0; 3]), 0x4001);
    assert_eq!(driver.command(0, 1, 0, 0x5000, [7 << 16 | 2, 9 << 16 | 1, 0]), 0x4101);
    driver.write(0x1008, 8);
    driver.write(0x1010, 0);
    assert_eq!(driver.nvme.complaints.len(), 2);
}
