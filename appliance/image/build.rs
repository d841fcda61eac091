//! Links the kernel bundle into the image. `./isthmus build` says where it is and what kind of image
//! is wanted; without that (a check on the host) nothing is linked.

use std::env;

fn main() {
    println!("cargo:rerun-if-env-changed=ISTHMUS_KERNEL");
    let Some(kernel) = env::var_os("ISTHMUS_KERNEL") else { return };
    let kernel = kernel.to_string_lossy();
    println!("cargo:rerun-if-changed={kernel}");
    println!("cargo:rustc-link-arg-bins={kernel}");
    // The kernel calls it, so it must survive; the kernel's own objects come too late to say so.
    println!("cargo:rustc-link-arg-bins=--undefined=runtime_entry");
    // The standard library's way out, when memory is exhausted or a panic panics: ours, not the kernel's.
    println!("cargo:rustc-link-arg-bins=--wrap=sys_abort");
    // A note in the image by which its symbols are told from those of another build.
    println!("cargo:rustc-link-arg-bins=--build-id=sha1");
    // One copy of functions whose code is the same (a backtrace may name another of them), and of equal strings.
    println!("cargo:rustc-link-arg-bins=--icf=all");
    println!("cargo:rustc-link-arg-bins=-O2");
    let entry = match env::var_os("CARGO_FEATURE_UHYVE") {
        Some(_) => "--entry=isthmus_uhyve",
        None => "--entry=isthmus_pvh",
    };
    // 2 MiB is free under SeaBIOS, GRUB, OVMF and uhyve; what lies below the image is lost to the kernel.
    for argument in ["--no-pie", "--image-base=0x200000", entry] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
}
