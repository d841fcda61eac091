//! The test suites: the tests of each, its tier, its needs, and the programs that are installed for it.

use super::short;
use crate::build::families::BARE;
use crate::setup::Purpose;

/// A set of cases that cargo runs.
pub(super) struct Suite {
    pub name: &'static str,
    /// Its test target, whose name is unique in the workspace; `None` for the unit tests of every crate.
    pub target: Option<&'static str>,
    /// Whether its cases are those of the target's module with the suite's name.
    pub module: bool,
    /// The suite whose cases it runs on machines without virtio devices.
    pub of: Option<&'static str>,
    pub needs: Needs,
    /// The purposes of all host programs that it runs.
    pub uses: &'static [Purpose],
    pub tier: Tier,
    /// Seconds of all its cases on two otherwise idle processors, without building.
    pub seconds: u32,
    /// A family that the usual image lacks, or [`BARE`]: these cases boot an image of their own.
    pub family: Option<&'static str>,
}

/// When a suite runs. A suite that is named on the command line runs completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// With every `./isthmus test`.
    Short,
    /// Its cases in [`short::CASES`] with every `./isthmus test`, all with `--full`, and in CI in turns.
    Long,
    /// With `--soak` alone.
    Soak,
}

impl Tier {
    /// Its name in docs/test.md.
    pub(super) fn name(self) -> &'static str {
        ["short", "long", "soak"][self as usize]
    }
}

impl Suite {
    /// The cases that the short tier runs: all for `None`, none for an empty list.
    pub(super) fn short_cases(&self) -> Option<&'static [&'static str]> {
        let choice = short::CASES.iter().find(|(name, _)| *name == self.name);
        match (choice, self.tier) {
            (Some((_, cases)), _) => Some(cases),
            (None, Tier::Short) => None,
            (None, _) => Some(&[]),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Needs {
    Nothing,
    Image,
    /// The unpacked QEMU, which has devices that the host's may lack.
    Qemu,
    /// The image and the unpacked QEMU.
    ImageAndQemu,
    /// The image and its disk and ISO formats.
    Formats,
    /// Linux guests.
    Guests,
    /// The image and Linux guests.
    ImageAndGuests,
    /// Linux guests with device models.
    Models,
    /// The image and Linux guests with device models.
    ImageAndModels,
    /// The image, the image for uhyve, and device models.
    Uhyve,
}

impl Needs {
    pub(super) fn image(self) -> bool {
        use Needs::{Formats, Image, ImageAndGuests, ImageAndModels, ImageAndQemu, Uhyve};
        matches!(self, Image | ImageAndQemu | Formats | ImageAndGuests | ImageAndModels | Uhyve)
    }

    pub(super) fn unpacked_qemu(self) -> bool {
        matches!(self, Needs::Qemu | Needs::ImageAndQemu) || self.models()
    }

    pub(super) fn guests(self) -> bool {
        use Needs::{Guests, ImageAndGuests, ImageAndModels, Models};
        matches!(self, Guests | ImageAndGuests | Models | ImageAndModels)
    }

    pub(super) fn models(self) -> bool {
        matches!(self, Needs::Models | Needs::ImageAndModels | Needs::Uhyve)
    }
}

/// Open MPI's own usNIC as a peer, and tshark.
const OPEN_MPI: &[Purpose] = &[Purpose::Host, Purpose::OpenMpi, Purpose::Captures];
/// The image, in QEMU, and Open MPI's own usNIC as its peer.
const OPEN_MPI_AND_IMAGE: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::OpenMpi,
    Purpose::Captures,
    Purpose::Python,
];
/// A peer in Python, and tshark, which dissects the traffic.
const DISSECTED: &[Purpose] = &[Purpose::Host, Purpose::Python, Purpose::Captures];
/// The image, and a peer in Python.
const BOOT_PYTHON: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Python];
/// The image, in QEMU, and programs from PyPI, which are installed below `target/`.
const API_USED: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::PyPi];
/// A suite that is only compiled and run.
const HOST: &[Purpose] = &[Purpose::Host];
/// A suite with sanitizers or libFuzzer.
pub(super) const SANITIZED: &[Purpose] = &[Purpose::Host, Purpose::Sanitizers];
/// The image, in QEMU.
const BOOT: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run];
/// The image, in a QEMU with devices that the host's may lack.
const BOOT_MODELS: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Models];
/// The image, under libvirt.
const BOOT_LIBVIRT: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Libvirt];
/// The image for uhyve, on a model of uhyve, and in uhyve itself where KVM works.
const UHYVE_USED: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Models, Purpose::Uhyve];
/// Drivers in process, on QEMU's devices.
const QTEST: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Models];
/// The image, in QEMU, and clients that speak TLS.
const TLS_USED: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Tls];
/// The image, in QEMU, and Debian's name, time and log servers.
const SERVERS_USED: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Servers, Purpose::Tls];
/// Peers that speak TLS with a PSK, on the loopback interface.
const PSK_PEERS: &[Purpose] = &[Purpose::Host, Purpose::TlsPsk];
/// The image, in QEMU, and Prometheus' `promtool`.
const PROMTOOL: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Prometheus];
/// The image and its disk, in QEMU, Ansible and Prometheus.
const FLEET_USED: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Images,
    Purpose::Test,
    Purpose::Ansible,
    Purpose::Prometheus,
];
/// NBD servers, on the loopback interface.
const NBD_SERVERS: &[Purpose] = &[Purpose::Host, Purpose::Nbd];
/// The image, in QEMU, and NBD servers.
const NBD_AND_IMAGE: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Nbd];
/// The image in all formats, under all firmware.
const FORMATS_USED: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Images, Purpose::Test];
/// The image in all formats, under all firmware, and a QEMU with devices that the host's may lack.
const FORMATS_AND_MODELS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Images, Purpose::Test, Purpose::Models];
/// Linux guests, for which programs are compiled here.
const GUESTS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest];
/// Linux guests with device models, in the unpacked QEMU.
const MODELS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest, Purpose::Models];
/// The image, and Linux guests with device models.
const IMAGE_AND_MODELS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Models];
/// The image, Linux guests with device models, and Open MPI's own usNIC.
const ENIC_USED: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Guest,
    Purpose::Models,
    Purpose::OpenMpi,
];
/// The image, Linux guests with device models, and tshark, which reads captures.
const MODELS_AND_CAPTURES: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Guest,
    Purpose::Models,
    Purpose::Captures,
];
/// The image and Linux guests.
const INTEROP: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest];
/// The image, Linux guests, and Open MPI's own usNIC.
const OPEN_MPI_AND_GUESTS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::OpenMpi];
/// The image, Linux guests, and `./isthmus run` on a Linux network.
const STORAGE: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Networks];
/// The image, Linux guests, and tshark, which reads the image's captures.
const CAPTURES: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Captures];

