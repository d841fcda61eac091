//! The file that each function of an image stands in, by its symbol: Rust's mangled names (RFC 2603) tell the module
//! where a function is defined, or the block of the implementation that it is in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use launch::workspace;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// What the names of functions in assembly begin with.
const ASSEMBLY: &str = "isthmus_";

/// The functions of an image.
pub struct Functions {
    /// All instructions that can be executed.
    pub code: Range<u64>,
    /// By their first addresses: their files, none for those that are not this repository's.
    files: BTreeMap<u64, Option<String>>,
}

impl Functions {
    /// Those of the image whose symbols lie in this file.
    pub fn read(symbols: &Path) -> Result<Functions> {
        let file = std::fs::read(symbols)
            .with_context(|| format!("could not read {}", symbols.display()))?;
        let file = object::File::parse(&*file).context("the symbols are no ELF file")?;
        let text = file.section_by_name(".text").context("the image has no code")?;
        let crates = crates()?;
        let mut files = BTreeMap::new();
        // Those in assembly have no kind.
        let in_code = |kind| matches!(kind, SymbolKind::Text | SymbolKind::Unknown);
        let functions = file.symbols().filter(|symbol| in_code(symbol.kind()));
        for symbol in functions.filter(|symbol| symbol.section_index() == Some(text.index())) {
            let name = symbol.name().unwrap_or_default();
            let name = match modules(name) {
                Some(modules) => source(&crates, &modules),
                None if name.starts_with(ASSEMBLY) => assembly(&crates, name)?,
                None => None,
            };
            // Of functions that are the same there is one, with several names.
            let known = files.entry(symbol.address()).or_insert(None);
            *known = known.take().or(name);
        }
        ensure!(files.len() > 100, "{} has no symbols", symbols.display());
        Ok(Functions { code: text.address()..text.address() + text.size(), files })
    }

    /// The file that an instruction's function stands in, by its path in this repository.
    pub fn file(&self, address: u64) -> Option<&str> {
        self.files.range(..=address).next_back()?.1.as_deref()
    }
}

/// Where the sources of each crate of this repository lie, by its name in symbols.
fn crates() -> Result<BTreeMap<String, PathBuf>> {
    let manifest = |directory: &Path| std::fs::read_to_string(directory.join("Cargo.toml"));
    let text = manifest(workspace::root())?;
    let (_, members) = text.split_once("\nmembers = [").context("a workspace without members")?;
    let members = members.split(']').next().unwrap_or_default();
    let mut crates = BTreeMap::new();
    for member in members.split('"').skip(1).step_by(2) {
        let text = manifest(&workspace::root().join(member))?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = \""));
        let name = name.with_context(|| format!("{member} has no name"))?.trim_end_matches('"');
        crates.insert(name.replace('-', "_"), Path::new(member).join("src"));
    }
    Ok(crates)
}

/// The file of a module, from its crate on: the last one on the way that there is.
fn source(crates: &BTreeMap<String, PathBuf>, modules: &[&str]) -> Option<String> {
    let (name, modules) = modules.split_first()?;
    let mut directory = crates.get(*name)?.clone();
    let there = |path: &Path| workspace::root().join(path).is_file();
    let heads = ["lib.rs", "main.rs"].map(|head| directory.join(head));
    let mut found = heads.into_iter().find(|head| there(head))?;
    for module in modules {
        directory.push(module);
        let forms = [directory.with_extension("rs"), directory.join("mod.rs")];
        let Some(file) = forms.into_iter().find(|form| there(form)) else { break };
        found = file;
    }
    Some(found.to_str()?.to_string())
}

/// The file in which a function of this name is written in assembly.
fn assembly(crates: &BTreeMap<String, PathBuf>, name: &str) -> Result<Option<String>> {
    let label = format!("\"{name}:\"");
    let mut directories: Vec<PathBuf> = crates.values().cloned().collect();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(workspace::root().join(&directory)).into_iter().flatten() {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs")
                && std::fs::read_to_string(entry.path())?.contains(&label)
            {
                return Ok(path.to_str().map(String::from));
            }
        }
    }
    Ok(None)
}

