//! The compiler and linker for the image: Debian's, or a rustup toolchain that has `rust-src`.
//! `./isthmus` chooses one and passes it in `RUSTC` and `CARGO`; without these variables the same order applies.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{command, workspace};

/// LLVM's limits for inlining, in its own measure. LLVM's default for speed is 275, which makes the image 7 % larger
/// and a packet cheaper by 2 % at most. Functions marked `#[inline]` are not affected.
const INLINING: &str = "-inline-threshold=75 -inlinecold-threshold=45";

/// Compiler and linker.
#[derive(Clone, Debug)]
pub struct Toolchain {
    pub rustc: PathBuf,
    pub cargo: PathBuf,
    /// LLVM's linker for ELF.
    pub linker: PathBuf,
    /// The output of `rustc --version`.
    pub version: String,
}

impl Toolchain {
    /// Finds a toolchain. The error names the package to install.
    pub fn find() -> Result<Self> {
        if let (Some(rustc), Some(cargo)) = (env::var_os("RUSTC"), env::var_os("CARGO")) {
            return Self::with(rustc.into(), cargo.into());
        }
        if let Ok(debian) = Self::with("/usr/bin/rustc".into(), "/usr/bin/cargo".into()) {
            return Ok(debian);
        }
        let Ok(sysroot) = sysroot(Path::new("rustc")) else {
            bail!("there is no Rust compiler: run ./isthmus, which installs one")
        };
        Self::with(sysroot.join("bin/rustc"), sysroot.join("bin/cargo"))
    }

    /// The toolchain that `launch/tools.sh` has unpacked.
    pub fn unpacked() -> Result<Self> {
        let programs = workspace::target().join("tools/bin");
        Self::with(programs.join("rustc"), programs.join("cargo"))
    }

    fn with(rustc: PathBuf, cargo: PathBuf) -> Result<Self> {
        let sysroot = sysroot(&rustc)?;
        if !sysroot.join("lib/rustlib/src/rust/library/std").is_dir() {
            bail!(
                "{} has no source of the standard library: install rust-web-src (Debian) \
                 or the component rust-src (rustup)",
                rustc.display()
            );
        }
        let version = command::output(Command::new(&rustc).arg("--version"))?.trim().to_string();
        Ok(Toolchain { linker: linker(&sysroot)?, rustc, cargo, version })
    }

    /// A cargo command for crates of the image. It may use the unstable features of build-std, and its output
    /// contains no paths of this machine.
    pub fn cargo(&self) -> Command {
        self.cargo_with(&[])
    }

    /// The same, with more compiler options for code that is built for the target.
    pub fn cargo_with(&self, options: &[&str]) -> Command {
        let mut cargo = Command::new(&self.cargo);
        cargo.env("RUSTC", &self.rustc).env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
        let mut flags = self.remaps();
        flags.push(format!("-Cllvm-args={INLINING}"));
        // One implementation of the curve is enough for an occasional handshake, and saves 20 KB.
        flags.push("--cfg=curve25519_dalek_backend=\"serial\"".into());
        flags.extend(options.iter().map(ToString::to_string));
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        cargo
    }

    /// Options of the compiler that replace paths of this machine by fixed names. The last option that matches a
    /// path applies.
    fn remaps(&self) -> Vec<String> {
        let mut places = vec![(workspace::root().to_path_buf(), "/isthmus".to_string())];
        places.push((workspace::target(), "/isthmus/target".into()));
        if let Ok(sysroot) = sysroot(&self.rustc) {
            places.push((sysroot.join("lib/rustlib/src/rust"), "/rust".into()));
        }
        let home = env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
        let registry = home.map(|home| home.join("registry/src"));
        for index in registry.iter().flat_map(fs::read_dir).flatten().flatten() {
            places.push((index.path(), "/crates".into()));
        }
        let option =
            |(from, to): (PathBuf, String)| format!("--remap-path-prefix={}={to}", from.display());
        places.into_iter().map(option).collect()
    }
}

fn sysroot(rustc: &Path) -> Result<PathBuf> {
    Ok(command::output(Command::new(rustc).args(["--print", "sysroot"]))?.trim().into())
}

/// rustup ships LLVM's linker with the compiler; Debian has it in the package lld, which may be unpacked.
fn linker(sysroot: &Path) -> Result<PathBuf> {
    let shipped = sysroot.join("lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld/ld.lld");
    if shipped.exists() {
        return Ok(shipped);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found =
        env::split_paths(&path).map(|place| place.join("ld.lld")).find(|path| path.exists());
    found.context(
        "there is no LLVM linker: run ./isthmus, which unpacks one, or install the package lld",
    )
}
