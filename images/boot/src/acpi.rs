//! Lookup of ACPI tables (ACPI 6.5, chapter 5.2), without an AML interpreter.

/// The tables that a root pointer refers to.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    root: &'static [u8],
    /// Bytes of an entry of the root table: 4 (RSDT) or 8 (XSDT).
    width: usize,
}

/// An I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Address of its registers.
    pub address: u32,
    /// Global system interrupt of its first input.
    pub first: u32,
}

/// A range of PCI configuration space in memory: an entry of the MCFG table (PCI Firmware 3.3, 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ecam {
    /// Address that bus 0 would have; the range begins at the first bus.
    pub address: u64,
    /// PCI segment group.
    pub segment: u16,
    /// Its first bus.
    pub first_bus: u8,
    /// Its last bus, not before the first.
    pub last_bus: u8,
}

/// An IOMMU, which translates the DMA addresses of devices and remaps their interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iommu {
    /// Address of its registers.
    pub address: u64,
    /// True for AMD's (IVRS table), false for Intel's (DMAR table).
    pub amd: bool,
}

/// Location of an ACPI register (ACPI 6.5, 5.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// An I/O port.
    Port(u16),
    /// An address in memory, which the stub has mapped.
    Memory(u64),
    /// In PCI configuration space of bus 0: device, function and offset.
    Config(u8, u8, u16),
}

/// How to switch the machine off (ACPI 6.5, 4.8.3.2.1 and 4.8.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOff {
    /// By the power management control registers, each with its sleep type.
    Controls {
        /// The first register, and the second if there is one.
        controls: [(Option<Register>, u16); 2],
        /// The port and the value to write to it that take ownership from the firmware.
        enable: Option<(u16, u8)>,
    },
    /// By the sleep control register of hardware-reduced machines, with the sleep type.
    Sleep(Register, u16),
}

/// The power button, if it is one of the fixed features (ACPI 6.5, 4.8.2.3.1 and 4.8.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerButton {
    /// Status and enable registers, of 16 bits each, of the first block and of the second one if there is one.
    pub events: [Option<(Register, Register)>; 2],
    /// The power management control register that shows whether the firmware has handed the button over.
    pub control: Register,
    /// The port and the value to write to it that take ownership from the firmware.
    pub enable: Option<(u16, u8)>,
}

/// Larger tables are treated as invalid.
const MAX_TABLE: usize = 1 << 20;
const HEADER: usize = 36;
/// The address space of I/O ports (ACPI 6.5, 5.2.3.2).
const SYSTEM_IO: u8 = 1;
/// End of the memory that the stub maps one to one.
const MAPPED: u64 = 4 << 30;

