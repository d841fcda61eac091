//! The programs that the launcher runs, by purpose, and how they are obtained.
//!
//! Compilers, QEMU and the tools that build guests are unpacked below `target/tools` (`launch/tools.sh`). Programs that
//! cannot run from there are installed with apt, which announces the size and never removes a package.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{command, workspace};

/// The purpose of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Compiling host programs, among them those that guests run.
    Host,
    /// Compiling and linking the image.
    Build,
    /// Booting it in QEMU.
    Run,
    /// Packing it into disk and ISO images.
    Images,
    /// The boot tests: firmware for the matrix.
    Test,
    /// Clients that speak TLS.
    Tls,
    /// Peers that speak TLS with a PSK.
    TlsPsk,
    /// Reading the appliance's captures.
    Captures,
    /// Making Linux guests: building and unpacking kernel modules.
    Guest,
    /// Machines with device models: a QEMU that supports vfio-user.
    Models,
    /// Counting instructions of host programs.
    Count,
    /// Formatting and linting the source.
    Lint,
    /// Sanitizers, and fuzzing that is guided by coverage: LLVM's runtimes.
    Sanitizers,
    /// The stock peer of usNIC: Open MPI, and the build dependencies of its `btl/usnic`.
    OpenMpi,
    /// Peers that are written in Python.
    Python,
    /// Peers from PyPI, which are installed below `target/`.
    PyPi,
    /// Name, time and log servers for the image.
    Servers,
    /// NBD servers for remote volumes.
    Nbd,
    /// Prometheus, and its tool that checks rules.
    Prometheus,
    /// Ansible, as a client of the API.
    Ansible,
    /// Linux networks between machines on this host.
    Networks,
    /// libvirt's own daemons and programs.
    Libvirt,
    /// uhyve itself, on a Linux network, where KVM works.
    Uhyve,
    /// Making a fresh Debian to test in.
    Fresh,
}

/// How the programs of a purpose are obtained.
struct Need {
    purpose: Purpose,
    /// Groups of `launch/tools.sh`, which are unpacked below `target/tools`.
    unpacked: &'static [&'static str],
    /// Debian packages that are installed.
    installed: &'static [&'static str],
}

const fn need(
    purpose: Purpose,
    unpacked: &'static [&'static str],
    installed: &'static [&'static str],
) -> Need {
    Need { purpose, unpacked, installed }
}

const NEEDS: &[Need] = &[
    need(Purpose::Host, &["c"], &[]),
    need(Purpose::Build, &["c", "link"], &[]),
    need(Purpose::Run, &["qemu"], &[]),
    need(Purpose::Images, &["images"], &["grub-common", "grub-pc-bin", "xorriso"]),
    need(Purpose::Test, &[], &["ipxe-qemu", "ovmf"]),
    need(Purpose::Tls, &[], &["curl", "openssl"]),
    need(Purpose::TlsPsk, &[], &["gnutls-bin", "openssl"]),
    need(Purpose::Captures, &[], &["tshark"]),
    need(Purpose::Guest, &["guest", "lists"], &[]),
    need(Purpose::Models, &["vfio-user"], &[]),
    need(Purpose::Count, &[], &["valgrind"]),
    need(Purpose::Lint, &["lint"], &["python3-venv"]),
    need(Purpose::Sanitizers, &["link"], &["libclang-rt-16-dev", "libstdc++-12-dev"]),
    need(
        Purpose::OpenMpi,
        &[],
        &["iproute2", "libfabric-dev", "libopenmpi-dev", "libpmix-dev", "openmpi-bin", "xz-utils"],
    ),
    need(Purpose::Python, &[], &["python3"]),
    need(Purpose::PyPi, &[], &["python3-venv"]),
    need(Purpose::Servers, &["servers"], &[]),
    need(Purpose::Nbd, &["nbd"], &[]),
    need(Purpose::Prometheus, &["prometheus"], &[]),
    need(Purpose::Ansible, &[], &["ansible-core"]),
    need(Purpose::Networks, &[], &["iproute2"]),
    need(
        Purpose::Libvirt,
        &[],
        &["bsdutils", "iproute2", "libvirt-clients", "libvirt-daemon-system"],
    ),
    need(Purpose::Uhyve, &[], &["curl", "iproute2", "iputils-ping"]),
    need(Purpose::Fresh, &[], &["debootstrap", "git", "util-linux"]),
];

