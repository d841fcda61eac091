//! What the processor executes, instruction by instruction: with its trap flag set it stops after each.

use core::arch::asm;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::Mutex;

/// An instruction, and where the stack ended before it.
#[derive(Clone, Copy, Default)]
pub struct Step {
    pub address: u64,
    pub stack: u64,
}

/// More than a few frames take.
const ROOM: usize = 4 << 20;

static ALONE: Mutex<()> = Mutex::new(());
static STEPS: AtomicPtr<Step> = AtomicPtr::new(core::ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The trap flag is set, and traps are noted, as long as it is there.
struct Noting {
    before: libc::sigaction,
}

impl Noting {
    fn start() -> Noting {
        // SAFETY: an all-zero `sigaction` is one, and the handler has the signature that SA_SIGINFO asks for.
        let before = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            let handler: extern "C" fn(_, _, _) = note;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO;
            let mut before = core::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGTRAP, &action, &mut before), 0);
            before
        };
        // SAFETY: the trap that follows each instruction has a handler, which leaves everything as it was.
        unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        Noting { before }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        // SAFETY: the flag is as it was before.
        unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
        // SAFETY: what was in force before.
        unsafe { libc::sigaction(libc::SIGTRAP, &self.before, core::ptr::null_mut()) };
    }
}

/// The steps of some work, on this thread.
pub fn steps(work: impl FnOnce()) -> Vec<Step> {
    let _alone = ALONE.lock().unwrap();
    let mut steps = vec![Step::default(); ROOM];
    STEPS.store(steps.as_mut_ptr(), Ordering::SeqCst);
    COUNT.store(0, Ordering::SeqCst);
    let noting = Noting::start();
    work();
    drop(noting);
    let count = COUNT.load(Ordering::SeqCst);
    assert!(count < ROOM, "{count} instructions");
    steps.truncate(count);
    steps
}

extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO the context of the thread.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |number: libc::c_int| registers[number as usize] as u64;
    let step = Step { address: register(libc::REG_RIP), stack: register(libc::REG_RSP) };
    let place = COUNT.fetch_add(1, Ordering::Relaxed);
    if place < ROOM {
        // SAFETY: `steps` has room for so many, and keeps it while the flag is set.
        unsafe { STEPS.load(Ordering::Relaxed).add(place).write(step) };
    }
}