impl Tables {
    /// The tables of the root pointer at `rsdp`; `None` if it is 0 or invalid.
    ///
    /// # Safety
    /// Memory below 4 GiB is mapped one to one, and firmware tables in it are not written any more.
    pub unsafe fn new(rsdp: u64) -> Option<Self> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { memory(rsdp, 36) }?;
        if !bytes.starts_with(b"RSD PTR ") {
            return None;
        }
        let (address, width) = match bytes[15] {
            0 | 1 => (u64::from(u32_at(bytes, 16)?), 4),
            _ => (u64_at(bytes, 24)?, 8),
        };
        // SAFETY: the caller's promise.
        let root = unsafe { table(address) }?;
        Some(Tables { root, width })
    }

    /// The table with this signature, header included.
    pub fn find(&self, signature: &[u8; 4]) -> Option<&'static [u8]> {
        self.all(signature).next()
    }

    /// All tables with this signature.
    fn all(&self, signature: &[u8; 4]) -> impl Iterator<Item = &'static [u8]> {
        let (signature, width) = (*signature, self.width);
        let entries = self.root.get(HEADER..).unwrap_or_default().chunks_exact(width);
        entries.filter_map(move |entry| {
            let mut address = [0; 8];
            address[..width].copy_from_slice(entry);
            // SAFETY: the caller of `new` promised that memory below 4 GiB is mapped and tables do not change.
            unsafe { table(u64::from_le_bytes(address)) }.filter(|t| t.starts_with(&signature))
        })
    }

    /// PCI configuration space in memory, from the MCFG table.
    pub fn ecams(&self) -> impl Iterator<Item = Ecam> {
        ecams(self.find(b"MCFG").unwrap_or_default())
    }

    /// Whether the DSDT describes several PCI host bridges, each with a root bus of its own.
    pub fn has_several_host_bridges(&self) -> bool {
        has_several_host_bridges(self.dsdt())
    }

    /// I/O port of the serial port of the firmware's console (Microsoft's SPCR table, 1.10). A
    /// management controller forwards this console over the network.
    pub fn console_port(&self) -> Option<u16> {
        console_port(self.find(b"SPCR")?)
    }

    /// IOMMUs, from the DMAR table (Intel VT-d 4.1, 8.3) or the IVRS table (AMD I/O Virtualization 3.08, 5.2). An IOMMU
    /// may occur more than once.
    pub fn iommus(&self) -> impl Iterator<Item = Iommu> {
        let of = |signature, amd| iommus(self.find(signature).unwrap_or_default(), amd);
        of(b"DMAR", false).chain(of(b"IVRS", true))
    }

    /// I/O port of the power-management timer (3.579545 MHz) from the FADT.
    pub fn pm_timer(&self) -> Option<u16> {
        pm_timer(self.find(b"FACP")?)
    }

    /// Register and value that reset the machine, if the FADT names such a register.
    pub fn reset_register(&self) -> Option<(Register, u8)> {
        reset_register(self.find(b"FACP")?)
    }

    /// How to switch the machine off, if the tables show that without executing AML.
    pub fn power_off(&self) -> Option<PowerOff> {
        let aml = [self.dsdt()].into_iter().chain(self.all(b"SSDT"));
        power_off(self.find(b"FACP")?, { aml }.find_map(sleep_types)?)
    }

    /// The power button. None if it is described in AML, as on hardware-reduced machines.
    pub fn power_button(&self) -> Option<PowerButton> {
        power_button(self.find(b"FACP")?)
    }

    /// The I/O APICs from the MADT.
    pub fn io_apics(&self) -> impl Iterator<Item = IoApic> {
        io_apics(self.find(b"APIC").unwrap_or_default())
    }

    /// Virtio devices on memory-mapped registers: (address, global system interrupt). QEMU's microvm
    /// describes them in the DSDT; only its form is parsed.
    pub fn virtio_mmio(&self) -> impl Iterator<Item = (u64, u32)> {
        virtio_mmio(self.dsdt())
    }

    /// The DSDT; empty if there is none.
    fn dsdt(&self) -> &'static [u8] {
        // SAFETY: the caller of `new` promised that memory below 4 GiB is mapped and tables do not change.
        let dsdt = self.find(b"FACP").and_then(dsdt).and_then(|address| unsafe { table(address) });
        dsdt.unwrap_or_default()
    }
}

fn ecams(mcfg: &[u8]) -> impl Iterator<Item = Ecam> {
    let entries = mcfg.get(HEADER + 8..).unwrap_or_default().chunks_exact(16);
    let read = |entry: &[u8]| {
        let segment = u16::from_le_bytes([entry[8], entry[9]]);
        let (first_bus, last_bus) = (entry[10], entry[11]);
        Some(Ecam { address: u64_at(entry, 0)?, segment, first_bus, last_bus })
    };
    entries.filter_map(read).filter(|ecam| ecam.first_bus <= ecam.last_bus)
}

fn console_port(spcr: &[u8]) -> Option<u16> {
    /// Interface types of 16550-compatible ports, in old and newer tables.
    const KINDS: [u8; 3] = [0, 1, 0x12];
    let is_one = KINDS.contains(spcr.get(HEADER)?) && *spcr.get(40)? == SYSTEM_IO;
    u16::try_from(u64_at(spcr, 44)?).ok().filter(|&port| is_one && port != 0)
}

fn iommus(table: &[u8], amd: bool) -> impl Iterator<Item = Iommu> {
    let mut rest = table.get(HEADER + 12..).unwrap_or_default();
    core::iter::from_fn(move || {
        while let [kind, second, low, high, ..] = *rest {
            let len = usize::from(u16::from_le_bytes([low, high]));
            let entry = rest.get(..len.max(4))?;
            rest = &rest[entry.len()..];
            let is_one =
                if amd { matches!(kind, 0x10 | 0x11 | 0x40) } else { (kind, second) == (0, 0) };
            if is_one && let Some(address) = u64_at(entry, 8) {
                return Some(Iommu { address, amd });
            }
        }
        None
    })
}