pub(super) const SUITES: &[Suite] = &[
    Suite { target: None, ..host_suite("unit", 60) },
    Suite { tier: Tier::Long, ..host_suite("sim", 180) },
    host_suite("fuzz", 15),
    Suite { uses: SANITIZED, tier: Tier::Long, ..host_suite("guided", 300) },
    Suite { uses: SANITIZED, tier: Tier::Long, ..host_suite("races", 60) },
    Suite { tier: Tier::Long, ..host_suite("new_key", 240) },
    Suite { target: Some("usnic"), uses: OPEN_MPI, tier: Tier::Long, ..host_suite("usnic", 200) },
    Suite {
        target: Some("usnic_image"),
        needs: Needs::Image,
        uses: OPEN_MPI_AND_IMAGE,
        tier: Tier::Long,
        ..host_suite("usnic_image", 300)
    },
    Suite { target: Some("linx"), uses: DISSECTED, ..host_suite("linx", 60) },
    Suite { uses: PSK_PEERS, ..host_suite("tls_psk", 30) },
    Suite { uses: NBD_SERVERS, tier: Tier::Long, ..host_suite("nbd", 60) },
    Suite { target: Some("qtest"), needs: Needs::Qemu, uses: QTEST, ..host_suite("qtest", 20) },
    boot_suite("boot", 60),
    Suite { needs: Needs::Uhyve, uses: UHYVE_USED, tier: Tier::Long, ..boot_suite("uhyve", 30) },
    boot_suite("console", 40),
    Suite {
        needs: Needs::Formats,
        uses: FORMATS_USED,
        tier: Tier::Long,
        ..boot_suite("consoles", 60)
    },
    Suite {
        needs: Needs::Formats,
        uses: FORMATS_AND_MODELS,
        tier: Tier::Long,
        ..boot_suite("platform", 60)
    },
    Suite { tier: Tier::Long, ..boot_suite("processors", 60) },
    boot_suite("net", 140),
    boot_suite("cores", 30),
    boot_suite("config", 40),
    boot_suite("provisioning", 50),
    boot_suite("lifecycle", 70),
    boot_suite("host_tools", 40),
    Suite { uses: PROMTOOL, tier: Tier::Long, ..boot_suite("monitoring", 30) },
    Suite { needs: Needs::Formats, uses: FLEET_USED, tier: Tier::Long, ..boot_suite("fleet", 600) },
    Suite { tier: Tier::Long, uses: API_USED, ..boot_suite("recipes", 30) },
    Suite { tier: Tier::Long, uses: API_USED, ..boot_suite("schemathesis", 240) },
    Suite { uses: TLS_USED, ..boot_suite("tls", 60) },
    Suite { uses: SERVERS_USED, ..boot_suite("names", 60) },
    Suite { uses: NBD_AND_IMAGE, tier: Tier::Long, ..boot_suite("nbd_image", 90) },
    boot_suite("disk", 40),
    boot_suite("nvme", 60),
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("ahci", 60) },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("pvscsi", 60) },
    Suite { needs: Needs::ImageAndQemu, uses: BOOT_MODELS, ..boot_suite("nics", 45) },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, tier: Tier::Long, ..boot_suite("save", 90) },
    Suite {
        needs: Needs::Formats,
        uses: FORMATS_USED,
        tier: Tier::Long,
        ..boot_suite("netboot", 90)
    },
    Suite {
        needs: Needs::Formats,
        uses: FORMATS_USED,
        tier: Tier::Long,
        ..boot_suite("upgrade", 240)
    },
    boot_suite("volumes", 60),
    metal_suite("boot_metal", boot_suite("boot", 60)),
    metal_suite("net_metal", boot_suite("net", 140)),
    metal_suite("disk_metal", boot_suite("disk", 40)),
    metal_suite("volumes_metal", boot_suite("volumes", 60)),
    metal_suite(
        "save_metal",
        Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("save", 90) },
    ),
    metal_suite("storage_metal", Suite { uses: STORAGE, ..interop_suite("storage", 240) }),
    Suite { tier: Tier::Long, ..boot_suite("ntb", 150) },
    Suite { uses: BOOT_PYTHON, ..boot_suite("linx_tcp", 20) },
    Suite {
        target: Some("matrix"),
        module: false,
        needs: Needs::Formats,
        uses: FORMATS_USED,
        tier: Tier::Long,
        ..boot_suite("matrix", 120)
    },
    Suite { tier: Tier::Long, uses: BOOT_LIBVIRT, ..boot_suite("libvirt", 60) },
    Suite { tier: Tier::Long, family: Some(BARE), ..boot_suite("families", 20) },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("lab_selftest", 60) },
    Suite { needs: Needs::Models, uses: MODELS, ..interop_suite("models", 60) },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..interop_suite("ntb_hw", 300) },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        ..interop_suite("ntb_netdev", 240)
    },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        ..interop_suite("ntb_bridges", 420)
    },
    Suite { needs: Needs::ImageAndModels, uses: ENIC_USED, ..interop_suite("enic", 120) },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..interop_suite("ixgbe", 300) },
    Suite {
        needs: Needs::ImageAndModels,
        uses: MODELS_AND_CAPTURES,
        ..interop_suite("rapidio", 420)
    },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        family: Some("mlx5"),
        ..interop_suite("mlx5", 900)
    },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        ..interop_suite("passthrough", 420)
    },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("inprocess", 150) },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("rnbd_faults", 300) },
    interop_suite("smc", 150),
    Suite { needs: Needs::Image, uses: CAPTURES, ..interop_suite("smc_version1", 30) },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("smc_faults", 240) },
    interop_suite("smc_scenarios", 840),
    interop_suite("smc_links", 150),
    interop_suite("smc_hostile", 240),
    interop_suite("relay", 120),
    interop_suite("messaging", 180),
    interop_suite("nvmeof", 420),
    interop_suite("nvme_remote", 180),
    Suite { tier: Tier::Soak, ..interop_suite("smc_scale", 900) },
    Suite { uses: OPEN_MPI_AND_GUESTS, ..interop_suite("usnic_guests", 240) },
    interop_suite("perf_tools", 420),
    interop_suite("perf", 60),
    interop_suite("perf_lossy", 420),
    Suite { uses: CAPTURES, ..interop_suite("captures", 60) },
    interop_suite("roce_hostile", 240),
    Suite { uses: STORAGE, ..interop_suite("storage", 240) },
    interop_suite("storage_cores", 150),
    interop_suite("power_cuts", 180),
    interop_suite("paths", 240),
    interop_suite("remote", 60),
    interop_suite("remote_faults", 600),
    interop_suite("remote_mirror", 900),
    interop_suite("ntb_chain", 240),
    interop_suite("rnbd_soak", 900),
    interop_suite("rtrs_hostile", 300),
];

