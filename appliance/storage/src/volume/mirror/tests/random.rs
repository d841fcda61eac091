//! Random requests, power cuts, and disks that stop responding, execute single requests, and respond again. The user
//! of the mirror reads the data that it wrote last, its memory is not accessed after completion, and in the end both
//! disks hold the same data.

use super::site::*;
use super::*;
use proptest::prelude::*;
use std::vec;

/// Most requests in flight.
const TAGS: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    Write(u64),
    Read(u64),
    Zero(u64, u32),
    Discard(u64, u32),
    Flush,
    Silence(usize, usize),
    Answer(usize),
    /// A disk executes so many of its requests.
    Do(usize, usize),
    Pass(u64),
    Detach(usize),
    Attach,
    Grow,
    CutPower,
}

/// Sectors of the enlarged disks.
const MORE: usize = 2 * SECTORS;
/// Initial contents of the new sectors, by disk.
const NEW: [u8; 2] = [0x5a, 0x77];

fn step() -> impl Strategy<Value = Step> {
    let sector = || 0..MORE as u64;
    prop_oneof![
        8 => sector().prop_map(Step::Write),
        6 => sector().prop_map(Step::Read),
        2 => (0..MORE as u64 - 4, 1..5u32).prop_map(|(sector, count)| Step::Zero(sector, count)),
        1 => (0..SECTORS as u64 - 4, 1..5u32).prop_map(|(sector, count)| Step::Discard(sector, count)),
        1 => Just(Step::Flush),
        3 => (0..2usize, 0..4usize).prop_map(|(disk, mute)| Step::Silence(disk, mute)),
        3 => (0..2usize).prop_map(Step::Answer),
        4 => (0..2usize, 1..4usize).prop_map(|(disk, count)| Step::Do(disk, count)),
        5 => prop_oneof![10..100u64, Just(1000), Just(3000), Just(6000), Just(12_000)].prop_map(Step::Pass),
        1 => (0..2usize).prop_map(Step::Detach),
        1 => Just(Step::Attach),
        1 => Just(Step::Grow),
        1 => Just(Step::CutPower),
    ]
}

/// A request that has not ended.
#[derive(Clone, Copy, Debug)]
struct Pending {
    operation: Operation,
    sector: u64,
    count: u64,
    byte: u8,
}

struct Story {
    site: Site,
    pending: [Option<Pending>; TAGS],
    /// Possible contents of each sector: more than one value if the power failed during a write.
    sectors: Vec<Vec<u8>>,
    /// Contents of the user's buffers that have no request in flight.
    own: [u8; TAGS],
    next: u8,
}

impl Story {
    fn new(pages: usize) -> Self {
        let site = Site::new(pages);
        let sectors = alloc::vec![alloc::vec![0]; SECTORS];
        (0..TAGS).for_each(|tag| site.buffers[tag].fill(0x33));
        Story { site, pending: [None; TAGS], sectors, own: [0x33; TAGS], next: 0 }
    }

    fn overlaps(&self, sector: u64, count: u64) -> bool {
        self.pending
            .iter()
            .flatten()
            .any(|one| sector < one.sector + one.count && one.sector < sector + count)
    }

    fn ask(&mut self, operation: Operation, sector: u64, count: u64) {
        let free = self.pending.iter().position(Option::is_none);
        let Some(tag) = free.filter(|_| !self.overlaps(sector, count)) else { return };
        self.next = self.next % 250 + 1;
        let byte = match operation {
            Operation::Write { .. } => self.next,
            _ => 0,
        };
        let sectors = self.site.mirror.geometry().sectors;
        if sectors == 0 || sector + count > sectors {
            return;
        }
        self.site.ask(tag, operation, sector, byte);
        self.pending[tag] = Some(Pending { operation, sector, count, byte });
    }

