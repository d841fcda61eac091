//! Links the kernel bundle into the image. `./isthmus build` passes the path of the bundle and the kind of image in the
//! environment. Without the path (a check on the host) nothing is linked.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=ISTHMUS_KERNEL");
    let Some(kernel) = env::var_os("ISTHMUS_KERNEL") else { return };
    let kernel = kernel.to_string_lossy();
    println!("cargo:rerun-if-changed={kernel}");
    println!("cargo:rustc-link-arg-bins={kernel}");
    // The kernel calls `runtime_entry`. Its objects are linked too late to keep the symbol.
    println!("cargo:rustc-link-arg-bins=--undefined=runtime_entry");
    // The standard library aborts (allocation failure, panic in a panic) by ours, not by the kernel's.
    println!("cargo:rustc-link-arg-bins=--wrap=sys_abort");
    // A build ID in the image, which identifies its symbol file.
    println!("cargo:rustc-link-arg-bins=--build-id=sha1");
    // Fold functions with identical code (a backtrace may name another of them), and merge equal strings.
    println!("cargo:rustc-link-arg-bins=--icf=all");
    println!("cargo:rustc-link-arg-bins=-O2");
    let entry = match env::var_os("CARGO_FEATURE_UHYVE") {
        Some(_) => "--entry=isthmus_uhyve",
        None => "--entry=isthmus_pvh",
    };
    // 2 MiB is free under SeaBIOS, GRUB, OVMF and uhyve; the kernel does not use memory below the image.
    for argument in ["--no-pie", "--image-base=0x200000", entry] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
