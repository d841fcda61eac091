//! Looking up ACPI tables (ACPI 6.5, chapter 5.2). Nothing of AML.

/// The tables that a root pointer leads to.
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

/// Larger tables are taken for nonsense.
const MAX_TABLE: usize = 1 << 20;
const HEADER: usize = 36;
/// What the stub maps one to one.
const MAPPED: u64 = 4 << 30;

impl Tables {
    /// The tables of the root pointer at `rsdp`; `None` if it is 0 or leads nowhere.
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
        self.root.get(HEADER..)?.chunks_exact(self.width).find_map(|entry| {
            let mut address = [0; 8];
            address[..self.width].copy_from_slice(entry);
            // SAFETY: `new` was promised that memory below 4 GiB is mapped and tables stay as they are.
            unsafe { table(u64::from_le_bytes(address)) }.filter(|t| t.starts_with(signature))
        })
    }

    /// The first segment's configuration space from the MCFG table: (address, first bus, last bus).
    pub fn ecam(&self) -> Option<(u64, u8, u8)> {
        ecam(self.find(b"MCFG")?)
    }

    /// I/O port of the power-management timer (3.579545 MHz) from the FADT.
    pub fn pm_timer(&self) -> Option<u16> {
        pm_timer(self.find(b"FACP")?)
    }

    /// I/O port and value that reset the machine, if the FADT names such a port.
    pub fn reset_port(&self) -> Option<(u16, u8)> {
        reset_port(self.find(b"FACP")?)
    }

    /// The I/O APICs from the MADT.
    pub fn io_apics(&self) -> impl Iterator<Item = IoApic> {
        io_apics(self.find(b"APIC").unwrap_or_default())
    }

    /// Virtio devices on memory-mapped registers: (address, global system interrupt). QEMU's microvm
    /// describes them in the DSDT; only the form that it uses is understood.
    pub fn virtio_mmio(&self) -> impl Iterator<Item = (u64, u32)> {
        // SAFETY: `new` was promised that memory below 4 GiB is mapped and tables stay as they are.
        let dsdt = self.find(b"FACP").and_then(dsdt).and_then(|address| unsafe { table(address) });
        virtio_mmio(dsdt.unwrap_or_default())
    }
}

fn ecam(mcfg: &[u8]) -> Option<(u64, u8, u8)> {
    Some((u64_at(mcfg, 44)?, *mcfg.get(54)?, *mcfg.get(55)?))
}

fn pm_timer(fadt: &[u8]) -> Option<u16> {
    u16::try_from(u32_at(fadt, 76)?).ok().filter(|&port| port != 0)
}

fn reset_port(fadt: &[u8]) -> Option<(u16, u8)> {
    const RESET_REG_SUP: u32 = 1 << 10;
    const SYSTEM_IO: u8 = 1;
    if u32_at(fadt, 112)? & RESET_REG_SUP == 0 || *fadt.get(116)? != SYSTEM_IO {
        return None;
    }
    Some((u16::try_from(u64_at(fadt, 120)?).ok()?, *fadt.get(128)?))
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

/// Looks for the resources of devices named LNRO0005 in AML: a Memory32Fixed descriptor (ACPI 6.5,
/// 6.4.3.4) followed by an extended interrupt descriptor with one interrupt (6.4.3.6).
fn virtio_mmio(dsdt: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    /// Name, number and flags of the device take less than this.
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

/// # Safety
/// As for [`Tables::new`].
unsafe fn memory(address: u64, len: usize) -> Option<&'static [u8]> {
    let end = address.checked_add(len as u64)?;
    if address < 4096 || end > MAPPED {
        return None;
    }
    // SAFETY: below 4 GiB, so mapped, and not written any more (the caller's promise); not in page 0.
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
    fn a_reset_register_counts_only_with_its_flag_and_in_io_space() {
        let mut fadt = [0u8; 129];
        fadt[116] = 1;
        fadt[120] = 0xf9;
        fadt[121] = 0x0c;
        fadt[128] = 0x0f;
        assert_eq!(reset_port(&fadt), None);
        fadt[113] = 1 << 2;
        assert_eq!(reset_port(&fadt), Some((0xcf9, 0x0f)));
        fadt[116] = 0;
        assert_eq!(reset_port(&fadt), None);
        assert_eq!(reset_port(&fadt[..128]), None);
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
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            ecam(&bytes);
            pm_timer(&bytes);
            reset_port(&bytes);
            dsdt(&bytes);
            prop_assert!(virtio_mmio(&[b"LNRO0005", &bytes[..]].concat()).count() <= 1);
            prop_assert!(io_apics(&bytes).count() <= bytes.len());
        }
    }
}
