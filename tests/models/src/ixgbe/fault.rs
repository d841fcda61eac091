//! Faults of the model.

/// Faults to inject. A fault happens once unless its description says "Lasts".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A reset never completes: CTRL.RST stays 1; a virtual function reads RSTI for ever. Lasts.
    StuckReset,
    /// All registers read as ones. Lasts.
    AllOnes,
    /// This bit of the register at this offset always reads as this value. Lasts.
    StuckBit(u64, u8, bool),
    /// RAL and RAH are empty after a reset: only the EEPROM has the address. Lasts.
    NoAddress,
    /// The EEPROM has no address. Lasts.
    EmptyEeprom,
    /// The checksum of the EEPROM is wrong. Lasts.
    WrongChecksum,
    /// The module does not answer: its cage is empty. Lasts.
    NoModule,
    /// The EEPROM's semaphore is never free. Lasts.
    StuckSemaphore,
    /// Queues never become enabled. Lasts.
    NeverEnabled,
    /// The physical function's driver does not answer. Lasts.
    Deaf,
    /// The physical function's driver refuses messages of this kind. Lasts.
    Refuses(u32),
    /// The physical function's driver supports no mailbox interface newer than this number. Lasts.
    OldInterface(u32),
    /// The virtual function has no assigned MAC address. Lasts.
    Unnamed,
    /// The virtual function is not trusted: it gets listed multicast groups, but not all multicast. Lasts.
    Distrusts,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// Sent packets are not reported until a reset.
    NeverReports,
    /// Sent packets are not reported, also after a reset. Lasts.
    NeverReportsAgain,
    /// The next packet is reported twice: the following descriptor, too.
    ReportsTwice,
    /// The next packet is reported in a descriptor this far after the right one.
    ReportsAnother(u32),
    /// The next frame is written back with this length in its last descriptor.
    Length(u16),
    /// The next frame is written back without the end-of-packet bit.
    NoEnd,
    /// The next frame is written back with an error.
    Damaged,
    /// Frames are written back to a descriptor this far after the right one, until a reset.
    ReceivesAt(u32),
    /// The next frame is written to its descriptor twice.
    ReceivesTwice,
}

impl Fault {
    /// Faults that the command line offers, with their names.
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

/// Injected faults.
#[derive(Default)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    pub fn has(&self, fault: Fault) -> bool {
        self.0.contains(&fault)
    }

    /// The parameter of the first fault that matches. The fault stays.
    pub fn find<T>(&self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(|&fault| matches(fault))
    }

    /// Removes the first fault that matches, and returns its parameter.
    pub fn take<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.0.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.0.remove(at))
    }

    pub fn take_one(&mut self, fault: Fault) -> bool {
        self.take(|one| (one == fault).then_some(())).is_some()
    }

    /// Applies faults to the value of a register read.
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
