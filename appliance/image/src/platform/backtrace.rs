//! Backtraces from the stack: every word that is an address behind a call instruction in the image's code.
//! The image has neither frame pointers nor unwinding tables, so stale return addresses can be among them.
//! `./isthmus symbolize` turns the addresses into names.

use super::paging;
use core::fmt::{self, Write};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// Most addresses in a backtrace.
const MOST: usize = 32;
/// Bytes of the stack to search.
const DEPTH: u64 = 32 << 10;
const PAGE: u64 = 4096;
/// Longest call instruction (`call [base + index + disp32]`).
const LONGEST_CALL: u64 = 7;

/// Start and end of the image's code.
static CODE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Sets the address range of the image's code.
///
/// # Safety
/// The range is readable and mapped for ever.
pub unsafe fn set_code(code: Range<u64>) {
    CODE[0].store(code.start, Ordering::Relaxed);
    CODE[1].store(code.end, Ordering::Relaxed);
}

/// Writes the return addresses from `stack` upwards, eight to a line.
pub fn write(stack: u64, out: &mut dyn Write) -> fmt::Result {
    let code = CODE[0].load(Ordering::Relaxed)..CODE[1].load(Ordering::Relaxed);
    let mut found = 0;
    write!(out, "  called from")?;
    let mut at = stack.next_multiple_of(8);
    if !paging::is_mapped(at) {
        // The guard page: the stack has overflowed.
        at = (at & !(PAGE - 1)).saturating_add(PAGE);
    }
    let end = at.saturating_add(DEPTH);
    let mut mapped = false;
    while at < end && found < MOST {
        if at.is_multiple_of(PAGE) || !mapped {
            mapped = paging::is_mapped(at);
            if !mapped {
                break;
            }
        }
        // SAFETY: the page is mapped, and the word is aligned. It belongs to this core's own stack, or to memory
        // behind it, of which any bytes may be read.
        let word = unsafe { (at as *const u64).read_volatile() };
        if is_behind_call(word, &code) {
            if found > 0 && found.is_multiple_of(8) {
                write!(out, "\n             ")?;
            }
            write!(out, " {word:#x}")?;
            found += 1;
        }
        at += 8;
    }
    writeln!(out)
}

/// Whether the instruction before this address is a call (Intel SDM vol. 2A, CALL: E8, or FF /2).
fn is_behind_call(address: u64, code: &Range<u64>) -> bool {
    if address < code.start.saturating_add(LONGEST_CALL) || address >= code.end {
        return false;
    }
    // SAFETY: inside the image's code, which is mapped and readable (promise of `set_code`).
    let byte = |back: u64| unsafe { ((address - back) as *const u8).read_volatile() };
    let indirect = |len: u64| byte(len) == 0xff && byte(len - 1) >> 3 & 7 == 2;
    byte(5) == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(indirect)
}