/// Suites that provoke faults, which needs an image with fault injection.
pub(super) const PROVOKE: &[&str] = &["boot", "boot_metal", "cores", "ntb", "smc"];

/// Cases that the soak tier runs of suites of the long tier. `ISTHMUS_FULL` makes them take more than ten minutes.
pub(super) const SOAK: &[(&str, &str)] = &[
    ("mlx5", "volume_is_mapped_again_after_a_reboot"),
    ("power_cuts", "durable_writes_survive_power_cuts"),
];

/// Defaults of environment variables for cases without virtio devices.
pub(super) const METAL: &[(&str, &str)] = &[("ISTHMUS_NIC", "e1000e"), ("ISTHMUS_DISK", "nvme")];

/// The image's formats, and the environment variables with their paths.
pub(super) const FORMATS: &[(&str, &str)] = &[
    ("ISTHMUS_ISO", "iso"),
    ("ISTHMUS_RAW", "raw"),
    ("ISTHMUS_QCOW2", "qcow2"),
    ("ISTHMUS_PXE", "pxe"),
];

const fn host_suite(name: &'static str, seconds: u32) -> Suite {
    Suite {
        name,
        target: Some(name),
        module: false,
        of: None,
        needs: Needs::Nothing,
        uses: HOST,
        tier: Tier::Short,
        seconds,
        family: None,
    }
}

