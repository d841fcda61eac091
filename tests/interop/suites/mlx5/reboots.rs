//! Reboots of the image and of stock Linux in turn, each with a function of a card. The volume is in the image's
//! memory, so Linux fills it again after each reboot.

use super::*;

/// Number of rounds.
fn rounds() -> u32 {
    if std::env::var_os("ISTHMUS_FULL").is_some() { 50 } else { 2 }
}

#[test]
fn volume_is_mapped_again_after_a_reboot_of_either_side() -> Result<()> {
    let model = model(2, &[])?;
    let address = format!("isthmus.net.0.address={THERE}/24 isthmus.net.0.mtu=4200");
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let spec = spec.vfio_user(&model.socket_of(1)).append(&address).reboots();
    let mut vm = spec.append("isthmus.volume.0.size=32MiB").start()?;
    vm.wait_ready()?;
    let mut linux = Linux::beside_image(model, 4200)?;
    linux.sh("modprobe -a mlx5_ib rnbd-client && sleep 1")?;
    for round in 0..rounds() {
        cycle(&mut linux, round)?;
        // Under load: an orderly reboot and a reset, in turn.
        map(&mut linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "ram0", "")?;
        linux.sh("(dd if=/dev/zero of=/dev/rnbd0 bs=16k count=4096 oflag=direct 2>/dev/null
              touch /tmp/ended) >/dev/null 2>&1 </dev/null & sleep 0.3")?;
        match round % 2 {
            0 => vm.reboot()?,
            _ => {
                vm.qmp.execute("system_reset", serde_json::json!({}))?;
                vm.wait_for(" ready")?;
                vm.wait_ready()?;
            }
        }
        linux.sh("until [ -e /tmp/ended ]; do sleep 0.1; done; rm /tmp/ended")?;
        let back = "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
        linux.guest.wait_until(back, LIMIT).context("after the image's reboot")?;
        unmap(&mut linux.guest, 0)?;
        cycle(&mut linux, round)?;
        linux = reboot(linux)?;
        vm.run("show log")?.lacks("ERROR")?;
    }
    cycle(&mut linux, 0)?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["roce"] == "hardware", "{interfaces}");
    Ok(())
}

/// Maps the volume, writes, reads, and unmaps it.
fn cycle(linux: &mut Linux, round: u32) -> Result<()> {
    linux.sh(&format!("ping -c 1 -W 5 {THERE} || ping -c 3 -W 5 {THERE}"))?;
    if let Err(why) = map(&mut linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "ram0", "") {
        return linux.fail(&format!("round {round}: the volume was not mapped: {why:#}"));
    }
    linux.sh("dd if=/dev/urandom of=/tmp/a bs=64k count=64 2>/dev/null
         dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null
         dd if=/dev/rnbd0 of=/tmp/b bs=64k count=64 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b")?;
    unmap(&mut linux.guest, 0)
}

/// Kills Linux while it has the volume mapped, and boots it again.
fn reboot(mut linux: Linux) -> Result<Linux> {
    map(&mut linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "ram0", "")?;
    let Linux { model, mut guest } = linux;
    guest.vm.kill();
    drop(guest);
    let mut linux = Linux::beside_image(model, 4200)?;
    linux.sh("modprobe -a mlx5_ib rnbd-client && sleep 1")?;
    Ok(linux)
}
