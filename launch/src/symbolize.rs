//! `./isthmus symbolize`: names the functions at the addresses in the record of a panic.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::workspace;

/// Options of `./isthmus symbolize`.
#[derive(Args)]
pub struct Options {
    /// The record, as the console or `show crash` printed it [default: standard input]
    record: Option<PathBuf>,
    /// The symbols of the build that panicked [default: target/isthmus/isthmus.symbols]
    #[arg(long)]
    symbols: Option<PathBuf>,
}

/// Prints the record, with a line for each address of a function below it.
pub fn symbolize(options: &Options) -> Result<()> {
    let mut record = String::new();
    match &options.record {
        Some(path) => {
            record = fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?;
        }
        None => drop(std::io::stdin().read_to_string(&mut record)?),
    }
    let usual = workspace::target().join("isthmus/isthmus.symbols");
    let path = options.symbols.as_ref().unwrap_or(&usual);
    let file = fs::read(path).with_context(|| {
        format!(
            "could not read {}: build the commit that the record names, or use --symbols",
            path.display()
        )
    })?;
    let symbols = Symbols::read(&file)?;
    if let Some(build) = build_of(&record)
        && build != symbols.build
    {
        eprintln!(
            "isthmus: the record is of build {build}, but {} is of {}: the names will be wrong. \
             Build the commit that the record names, or keep each release's isthmus.symbols",
            path.display(),
            symbols.build
        );
    }
    print!("{}", symbols.name_all(&record));
    Ok(())
}

/// Functions of an image.
pub struct Symbols {
    /// Name and length in bytes by address.
    functions: BTreeMap<u64, (String, u64)>,
    /// The build ID, in hexadecimal.
    pub build: String,
}

impl Symbols {
    /// Reads the functions of an ELF file.
    pub fn read(file: &[u8]) -> Result<Symbols> {
        let file = object::File::parse(file).context("the symbols are not an ELF file")?;
        let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
        let functions = functions.filter_map(|symbol| {
            let name = rustc_demangle::demangle(symbol.name().ok()?);
            Some((symbol.address(), (format!("{name:#}"), symbol.size())))
        });
        let functions = functions.collect();
        let build = file.build_id().ok().flatten().unwrap_or_default();
        let build = build.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Symbols { functions, build })
    }

    /// Names of functions, demangled, and their lengths in bytes.
    pub fn functions(&self) -> impl Iterator<Item = (&str, u64)> {
        self.functions.values().map(|(name, len)| (name.as_str(), *len))
    }

    /// The function that contains an address, and the offset in it.
    fn name(&self, address: u64) -> Option<String> {
        let (start, (name, len)) = self.functions.range(..=address).next_back()?;
        let inside = address - start < (*len).max(1);
        inside.then(|| format!("{name}+{:#x}", address - start))
    }

    /// Adds to a record, below each line, the functions at the addresses in that line.
    pub fn name_all(&self, record: &str) -> String {
        let mut out = String::new();
        for line in record.lines() {
            out.push_str(line);
            out.push('\n');
            for address in addresses(line) {
                if let Some(name) = self.name(address) {
                    out.push_str(&format!("    {address:#x} {name}\n"));
                }
            }
        }
        out
    }
}

/// The hexadecimal numbers in a line, which may be addresses.
fn addresses(line: &str) -> Vec<u64> {
    let numbers = line.split("0x").skip(1);
    let numbers = numbers.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        u64::from_str_radix(&rest[..end], 16)
    });
    numbers.filter_map(Result::ok).collect()
}

/// The build ID in a record.
fn build_of(record: &str) -> Option<&str> {
    let (_, rest) = record.split_once(", build ")?;
    let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
    Some(&rest[..end]).filter(|build| !build.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_named_below_their_line() {
        let functions = [(0x1000, ("first".to_string(), 0x10)), (0x2000, ("second".into(), 0))];
        let symbols = Symbols { functions: functions.into(), build: "ab12".into() };
        let record =
            "isthmus: CPU exception at 0x1008, error 0x99\n  called from 0x2000 0x100f\nlog:\n";
        assert_eq!(
            symbols.name_all(record),
            "isthmus: CPU exception at 0x1008, error 0x99\n    0x1008 first+0x8\n  \
             called from 0x2000 0x100f\n    0x2000 second+0x0\n    0x100f first+0xf\nlog:\n"
        );
        assert_eq!(symbols.name(0x1010), None);
        assert_eq!(build_of("  isthmus 0.1.0 (abc+), build ab12, core 0"), Some("ab12"));
        assert_eq!(build_of("nothing"), None);
    }

    #[test]
    fn functions_of_this_program_are_found() {
        let file = fs::read(std::env::current_exe().unwrap()).unwrap();
        let symbols = Symbols::read(&file).unwrap();
        assert!(
            symbols.functions.values().any(
                |(name, _)| name.contains("symbolize::addresses") || name.contains("symbolize")
            )
        );
    }
}
