//! What the model does wrong.

/// What the model does wrong, on demand. What is not said to last happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A reset never ends: CTRL.RST stays 1; a virtual function is told for ever that it is being reset. Lasts.
    StuckReset,
    /// All registers read as ones. Lasts.
    AllOnes,
    /// This bit of the register at this offset reads as 0 or as 1, whatever it is. Lasts.
    StuckBit(u64, u8, bool),
    /// RAL and RAH are empty after a reset: the address is in the EEPROM only. Lasts.
    NoAddress,
    /// Nor is it there. Lasts.
    EmptyEeprom,
    /// The checksum of the EEPROM is wrong. Lasts.
    WrongChecksum,
    /// The module does not answer: its cage is empty. Lasts.
    NoModule,
    /// Somebody holds the semaphore of the EEPROM for ever. Lasts.
    StuckSemaphore,
    /// Queues are not enabled, whatever is asked for. Lasts.
    NeverEnabled,
    /// The driver of the physical function does not answer. Lasts.
    Deaf,
    /// It refuses messages of this kind. Lasts.
    Refuses(u32),
    /// It knows no interface newer than this number. Lasts.
    OldInterface(u32),
    /// It has given the virtual function no address. Lasts.
    Unnamed,
    /// It does not trust the virtual function, and grants all of multicast to nobody but those. Lasts.
    Distrusts,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// Packets are sent and not reported, until a reset.
    NeverReports,
    /// The same, and a reset does not help. Lasts.
    NeverReportsAgain,
    /// The next packet is reported twice: the descriptor after it, too.
    ReportsTwice,
    /// The report of the next packet goes to a descriptor so much further on.
    ReportsAnother(u32),
    /// The next frame is written back with this length in its last descriptor.
    Length(u16),
    /// The next frame is written back without an end.
    NoEnd,
    /// The next frame is damaged.
    Damaged,
    /// The next frame is written back to a descriptor so much further on, and so are those after it, until a reset.
    ReceivesAt(u32),
    /// The next frame is written to its descriptor twice.
    ReceivesTwice,
}

impl Fault {
    /// Those that a user can ask for, with their names.
    pub const NAMED: [(&str, Fault); 7] = [
        ("no-interrupts", Fault::NoInterrupts),
        ("never-reports", Fault::NeverReports),
        ("never-enabled", Fault::NeverEnabled),
        ("wrong-checksum", Fault::WrongChecksum),
        ("no-module", Fault::NoModule),
        ("stuck-reset", Fault::StuckReset),
        ("deaf", Fault::Deaf),
    ];
}

/// Faults that were asked for.
#[derive(Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    pub fn has(&self, fault: Fault) -> bool {
        self.0.contains(&fault)
    }

    /// What the first of a kind says that lasts.
    pub fn says<T>(&self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(|&fault| matches(fault))
    }

    /// The same of one that happens once, which is now.
    pub fn take<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.0.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.0.remove(at))
    }

    pub fn take_one(&mut self, fault: Fault) -> bool {
        self.take(|one| (one == fault).then_some(())).is_some()
    }

    /// What a register reads as.
    pub fn read(&self, at: u64, value: u32) -> u32 {
        if self.has(Fault::AllOnes) {
            return u32::MAX;
        }
        self.0.iter().fold(value, |value, fault| match *fault {
            Fault::StuckBit(place, bit, true) if place == at => value | 1 << bit,
            Fault::StuckBit(place, bit, false) if place == at => value & !(1 << bit),
            _ => value,
        })
    }
}
