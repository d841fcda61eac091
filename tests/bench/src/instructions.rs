//! Counts a guest's instructions with a QEMU plugin.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use launch::qemu::{Program, plugin};

const SOURCE: &str = include_str!("icount.c");
const COUNTERS: u64 = 16;
/// Offset of the marked address. Behind it are the longest distance, and the count of each CPU at its last passage.
const MARKER: u64 = (2 * COUNTERS + 2) * 8;

/// The compiled plugin.
pub struct Plugin {
    library: PathBuf,
}

/// The counters of one run of QEMU.
pub struct Counters {
    file: tempfile::NamedTempFile,
    argument: String,
}

impl Plugin {
    /// Compiles the plugin for the installed QEMU.
    pub fn compile() -> Result<Plugin> {
        Plugin::compile_for(&Program::Installed)
    }

    /// Compiles the plugin for another QEMU.
    pub fn compile_for(program: &Program) -> Result<Plugin> {
        let library = plugin::compile("icount", SOURCE, program)?;
        Ok(Plugin { library })
    }

    /// Fresh counters, all 0.
    pub fn counters(&self) -> Result<Counters> {
        let file = tempfile::NamedTempFile::new()?;
        let argument = format!("{},counters={}", self.library.display(), file.path().display());
        Ok(Counters { file, argument })
    }
}

impl Counters {
    /// QEMU's arguments to count into this file.
    pub fn arguments(&self) -> [String; 2] {
        ["-plugin".into(), self.argument.clone()]
    }

    /// Instructions executed so far by all CPUs together.
    pub fn read(&self) -> Result<u64> {
        self.sum_at(0)
    }

    /// From now on also counts instructions in a range of addresses.
    pub fn watch(&self, addresses: &Range<u64>) -> Result<()> {
        let bytes = [addresses.start, addresses.end].map(u64::to_ne_bytes);
        let file = self.file.as_file();
        file.write_all_at(bytes.as_flattened(), 2 * COUNTERS * 8).context("could not set a range")
    }

    /// Instructions executed so far in the watched range.
    pub fn watched(&self) -> Result<u64> {
        self.sum_at(COUNTERS * 8)
    }

    /// From now on measures the instructions between two passages of this address.
    pub fn mark(&self, address: u64) -> Result<()> {
        let file = self.file.as_file();
        // Off, reset, on.
        file.write_all_at(&0u64.to_ne_bytes(), MARKER)?;
        file.write_all_at(&[0; 8 * (1 + COUNTERS as usize)], MARKER + 8)?;
        file.write_all_at(&address.to_ne_bytes(), MARKER).context("could not set a marker")
    }

    /// The most instructions between two passages since [`Counters::mark`].
    pub fn longest(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.file.as_file().read_exact_at(&mut bytes, MARKER + 8)?;
        let longest = u64::from_ne_bytes(bytes);
        ensure!(longest > 0, "the marked address was not passed twice");
        Ok(longest)
    }

    fn sum_at(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; COUNTERS as usize * 8];
        let file = self.file.as_file();
        file.read_exact_at(&mut bytes, offset).context("the plugin made no counters")?;
        let counts = bytes.as_chunks::<8>().0.iter();
        Ok(counts.map(|count| u64::from_ne_bytes(*count)).sum())
    }
}
