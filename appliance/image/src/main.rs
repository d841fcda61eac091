//! The program that is the image: brings the machine up, then hands over to the appliance.

#[cfg(target_os = "hermit")]
mod platform;

#[cfg(target_os = "hermit")]
fn main() {
    let mut uart = platform::uart::Uart::take();
    platform::uart::print(concat!("isthmus ", env!("CARGO_PKG_VERSION"), " ready\r\n"));
    let mut bytes = [0; 16];
    loop {
        let count = uart.read(&mut bytes);
        uart.write(&bytes[..count]);
        core::hint::spin_loop();
    }
}

#[cfg(not(target_os = "hermit"))]
fn main() {
    eprintln!("this program is an operating-system image: build it with ./isthmus build");
}
