//! The program that is the image: brings the machine up, finds its devices and its sources of
//! configuration and of randomness, then hands over to the appliance.

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
