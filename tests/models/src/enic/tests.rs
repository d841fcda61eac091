use super::*;
use crate::testing::TestMachine;

const RESULTS: u64 = 0x2000;

struct Bench {
    machine: TestMachine,
    nic: Enic,
    now: Nanoseconds,
}

impl Bench {
    fn new() -> Self {
        let mut nic = Enic::new(Config { devcmd2: false, ..Config::default() });
        nic.config().write(4, &6u16.to_le_bytes());
        Bench { machine: TestMachine::new(0x20000), nic, now: 0 }
    }

    fn read(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.nic.read(0, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write(&mut self, offset: u64, value: u32) {
        self.nic.write(0, offset, &value.to_le_bytes(), self.now, &mut self.machine);
    }

    /// Runs a command by the mailbox, and returns its results or error.
    fn command(&mut self, word: u32, arguments: [u64; 2]) -> Result<[u64; 2], u64> {
        for (n, argument) in (0..).zip(arguments) {
            let offset = layout::DEVCMD + 8 + 8 * n;
            self.nic.write(0, offset, &argument.to_le_bytes(), self.now, &mut self.machine);
        }
        self.write(layout::DEVCMD + 4, word);
        if word >> 24 & 1 == 0 {
            assert_eq!(self.read(layout::DEVCMD), 1, "it takes time");
        }
        self.now += 10_000_000;
        self.nic.poll(self.now, &mut self.machine);
        let answer = [0, 1].map(|n| {
            let mut bytes = [0; 8];
            self.nic.read(0, layout::DEVCMD + 8 + 8 * n, &mut bytes);
            u64::from_le_bytes(bytes)
        });
        if self.read(layout::DEVCMD) == 0 { Ok(answer) } else { Err(answer[0]) }
    }

    fn complained(&mut self) -> usize {
        std::mem::take(&mut self.nic.complaints).len()
    }
}

#[test]
fn commands_that_are_unknown_or_in_the_wrong_state_are_refused() {
    let mut bench = Bench::new();
    assert_eq!(bench.command(0x8000_c009, [0, 0]), Err(6), "it is not open");
    assert_eq!(bench.complained(), 1);
    assert_eq!(bench.command(0x4101_c017, [2, 0]), Ok([2, 0]));
    assert_eq!(bench.command(0x8001_c018, [0, 0]), Ok([0, 0]));
    let mac = u64::from_le_bytes([0, 0x25, 0xb5, 1, 2, 3, 0, 0]);
    assert_eq!(bench.command(0x8000_c009, [0, 0]), Ok([mac, 0]));
    assert_eq!(bench.command(0x4001_c01c, [0, 0]), Err(6), "it is not initialised");
    assert_eq!(bench.command(0x1234_5678, [0, 0]), Err(5));
    assert_eq!(bench.complained(), 2);
    assert_eq!(bench.command(0x4101_c023, [0, 0]), Ok([0, 0]));
    assert_eq!(bench.command(0x4001_c01c, [0, 0]), Ok([0, 0]));
    assert_eq!(
        bench.command(0xc001_c024, [0x4001_c01c, 0]),
        Ok([0, 0]),
        "the capability is supported"
    );
    assert_eq!(bench.command(0xc001_c024, [0x4001_c0ff, 0]), Err(5));
    assert_eq!(bench.command(0xc001_c002, [12, 2]), Ok([9000, 2]));
    assert_eq!(bench.complained(), 0);
    assert_eq!(bench.command(0xc001_c002, [12, 4]), Err(1), "two bytes");
    assert_eq!(
        bench.command(0x4001_c004, [RESULTS, 8]),
        Err(1),
        "the size is not that of the statistics"
    );
    assert_eq!(bench.command(0x4001_c004, [1 << 40, 512]), Err(2), "the address is not memory");
    assert_eq!(bench.command(0xc001_c015, [RESULTS, 39]), Err(1));
    assert_eq!(bench.command(0xc001_c015, [RESULTS, 40 | 0xffff << 32]), Ok([RESULTS, 40]));
    assert_eq!(bench.machine.memory[RESULTS as usize + 4], 1, "the link is up");
}

#[test]
fn a_queue_is_not_enabled_unless_its_ring_is_sane() {
    for (base, size, enabled) in
        [(0x4000, 64, 1), (0x4100, 64, 0), (0x4000, 65, 0), (0x4000, 8192, 0), (0, 64, 0)]
    {
        let mut bench = Bench::new();
        bench.write(layout::RECEIVE, base);
        bench.write(layout::RECEIVE + 8, size);
        bench.write(layout::RECEIVE + 0x20, 1);
        assert_eq!(bench.read(layout::RECEIVE + 0x28), enabled, "{size} at {base:#x}");
        assert_eq!(bench.complained(), 1 - enabled as usize);
    }
    let mut bench = Bench::new();
    bench.write(layout::WORK, 0x4000);
    bench.write(layout::WORK + 8, 64);
    bench.write(layout::WORK + 0x20, 1);
    bench.write(layout::WORK, 0x8000);
    bench.write(layout::WORK + 0x10, 64);
    assert_eq!(bench.complained(), 2, "the queue runs; the descriptor does not exist");
}

#[test]
fn interrupts_with_credits_are_raised_unless_masked() {
    let mut bench = Bench::new();
    bench.nic.event(2, &mut bench.machine);
    assert_eq!(bench.machine.interrupts, []);
    bench.write(layout::INTERRUPT + 2 * 128 + 0x18, 1);
    bench.write(layout::INTERRUPT + 2 * 128 + 0x20, 0);
    assert_eq!(bench.machine.interrupts, [crate::Interrupt::Msix(2)]);
    assert_eq!(bench.read(layout::INTERRUPT + 2 * 128 + 0x20), 1, "it has masked itself");
    bench.write(layout::INTERRUPT + 2 * 128 + 0x30, 1 | 1 << 16);
    assert_eq!(bench.machine.interrupts.len(), 1, "there is no credit left");
    bench.nic.event(2, &mut bench.machine);
    assert_eq!(bench.machine.interrupts.len(), 2);
    assert_eq!((bench.complained(), bench.read(layout::LEGACY_PENDING)), (0, 4));
    bench.write(layout::INTERRUPT + 2 * 128 + 0x30, 2);
    assert_eq!(bench.complained(), 1, "there was one");
}

#[test]
fn malformed_filter_is_refused() {
    let words = |changed: usize, value: u32| {
        let mut words = [0u32, 24, 1, 21, 0, 0, 0x0a01_0001, 4000 << 16, 1, 8, 0, 1];
        if let Some(word) = words.get_mut(changed) {
            *word = value;
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut nic = Enic::new(Config::default());
    assert_eq!(nic.add_filter(&words(99, 0)), Ok(1));
    for (changed, value, error) in [
        (0, 1, 1),
        (1, 20, 1),
        (1, u32::MAX, 1),
        (2, 0, 11),
        (3, 0, 1),
        (3, 64, 1),
        (4, 2, 1),
        (8, 0, 1),
        (9, 4, 1),
        (10, 1, 1),
        (11, 2, 1),
    ] {
        assert_eq!(nic.add_filter(&words(changed, value)), Err(error), "{changed}: {value}");
    }
    assert_eq!(nic.add_filter(&words(99, 0)[..44]), Err(1));
    let mut frame = vec![0; 60];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[30..34].copy_from_slice(&[10, 1, 0, 1]);
    frame[36..38].copy_from_slice(&4000u16.to_be_bytes());
    assert_eq!(nic.queue_of(&frame), 1);
    frame[21] = 1;
    assert_eq!(nic.queue_of(&frame), 0, "a fragment");
    assert_eq!((nic.delete_filter(1), nic.delete_filter(1)), (Ok(()), Err(1)));
}