/// Searches the AML for Name(_HID, EisaId("PNP0A03")), or PNP0A08.
fn has_several_host_bridges(dsdt: &[u8]) -> bool {
    const NAMED: &[u8] = b"\x08_HID\x0c\x41\xd0\x0a";
    let is_one = |at: &usize| {
        let rest = &dsdt[*at..];
        rest.starts_with(NAMED) && matches!(rest.get(NAMED.len()), Some(3 | 8))
    };
    (0..dsdt.len()).filter(is_one).nth(1).is_some()
}

fn pm_timer(fadt: &[u8]) -> Option<u16> {
    u16::try_from(u32_at(fadt, 76)?).ok().filter(|&port| port != 0)
}

fn reset_register(fadt: &[u8]) -> Option<(Register, u8)> {
    const RESET_REG_SUP: u32 = 1 << 10;
    let supported = u32_at(fadt, 112)? & RESET_REG_SUP != 0;
    Some((register(fadt, 116).filter(|_| supported)?, *fadt.get(128)?))
}

/// Parses a generic address; None if its address space is not supported.
fn register(table: &[u8], at: usize) -> Option<Register> {
    let address = u64_at(table, at + 4).filter(|&address| address != 0)?;
    match *table.get(at)? {
        0 => (4096..MAPPED - 4).contains(&address).then_some(Register::Memory(address)),
        SYSTEM_IO => u16::try_from(address).ok().map(Register::Port),
        2 => Some(Register::Config(
            (address >> 32) as u8 & 31,
            (address >> 16) as u8 & 7,
            address as u16 & 0xff,
        )),
        _ => None,
    }
}

fn power_off(fadt: &[u8], types: [u16; 2]) -> Option<PowerOff> {
    const REDUCED: u32 = 1 << 20;
    const SLEEP_CONTROL: usize = 244;
    if u32_at(fadt, 112)? & REDUCED != 0 {
        return Some(PowerOff::Sleep(register(fadt, SLEEP_CONTROL)?, types[0]));
    }
    // Use the generic addresses of newer tables, or else the ports of old ones.
    let control = |wide: usize, port: usize| {
        let port = || u16::try_from(u32_at(fadt, port)?).ok().filter(|&port| port != 0);
        register(fadt, wide).or_else(|| port().map(Register::Port))
    };
    let controls = [(Some(control(172, 64)?), types[0]), (control(184, 68), types[1])];
    let command = u16::try_from(u32_at(fadt, 48)?).ok().filter(|&port| port != 0);
    let enable = command.zip(fadt.get(52).copied().filter(|&value| value != 0));
    Some(PowerOff::Controls { controls, enable })
}

fn power_button(fadt: &[u8]) -> Option<PowerButton> {
    const BY_METHOD: u32 = 1 << 4;
    const REDUCED: u32 = 1 << 20;
    if u32_at(fadt, 112)? & (BY_METHOD | REDUCED) != 0 {
        return None;
    }
    // A block has the status register in its first half, and the enable register in the second.
    let half = u16::from(*fadt.get(88)? / 2);
    if half < 2 {
        return None;
    }
    let block = |wide: usize, port: usize| {
        let port = || u16::try_from(u32_at(fadt, port)?).ok().filter(|&port| port != 0);
        let status = register(fadt, wide).or_else(|| port().map(Register::Port))?;
        let enable = match status {
            Register::Port(port) => Register::Port(port.checked_add(half)?),
            Register::Memory(address) => Register::Memory(address + u64::from(half)),
            Register::Config(..) => return None,
        };
        Some((status, enable))
    };
    let port = |at: usize| u16::try_from(u32_at(fadt, at)?).ok().filter(|&port| port != 0);
    let control = register(fadt, 172).or_else(|| port(64).map(Register::Port))?;
    let enable = port(48).zip(fadt.get(52).copied().filter(|&value| value != 0));
    Some(PowerButton { events: [Some(block(148, 56)?), block(160, 60)], control, enable })
}

/// The sleep types of S5, from AML: Name(_S5_, Package { … }) with constants (0x12 is a package).
fn sleep_types(aml: &[u8]) -> Option<[u16; 2]> {
    const NAME: u8 = 8;
    let named = |at: &usize| {
        let before = aml[..*at].strip_suffix(b"\\").unwrap_or(&aml[..*at]);
        aml[*at..].starts_with(b"_S5_\x12") && before.ends_with(&[NAME])
    };
    let at = (0..aml.len()).find(named)? + 4;
    // The upper two bits of the length are the number of further length bytes; the number of elements follows.
    let mut rest = aml.get(at + 2 + usize::from(aml.get(at + 1)? >> 6) + 1..)?;
    let mut constant = || {
        let (value, len) = match *rest {
            [value @ (0 | 1), ..] => (value, 1),
            [0x0a, value, ..] => (value, 2),
            _ => return None,
        };
        rest = &rest[len..];
        Some(u16::from(value & 7))
    };
    let first = constant()?;
    Some([first, constant().unwrap_or(first)])
}

