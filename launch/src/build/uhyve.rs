//! Checks the image for uhyve by loading it as uhyve does: with the `hermit-entry` crate.

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use hermit_entry::elf::KernelObject;
use hermit_entry::{HermitVersion, UhyveIfVersion};

/// The lowest address of a kernel: above the memory that uhyve 0.10 writes itself (device tree, boot information, page
/// tables, and the stack of the first processor).
const LEAST_START: u64 = 0x4_0000;
/// The highest end of memory of a machine with interface version 1.
const END: u64 = 3 << 30;
/// The oldest kernel that uhyve gives a network to. uhyve also gives one to a kernel without a version.
const NETWORK: HermitVersion = HermitVersion { major: 0, minor: 13, patch: 2 };

/// The image as uhyve loads it.
pub struct Loaded {
    /// The image in memory, from `start` on.
    pub memory: Vec<u8>,
    /// Address of the first byte.
    pub start: u64,
    /// Address at which its processors start.
    pub entry_point: u64,
    /// The thread-local storage: start, bytes in the file, bytes in memory, alignment.
    pub tls: [u64; 4],
}

/// Loads the image into memory of this process; nothing of it runs.
pub fn load(image: &Path) -> Result<Loaded> {
    let file = fs::read(image)?;
    let object = KernelObject::parse(&file)
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("{} is not a Hermit image", image.display()))?;
    let interface = object.uhyve_interface_version().unwrap_or(UhyveIfVersion(1));
    ensure!(
        interface.0 == 1,
        "the image needs version {} of uhyve's interface, not 1",
        interface.0
    );
    if let Some(version) = object.hermit_version() {
        ensure!(
            version >= NETWORK,
            "uhyve gives Hermit {version} no network: it needs {NETWORK} or later"
        );
    }
    let Some(start) = object.start_addr() else {
        bail!("{} has no start address", image.display());
    };
    let len = object.mem_size();
    ensure!(
        start >= LEAST_START && start + (len as u64) < END,
        "the image cannot be at {start:#x}: uhyve uses that memory itself, or has none there"
    );
    let mut memory = vec![MaybeUninit::uninit(); len];
    let loaded = object.load_kernel(&mut memory, start);
    let range = &loaded.load_info.kernel_image_addr_range;
    ensure!(range.contains(&loaded.entry_point), "the entry point lies outside of the image");
    let tls = loaded.load_info.tls_info.context("the image has no thread-local storage")?;
    // `load_kernel` does not write the gaps between segments.
    let mut bytes = vec![0; len];
    let headers = Segments::of(&file)?;
    for (address, filled) in headers.0 {
        let at = (address - start) as usize;
        for (place, byte) in bytes[at..at + filled].iter_mut().zip(&memory[at..]) {
            // SAFETY: `load_kernel` has written all bytes of a segment.
            *place = unsafe { byte.assume_init() };
        }
    }
    let tls = [tls.start, tls.filesz, tls.memsz, tls.align];
    Ok(Loaded { memory: bytes, start, entry_point: loaded.entry_point, tls })
}

/// Address and length of each segment that is loaded.
struct Segments(Vec<(u64, usize)>);

impl Segments {
    fn of(file: &[u8]) -> Result<Self> {
        let field = |at: usize, len: usize| -> Result<u64> {
            let bytes = file.get(at..at + len).context("the image ends in its headers")?;
            Ok(bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
        };
        let (first, count) = (field(32, 8)? as usize, field(56, 2)? as usize);
        let mut all = Vec::new();
        for at in (0..count).map(|i| first + i * 56) {
            const PT_LOAD: u64 = 1;
            if field(at, 4)? == PT_LOAD {
                all.push((field(at + 16, 8)?, field(at + 40, 8)? as usize));
            }
        }
        Ok(Segments(all))
    }
}

/// Loads the image and checks the result.
pub fn check(image: &Path) -> Result<()> {
    let loaded = load(image)?;
    let at = (loaded.entry_point - loaded.start) as usize;
    // `cli` must be first, because there is no interrupt handler yet.
    ensure!(loaded.memory.get(at) == Some(&0xfa), "there is no code at the entry point");
    println!(
        "{}: loads as a Hermit image of {} bytes at {:#x}",
        image.display(),
        loaded.memory.len(),
        loaded.start
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_program_is_no_hermit_image() {
        let error = check(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(error.to_string().contains("is not a Hermit image"), "{error}");
    }
}
