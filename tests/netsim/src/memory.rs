//! Memory for simulated nodes: allocated once per thread, reused for every seed.

use drivers::hal::{Arena, Window, unpoison};
use std::cell::RefCell;

thread_local! {
    static SPARE: RefCell<Vec<Window>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` bytes of zeroed, page-aligned memory for arenas (`Arena::new(window.slice(..))`), which must
/// not be used after `f` returns.
pub fn with_memory<T>(len: usize, f: impl FnOnce(Window) -> T) -> T {
    let spare = SPARE.with_borrow_mut(|spare| {
        let fits = spare.iter().position(|window| window.len() >= len)?;
        Some(spare.swap_remove(fits))
    });
    let whole = spare.unwrap_or_else(|| {
        Arena::on_heap(len + 4096).alloc(len, 4096).expect("the arena is large enough")
    });
    let memory = whole.slice(0, len).expect("the window is large enough");
    // Arenas of an earlier call are no longer used.
    unpoison(&memory);
    memory.fill(0);
    let result = f(memory);
    SPARE.with_borrow_mut(|spare| spare.push(whole));
    result
}
