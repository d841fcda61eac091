//! The directory that a TFTP or HTTP server offers to machines that boot from the network.
//!
//! | file | for |
//! |---|---|
//! | `isthmus.efi` | UEFI, by TFTP (PXE) or HTTP: contains the appliance |
//! | `isthmus.0` | BIOS, by TFTP (PXE): GRUB, which fetches `isthmus.elf` from the same directory |
//! | `isthmus.elf` | the appliance, for GRUB |

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{Run, grub};

const MODULES: [&str; 5] = ["pxe", "tftp", "multiboot2", "serial", "boot"];

/// Writes the directory.
pub fn write(
    out: &Path,
    elf: &Path,
    efi: &Path,
    command_line: &str,
    work: &Path,
    run: Run,
) -> Result<()> {
    fs::create_dir(out).with_context(|| format!("could not make {}", out.display()))?;
    for (from, name) in [(elf, "isthmus.elf"), (efi, "isthmus.efi")] {
        fs::copy(from, out.join(name))
            .with_context(|| format!("could not copy {}", from.display()))?;
    }
    let script = work.join("boot.cfg");
    fs::write(&script, script_of(command_line)?)?;
    grub::core("i386-pc-pxe", &script, &MODULES, &out.join("isthmus.0"), run)
}

/// GRUB's script: output to both consoles, then the start of the appliance. If `isthmus.elf` is missing, GRUB shows its
/// error message and stays at its prompt.
fn script_of(command_line: &str) -> Result<String> {
    Ok(format!(
        "serial --unit=0 --speed=115200\n\
         terminal_output console serial\n\
         multiboot2 (pxe)/isthmus.elf {}\n\
         boot\n",
        grub::words(command_line)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_contains_the_command_line() {
        let script = script_of("isthmus.net.0.mtu=9000").unwrap();
        assert!(script.contains("(pxe)/isthmus.elf isthmus.net.0.mtu=9000\n"));
        assert!(script_of("a'b").is_err());
    }
}
