//! Selects and downloads the Debian packages of a guest.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{command, workspace};

/// The kernel series of the guests, of which apt's newest release is used. Bookworm's own 6.1 is not usable as a
/// peer: its SMC-R hangs.
const SERIES: &str = "6.12";

/// The tools. Their dependencies are added.
const TOOLS: &[&str] = &[
    "busybox-static",
    "dash",
    "e2fsprogs",
    "ethtool",
    "fio",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "nvme-cli",
    "perftest",
    "qperf",
    "rdmacm-utils",
    "util-linux",
];

/// A Debian kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// `6.12.117+deb12-amd64`
    pub release: String,
    /// `6.12.117-1~deb12u1`
    pub version: String,
}

/// The inputs of the selection, for the cache.
pub fn recipe() -> String {
    TOOLS.join(" ")
}

/// The newest kernel of the series that apt knows.
pub fn newest_kernel() -> Result<Kernel> {
    kernel_in(&format!("linux-image-{SERIES}-amd64"))
}

/// Bookworm's own kernel, of an older series.
pub fn older_kernel() -> Result<Kernel> {
    kernel_in("linux-image-amd64")
}

fn kernel_in(metapackage: &str) -> Result<Kernel> {
    let depends = field(metapackage, "Depends").with_context(|| {
        format!("apt has no {metapackage}: the guests need Debian 12 with its security archive")
    })?;
    kernel_of(&depends).with_context(|| format!("{metapackage} depends on {depends:?}"))
}

/// Reads `linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1)`.
fn kernel_of(depends: &str) -> Option<Kernel> {
    let (package, version) = depends.split(", ").find_map(|one| one.split_once(" (= "))?;
    let release = package.strip_prefix("linux-image-")?;
    Some(Kernel { release: release.into(), version: version.strip_suffix(')')?.into() })
}

/// A field of the newest version of a package.
fn field(package: &str, name: &str) -> Result<String> {
    let record = command::output(apt("apt-cache").args(["show", "--no-all-versions", package]))?;
    let value = record.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    Ok(value.with_context(|| format!("{package} has no field {name}"))?.to_string())
}

/// Downloads the kernel, and the tools with their dependencies; if `builds` is set, also the kernel's headers and
/// source.
pub fn download(kernel: &Kernel, builds: bool, directory: &Path) -> Result<()> {
    let mut wanted = if builds { kernel_packages(kernel)? } else { vec![image(kernel)] };
    wanted.extend(closure(TOOLS)?);
    apt_download(&wanted, directory)
}

/// Downloads packages with their dependencies.
pub fn fetch(names: &[&str], directory: &Path) -> Result<()> {
    apt_download(&closure(names)?, directory)
}

/// Downloads packages with their dependencies, and the package `one` without its own.
pub fn fetch_beside(one: &str, names: &[&str], directory: &Path) -> Result<()> {
    let mut wanted = closure(names)?;
    wanted.push(one.into());
    apt_download(&wanted, directory)
}

/// The package with a kernel and its modules, in apt's notation.
pub fn image(kernel: &Kernel) -> String {
    format!("linux-image-{}={}", kernel.release, kernel.version)
}

fn apt_download(wanted: &[String], directory: &Path) -> Result<()> {
    let mut download = apt("apt-get");
    download.current_dir(directory).args(["download", "-q"]).args(wanted);
    command::run_quietly("downloading the guest's packages", &mut download)
}

/// Unpacks the packages in a directory.
pub fn unpack(downloads: &Path, sysroot: &Path) -> Result<()> {
    let script =
        r#"for package in "$0"/*.deb; do echo $package; dpkg-deb -x $package . || exit 1; done"#;
    let mut sh = Command::new("sh");
    sh.current_dir(sysroot).args(["-c", script]).arg(downloads);
    command::run_quietly("unpacking the guest's packages", &mut sh)
}

/// The packages of one kernel version: modules only load into the kernel that they were built for.
fn kernel_packages(kernel: &Kernel) -> Result<Vec<String>> {
    let Kernel { release, version } = kernel;
    let headers = format!("linux-headers-{release}");
    let depends = field(&headers, "Depends")?;
    let names = depends.split([',', '|']).filter_map(|one| one.split_whitespace().next());
    let parts = names
        .filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"));
    let mut packages: Vec<String> = parts.map(|name| format!("{name}={version}")).collect();
    if packages.len() < 2 {
        bail!("{headers} depends on {depends:?}: neither its common part nor linux-kbuild");
    }
    packages.push(format!("{headers}={version}"));
    packages.push(image(kernel));
    packages.push(format!("linux-source-{SERIES}={version}"));
    Ok(packages)
}

/// The packages and everything that they depend on, as apt would install them on a system without any.
fn closure(packages: &[&str]) -> Result<Vec<String>> {
    let mut ask = apt("apt-get");
    ask.args(["install", "--simulate", "-q"]).args(packages);
    let answer = command::output(&mut ask)?;
    let names: Vec<String> = answer.lines().filter_map(installed).collect();
    if names.is_empty() {
        bail!("apt would install nothing for {}", packages.join(" "));
    }
    Ok(names)
}

/// Reads `Inst busybox-static (1:1.35.0-4+b7 Debian:12.13/oldstable [amd64])`.
fn installed(line: &str) -> Option<String> {
    let (name, version) = line.strip_prefix("Inst ")?.split_once(" (")?;
    Some(format!("{name}={}", version.split(' ').next()?))
}

/// A command of apt that uses the package lists of `target/tools`, which `launch/tools.sh` fetches.
fn apt(program: &str) -> Command {
    let mut apt = Command::new(program);
    apt.env("APT_CONFIG", workspace::target().join("tools/apt/apt.conf"));
    apt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_read_from_the_metapackage() {
        let kernel = kernel_of("linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1)").unwrap();
        assert_eq!(kernel.release, "6.12.117+deb12-amd64");
        assert_eq!(kernel.version, "6.12.117-1~deb12u1");
        assert_eq!(kernel_of("linux-image-amd64"), None);
    }

    #[test]
    fn a_simulated_installation_names_packages_and_versions() {
        let line = "Inst busybox-static (1:1.35.0-4+b7 Debian:12.13/oldstable [amd64]) []";
        assert_eq!(installed(line).as_deref(), Some("busybox-static=1:1.35.0-4+b7"));
        assert_eq!(installed("Conf busybox-static (1:1.35.0-4+b7)"), None);
    }
}
