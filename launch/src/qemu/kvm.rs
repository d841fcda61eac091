//! Finds out whether KVM works on this host, by booting the image under it.
//!
//! A `/dev/kvm` that opens is no proof: a guest may hang or crawl under nested or emulated KVM. So the image
//! must become ready under KVM within three seconds. The result is cached until the host reboots.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::{Accelerator, PROMPT, Spec};
use crate::{progress, workspace};

/// How long the appliance may take under KVM. It takes a tenth of a second where KVM works.
const LIMIT: Duration = Duration::from_secs(3);

/// The accelerator to use for `image`: KVM if the image boots under it, else TCG. Prints the choice and the reason.
pub fn accelerator(image: &Path) -> Accelerator {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let cache = workspace::target().join("kvm-probe");
    if let Ok(known) = fs::read_to_string(&cache)
        && let Some(answer) = known.strip_prefix(&boot_id)
    {
        return report(answer);
    }
    let answer = probe(image);
    // Without the cache the next run only probes again.
    let _ = fs::write(&cache, format!("{boot_id}{answer}"));
    report(&answer)
}

fn report(answer: &str) -> Accelerator {
    if answer == "works" {
        eprintln!("accelerator: KVM (the image boots under it)");
        Accelerator::Kvm
    } else {
        eprintln!("accelerator: TCG (KVM: {answer})");
        Accelerator::Tcg
    }
}

/// `works`, or the reason why KVM does not.
fn probe(image: &Path) -> String {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return format!("/dev/kvm: {error}");
    }
    let step = progress::step("probing KVM");
    let spec = Spec::kernel(image).accelerator(Accelerator::Kvm).cpu("host");
    let answer = match spec.start() {
        // QEMU's own message is in the last line.
        Err(error) => last_line(&format!("{error:#}")),
        Ok(mut vm) => match vm.serial.wait_for(PROMPT, LIMIT) {
            Some(_) => "works".into(),
            None if vm.is_running() => format!("the image was not ready after {LIMIT:?}"),
            None => "QEMU ended while the image booted".into(),
        },
    };
    step.done(&answer);
    answer
}

fn last_line(text: &str) -> String {
    text.lines().rfind(|line| !line.is_empty()).unwrap_or_default().to_string()
}
