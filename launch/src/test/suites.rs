//! The suites: what each runs, what it needs, and what is installed for it.

use images::Format;

use crate::build::families::BARE;
use crate::setup::Purpose;

/// A set of cases that cargo runs.
pub(super) struct Suite {
    pub name: &'static str,
    /// Its test target, of which no two in the workspace have the same name; none for the unit tests of every crate.
    pub target: Option<&'static str>,
    /// Its cases are those of the target's module that has the suite's name.
    pub module: bool,
    /// Its cases are those of this suite, on machines without anything of virtio's.
    pub of: Option<&'static str>,
    pub needs: Needs,
    /// What has to be installed for it: every program of the host's that it runs is in one of these.
    pub uses: &'static [Purpose],
    /// Minutes of waiting for Linux's timers, or of measuring tools: run when named, or with `--full`.
    pub long: bool,
    /// A family that the usual image has not, or [`BARE`]: these cases boot one of their own.
    pub family: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Needs {
    Nothing,
    Image,
    /// The QEMU that is unpacked for what the host's may not have.
    Qemu,
    /// That, and the image.
    ImageAndQemu,
    /// The image and its disk and ISO formats.
    Formats,
    /// Linux guests.
    Guests,
    /// The image and Linux guests.
    ImageAndGuests,
    /// Linux guests with device models.
    Models,
    /// Likewise, and the image.
    ImageAndModels,
    /// The image, that for uhyve, and device models.
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
/// A peer in Python, and tshark, which reads what is said.
const DISSECTED: &[Purpose] = &[Purpose::Host, Purpose::Python, Purpose::Captures];
/// The image, and a peer in Python.
const BOOT_PYTHON: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Python];
/// What compiling a suite takes.
const HOST: &[Purpose] = &[Purpose::Host];
/// Sanitizers and libFuzzer as well.
pub(super) const SANITIZED: &[Purpose] = &[Purpose::Host, Purpose::Sanitizers];
/// The image, in QEMU.
const BOOT: &[Purpose] = &[Purpose::Host, Purpose::Build, Purpose::Run];
/// Likewise, in a QEMU that has devices which the host's may not have.
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
/// The image in all formats, under all firmware.
const FORMATS_USED: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Images, Purpose::Test];
/// Likewise, and a QEMU with devices that the host's may not have.
const FORMATS_AND_MODELS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Images, Purpose::Test, Purpose::Models];
/// Linux guests, for which programs are compiled here.
const GUESTS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest];
/// Linux guests with device models, in a QEMU that can show them.
const MODELS: &[Purpose] = &[Purpose::Host, Purpose::Run, Purpose::Guest, Purpose::Models];
/// Likewise, and the image.
const IMAGE_AND_MODELS: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Models];
/// Likewise, and Open MPI's own usNIC.
const ENIC_USED: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Guest,
    Purpose::Models,
    Purpose::OpenMpi,
];
/// Likewise, and what is captured is read with tshark.
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
/// The image, Linux guests, and `./isthmus run` on a network of Linux's own.
const STORAGE: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Networks];
/// What the image captured is read with tshark.
const CAPTURES: &[Purpose] =
    &[Purpose::Host, Purpose::Build, Purpose::Run, Purpose::Guest, Purpose::Captures];