/// The crate and the modules in which the function with a mangled name is defined. What comes first in such a name,
/// inside of all that is around it, is the path of a module: `N` with a kind for each part of it, `C` and the crate,
/// and then the parts, of which those of the kind `t` are modules.
fn modules(symbol: &str) -> Option<Vec<&str>> {
    let mut rest = symbol.strip_prefix("_R")?;
    let mut kinds = Vec::new();
    loop {
        let (first, behind) = rest.split_at_checked(1)?;
        rest = behind;
        match first {
            "N" => {
                let (kind, behind) = rest.split_at_checked(1)?;
                kinds.push(kind);
                rest = behind;
            }
            // An implementation, or something generic: what is outside of it is in no further module.
            "M" | "X" => {
                rest = without_number(rest)?;
                kinds.clear();
            }
            "I" => kinds.clear(),
            "C" => break,
            _ => return None,
        }
    }
    let (name, mut rest) = identifier(rest)?;
    let mut modules = vec![name];
    for kind in kinds.into_iter().rev() {
        let (name, behind) = identifier(rest)?;
        rest = behind;
        if kind != "t" {
            break;
        }
        modules.push(name);
    }
    Some(modules)
}

/// Without the number that tells things of the same name apart: `s`, digits, `_`.
fn without_number(text: &str) -> Option<&str> {
    match text.strip_prefix('s') {
        Some(number) => Some(number.split_once('_')?.1),
        None => Some(text),
    }
}

/// The identifier that a text begins with: its length, `_` if it could be taken for part of that, its characters.
fn identifier(text: &str) -> Option<(&str, &str)> {
    let text = without_number(text)?;
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let length = text[..digits].parse().ok()?;
    let text = &text[digits..];
    text.strip_prefix('_').unwrap_or(text).split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_tells_where_its_function_stands() {
        let cases: [(&str, &[&str]); 5] = [
            ("_RNvMs_NtCs6RzcGeEL24_4roce7receiveNtB6_4Roce12handle_frame", &["roce", "receive"]),
            (
                "_RNvXs_NtCs6RzcGeEL24_4roce8providerNtB6_4RoceNtCsaHAjIrvv2dF_5verbs8Provider9post_send",
                &["roce", "provider"],
            ),
            (
                "_RINvMNtNtNtCs1SX2FGuu1gA_7storage4rnbd6server2ioNtB5_6Server7executeNtCs5j_12provider_set11ProviderSetE",
                &["storage", "rnbd", "server", "io"],
            ),
            (
                "_RNvNtNtCsiNfmTUSrzf9_8operator7console7execute8is_force",
                &["operator", "console", "execute"],
            ),
            (
                "_RNCNvMNtCs5Ef94AGtMC0_3net9interfaceNtB4_9Interface12handle_frame0B6_",
                &["net", "interface"],
            ),
        ];
        for (symbol, expected) in cases {
            assert_eq!(modules(symbol).as_deref(), Some(expected), "{symbol}");
        }
        for other in ["memmove", "_R", "_RN", "_RNvC", "_RNvCs", "_RNvCs_9short", "_RNvYNtC1a1b"] {
            assert_eq!(modules(other), None, "{other}");
        }
    }

    #[test]
    fn modules_are_files_of_this_repository() {
        let crates = crates().unwrap();
        let file = |modules: &[&str]| source(&crates, modules);
        assert_eq!(file(&["roce", "receive"]).as_deref(), Some("rdma/roce/src/receive.rs"));
        assert_eq!(file(&["roce", "responder"]).as_deref(), Some("rdma/roce/src/responder/mod.rs"));
        // A type is no module.
        assert_eq!(file(&["roce", "Roce"]).as_deref(), Some("rdma/roce/src/lib.rs"));
        assert_eq!(file(&["smoltcp", "iface"]), None);
        let copies = assembly(&crates, "isthmus_memcpy").unwrap();
        assert_eq!(copies.as_deref(), Some("drivers/src/hal/memory.rs"));
    }
}
