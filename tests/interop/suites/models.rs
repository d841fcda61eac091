//! Device models under stock Linux drivers, which validate the models; and faulty models, which show that these cases
//! detect faults.
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use interop_tests::system;
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::Program;

/// A guest with an I/OAT engine and its driver.
struct Ioat {
    model: ModelServer,
    guest: Guest,
}

impl Ioat {
    fn boot(options: &[&str]) -> Result<Ioat> {
        let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
        let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test models")?;
        let model = ModelServer::start(&server, "ioat", options)?;
        let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
        let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
        guest.wait_up()?;
        // After a failed self-test the module stays loaded, but the device has no driver.
        let loaded = guest.try_sh("modprobe ioatdma", std::time::Duration::from_secs(60));
        loaded.with_context(|| format!("the output of the model server:\n{}", model.output()))?;
        Ok(Ioat { model, guest })
    }

    /// The kernel's messages on the engine.
    fn messages(&mut self) -> Result<String> {
        self.guest.sh("dmesg | grep -i -e ioat -e 'self-test' -e 'BUG' -e 'hannel' || true")
    }

    fn is_bound(&mut self) -> Result<bool> {
        let bound = self.guest.sh("ls /sys/bus/pci/drivers/ioatdma")?;
        Ok(bound.contains("0000:"))
    }

    /// Interrupts of the engine that the guest has counted.
    fn interrupts(&mut self) -> Result<u64> {
        let lines = self.guest.sh("grep ioat /proc/interrupts || true")?;
        let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        Ok(lines.lines().filter_map(count).sum())
    }

    /// Switches the guest off, and returns the model's counters and QEMU's output.
    fn end(mut self) -> Result<(String, String)> {
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        let said = std::fs::read_to_string(self.guest.vm.directory().join("output"))?;
        Ok((self.model.counters()?, said))
    }
}

/// Linux's driver finds the namespace, writes, flushes, discards and reads it, and the model reports no complaint.
#[test]
fn nvme_works_under_the_driver_of_linux() -> Result<()> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test models")?;
    for block in ["9", "12"] {
        let model = ModelServer::start(&server, "nvme", &["--block", block])?;
        let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
        let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
        guest.wait_up()?;
        let loaded = guest.try_sh("modprobe nvme", std::time::Duration::from_secs(60));
        let (_, loaded) = loaded
            .with_context(|| format!("the output of the model server:\n{}", model.output()))?;
        let found = guest.wait_until("[ -b /dev/nvme0n1 ]", std::time::Duration::from_secs(20));
        if found.is_err() {
            let said =
                guest.sh("lspci -n 2>/dev/null; dmesg | grep -i -e nvme -e 0000: | tail -30")?;
            anyhow::bail!("no namespace: modprobe printed {loaded:?}, the kernel:\n{said}");
        }
        guest.sh("set -e
             [ $(cat /sys/block/nvme0n1/size) = $((64 << 11)) ]
             [ $(cat /sys/class/nvme/nvme0/serial) = model-1 ]
             dd if=/dev/urandom of=/tmp/kept bs=1M count=8
             dd if=/tmp/kept of=/dev/nvme0n1 bs=1M seek=3 oflag=direct conv=fsync
             echo 3 >/proc/sys/vm/drop_caches
             dd if=/dev/nvme0n1 bs=64k skip=48 count=128 iflag=direct | cmp - /tmp/kept
             blkdiscard -o 3M -l 1M /dev/nvme0n1
             dd if=/dev/nvme0n1 bs=1M skip=3 count=1 iflag=direct | cmp -n $((1 << 20)) - /dev/zero")?;
        let said = guest.sh("dmesg | grep -i nvme")?;
        ensure!(!said.contains("timeout") && !said.contains("error"), "{said}");
        guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        guest.vm.wait_exit()?;
        let counters = model.counters()?;
        ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
        ensure!(counter(&counters, "function0.flushes")? > 0, "{counters}");
    }
    Ok(())
}

fn counter(counters: &str, name: &str) -> Result<u64> {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in:\n{counters}"))?.parse()?)
}

#[test]
fn ioat_3_2_passes_the_self_test_of_linux() -> Result<()> {
    let mut ioat = Ioat::boot(&[])?;
    let messages = ioat.messages()?;
    ensure!(ioat.is_bound()?, "the driver has not bound the device:\n{messages}");
    ensure!(!messages.contains("fail") && !messages.contains("Reset channel"), "{messages}");
    let interrupts = ioat.interrupts()?;
    ensure!(interrupts > 0, "no interrupt arrived");
    let (counters, said) = ioat.end()?;
    ensure!(counter(&counters, "function0.channel0.copies")? == 1, "{counters}");
    ensure!(counter(&counters, "function0.channel0.halts")? == 0, "{counters}");
    ensure!(!said.contains("Broken pipe"), "{said}");
    Ok(())
}