fn io_apics(madt: &[u8]) -> impl Iterator<Item = IoApic> {
    const IO_APIC: u8 = 1;
    let mut rest = madt.get(44..).unwrap_or_default();
    core::iter::from_fn(move || {
        while let [kind, len, ..] = *rest {
            let entry = rest.get(..usize::from(len).max(2))?;
            rest = &rest[entry.len()..];
            if kind == IO_APIC {
                return Some(IoApic { address: u32_at(entry, 4)?, first: u32_at(entry, 8)? });
            }
        }
        None
    })
}

/// Address of the DSDT.
fn dsdt(fadt: &[u8]) -> Option<u64> {
    let wide = u64_at(fadt, 140).filter(|&address| address != 0);
    wide.or_else(|| u32_at(fadt, 40).map(u64::from))
}

/// Searches the AML for the resources of devices named LNRO0005: a Memory32Fixed descriptor (ACPI 6.5,
/// 6.4.3.4) followed by an extended interrupt descriptor with one interrupt (6.4.3.6).
fn virtio_mmio(dsdt: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    /// Upper limit of the bytes from the name to the resources.
    const BETWEEN: usize = 96;
    const NAME: &[u8] = b"LNRO0005";
    let named = |at: &usize| dsdt[*at..].starts_with(NAME);
    (0..dsdt.len()).filter(named).filter_map(move |at| {
        let device = &dsdt[at..dsdt.len().min(at + BETWEEN)];
        let resources = device.windows(21).find(|w| {
            w.starts_with(&[0x86, 9, 0]) && w[12..].starts_with(&[0x89, 6, 0]) && w[16] == 1
        })?;
        Some((u32_at(resources, 4)?.into(), u32_at(resources, 17)?))
    })
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

/// # Safety
/// As for [`Tables::new`].
unsafe fn table(address: u64) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
    let header = unsafe { memory(address, HEADER) }?;
    let len = usize::try_from(u32_at(header, 4)?).ok()?;
    // SAFETY: the caller's promise.
    if (HEADER..=MAX_TABLE).contains(&len) { unsafe { memory(address, len) } } else { None }
}

