//! `fsx FILE OPERATIONS SEED`: runs random file operations, and compares the file with a model in memory.
//!
//! Modelled on the fsx that Unix kernels test their file systems with, which Debian does not ship: reads, writes,
//! mapped reads and writes, truncation and holes, with cache write-back, cache drops and reopening in between. Runs in
//! a Linux guest, on a file system on a mapped volume.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use memmap2::{Mmap, MmapMut};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use rustix::fs::{FallocateFlags, fallocate};

/// Longest file in bytes, as in the original.
const MAX_FILE: usize = 256 << 10;
/// Longest single operation in bytes, as in the original.
const MAX_OPERATION: usize = 64 << 10;

/// Operations and their weights, in percent.
const OPERATIONS: [(&str, u32); 9] = [
    ("read", 20),
    ("write", 25),
    ("mapread", 15),
    ("mapwrite", 15),
    ("truncate", 10),
    ("punch", 5),
    ("sync", 5),
    ("reopen", 3),
    ("dropcache", 2),
];

struct Fsx<'a> {
    path: &'a Path,
    file: File,
    /// Expected content of the file.
    model: Vec<u8>,
    rng: StdRng,
}

impl Fsx<'_> {
    fn open(path: &Path) -> Result<File> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        file.with_context(|| format!("could not open {}", path.display()))
    }

    /// Runs one random operation, and returns its description.
    fn step(&mut self) -> Result<String> {
        let mut dice = self.rng.random_range(0..100);
        let mut name = "read";
        for (operation, weight) in OPERATIONS {
            if dice < weight {
                name = operation;
                break;
            }
            dice -= weight;
        }
        let at = self.rng.random_range(0..MAX_FILE);
        let len = self.rng.random_range(1..=MAX_OPERATION.min(MAX_FILE - at));
        let what = format!("{name} {at:#x}..{:#x} of {:#x}", at + len, self.model.len());
        self.operate(name, at, len).with_context(|| what.clone())?;
        let size = self.file.metadata()?.len();
        ensure!(size == self.model.len() as u64, "{what}: the file has {size:#x} bytes afterwards");
        Ok(what)
    }

    fn operate(&mut self, name: &str, at: usize, len: usize) -> Result<()> {
        // Reads, mapped reads and holes stay within the file.
        let end = (at + len).min(self.model.len());
        let inside = at.min(end)..end;
        match name {
            "write" => {
                let bytes = self.bytes(len);
                self.file.write_all_at(&bytes, at as u64)?;
                self.grow(at + len);
                self.model[at..at + len].copy_from_slice(&bytes);
            }
            "mapwrite" => {
                let bytes = self.bytes(len);
                self.grow(at + len);
                self.file.set_len(self.model.len() as u64)?;
                // SAFETY: no other process has the file; it does not shrink while it is mapped.
                let mut map = unsafe { MmapMut::map_mut(&self.file)? };
                map[at..at + len].copy_from_slice(&bytes);
                if self.rng.random_ratio(1, 4) {
                    map.flush()?;
                }
                self.model[at..at + len].copy_from_slice(&bytes);
            }
            "truncate" => {
                self.file.set_len(at as u64)?;
                self.model.resize(at, 0);
            }
            "sync" => self.file.sync_all()?,
            "reopen" => self.file = Self::open(self.path)?,
            "dropcache" => {
                self.file.sync_all()?;
                std::fs::write("/proc/sys/vm/drop_caches", "3")?;
            }
            _ if inside.is_empty() => {}
            "read" => {
                let mut bytes = vec![0; inside.len()];
                self.file.read_exact_at(&mut bytes, inside.start as u64)?;
                self.compare(&bytes, inside.start)?;
            }
            "mapread" => {
                // SAFETY: as above.
                let map = unsafe { Mmap::map(&self.file)? };
                self.compare(&map[inside.clone()], inside.start)?;
            }
            _ => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, how, inside.start as u64, inside.len() as u64)?;
                self.model[inside].fill(0);
            }
        }
        Ok(())
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.rng.fill_bytes(&mut bytes);
        bytes
    }

    fn grow(&mut self, len: usize) {
        self.model.resize(self.model.len().max(len), 0);
    }

    fn compare(&self, bytes: &[u8], at: usize) -> Result<()> {
        let wrong = bytes.iter().zip(&self.model[at..]).position(|(have, want)| have != want);
        match wrong {
            None => Ok(()),
            Some(n) => {
                let (have, want) = (bytes[n], self.model[at + n]);
                anyhow::bail!("at {:#x}: found {have:#04x}, expected {want:#04x}", at + n)
            }
        }
    }
}

fn run(path: &Path, operations: u64, seed: u64) -> Result<()> {
    let rng = StdRng::seed_from_u64(seed);
    let mut fsx = Fsx { path, file: Fsx::open(path)?, model: Vec::new(), rng };
    fsx.file.set_len(0)?;
    let mut done = Vec::new();
    for number in 0..operations {
        match fsx.step() {
            Ok(what) => done.push(what),
            Err(error) => {
                let last = done.iter().rev().take(30).rev().cloned().collect::<Vec<_>>();
                return Err(error)
                    .with_context(|| format!("seed {seed}, operation {number}, after {last:#?}"));
            }
        }
    }
    fsx.operate("dropcache", 0, 0)?;
    let all = std::fs::read(path)?;
    fsx.compare(&all, 0)?;
    ensure!(all.len() == fsx.model.len(), "the file ends at {:#x}", all.len());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, path, operations, seed] = arguments.as_slice() else {
        println!("usage: fsx FILE OPERATIONS SEED");
        return ExitCode::from(2);
    };
    let (Ok(operations), Ok(seed)) = (operations.parse(), seed.parse()) else {
        println!("OPERATIONS and SEED are whole numbers");
        return ExitCode::from(2);
    };
    match run(Path::new(path), operations, seed) {
        Ok(()) => {
            println!("{operations} operations, seed {seed}: no mismatch");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