const fn boot_suite(name: &'static str, seconds: u32) -> Suite {
    let target = Some("boot");
    Suite { target, module: true, needs: Needs::Image, uses: BOOT, ..host_suite(name, seconds) }
}

/// Cases with Linux guests take minutes, so the short tier runs only some of them.
const fn interop_suite(name: &'static str, seconds: u32) -> Suite {
    let (target, needs, tier) = (Some("interop"), Needs::ImageAndGuests, Tier::Long);
    Suite { target, module: true, needs, uses: INTEROP, tier, ..host_suite(name, seconds) }
}

/// The cases of a suite on machines with `e1000e` and `nvme`; `ISTHMUS_NIC` may name another network interface.
const fn metal_suite(name: &'static str, of: Suite) -> Suite {
    Suite { name, of: Some(of.name), tier: Tier::Long, ..of }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_compiles_with_what_it_installs() {
        for suite in SUITES {
            assert!(suite.uses.contains(&Purpose::Host), "{}", suite.name);
            if suite.needs.image() {
                assert!(suite.uses.contains(&Purpose::Build), "{}", suite.name);
            }
            if suite.needs.guests() {
                assert!(suite.uses.contains(&Purpose::Guest), "{}", suite.name);
            }
        }
    }

    #[test]
    fn short_tier_names_existing_suites() {
        for (name, cases) in short::CASES {
            assert!(SUITES.iter().any(|suite| suite.name == *name), "{name}");
            assert!(!cases.is_empty(), "{name}");
        }
    }

    #[test]
    fn the_manual_has_every_suite_with_its_tier_and_minutes() {
        let page = std::fs::read_to_string(crate::workspace::root().join("docs/test.md")).unwrap();
        for suite in SUITES {
            let minutes = suite.seconds.div_ceil(60);
            let row = format!("| `{}` | {} | {minutes} |", suite.name, suite.tier.name());
            assert!(page.contains(&row), "docs/test.md has no row that begins {row}");
        }
    }
}
