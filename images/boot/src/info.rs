//! Boot information from the stub for the image. The two are compiled separately, hence `repr(C)`.

use crate::{MemoryMap, Region};

/// How the image was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// PVH: QEMU's `-kernel`, or the UEFI front end.
    Pvh,
    /// Multiboot2: GRUB.
    Multiboot2,
    /// uhyve, which loads a separate image.
    Uhyve,
}

/// Source of the clock's frequency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ClockSource {
    /// CPUID leaves of the hypervisor or the CPU.
    Cpuid,
    /// Measured against the ACPI power-management timer.
    PmTimer,
    /// Measured against the 8254 interval timer.
    Pit,
}

/// A screen, as the firmware or boot loader has set it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Screen {
    /// Physical address; 0 if there is no screen.
    pub address: u64,
    /// Bytes of a row.
    pub pitch: u32,
    /// Pixels of 32 bits, or characters of 16 bits, in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Whether it shows characters.
    pub text: bool,
}

impl Screen {
    /// No screen.
    pub const NONE: Screen = Screen { address: 0, pitch: 0, width: 0, height: 0, text: false };

    /// Parses the UEFI front end's description: address, pitch, width and height.
    fn parse(text: &str) -> Option<Screen> {
        let mut numbers = text.split(',');
        let address = numbers.next()?.parse().ok()?;
        let mut number = || numbers.next()?.parse().ok();
        Some(Screen { address, pitch: number()?, width: number()?, height: number()?, text: false })
    }
}

/// Boot information from the stub.
#[repr(C)]
#[derive(Debug)]
pub struct BootInfo {
    /// How the image was entered.
    pub protocol: Protocol,
    /// Source of the clock's frequency.
    pub clock_source: ClockSource,
    /// Frequency of the time-stamp counter in kHz.
    pub tsc_khz: u64,
    /// Frequency of the local APIC's timer, undivided, in kHz; 0 if it could not be measured.
    pub apic_timer_khz: u64,
    /// Physical address of the ACPI root pointer, 0 if there is none.
    pub rsdp: u64,
    /// All memory; the kernel uses regions of [`Kind::RAM`](crate::Kind::RAM).
    pub memory: MemoryMap,
    /// The DMA arena: identity mapped, unknown to the kernel.
    pub arena: Region,
    /// Address of the unmapped page (once bring-up is done) below the kernel's first stack.
    pub stack_guard: u64,
    /// The screen in the loader's information.
    pub(crate) screen: Screen,
    /// The command line was too long and was truncated.
    pub command_line_truncated: bool,
    command_line_len: usize,
    command_line: [u8; Self::MAX_COMMAND_LINE],
}

impl BootInfo {
    /// Longest command line that is kept, in bytes.
    pub const MAX_COMMAND_LINE: usize = 4096;

    /// Empty information.
    #[cfg(any(feature = "stub", test))]
    pub(crate) const fn new() -> Self {
        BootInfo {
            protocol: Protocol::Pvh,
            clock_source: ClockSource::Cpuid,
            tsc_khz: 0,
            apic_timer_khz: 0,
            rsdp: 0,
            memory: MemoryMap::new(),
            arena: Region::NOWHERE,
            stack_guard: 0,
            screen: Screen::NONE,
            command_line_truncated: false,
            command_line_len: 0,
            command_line: [0; Self::MAX_COMMAND_LINE],
        }
    }

    #[cfg(any(feature = "stub", test))]
    pub(crate) fn set_command_line(&mut self, bytes: &[u8]) {
        let kept = &bytes[..bytes.len().min(Self::MAX_COMMAND_LINE)];
        self.command_line[..kept.len()].copy_from_slice(kept);
        self.command_line_len = kept.len();
        self.command_line_truncated = kept.len() < bytes.len();
    }

    /// The screen: from the UEFI front end's word on the command line, or else from the loader.
    pub fn screen(&self) -> Option<Screen> {
        let words = self.command_line().split_ascii_whitespace();
        let described = words.filter_map(|word| word.strip_prefix("isthmus-screen=")).next_back();
        let screen = described.and_then(Screen::parse).unwrap_or(self.screen);
        (screen.address != 0).then_some(screen)
    }

    /// Physical address of the SMBIOS entry point, from the UEFI front end's word on the command line.
    pub fn smbios(&self) -> Option<u64> {
        let words = self.command_line().split_ascii_whitespace();
        let named = words.filter_map(|word| word.strip_prefix("isthmus-smbios=")).next_back();
        named?.parse().ok().filter(|&address| address != 0)
    }

    /// Whether a part of the command line was lost: here, or in the UEFI front end, which reports it by a word.
    pub fn command_line_is_cut(&self) -> bool {
        let bytes = self.command_line.get(..self.command_line_len).unwrap_or_default();
        let mut words = self.command_line().split_ascii_whitespace();
        self.command_line_truncated
            || core::str::from_utf8(bytes).is_err()
            || words.any(|word| word == "isthmus-line=cut")
    }

    /// The command line; empty if it is not UTF-8.
    pub fn command_line(&self) -> &str {
        let bytes = self.command_line.get(..self.command_line_len).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// The boot information. Only for code that is linked with a kernel bundle, which defines `isthmus_boot_info`.
pub fn boot_info() -> &'static BootInfo {
    unsafe extern "C" {
        safe fn isthmus_boot_info() -> &'static BootInfo;
    }
    isthmus_boot_info()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smbios_is_the_last_word_of_the_front_end() {
        let smbios = |line: &[u8]| {
            let mut info = BootInfo::new();
            info.set_command_line(line);
            info.smbios()
        };
        assert_eq!(smbios(b"isthmus-smbios=1 isthmus-smbios=2147065856 a"), Some(2_147_065_856));
        assert_eq!(smbios(b"isthmus-smbios=0"), None);
        assert_eq!(smbios(b"isthmus-smbios=x isthmus.smbios=1"), None);
    }

    #[test]
    fn incomplete_command_line_is_reported() {
        let cut = |line: &[u8]| {
            let mut info = BootInfo::new();
            info.set_command_line(line);
            info.command_line_is_cut()
        };
        assert!(!cut(b"") && !cut(b"isthmus.net.0.mtu=9000"));
        assert!(cut(&[b'x'; BootInfo::MAX_COMMAND_LINE + 1]));
        assert!(cut(b"isthmus.config_disk=\xff") && cut(b"a isthmus-line=cut"));
    }
}
