//! Single-steps the processor with its trap flag, and records each instruction.

use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Mutex;

/// An instruction, and the stack pointer before it.
#[derive(Clone, Copy, Default)]
pub struct Step {
    pub address: u64,
    pub stack: u64,
}

/// Most steps: more than a few frames need.
const ROOM: usize = 4 << 20;

static ALONE: Mutex<()> = Mutex::new(());
static STEPS: AtomicPtr<Step> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Sets the trap flag and records traps while it exists.
struct Tracing {
    before: libc::sigaction,
}

impl Tracing {
    fn start() -> Tracing {
        // SAFETY: an all-zero `sigaction` is valid, and the handler has the signature that SA_SIGINFO requires.
        let before = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let handler: extern "C" fn(_, _, _) = record;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut before = core::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut before), 0);
            before
        };
        // SAFETY: the trap after each instruction has a handler, which changes no state of the thread.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        Tracing { before }
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // SAFETY: this restores the flag.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        // SAFETY: this restores the previous handler.
        unsafe { libc::sigaction(libc::SIGTRAP, &self.before, core::ptr::null_mut()) };
    }
}

/// Runs `work` on this thread and returns its steps.
pub fn steps(work: impl FnOnce()) -> Vec<Step> {
    let _alone = ALONE.lock().unwrap();
    let mut steps = vec![Step::default(); ROOM];
    STEPS.store(steps.as_mut_ptr(), Ordering::SeqCst);
    COUNT.store(0, Ordering::SeqCst);
    let tracing = Tracing::start();
    work();
    drop(tracing);
    let count = COUNT.load(Ordering::SeqCst);
    assert!(count < ROOM, "{count} instructions");
    steps.truncate(count);
    steps
}

extern "C" fn record(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the context of the thread.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |number: libc::c_int| registers[number as usize] as u64;
    let step = Step { address: register(libc::REG_RIP), stack: register(libc::REG_RSP) };
    let place = COUNT.fetch_add(1, Ordering::Relaxed);
    if place < ROOM {
        // SAFETY: `steps` has space for `ROOM` steps, and lives while the flag is set.
        unsafe { STEPS.load(Ordering::Relaxed).add(place).write(step) };
    }
}
