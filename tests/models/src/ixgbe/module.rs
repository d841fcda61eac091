//! The SFP+ module: a direct attach cable. The driver reads its 256 bytes (SFF-8472) bit by bit over a two-wire bus.

/// Bits of I2CCTL.
const CLOCK_IN: u32 = 1;
const CLOCK_OUT: u32 = 1 << 1;
const DATA_IN: u32 = 1 << 2;
const DATA_OUT: u32 = 1 << 3;
/// The module's bus address, shifted as on the wire.
const ADDRESS: u8 = 0xa0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Address,
    Offset,
    /// The driver writes.
    Write,
    /// The module sends.
    Read,
}

/// The module and the bus.
pub struct Module {
    content: [u8; 256],
    clock: bool,
    /// Data line as driven by the driver; false pulls it down.
    driver_data: bool,
    /// Data line as driven by the module; false pulls it down.
    module_data: bool,
    phase: Phase,
    bits: u8,
    /// Clocks in the current byte: 8 of data, 1 of acknowledgement.
    count: u8,
    offset: u8,
    pub absent: bool,
}

impl Module {
    pub fn new() -> Self {
        let mut content = [0; 256];
        content[0] = 3; // SFP
        content[2] = 0x21; // copper pigtail
        content[3] = 0; // no optical 10G
        content[6] = 0; // no 1G
        content[8] = 4; // passive cable
        content[12] = 0x67; // 10.3 Gb/s
        content[37..40].copy_from_slice(&[0x00, 0x40, 0x20]); // vendor
        let idle = Phase::Idle;
        Module {
            content,
            clock: true,
            driver_data: true,
            module_data: true,
            phase: idle,
            bits: 0,
            count: 0,
            offset: 0,
            absent: false,
        }
    }

    /// Reads I2CCTL: the driver's outputs, and the state of the wires.
    pub fn read(&self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(self.clock, CLOCK_IN | CLOCK_OUT)
            | bit(self.driver_data, DATA_OUT)
            | bit(self.driver_data && self.module_data, DATA_IN)
    }

    /// Writes I2CCTL: the driver sets the wires.
    pub fn write(&mut self, value: u32) {
        let (clock, data) = (value & CLOCK_OUT != 0, value & DATA_OUT != 0);
        if clock && self.clock && data != self.driver_data {
            // Start or stop condition.
            (self.phase, self.count, self.module_data) =
                (if data { Phase::Idle } else { Phase::Address }, 0, true);
        }
        self.driver_data = data;
        match (self.clock, clock) {
            (false, true) => self.rise(),
            (true, false) => self.fall(),
            _ => {}
        }
        self.clock = clock;
    }

    fn rise(&mut self) {
        if self.phase == Phase::Idle {
            return;
        }
        self.count += 1;
        match self.count {
            // While the module sends, `bits` is not used.
            1..=8 => self.bits = self.bits << 1 | u8::from(self.driver_data && self.module_data),
            _ if self.phase == Phase::Read && self.driver_data => self.phase = Phase::Idle,
            _ => {}
        }
    }

    fn fall(&mut self) {
        match self.count {
            8 if self.phase == Phase::Read => self.module_data = true,
            8 => {
                let known = self.phase != Phase::Address || self.bits & !1 == ADDRESS;
                let answers = known && !self.absent && self.phase != Phase::Idle;
                self.module_data = !answers;
                if !answers {
                    self.phase = Phase::Idle;
                }
            }
            9 => self.next_byte(),
            _ if self.phase == Phase::Read => self.put_bit(),
            _ => {}
        }
    }

    fn next_byte(&mut self) {
        (self.count, self.module_data) = (0, true);
        self.phase = match self.phase {
            Phase::Address if self.bits & 1 == 1 => Phase::Read,
            Phase::Address => Phase::Offset,
            Phase::Offset => {
                self.offset = self.bits;
                Phase::Write
            }
            Phase::Read => {
                self.offset = self.offset.wrapping_add(1);
                Phase::Read
            }
            other => other,
        };
        if self.phase == Phase::Read {
            self.put_bit();
        }
    }

    fn put_bit(&mut self) {
        self.module_data = self.content[usize::from(self.offset)] >> (7 - self.count) & 1 == 1;
    }
}
