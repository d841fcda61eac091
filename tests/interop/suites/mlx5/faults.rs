//! Failures of the image's card while stock Linux has a volume of the image mapped. The model's behaviour on failures
//! is an assumption.

use super::*;

const VOLUME: &str = "isthmus.volume.0.size=32MiB";
/// A shell command that succeeds if the path is connected and the device is readable.
const BACK: &str = "[ $(cat /sys/class/rtrs-client/s1/paths/*/state) = connected ] && \
    dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";

/// Maps the volume, writes reference data to one part, and starts writing to another part continuously, ignoring
/// errors.
fn load(linux: &mut Linux) -> Result<()> {
    linux.sh("modprobe rnbd-client")?;
    map(&mut linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "ram0", "")?;
    linux.sh("dd if=/dev/urandom of=/tmp/a bs=64k count=64 2>/dev/null
         dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null
         (while [ ! -e /tmp/stop ]; do
             dd if=/dev/zero of=/dev/rnbd0 bs=16k seek=512 count=256 oflag=direct 2>/dev/null
             sleep 0.05
         done; touch /tmp/stopped) >/dev/null 2>&1 </dev/null &")?;
    Ok(())
}

/// Checks that the client reconnects by itself, that its data are intact, and that the volume works.
fn recovers(cards: &mut Cards) -> Result<()> {
    let back = cards.linux.guest.wait_until(BACK, Duration::from_secs(150));
    if back.is_err() {
        let log = cards.vm.run("show log")?.text;
        let messages = cards.linux.sh("dmesg | grep -E 'rnbd|rtrs' | tail -20")?;
        return cards.linux.fail(&format!("the client does not reconnect:\n{log}\n{messages}"));
    }
    cards.linux.sh("touch /tmp/stop; until [ -e /tmp/stopped ]; do sleep 0.1; done
         dd if=/dev/rnbd0 of=/tmp/b bs=64k count=64 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b")?;
    storage::fio_verifies(&mut cards.linux.guest, 8, 16)?;
    unmap(&mut cards.linux.guest, 0)
}

/// Waits until `is_so` accepts the state of the image's first port. A log line may be mixed into the reply, which is
/// then requested again.
pub fn until(vm: &mut Vm, is_so: impl Fn(&serde_json::Value) -> bool) -> Result<()> {
    let end = Instant::now() + LIMIT;
    loop {
        let reply = vm.run("show interfaces --json")?;
        if reply.json().is_ok_and(|interfaces| is_so(&interfaces[0])) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{}", reply.text);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The image resets its card after a fault under load, and logs `reason`.
pub fn a_card_is_reset(cpus: u32, words: &str, fault: &str, reason: &str) -> Result<()> {
    let mut cards = Cards::boot_on(cpus, &[], &format!("{VOLUME} {words}"))?;
    load(&mut cards.linux)?;
    cards.linux.sh("sleep 1")?;
    cards.linux.model.order(1, fault)?;
    until(&mut cards.vm, |port| port["resets"] != 0)?;
    cards.vm.run("show log")?.contains(reason)?;
    recovers(&mut cards)?;
    let interfaces = cards.vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["roce"] == "hardware", "{interfaces}");
    drop(cards.vm);
    let counters = cards.linux.end()?;
    ensure!(counter(&counters, "function1.complaints")? == 0, "{counters}");
    ensure!(counter(&counters, "function1.resets")? >= 2, "{counters}");
    Ok(())
}

#[test]
fn a_card_that_reads_all_ones_under_load_is_reset() -> Result<()> {
    a_card_is_reset(1, "", "all-ones", "does not answer")
}

#[test]
fn a_card_whose_firmware_fails_under_load_is_reset() -> Result<()> {
    a_card_is_reset(1, "", "fatal", "firmware")
}

/// A card that was pulled out: all registers read as all ones, and no reset helps. The model's process keeps running,
/// because QEMU would end with it.
#[test]
fn a_card_that_is_gone_leaves_the_rest_of_the_image_alone() -> Result<()> {
    let mut cards = Cards::boot(&[], VOLUME)?;
    load(&mut cards.linux)?;
    cards.linux.sh("sleep 1")?;
    cards.linux.model.order(1, "gone")?;
    until(&mut cards.vm, |port| port["link"] == "down" || port["link"] == false)?;
    cards.vm.run("show volumes")?.contains("ram0")?;
    cards.vm.run("show log")?.contains("does not answer any more")?;
    Ok(())
}