    /// Passes time, and checks the completions.
    fn pass(&mut self, millis: u64) {
        for (tag, result) in self.site.pass(millis) {
            let tag = tag as usize;
            let one = self.pending[tag].take().expect("a request has the tag");
            assert_eq!(result, Ok(()), "{one:?}: disks are silent, and do not fail");
            let sectors = &mut self.sectors[one.sector as usize..(one.sector + one.count) as usize];
            match one.operation {
                Operation::Read => {
                    let byte = self.site.byte(tag);
                    assert!(
                        sectors[0].contains(&byte),
                        "{byte} was read, but the sector holds {:?}",
                        sectors[0]
                    );
                    // After a read the value is fixed.
                    sectors[0] = alloc::vec![byte];
                }
                _ => sectors.iter_mut().for_each(|sector| *sector = alloc::vec![one.byte]),
            }
            // The user changes its memory at once.
            self.own[tag] = self.own[tag].wrapping_add(0x40) | 1;
            self.site.buffers[tag].fill(self.own[tag]);
        }
        self.check_buffers();
    }

    /// Checks that the buffers of completed requests were not written to.
    fn check_buffers(&self) {
        for tag in (0..TAGS).filter(|&tag| self.pending[tag].is_none()) {
            let mut bytes = [0; 512];
            self.site.buffers[tag].read(0, &mut bytes).unwrap();
            let own = self.own[tag];
            assert!(bytes == [own; 512], "the memory of request {tag} was written to");
        }
    }

    fn cut_power(&mut self) {
        for (tag, one) in self.pending.iter_mut().enumerate() {
            let Some(one) = one.take() else { continue };
            if !matches!(one.operation, Operation::Read | Operation::Flush) {
                let sectors = one.sector as usize..(one.sector + one.count) as usize;
                self.sectors[sectors].iter_mut().for_each(|sector| sector.push(one.byte));
            }
            self.own[tag] = 0x33;
            self.site.buffers[tag].fill(0x33);
        }
        self.site.cut_power();
        self.pass(2000);
        // If the new size was not durable, the new space has yet to be copied.
        let left = self.site.mirror.geometry().sectors as usize;
        assert!(left > 0, "both can be read");
        self.sectors[left..].iter_mut().for_each(|sector| *sector = NEW.to_vec());
    }

    fn grow(&mut self) {
        if self.site.disks[0].data().len() == SECTORS * 512 {
            for (disk, byte) in self.site.disks.iter().zip(NEW) {
                disk.resize(MORE);
                let old = (RESERVED as usize + SECTORS) * 512;
                disk.0.borrow_mut().bytes[old..].fill(byte);
            }
            self.sectors.resize(MORE, NEW.to_vec());
        }
        self.site.mirror.growing().set(true);
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write(sector) => self.ask(Operation::Write { durable: false }, sector, 1),
            Step::Read(sector) => self.ask(READ, sector, 1),
            Step::Zero(sector, sectors) => {
                self.ask(Operation::WriteZeroes { sectors }, sector, sectors.into());
            }
            Step::Discard(sector, sectors) => {
                self.ask(Operation::Discard { sectors }, sector, sectors.into());
            }
            Step::Flush => self.ask(Operation::Flush, 0, 0),
            Step::Silence(disk, mute) => {
                self.site.disks[disk].silence([all, reads, data_writes, records][mute]);
            }
            Step::Answer(disk) => self.site.disks[disk].answer(),
            Step::Do(disk, count) => (0..count).for_each(|_| _ = self.site.disks[disk].do_one()),
            Step::Pass(millis) => self.pass(millis),
            Step::Detach(disk) => {
                let mut wanted = [false; 2];
                wanted[disk] = true;
                self.site.mirror.detached().set(wanted);
            }
            Step::Attach => self.site.mirror.detached().set([false; 2]),
            Step::Grow => self.grow(),
            Step::CutPower => self.cut_power(),
        }
        self.pass(10);
    }

    /// All disks respond again, and all requests end.
    fn end(mut self) {
        self.site.disks.iter().for_each(Local::answer);
        self.site.mirror.detached().set([false; 2]);
        self.pass(20_000);
        assert!(self.pending.iter().all(Option::is_none), "requests hang: {:?}", self.pending);
        self.site.settle();
        let sectors = self.site.mirror.geometry().sectors as usize;
        for (n, allowed) in self.sectors.iter().enumerate().take(sectors) {
            let there = self.site.disks[1].sector(n as u64);
            assert!(allowed.contains(&there), "sector {n} holds {there}, not {allowed:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn disks_that_are_silent_at_random_lose_nothing(
        pages in prop_oneof![Just(1usize), Just(4), Just(64)],
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut story = Story::new(pages);
        steps.into_iter().for_each(|step| story.take(step));
        story.end();
    }
}
