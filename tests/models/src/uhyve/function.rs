//! The uhyve model as a PCI function, for a QEMU machine that imitates uhyve: the registers in a memory BAR, and the
//! hypercall ports in two I/O BARs. The set-up of the machine places the BARs at uhyve's addresses.

use super::{End, REGISTERS, Uhyve};
use crate::{Bar, Cable, ConfigSpace, Function, Interrupts, Machine, Nanoseconds};
use std::sync::{Arc, Mutex, PoisonError};

/// First port of BAR 2, for most hypercalls.
pub const FILE_PORTS: u16 = 0x400;
/// First port of BAR 3, for output.
pub const SERIAL_PORTS: u16 = 0x800;
const PORTS: u64 = 0x400;
const REGISTER_BYTES: u64 = 4096;

const BARS: [Bar; 3] = [
    Bar { index: 0, size: REGISTER_BYTES },
    Bar { index: 2, size: PORTS },
    Bar { index: 3, size: PORTS },
];

/// uhyve's device and hypercalls in one function.
pub struct AsFunction {
    make: Box<dyn Fn() -> Uhyve + Send>,
    uhyve: Uhyve,
    config: ConfigSpace,
    cable: Arc<Mutex<Cable>>,
    /// Bytes of output that were forwarded.
    printed: usize,
    /// Complaints that were printed.
    complained: usize,
    /// The end was printed.
    ended: bool,
}

impl AsFunction {
    /// Creates a function of the model that `make` returns, also after a reset. `cable` carries its frames.
    pub fn new(make: impl Fn() -> Uhyve + Send + 'static, cable: Arc<Mutex<Cable>>) -> Self {
        let uhyve = make();
        AsFunction {
            make: Box::new(make),
            config: Self::config_space(),
            uhyve,
            cable,
            printed: 0,
            complained: 0,
            ended: false,
        }
    }

    fn config_space() -> ConfigSpace {
        // Capabilities as in the device's own configuration space.
        let mut config = ConfigSpace::new(0x1af4, 0x1041, 0, 0)
            .memory_bar(0, REGISTER_BYTES)
            .io_bar(2, PORTS as u32)
            .io_bar(3, PORTS as u32);
        let mut uhyve = Uhyve::new(Some(([2, 0, 0, 0, 0, 1], 1500)));
        if let Some(net) = &mut uhyve.net {
            let mut bytes = [0; 0x88 - 0x40];
            for (place, at) in bytes.chunks_exact_mut(4).zip((0x40u8..).step_by(4)) {
                net.read(at, place, &mut uhyve.world);
            }
            config.put(0x40, &bytes);
        }
        config.put(0x34, &[0x40]);
        config.put(0x06, &[0x10]);
        // The interrupt pin. Firmware sets the line.
        config.put(0x3d, &[1]);
        config
    }

    /// Prints new output of the guest, new complaints, and the end.
    fn print_news(&mut self) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&self.uhyve.host.output[self.printed..]);
        self.printed = self.uhyve.host.output.len();
        for complaint in &self.uhyve.world.complaints[self.complained..] {
            let _ = writeln!(out, "uhyve complains: {complaint}");
        }
        self.complained = self.uhyve.world.complaints.len();
        if let Some(end) = self.uhyve.world.end.as_ref().filter(|_| !self.ended) {
            let _ = match end {
                End::Exit(code) => writeln!(out, "uhyve ends: code {code}"),
                End::Panic(why) => writeln!(out, "uhyve ends: panic: {why}"),
            };
            self.ended = true;
        }
        let _ = out.flush();
    }
}

impl Function for AsFunction {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &BARS
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { intx: 1, ..Interrupts::default() }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        match bar {
            0 => self.uhyve.memory_in(REGISTERS + offset, into),
            2 => self.uhyve.port_in(FILE_PORTS + offset as u16, into),
            _ => self.uhyve.port_in(SERIAL_PORTS + offset as u16, into),
        }
        self.print_news();
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        _: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        match bar {
            0 => self.uhyve.memory_out(REGISTERS + offset, bytes, machine),
            2 => self.uhyve.port_out(FILE_PORTS + offset as u16, bytes, machine),
            _ => self.uhyve.port_out(SERIAL_PORTS + offset as u16, bytes, machine),
        }
        self.print_news();
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        /// The virtio header that the TAP device puts before a frame.
        const HEADER: [u8; 12] = [0; 12];
        if let Some(net) = &mut self.uhyve.net {
            let mut cable = self.cable.lock().unwrap_or_else(PoisonError::into_inner);
            net.tap
                .arriving
                .extend(cable.arriving.drain(..).map(|frame| [&HEADER, &frame[..]].concat()));
        }
        self.uhyve.run(machine);
        if let Some(net) = &mut self.uhyve.net {
            let mut cable = self.cable.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = net.tap.sent.drain(..);
            cable.sent.extend(sent.filter_map(|frame| frame.get(12..).map(<[u8]>::to_vec)));
        }
        self.print_news();
        None
    }

    fn reset(&mut self) {
        self.uhyve = (self.make)();
        (self.printed, self.complained, self.ended) = (0, 0, false);
        self.config = Self::config_space();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let net = self.uhyve.net.as_ref();
        vec![
            ("calls".into(), self.uhyve.host.calls),
            ("interrupts".into(), net.map_or(0, |net| net.interrupts)),
            ("cut".into(), net.map_or(0, |net| net.cut)),
            ("complaints".into(), self.uhyve.world.complaints.len() as u64),
        ]
    }
}
