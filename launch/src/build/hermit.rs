//! Checks a standard Hermit image by loading it as uhyve does: with the `hermit-entry` crate.

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use hermit_entry::elf::KernelObject;

/// Loads the image into memory of this process and looks at the result; nothing of it runs.
pub fn check(image: &Path) -> Result<()> {
    const START: u64 = 0x40_0000;
    let file = fs::read(image)?;
    let object = KernelObject::parse(&file)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("{} is not a Hermit image", image.display()))?;
    if let Some(fixed) = object.start_addr() {
        bail!("{} wants to be at {fixed:#x}, but must be relocatable", image.display());
    }
    let mut memory = vec![MaybeUninit::uninit(); object.mem_size()];
    let loaded = object.load_kernel(&mut memory, START);
    let range = &loaded.load_info.kernel_image_addr_range;
    ensure!(range.contains(&loaded.entry_point), "the entry point lies outside of the image");
    ensure!(loaded.load_info.tls_info.is_some(), "the image has no thread-local storage");
    println!("{}: loads as a Hermit image of {} bytes", image.display(), memory.len());
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
