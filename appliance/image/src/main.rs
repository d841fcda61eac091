//! The program that is the image: brings the machine up, then hands over to the appliance.

#[cfg(target_os = "hermit")]
mod platform;

#[cfg(target_os = "hermit")]
fn main() {
    use appliance::machine::Machine;
    use platform::power;

    let Some(boot) = boot::boot_info() else {
        println!("isthmus: started by a loader that offers no devices; nothing to do");
        std::process::exit(0);
    };
    let mut bringup = match platform::bring_up(boot) {
        Ok(bringup) => bringup,
        Err(reason) => refuse(&reason, power::UNPROTECTED),
    };
    let provoked = boot.command_line().split_ascii_whitespace();
    for kind in provoked.filter_map(|word| word.strip_prefix("isthmus.test.fault=")) {
        platform::provoke_fault(kind);
    }
    let Some(_seed) = platform::entropy_from_cpu() else {
        refuse("no source of entropy: the CPU has neither RDSEED nor RDRAND", power::REFUSED);
    };
    eprintln!("{:?} {} {:?}", bringup.protection, bringup.cores, boot.arena);
    println!("isthmus {} ready", env!("CARGO_PKG_VERSION"));
    let mut bytes = [0; 16];
    loop {
        let count = bringup.machine.console_read(&mut bytes);
        bringup.machine.console_write(&bytes[..count]);
        let deadline = bringup.machine.now() + core::time::Duration::from_millis(10);
        bringup.machine.halt_until(Some(deadline), &mut || count == 0);
    }
}

/// Says why the appliance does not start, and ends the machine.
#[cfg(target_os = "hermit")]
fn refuse(reason: &str, code: u8) -> ! {
    use core::fmt::Write;
    // Printing cannot fail.
    let _ = writeln!(platform::uart::Printer, "isthmus: cannot start: {reason}");
    platform::power::off(code)
}

#[cfg(not(target_os = "hermit"))]
fn main() {
    eprintln!("this program is an operating-system image: build it with ./isthmus build");
}
