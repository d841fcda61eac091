//! How often each instruction of an image has been executed.

use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use launch::qemu::{Program, plugin};
use tempfile::TempDir;

/// The counts of one run of QEMU, of a guest with one CPU.
pub struct Executed {
    _directory: TempDir,
    file: PathBuf,
    argument: String,
    code: Range<u64>,
}

/// The counts at one time.
pub struct Counts {
    begin: u64,
    counts: Vec<u64>,
}

impl Executed {
    /// Makes ready to count in a range of addresses.
    pub fn new(code: &Range<u64>) -> Result<Executed> {
        let source = include_str!("executed.c");
        let library = plugin::compile("executed", source, &Program::Installed)?;
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("counts");
        let (library, path) = (library.display(), file.display());
        let argument =
            format!("{library},counts={path},begin={:#x},end={:#x}", code.start, code.end);
        Ok(Executed { _directory: directory, file, argument, code: code.clone() })
    }

    /// What QEMU needs to be told to count here.
    pub fn arguments(&self) -> [String; 2] {
        ["-plugin".into(), self.argument.clone()]
    }

    /// The counts so far.
    pub fn read(&self) -> Result<Counts> {
        let bytes = std::fs::read(&self.file).context("QEMU's plugin made no counts")?;
        let counts: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|count| u64::from_ne_bytes(*count)).collect();
        let length = self.code.end - self.code.start;
        ensure!(counts.len() as u64 == length, "QEMU's plugin counted elsewhere");
        Ok(Counts { begin: self.code.start, counts })
    }
}

impl Counts {
    /// How often each instruction was executed from an earlier time to this one, by their addresses in order.
    pub fn since<'a>(&'a self, earlier: &'a Counts) -> impl Iterator<Item = (u64, u64)> + 'a {
        let counts = self.counts.iter().zip(&earlier.counts);
        (self.begin..).zip(counts).map(|(address, (now, then))| (address, now.wrapping_sub(*then)))
    }
}