pub(super) const SUITES: &[Suite] = &[
    Suite { target: None, uses: SANITIZED, ..host_suite("unit") },
    host_suite("sim"),
    Suite { uses: SANITIZED, ..host_suite("fuzz") },
    Suite { target: Some("usnic"), uses: OPEN_MPI, ..host_suite("usnic") },
    Suite {
        target: Some("usnic_image"),
        needs: Needs::Image,
        uses: OPEN_MPI_AND_IMAGE,
        ..host_suite("usnic_image")
    },
    Suite { target: Some("linx"), uses: DISSECTED, ..host_suite("linx") },
    Suite { target: Some("qtest"), needs: Needs::Qemu, uses: QTEST, ..host_suite("qtest") },
    boot_suite("boot"),
    Suite { needs: Needs::Uhyve, uses: UHYVE_USED, ..boot_suite("uhyve") },
    boot_suite("console"),
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("consoles") },
    Suite { needs: Needs::Formats, uses: FORMATS_AND_MODELS, ..boot_suite("platform") },
    boot_suite("net"),
    boot_suite("cores"),
    boot_suite("config"),
    Suite { uses: TLS_USED, ..boot_suite("tls") },
    boot_suite("disk"),
    boot_suite("nvme"),
    Suite { needs: Needs::ImageAndQemu, uses: BOOT_MODELS, ..boot_suite("nics") },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("save") },
    Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("netboot") },
    Suite { long: true, needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("upgrade") },
    boot_suite("volumes"),
    metal_suite("boot_metal", boot_suite("boot")),
    metal_suite("net_metal", boot_suite("net")),
    metal_suite("disk_metal", boot_suite("disk")),
    metal_suite("volumes_metal", boot_suite("volumes")),
    metal_suite(
        "save_metal",
        Suite { needs: Needs::Formats, uses: FORMATS_USED, ..boot_suite("save") },
    ),
    metal_suite("storage_metal", Suite { uses: STORAGE, ..interop_suite("storage") }),
    boot_suite("ntb"),
    Suite { uses: BOOT_PYTHON, ..boot_suite("linx_tcp") },
    Suite {
        target: Some("matrix"),
        module: false,
        needs: Needs::Formats,
        uses: FORMATS_USED,
        ..boot_suite("matrix")
    },
    Suite { long: true, uses: BOOT_LIBVIRT, ..boot_suite("libvirt") },
    Suite { long: true, family: Some(BARE), ..boot_suite("families") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("lab_selftest") },
    Suite { needs: Needs::Models, uses: MODELS, ..interop_suite("models") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ntb_hw") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ntb_netdev") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ntb_bridges") },
    Suite { needs: Needs::ImageAndModels, uses: ENIC_USED, ..interop_suite("enic") },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("ixgbe") },
    Suite { needs: Needs::ImageAndModels, uses: MODELS_AND_CAPTURES, ..long_suite("rapidio") },
    Suite {
        needs: Needs::ImageAndModels,
        uses: IMAGE_AND_MODELS,
        family: Some("mlx5"),
        ..long_suite("mlx5")
    },
    Suite { needs: Needs::ImageAndModels, uses: IMAGE_AND_MODELS, ..long_suite("passthrough") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..interop_suite("inprocess") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..long_suite("rnbd_faults") },
    interop_suite("smc"),
    Suite { needs: Needs::Image, uses: CAPTURES, ..interop_suite("smc_version1") },
    Suite { needs: Needs::Guests, uses: GUESTS, ..long_suite("smc_faults") },
    long_suite("smc_scenarios"),
    long_suite("smc_links"),
    long_suite("smc_hostile"),
    long_suite("relay"),
    long_suite("messaging"),
    long_suite("smc_scale"),
    Suite { uses: OPEN_MPI_AND_GUESTS, ..long_suite("usnic_guests") },
    long_suite("perf_tools"),
    interop_suite("perf"),
    long_suite("perf_lossy"),
    Suite { uses: CAPTURES, ..long_suite("captures") },
    long_suite("roce_hostile"),
    Suite { uses: STORAGE, ..interop_suite("storage") },
    interop_suite("storage_cores"),
    long_suite("power_cuts"),
    long_suite("paths"),
    interop_suite("remote"),
    long_suite("remote_faults"),
    long_suite("remote_mirror"),
    long_suite("ntb_chain"),
    long_suite("rnbd_soak"),
    long_suite("rtrs_hostile"),
];

/// Suites that provoke faults, which takes an image of their own.
pub(super) const PROVOKE: &[&str] = &["boot", "boot_metal", "cores", "ntb", "smc"];

/// What the environment of cases says that run without virtio, unless it says something already.
pub(super) const METAL: &[(&str, &str)] = &[("ISTHMUS_NIC", "e1000e"), ("ISTHMUS_DISK", "nvme")];

/// The image's formats, and the environment variables that tell the tests where they are.
pub(super) const FORMATS: &[(&str, Format)] = &[
    ("ISTHMUS_ISO", Format::Iso),
    ("ISTHMUS_RAW", Format::Raw),
    ("ISTHMUS_QCOW2", Format::Qcow2),
    ("ISTHMUS_PXE", Format::Pxe),
];

const fn host_suite(name: &'static str) -> Suite {
    Suite {
        name,
        target: Some(name),
        module: false,
        of: None,
        needs: Needs::Nothing,
        uses: HOST,
        long: false,
        family: None,
    }
}

const fn boot_suite(name: &'static str) -> Suite {
    let target = Some("boot");
    Suite { target, module: true, needs: Needs::Image, uses: BOOT, ..host_suite(name) }
}

const fn interop_suite(name: &'static str) -> Suite {
    let (target, needs) = (Some("interop"), Needs::ImageAndGuests);
    Suite { target, module: true, needs, uses: INTEROP, ..host_suite(name) }
}

/// The cases of a suite on machines with `e1000e` and `nvme`; `ISTHMUS_NIC` may name another network interface.
const fn metal_suite(name: &'static str, of: Suite) -> Suite {
    Suite { name, of: Some(of.name), long: true, ..of }
}

const fn long_suite(name: &'static str) -> Suite {
    Suite { long: true, ..interop_suite(name) }
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
}
