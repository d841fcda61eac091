//! The targets of `fuzz` under libFuzzer, which keeps inputs that reach new code. `ISTHMUS_TARGET`
//! names the target; the other arguments are libFuzzer's. With `ISTHMUS_CORPUS` it only writes the
//! target's corpus into that directory, for libFuzzer to begin with.
//!
//! `./isthmus test fuzz --full` builds it with coverage and runs it.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static fuzz::Target> = OnceLock::new();

fn target() -> &'static fuzz::Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("ISTHMUS_TARGET").expect("ISTHMUS_TARGET names a target");
        let target = fuzz::target(&name).unwrap_or_else(|| panic!("there is no target {name}"));
        if let Some(directory) = std::env::var_os("ISTHMUS_CORPUS") {
            for (n, input) in (target.corpus)().iter().enumerate() {
                let path = std::path::Path::new(&directory).join(format!("given-{n}"));
                std::fs::write(path, input).expect("the corpus can be written");
            }
            std::process::exit(0);
        }
        target
    })
}

fuzz_target!(|data: &[u8]| (target().run)(data));
