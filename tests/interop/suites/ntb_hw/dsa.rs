//! Intel's DSA on its model. The portals are memory that QEMU maps into the guest, so that MOVDIR64B works there, but
//! QEMU's TCG lacks the instruction. Under TCG, Linux's idxd therefore runs as the module `idxd_stores`, which replaces
//! it by eight stores and is otherwise unchanged. Debian's own module runs where KVM and the host's CPU have the
//! instruction.

use super::{PATIENCE, counter, load};
use anyhow::{Context, Result, ensure};
use interop_tests::movdir64b::{skip, without_movdir64b};
use interop_tests::system;
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::{Accelerator, Program, Spec};
use std::path::PathBuf;

/// A shell command that configures a queue of sixteen descriptors for kernel users, as `accel-config` does.
const CONFIGURE: &str = "
    cd /sys/bus/dsa/devices || exit 1
    echo 0 > engine0.0/group_id && echo 0 > wq0.0/group_id && echo dedicated > wq0.0/mode &&
    echo 16 > wq0.0/size && echo 10 > wq0.0/priority && echo kernel > wq0.0/type &&
    echo copies > wq0.0/name && echo dmaengine > wq0.0/driver_name &&
    echo dsa0 > /sys/bus/dsa/drivers/idxd/bind && echo wq0.0 > /sys/bus/dsa/drivers/dmaengine/bind &&
    [ $(cat wq0.0/state) = enabled ] && [ -e /sys/class/dma/dma0chan0 ]";

/// A guest with the engine.
struct Engine {
    model: ModelServer,
    guest: Guest,
}

impl Engine {
    fn boot(options: &[&str], machine: impl FnOnce(Spec) -> Spec) -> Result<Engine> {
        let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
        let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test ntb_hw")?;
        let model = ModelServer::start(&server, "dsa", options)?;
        let spec = machine(system()?.spec("linux", &[], 1500)).program(Program::with_vfio_user()?);
        let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
        guest.wait_up()?;
        Ok(Engine { model, guest })
    }

    /// Loads the driver, configures a queue, and runs dmatest with this many copies. Returns the messages of dmatest
    /// and the driver, and the number of the queue's interrupts.
    fn dmatest(&mut self, driver: &str, copies: u32) -> Result<(String, u64)> {
        self.guest.sh(&load(driver))?;
        let messages = |guest: &mut Guest| {
            guest.sh("dmesg | grep -i -e dmatest -e idxd -e BUG -e Oops -e 'Call Trace' || true")
        };
        if let Err(why) = self.guest.sh(CONFIGURE) {
            return Err(why.context(messages(&mut self.guest)?));
        }
        self.guest.sh(&format!(
            "modprobe dmatest && cd /sys/module/dmatest/parameters
             echo 2000 > timeout; echo 65536 > test_buf_size; echo {copies} > iterations
             echo dma0chan0 > channel; echo 1 > run"
        ))?;
        self.guest.wait_until("[ $(cat /sys/module/dmatest/parameters/run) = N ]", PATIENCE)?;
        let said = messages(&mut self.guest)?;
        let lines = self.guest.sh("grep idxd-portal /proc/interrupts")?;
        let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        Ok((said, lines.lines().filter_map(count).sum()))
    }

    /// Switches the guest off, and returns the model's counters.
    fn end(mut self) -> Result<String> {
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        self.model.counters()
    }
}

/// Checks that all copies are complete, each with an interrupt, and that the model reports no fault.
fn passes_dmatest(mut engine: Engine, driver: &str) -> Result<()> {
    let (said, interrupts) = engine.dmatest(driver, 200)?;
    ensure!(said.contains("200 tests, 0 failures"), "{said}");
    ensure!(!said.contains("Call Trace") && !said.contains("BUG"), "{said}");
    ensure!(interrupts >= 200, "{interrupts} interrupts");
    let counters = engine.end()?;
    ensure!(counter(&counters, "function0.copies")? == 200, "{counters}");
    for name in ["failed", "torn", "aborted"] {
        ensure!(counter(&counters, &format!("function0.{name}"))? == 0, "{counters}");
    }
    Ok(())
}

/// The model server learns of portal writes only from the portals' memory. A stock guest without a driver writes a word
/// there, and the model finds that it belongs to no queue.
#[test]
fn store_of_a_guest_to_a_dsa_portal_arrives() -> Result<()> {
    let mut engine = Engine::boot(&[], |spec| spec)?;
    engine.guest.sh("device=$(dirname $(grep -l 0x0b25 /sys/bus/pci/devices/*/device))
         echo 1 > $device/enable
         portals=$(sed -n '3s/ .*//p' $device/resource)
         devmem $((portals + 0x1000)) 64 0x0300000c00000000
         [ $(devmem $((portals + 0x1000)) 64) != 0xFFFFFFFFFFFFFFFF ]")?;
    let is_empty = "device=$(dirname $(grep -l 0x0b25 /sys/bus/pci/devices/*/device))
         portals=$(sed -n '3s/ .*//p' $device/resource)
         [ $(devmem $((portals + 0x1000)) 64) = 0x0000000000000000 ]";
    engine.guest.wait_until(is_empty, PATIENCE)?;
    let counters = engine.end()?;
    ensure!(counter(&counters, "function0.torn")? == 1, "{counters}");
    Ok(())
}

#[test]
fn idxd_of_linux_passes_dmatest_with_stores_for_movdir64b() -> Result<()> {
    passes_dmatest(Engine::boot(&[], |spec| spec)?, "idxd_stores")
}

#[test]
fn a_corrupt_copy_of_dsa_is_found() -> Result<()> {
    let mut engine = Engine::boot(&["--fault", "corrupt-copy"], |spec| spec)?;
    let (said, _) = engine.dmatest("idxd_stores", 5)?;
    ensure!(said.contains("data error"), "{said}");
    Ok(())
}

#[test]
fn lost_interrupts_of_dsa_are_found() -> Result<()> {
    let mut engine = Engine::boot(&["--fault", "no-interrupt"], |spec| spec)?;
    let (said, interrupts) = engine.dmatest("idxd_stores", 2)?;
    ensure!(interrupts == 0 && said.contains("timed out"), "{interrupts} interrupts: {said}");
    Ok(())
}

#[test]
fn idxd_of_linux_passes_dmatest_if_the_cpu_has_movdir64b() -> Result<()> {
    if let Some(why) = without_movdir64b()? {
        return skip("DSA under idxd", &why);
    }
    let kvm = |spec: Spec| spec.accelerator(Accelerator::Kvm).cpu("host");
    passes_dmatest(Engine::boot(&[], kvm)?, "idxd")
}
