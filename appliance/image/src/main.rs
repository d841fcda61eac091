//! The program of the image: brings the machine up, finds devices and sources of configuration and randomness, then
//! runs the appliance. It is the only crate that knows Hermit.
//!
//! # From reset to the first round
//!
//! 1. The stub (`images/boot`) is entered by PVH or Multiboot2 in 32-bit mode. It maps memory, measures the clock,
//!    reserves the DMA arena in the memory map, writes the device tree for the kernel, and enters `_start`.
//! 2. hermit-kernel starts heap, threads and the other cores, and calls `main`.
//! 3. `platform::bring_up` takes the serial port, the interrupt table and the timer. It tightens the page tables
//!    (nothing is both writable and executable, read-only data is read-only, page 0 and stack guards are unmapped) and
//!    verifies them by a walk. A machine that fails does not start. IOMMUs that firmware has left on are turned off
//!    (`drivers::iommu`), because they would block DMA or lose interrupts. Console output also goes to the screen
//!    (`platform::screen`). The UEFI front end describes the screen by a word of the command line, GRUB by a Multiboot2
//!    tag.
//! 4. `bringup` selects the console (`platform::uart` finds a serial port; without one, virtio-console), seeds the
//!    CSPRNG (RDSEED, RDRAND or virtio-rng; without any of them the appliance does not start), finds devices, and reads
//!    the host's document.
//! 5. `Gateway::start` opens disks, loads the configuration, opens ports, and makes volumes and servers. `Gateway::run`
//!    polls.
//!
//! # After a panic
//!
//! See `platform::last_words` and `platform::last_act`.

#[cfg(target_os = "hermit")]
mod bringup;
#[cfg(target_os = "hermit")]
mod heap;
#[cfg(target_os = "hermit")]
mod platform;

#[cfg(target_os = "hermit")]
fn main() {
    match bringup::bring_up(boot::boot_info()) {
        Ok(bringup) => platform::last_act::run(appliance::gateway::Gateway::start(bringup)),
        Err(bringup::Refusal { reason, code }) => {
            use core::fmt::Write;
            // Printing cannot fail.
            let _ = writeln!(platform::uart::Printer, "isthmus: cannot start: {reason}");
            platform::power::off(code)
        }
    }
}

#[cfg(not(target_os = "hermit"))]
fn main() {
    eprintln!("this program is an operating-system image: build it with ./isthmus build");
}
