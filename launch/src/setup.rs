//! Programs that the launcher runs, by what they are needed for, and how they get onto the machine.
//!
//! Compilers, QEMU and what guests are built with are unpacked below `target/tools` (`launch/tools.sh`). The rest, which
//! does not run from another place, is installed with apt: announced with its size, and never at the price of a package
//! that is there.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{command, workspace};

/// What packages are needed for.
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
    /// Looking at what the appliance captures.
    Captures,
    /// Making Linux guests: building kernel modules, unpacking others.
    Guest,
    /// Machines with device models: unpacking a QEMU that can have them.
    Models,
    /// Counting instructions of host programs.
    Count,
    /// Formatting and linting the source.
    Lint,
    /// Sanitizers, and fuzzing that is guided by coverage: LLVM's runtimes.
    Sanitizers,
    /// The stock peer of usNIC: Open MPI, and what its `btl/usnic` is built with.
    OpenMpi,
    /// Peers that are written in Python.
    Python,
    /// Networks of Linux's own between machines here.
    Networks,
    /// libvirt's own daemons and programs.
    Libvirt,
    /// uhyve itself, on a network of Linux's own, where KVM works.
    Uhyve,
    /// Making a fresh Debian to test in.
    Fresh,
}

/// How the programs of a purpose are had.
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
    Purpose::Captures,
    Purpose::Guest,
    Purpose::Models,
    Purpose::Count,
    Purpose::Lint,
    Purpose::Sanitizers,
    Purpose::OpenMpi,
    Purpose::Python,
    Purpose::Networks,
    Purpose::Libvirt,
    Purpose::Uhyve,
    Purpose::Fresh,
];

/// Set by `./isthmus --no-install`: what is missing is listed, and the command ends.
const NO_INSTALL: &str = "ISTHMUS_NO_INSTALL";

/// Brings the programs for `purposes` onto the machine where they are missing. Asks nothing. Fails with the packages'
/// names when `--no-install` was given, when apt would have to remove a package, or without root or apt.
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
        bail!("this system has no apt-get: install what Debian calls {list}, and try again");
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
            eprintln!("to be installed, for {:?}: {}", need.purpose, join(&names));
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
        format!(
            "apt-get did not install {list}; packages of this machine are never removed for them"
        )
    })
}

/// Unpacks groups of programs that are in no directory of PATH.
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

/// Renews apt's package lists. Where that fails the old ones have to do.
fn renew_lists() {
    let Some(sudo) = sudo() else {
        eprintln!("this is not root: apt's package lists are left as they are");
        return;
    };
    if let Err(error) = command::run(&mut as_root(sudo, &["apt-get", "update", "-q"])) {
        eprintln!("{error}: the package lists could not be renewed; going on with the old ones");
    }
}

/// What to put in front of a command for it to run as root; none where that cannot be.
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