#[test]
fn ioat_3_4_passes_the_xor_self_tests_of_linux() -> Result<()> {
    let mut ioat = Ioat::boot(&["--device", "0b00", "--channels", "4", "--version", "34"])?;
    let messages = ioat.messages()?;
    ensure!(ioat.is_bound()?, "the driver has not bound the device:\n{messages}");
    let capabilities = ioat.guest.sh("cat /sys/class/dma/dma0chan0/device/dma/*/quickdata/cap \
         /sys/class/dma/*/quickdata/cap 2>/dev/null | head -1")?;
    ensure!(capabilities.contains("xor"), "{capabilities:?}\n{messages}");
    ensure!(ioat.interrupts()? > 0, "no interrupt arrived");
    let (counters, _) = ioat.end()?;
    ensure!(counter(&counters, "function0.channel0.xors")? >= 2, "{counters}");
    // Linux also validates a wrong sum, which must fail.
    ensure!(counter(&counters, "function0.channel0.halts")? == 1, "{counters}");
    Ok(())
}

#[test]
fn a_corrupt_copy_is_found() -> Result<()> {
    let mut ioat = Ioat::boot(&["--fault", "corrupt-copy"])?;
    let messages = ioat.messages()?;
    ensure!(messages.contains("Self-test copy failed compare"), "{messages}");
    Ok(())
}

#[test]
fn lost_completion_is_found() -> Result<()> {
    let mut ioat = Ioat::boot(&["--fault", "no-completion"])?;
    let messages = ioat.messages()?;
    ensure!(messages.contains("Reset channel") || messages.contains("timed out"), "{messages}");
    Ok(())
}

#[test]
fn lost_interrupt_is_found() -> Result<()> {
    let mut ioat = Ioat::boot(&["--fault", "no-interrupt"])?;
    let interrupts = ioat.interrupts()?;
    ensure!(interrupts == 0, "{interrupts} interrupts");
    Ok(())
}

/// Runs `dmatest` in a guest with PTDMA. Returns the messages of dmatest and the driver, the number of interrupts, and
/// the model's counters.
fn dmatest(options: &[&str]) -> Result<(String, u64, String)> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test models")?;
    let model = ModelServer::start(&server, "ptdma", options)?;
    let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
    let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
    guest.wait_up()?;
    guest.sh("modprobe ptdma && [ -e /sys/class/dma/dma0chan0 ]
         modprobe dmatest && cd /sys/module/dmatest/parameters
         echo 2000 > timeout; echo 65536 > test_buf_size; echo 200 > iterations
         echo dma0chan0 > channel; echo 1 > run
         for n in $(seq 60); do sleep 0.5; [ $(cat run) = N ] && break; done; true")?;
    let said = guest.sh("dmesg | grep -i -e dmatest -e ptdma -e BUG")?;
    // The driver's interrupts are named after the device.
    let lines = guest.sh("grep $(basename /sys/bus/pci/drivers/ptdma/0000:*) /proc/interrupts")?;
    let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
    let interrupts = lines.lines().filter_map(count).sum();
    guest.vm.qmp.execute("quit", serde_json::json!({}))?;
    guest.vm.wait_exit()?;
    Ok((said, interrupts, model.counters()?))
}

#[test]
fn ptdma_passes_dmatest() -> Result<()> {
    let (said, interrupts, counters) = dmatest(&[])?;
    ensure!(said.contains("200 tests, 0 failures"), "{said}");
    ensure!(interrupts >= 200, "{interrupts} interrupts");
    ensure!(counter(&counters, "function0.copies")? == 200, "{counters}");
    Ok(())
}

#[test]
fn a_corrupt_copy_of_ptdma_is_found() -> Result<()> {
    let (said, ..) = dmatest(&["--fault", "corrupt-copy"])?;
    ensure!(said.contains("data error"), "{said}");
    Ok(())
}

/// Linux's driver reports errors only in its log.
#[test]
fn an_error_of_ptdma_is_logged() -> Result<()> {
    let (said, ..) = dmatest(&["--fault", "error-once"])?;
    ensure!(said.contains("PTDMA error"), "{said}");
    Ok(())
}

#[test]
fn lost_interrupts_of_ptdma_are_found() -> Result<()> {
    let (_, interrupts, _) = dmatest(&["--fault", "no-interrupt"])?;
    ensure!(interrupts == 0, "{interrupts} interrupts");
    Ok(())
}
