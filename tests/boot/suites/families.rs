//! An image without the optional families (`./isthmus build --without ntb,smc,remote,mirror,measure`): it reports
//! requests for them, and everything else works.

use anyhow::{Result, ensure};
use boot_tests::{boot, image, spec};
use launch::qemu::Nic;

/// Settings of every family, and a volume without any.
const WANTED: &str = "isthmus.smc.services=true isthmus.roce.services=true \
    isthmus.ntb.0.address=10.9.0.2 isthmus.ntb.0.peer=10.9.0.1 \
    isthmus.volume.0.name=one isthmus.volume.0.size=1MiB isthmus.export.0.name=three isthmus.export.0.volume=three \
    isthmus.volume.2.name=three isthmus.volume.2.size=1MiB \
    isthmus.volume.1.name=two isthmus.volume.1.size=1MiB \
    isthmus.mirror.0.name=both isthmus.mirror.0.members=one,two \
    isthmus.remote.0.name=far isthmus.remote.0.sessname=gw isthmus.remote.0.device_path=ram0 \
    isthmus.remote.0.path=ip:10.0.2.15@ip:10.0.2.2";

#[test]
fn left_out_families_are_reported_and_the_rest_works() -> Result<()> {
    let port = launch::qemu::free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let mut vm = boot(spec()?.nic(nic).append(WANTED))?;
    let log = vm.run("show log")?;
    for family in ["ntb", "smc", "remote", "mirror", "measure"] {
        log.contains(&format!("this image was built without {family}"))?;
    }
    vm.run("show volumes")?.contains("one")?.contains("two")?.contains("missing")?;
    vm.run("show exports")?.contains("three")?;
    vm.run("rping 10.0.2.2")?.contains("error")?.contains("built without measure")?;
    vm.run("mirror create both one two")?.contains("error")?.contains("built without mirror")?;
    vm.run("show smc")?;
    vm.run("show ntb")?;
    let server = ([127, 0, 0, 1], port).into();
    let metrics = launch::http::get(server, "/metrics")?.body;
    ensure!(metrics.contains("isthmus_build_info"), "no metrics: {metrics}");
    Ok(())
}

/// The five families together are larger than half a mebibyte.
#[test]
fn image_without_families_is_smaller() -> Result<()> {
    let bytes = std::fs::metadata(image()?)?.len();
    ensure!(bytes < 3_500_000, "{bytes} bytes");
    Ok(())
}