/// Every purpose, for `./isthmus setup`.
pub const ALL: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Images,
    Purpose::Test,
    Purpose::Tls,
    Purpose::TlsPsk,
    Purpose::Captures,
    Purpose::Guest,
    Purpose::Models,
    Purpose::Count,
    Purpose::Lint,
    Purpose::Sanitizers,
    Purpose::OpenMpi,
    Purpose::Python,
    Purpose::PyPi,
    Purpose::Servers,
    Purpose::Nbd,
    Purpose::Prometheus,
    Purpose::Ansible,
    Purpose::Networks,
    Purpose::Libvirt,
    Purpose::Uhyve,
    Purpose::Fresh,
];

/// Set by `./isthmus --no-install`: the launcher lists missing programs and fails.
const NO_INSTALL: &str = "ISTHMUS_NO_INSTALL";

/// Obtains the missing programs for `purposes`, without questions. Fails with the packages' names if `--no-install` was
/// given, if apt would remove a package, or without root or apt.
pub fn install(purposes: &[Purpose]) -> Result<()> {
    let wanted = || NEEDS.iter().filter(|need| purposes.contains(&need.purpose));
    let only_list = std::env::var_os(NO_INSTALL).is_some();
    unpack(&sorted(wanted().map(|need| need.unpacked)), only_list)?;
    let mut missing = sorted(wanted().map(|need| need.installed));
    missing.retain(|name| !is_installed(name));
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    if only_list {
        bail!("packages are missing, and --no-install was given: {list}");
    }
    if !succeeds("apt-get", &["--version"]) {
        bail!(
            "this system has no apt-get: install the equivalents of the Debian packages {list}, and try again"
        );
    }
    let Some(sudo) = sudo() else {
        bail!(
            "packages are missing and this is not root. As root, run: apt-get install --no-remove --no-install-recommends {list}"
        );
    };
    renew_lists();
    for need in wanted() {
        let names: Vec<_> = need.installed.iter().filter(|name| missing.contains(name)).collect();
        if !names.is_empty() {
            eprintln!("installing for {:?}: {}", need.purpose, join(&names));
        }
    }
    const INSTALL: [&str; 4] = ["apt-get", "install", "--no-remove", "--no-install-recommends"];
    let mut plan = Command::new(INSTALL[0]);
    plan.args(&INSTALL[1..]).arg("--assume-no").args(&missing).env("LC_ALL", "C");
    let plan = plan.output().map(|output| output.stdout).unwrap_or_default();
    for line in String::from_utf8_lossy(&plan).lines() {
        if line.starts_with("Need to get") || line.starts_with("After this") {
            eprintln!("{line}");
        }
    }
    let mut words = vec!["env", "DEBIAN_FRONTEND=noninteractive"];
    words.extend(INSTALL);
    words.extend(["-y", "-q"]);
    command::run(as_root(sudo, &words).args(&missing)).with_context(|| {
        format!("apt-get did not install {list}; it must not remove other packages for them")
    })
}

/// Unpacks groups of programs that PATH lacks.
pub fn unpack(groups: &[&str], only_list: bool) -> Result<()> {
    if groups.is_empty() {
        return Ok(());
    }
    let mut tools = Command::new(workspace::root().join("launch/tools.sh"));
    tools.args(only_list.then_some("--no-install")).args(groups).stdin(Stdio::null());
    command::end_with_us(&mut tools);
    match tools.status().context("could not start launch/tools.sh")? {
        status if status.success() => Ok(()),
        _ if only_list => bail!("programs are missing, and --no-install was given"),
        status => {
            bail!("tools could not be unpacked: launch/tools.sh {}: {status}", groups.join(" "))
        }
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a [&'static str]>) -> Vec<&'static str> {
    let mut names: Vec<&str> = names.flatten().copied().collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn join(names: &[&&str]) -> String {
    names.iter().map(|name| **name).collect::<Vec<_>>().join(" ")
}

/// Updates apt's package lists. After a failure apt uses the old lists.
fn renew_lists() {
    let Some(sudo) = sudo() else {
        eprintln!("not root: apt's package lists are not updated");
        return;
    };
    if let Err(error) = command::run(&mut as_root(sudo, &["apt-get", "update", "-q"])) {
        eprintln!("{error}: could not update the package lists; using the old ones");
    }
}

/// The prefix that runs a command as root; `None` without root and without sudo.
fn sudo() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        Some(&[])
    } else if succeeds("sudo", &["-n", "true"]) {
        Some(&["sudo", "-n"])
    } else {
        None
    }
}

fn as_root(sudo: &[&str], words: &[&str]) -> Command {
    let mut words = sudo.iter().chain(words);
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.args(words).stdin(Stdio::null());
    command
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", package]);
    command::output(&mut query).is_ok_and(|status| status == "installed")
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    command::output(Command::new(program).args(arguments)).is_ok()
}
