//! Support for cases that need MOVDIR64B in a guest, which few hosts offer.

use anyhow::{Context, Result};
use launch::qemu::{Accelerator, accelerator};
use std::io::Write;
use std::path::Path;

/// Why guests on this machine lack the instruction; None if they have it. It takes KVM and a CPU with MOVDIR64B,
/// because QEMU's TCG does not implement it.
pub fn without_movdir64b() -> Result<Option<String>> {
    let cpus = std::fs::read_to_string("/proc/cpuinfo")?;
    if !has_movdir64b(&cpus) {
        return Ok(Some("this machine's CPU has no MOVDIR64B".into()));
    }
    let image = std::env::var_os("ISTHMUS_IMAGE").context("ISTHMUS_IMAGE is not set")?;
    let works = accelerator(Path::new(&image)) == Accelerator::Kvm;
    Ok((!works).then(|| "KVM does not work on this machine".into()))
}

/// Whether the first CPU of `/proc/cpuinfo` has MOVDIR64B.
fn has_movdir64b(cpus: &str) -> bool {
    let flags = cpus.lines().find_map(|line| line.strip_prefix("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "movdir64b"))
}

/// Records that a case could not run here, for the summary of `./isthmus test`.
pub fn skip(case: &str, reason: &str) -> Result<()> {
    let path = std::env::var_os("ISTHMUS_SKIPPED");
    let path = path.context("ISTHMUS_SKIPPED is not set: run ./isthmus test")?;
    let file = std::fs::File::options().append(true).create(true).open(path);
    writeln!(file.context("could not record a skipped case")?, "{case}: {reason}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::has_movdir64b;

    #[test]
    fn movdir64b_flag_is_matched_as_a_whole_word() {
        assert!(has_movdir64b("processor\t: 0\nflags\t\t: fpu movdiri movdir64b fsrm\n"));
        assert!(!has_movdir64b("flags\t\t: fpu movdiri fsrm\nbugs\t\t: movdir64b\n"));
        assert!(!has_movdir64b(""));
    }
}
