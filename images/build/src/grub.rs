//! GRUB for BIOS, which loads the appliance by Multiboot2: what the ISO image and the files for PXE have in common.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::Run;

/// Where Debian's grub-pc-bin puts GRUB's modules for BIOS.
pub const MODULES_AT: &str = "/usr/lib/grub/i386-pc";

/// Makes GRUB's core in `format` (`i386-pc-eltorito`, `i386-pc-pxe`) at `out`, with these modules, and a script that it
/// runs first.
pub fn core(format: &str, script: &Path, modules: &[&str], out: &Path, run: Run) -> Result<()> {
    if !Path::new(MODULES_AT).exists() {
        bail!("{MODULES_AT} is missing: install the package grub-pc-bin");
    }
    let mut core = Command::new("grub-mkimage");
    core.args(["-O", format, "-d", MODULES_AT, "-p", "/boot/grub", "-c"]).arg(script);
    run(core.arg("-o").arg(out).args(modules))
}

/// The words of a command line, if GRUB takes them as they are.
pub fn words(command_line: &str) -> Result<&str> {
    let special = |c: &char| c.is_control() || "'\"\\$;{}&|<>#".contains(*c);
    match command_line.chars().find(special) {
        Some(bad) => bail!("GRUB, which boots this on a BIOS, takes no {bad:?} in a command line"),
        None => Ok(command_line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_plain() {
        assert_eq!(words("isthmus.net.0.mtu=9000").unwrap(), "isthmus.net.0.mtu=9000");
        assert!(words("a; reboot").unwrap_err().to_string().contains("';'"));
    }
}