/// Bytes of the firmware's tables; `None` if they are not in memory that is mapped one to one.
///
/// # Safety
/// As for [`Tables::new`].
pub unsafe fn memory(address: u64, len: usize) -> Option<&'static [u8]> {
    let end = address.checked_add(len as u64)?;
    if address < 4096 || end > MAPPED {
        return None;
    }
    // SAFETY: the range is below 4 GiB, so it is mapped, and it is not written any more (the caller's promise). It is
    // not in page 0.
    Some(unsafe { core::slice::from_raw_parts(address as usize as *const u8, len) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn io_apics_are_found_among_other_entries() {
        let mut madt = std::vec![0u8; 44];
        madt.extend([0, 8, 0, 0, 1, 0, 0, 0]); // a local APIC
        madt.extend([1, 12, 0, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
        madt.extend([2, 10, 0, 0, 2, 0, 0, 0, 0, 0]); // an interrupt override
        madt.extend([1, 12, 0, 0, 0, 0, 0xc1, 0xfe, 24, 0, 0, 0]);
        let found = [(0xfec0_0000, 0), (0xfec1_0000, 24)];
        let found = found.map(|(address, first)| IoApic { address, first });
        assert_eq!(io_apics(&madt).collect::<Vec<_>>(), found);
    }

    #[test]
    fn reset_register_needs_its_flag_and_a_supported_address() {
        let mut fadt = [0u8; 129];
        fadt[116] = 1;
        fadt[120] = 0xf9;
        fadt[121] = 0x0c;
        fadt[128] = 0x0f;
        assert_eq!(reset_register(&fadt), None);
        fadt[113] = 1 << 2;
        assert_eq!(reset_register(&fadt), Some((Register::Port(0xcf9), 0x0f)));
        fadt[116] = 0;
        assert_eq!(reset_register(&fadt), None, "page 0");
        fadt[122] = 0xa0;
        assert_eq!(reset_register(&fadt), Some((Register::Memory(0xa0_0cf9), 0x0f)));
        (fadt[116], fadt[120], fadt[121], fadt[124]) = (2, 0x44, 0, 0x1f);
        assert_eq!(reset_register(&fadt), Some((Register::Config(0x1f, 0, 0x44), 0x0f)));
        fadt[116] = 7;
        assert_eq!(reset_register(&fadt), None);
        assert_eq!(reset_register(&fadt[..128]), None);
    }

    #[test]
    fn sleep_types_of_s5_are_found_among_other_names() {
        let package =
            b"\x08_S3_\x12\x06\x04\x01\x01\0\0_S5_\x08_S5_\x12\x08\x04\x0a\x07\x0a\x06\0\0";
        assert_eq!(sleep_types(package), Some([7, 6]));
        assert_eq!(sleep_types(b"..\x08\\_S5_\x12\x06\x04\0\x01\0\0"), Some([0, 1]));
        assert_eq!(sleep_types(b"\x08_S5_\x12\x46\0\x04\x0a\x05"), Some([5, 5]));
        assert_eq!(sleep_types(b"\x08_S5_\x12\x06\x04\x68"), None, "an argument is not a constant");
        assert_eq!(sleep_types(b"\x08_S5_\x12"), None);
        assert_eq!(sleep_types(b"\x10_S5_\x12\x06\x04\0\0"), None);
    }

    #[test]
    fn power_off_uses_the_registers_of_the_machine() {
        let mut fadt = [0u8; 268];
        fadt[64..66].copy_from_slice(&[4, 6]);
        let controls = [(Some(Register::Port(0x604)), 5), (None, 2)];
        assert_eq!(power_off(&fadt, [5, 2]), Some(PowerOff::Controls { controls, enable: None }));
        (fadt[48], fadt[52], fadt[69]) = (0xb2, 0xf1, 8);
        (fadt[172], fadt[177]) = (1, 0x18);
        let controls = [(Some(Register::Port(0x1800)), 5), (Some(Register::Port(0x800)), 2)];
        let enable = Some((0xb2, 0xf1));
        assert_eq!(power_off(&fadt, [5, 2]), Some(PowerOff::Controls { controls, enable }));
        fadt[114] = 1 << 4;
        assert_eq!(power_off(&fadt, [5, 2]), None);
        (fadt[249], fadt[250]) = (0x20, 0xa0);
        let sleep = PowerOff::Sleep(Register::Memory(0xa0_2000), 5);
        assert_eq!(power_off(&fadt, [5, 2]), Some(sleep));
        assert_eq!(power_off(&[0; 268], [5, 2]), None);
    }

    #[test]
    fn power_button_is_a_fixed_one_with_status_and_enable_registers() {
        let mut fadt = [0u8; 268];
        (fadt[57], fadt[65], fadt[88]) = (6, 6, 4);
        fadt[64] = 4;
        let port = Register::Port;
        let first = Some((port(0x600), port(0x602)));
        let (control, enable) = (port(0x604), None);
        let events = [first, None];
        assert_eq!(power_button(&fadt), Some(PowerButton { events, control, enable }));
        (fadt[48], fadt[52], fadt[61]) = (0xb2, 0xf1, 8);
        (fadt[148], fadt[153]) = (1, 7);
        let events = [Some((port(0x700), port(0x702))), Some((port(0x800), port(0x802)))];
        let enable = Some((0xb2, 0xf1));
        assert_eq!(power_button(&fadt), Some(PowerButton { events, control, enable }));
        for (at, bits) in [(112, 1 << 4), (114, 1 << 4)] {
            let mut other = fadt;
            other[at] |= bits;
            assert_eq!(power_button(&other), None, "described in AML");
        }
        fadt[88] = 2;
        assert_eq!(power_button(&fadt), None, "too short for two registers");
        assert_eq!(power_button(&[0; 268]), None);
    }

    #[test]
    fn ecams_of_several_segments_are_found() {
        let mut mcfg = std::vec![0u8; 44];
        mcfg.extend([0, 0, 0, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0]);
        mcfg.extend([0, 0, 0, 0, 0x80, 0, 0, 0, 1, 2, 0x40, 0x7f, 0, 0, 0, 0]);
        mcfg.extend([0, 0, 0, 0, 0x81, 0, 0, 0, 2, 0, 9, 8, 0, 0, 0, 0]); // ends before it begins
        mcfg.extend([0; 15]); // cut off
        let found = [
            Ecam { address: 0xe000_0000, segment: 0, first_bus: 0, last_bus: 0xff },
            Ecam { address: 0x80_0000_0000, segment: 0x201, first_bus: 0x40, last_bus: 0x7f },
        ];
        assert_eq!(ecams(&mcfg).collect::<Vec<_>>(), found);
    }

    #[test]
    fn console_port_is_a_16550_in_io_space() {
        let mut spcr = [0u8; 80];
        (spcr[40], spcr[44], spcr[45]) = (1, 0xf8, 2);
        assert_eq!(console_port(&spcr), Some(0x2f8));
        spcr[36] = 3; // an ARM PL011
        assert_eq!(console_port(&spcr), None);
        spcr[36] = 0x12;
        assert_eq!(console_port(&spcr), Some(0x2f8));
        spcr[40] = 0;
        assert_eq!(console_port(&spcr), None);
        (spcr[40], spcr[46]) = (1, 1);
        assert_eq!(console_port(&spcr), None, "no port has that number");
        assert_eq!(console_port(&spcr[..50]), None);
    }

    #[test]
    fn iommus_are_found_among_other_entries() {
        let mut dmar = std::vec![0u8; 48];
        dmar.extend([0, 0, 24, 0, 1, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0]);
        dmar.extend([1, 8, 0, 0, 2, 0, 0x1f, 0]); // a device of this unit
        dmar.extend([1, 0, 24, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2]);
        dmar.extend([0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x20, 0, 0, 0]);
        let found = [(0xfed9_0000, false), (0x20_0000_0000, false)];
        let found = found.map(|(address, amd)| Iommu { address, amd });
        // The type has two bytes in DMAR, and one byte in IVRS, followed by flags.
        dmar[64 + 8] = 1;
        assert_eq!(iommus(&dmar, false).collect::<Vec<_>>(), found);
        let mut ivrs = std::vec![0u8; 48];
        ivrs.extend([0x10, 0xff, 24, 0, 2, 0, 0x40, 0, 0, 0, 0xd8, 0xfe, 0, 0, 0, 0]);
        ivrs.extend([0; 8]);
        ivrs.extend([0x20, 0, 32, 0]);
        ivrs.extend([0; 28]);
        assert_eq!(
            iommus(&ivrs, true).collect::<Vec<_>>(),
            [Iommu { address: 0xfed8_0000, amd: true }]
        );
    }

    #[test]
    fn host_bridges_are_counted_by_hardware_id() {
        let express = b"\x08_HID\x0c\x41\xd0\x0a\x08\x08_CID\x0c\x41\xd0\x0a\x03";
        let plain = b"\x08_HID\x0c\x41\xd0\x0a\x03";
        let other = b"\x08_HID\x0c\x41\xd0\x0a\x06";
        assert!(!has_several_host_bridges(&[&express[..], other, &plain[..9]].concat()));
        assert!(has_several_host_bridges(&[&express[..], other, plain].concat()));
    }

    #[test]
    fn virtio_devices_are_found_by_name_with_their_resources() {
        let mut aml = Vec::from(*b"DSDT....VR00_HID LNRO0005 _UID_CCA_CRS");
        aml.extend([0x86, 9, 0, 1, 0, 0x0e, 0xb0, 0xfe, 0, 2, 0, 0]);
        aml.extend([0x89, 6, 0, 3, 1, 0x1f, 0, 0, 0, 0x79, 0]);
        aml.extend([b'.'; 100]);
        aml.extend(*b"LNRO0005 without resources");
        aml.extend([b'.'; 100]);
        assert_eq!(virtio_mmio(&aml).collect::<Vec<_>>(), [(0xfeb0_0e00, 31)]);
    }

    proptest! {
        #[test]
        fn parsers_survive_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(ecams(&bytes).all(|ecam| ecam.first_bus <= ecam.last_bus));
            has_several_host_bridges(&bytes);
            console_port(&bytes);
            prop_assert!(iommus(&bytes, false).chain(iommus(&bytes, true)).count() <= bytes.len());
            pm_timer(&bytes);
            reset_register(&bytes);
            power_off(&bytes, [5, 5]);
            power_button(&bytes);
            sleep_types(&bytes);
            sleep_types(&[b"\x08_S5_\x12", &bytes[..]].concat());
            dsdt(&bytes);
            prop_assert!(virtio_mmio(&[b"LNRO0005", &bytes[..]].concat()).count() <= 1);
            prop_assert!(io_apics(&bytes).count() <= bytes.len());
        }
    }
}
