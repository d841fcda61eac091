//! The coverage-guided fuzzer: libFuzzer's driver with one of the targets.
//!
//! ```text
//! guided                             the names of all targets
//! guided TARGET --seeds DIRECTORY    writes the target's initial inputs into files
//! guided TARGET [libFuzzer's arguments]
//! ```
//!
//! `launch/src/fuzz.rs` builds it, with the required flags.

use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;
use std::{env, fs, process, slice};

use fuzz::{TARGETS, Target, target};

unsafe extern "C" {
    /// libFuzzer: parses the arguments, and calls `feed` until their limits are reached.
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        feed: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

/// Environment variable with the name of the target, for processes that libFuzzer starts.
const TARGET: &str = "ISTHMUS_FUZZ_TARGET";

static CHOSEN: OnceLock<&Target> = OnceLock::new();

/// Called by libFuzzer with each input. A panic ends the program.
extern "C" fn feed(data: *const u8, len: usize) -> c_int {
    let input = if len == 0 {
        &[][..]
    } else {
        // SAFETY: libFuzzer passes `len` readable bytes, and does not change them during the call.
        unsafe { slice::from_raw_parts(data, len) }
    };
    (CHOSEN.get().expect("chosen before the driver was started").run)(input);
    0
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let inherited = env::var(TARGET).ok();
    let Some(name) = inherited.as_ref().or(words.get(1)) else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return;
    };
    let Some(target) = target(name) else {
        eprintln!("there is no target {name}");
        process::exit(2);
    };
    if let Some("--seeds") = words.get(2).map(String::as_str) {
        let directory = words.get(3).expect("a directory");
        for (n, seed) in (target.corpus)().iter().enumerate() {
            fs::write(format!("{directory}/seed-{n}"), seed).expect("the directory can be written");
        }
        return;
    }
    CHOSEN.set(target).ok().expect("set once");
    // To merge, libFuzzer starts this program again with these arguments, but without the name.
    let first = if inherited.is_some() { 1 } else { 2 };
    // SAFETY: there is one thread.
    unsafe { env::set_var(TARGET, target.name) };
    let arguments = [&words[..1], &words[first..]].concat();
    let arguments: Vec<CString> =
        arguments.into_iter().map(|word| CString::new(word).expect("no zero in it")).collect();
    let mut pointers: Vec<*mut c_char> =
        arguments.iter().map(|word| word.as_ptr().cast_mut()).collect();
    pointers.push(std::ptr::null_mut());
    let mut argc = arguments.len() as c_int;
    let mut argv = pointers.as_mut_ptr();
    // SAFETY: `argc` strings and a null pointer, as for `main` in C; they outlive the call.
    let status = unsafe { LLVMFuzzerRunDriver(&mut argc, &mut argv, feed) };
    process::exit(status);
}
