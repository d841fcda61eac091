//! The way of a write through the crates, from its frames to the volume, and of its answer back: however deep calls go,
//! no crate is entered again by one that it has called.
//!
//! A host writes 4 KiB to a volume in memory. The processor stops after each instruction of the rounds that take this in,
//! and the symbols of this program tell which functions are entered meanwhile, and of which crate each is. What the
//! compiler has put into the function that calls it counts to that one. A function of another crate than those of this
//! repository counts to its caller.

mod functions;
mod host;
mod steps;

use functions::{Function, functions};
use host::Lab;
use std::collections::{BTreeSet, HashMap};
use steps::Step;

/// Crates that a frame, a request or an answer can pass.
const CRATES: &[&str] = &[
    "appliance",
    "cm",
    "drivers",
    "management",
    "net",
    "ntrdma",
    "operator",
    "provider_set",
    "roce",
    "rtrs",
    "softverbs",
    "storage",
    "verbs",
];

/// Calls back into a crate that is being executed, from one crate to another. A chain of calls begins anew there.
const CALLS_BACK: &[(&str, &str)] = &[
    // A port hands out each frame as bytes that are its own (`Port::receive_each`), to a closure of the loop's.
    ("drivers", "appliance"),
    // RTRS has a request executed where it has found it (`rtrs::server::Execute`), by RNBD, whose server polls it.
    ("rtrs", "storage"),
];

/// The crates that functions of this process are in: those of a chain of calls, each once while it is not left.
type Chain<'a> = Vec<&'a str>;

/// The crate of a function. The host's cable stands for a driver.
fn krate(function: &Function) -> Option<&'static str> {
    if function.name.contains("write_way") {
        return Some("drivers");
    }
    let name = function.krate.as_deref()?;
    CRATES.iter().find(|krate| **krate == name).copied()
}

/// The chain of calls that crates make, the last of which is `entered`.
fn chain(stack: &[Call], entered: &'static str) -> Chain<'static> {
    let mut chain: Chain = Vec::new();
    for krate in stack.iter().filter_map(|call| call.krate).chain([entered]) {
        match chain.last() {
            Some(last) if *last == krate => {}
            Some(last) if CALLS_BACK.contains(&(last, krate)) => chain = vec![krate],
            _ => chain.push(krate),
        }
    }
    chain
}

/// A function that is being executed: where its return address lies, and its crate.
struct Call {
    stack: u64,
    krate: Option<&'static str>,
}

/// What was entered on the way to the volume, and from there on.
#[derive(Default)]
struct Ways {
    down: BTreeSet<Chain<'static>>,
    back: BTreeSet<Chain<'static>>,
}

/// The chains of calls while the loop executed these steps.
fn ways(steps: &[Step], functions: &HashMap<u64, Function>) -> Ways {
    let mut ways = Ways::default();
    let mut is_back = false;
    let mut stack = vec![Call { stack: u64::MAX, krate: Some("appliance") }];
    for step in steps {
        // A function whose return address is above the end of the stack has returned.
        while stack.last().is_some_and(|call| call.stack < step.stack) {
            stack.pop();
        }
        let Some(function) = functions.get(&step.address) else { continue };
        let krate = krate(function);
        if let Some(krate) = krate {
            let chain = chain(&stack, krate);
            let unique: BTreeSet<&str> = chain.iter().copied().collect();
            let name = &function.name;
            assert_eq!(unique.len(), chain.len(), "{chain:?} by {name}: a crate is entered twice");
            is_back |= name.contains("RamVolume") && name.contains("submit");
            if is_back { &mut ways.back } else { &mut ways.down }.insert(chain);
        }
        stack.push(Call { stack: step.stack, krate });
    }
    ways
}

/// Whether a chain passes these crates, in this order.
fn passes(chains: &BTreeSet<Chain<'_>>, crates: &[&str]) -> bool {
    chains.iter().any(|chain| {
        let mut passed = chain.iter();
        crates.iter().all(|wanted| passed.any(|krate| krate == wanted))
    })
}

#[test]
fn no_crate_is_entered_twice_on_the_way_of_a_write_and_its_answer() {
    let mut lab = Lab::new();
    lab.submit();
    let now = lab.now;
    let plane = &mut lab.plane;
    let steps = steps::steps(|| {
        plane.receive(now, |_, _| ());
        plane.serve(now);
        plane.transmit_fabric(now);
    });
    assert!(lab.is_done(), "the write was not answered");
    let Ways { down, back } = ways(&steps, &functions());
    println!("down: {down:?}\nback: {back:?}");
    // Packets, and the memory that they name; the server, and the key of the chunk; the volume.
    assert!(passes(&down, &["appliance", "roce", "softverbs"]), "{down:?}");
    assert!(passes(&down, &["appliance", "roce", "drivers"]), "{down:?}");
    assert!(passes(&down, &["appliance", "storage", "roce", "softverbs"]), "{down:?}");
    assert!(passes(&down, &["appliance", "storage", "rtrs"]), "{down:?}");
    // The answer is posted, and its packets are made.
    assert!(passes(&back, &["appliance", "storage", "roce"]), "{back:?}");
    assert!(passes(&back, &["appliance", "roce", "drivers"]), "{back:?}");
}

#[test]
fn a_crate_that_is_entered_again_is_noticed() {
    let function = |name: &str| Function { name: name.into(), krate: Some(name.into()) };
    let functions = [(10, function("storage")), (20, function("roce")), (30, function("other"))];
    let functions = HashMap::from(functions);
    let step = |address, stack| Step { address, stack };
    // Storage calls RoCE, which returns; then once more.
    let fine = [step(10, 90), step(20, 80), step(15, 90), step(20, 80)];
    let found = ways(&fine, &functions).down;
    let expected: [Chain; 2] = [vec!["appliance", "storage"], vec!["appliance", "storage", "roce"]];
    assert_eq!(found, BTreeSet::from(expected));
    // It calls RoCE, which calls storage by way of something else.
    let again = [step(10, 90), step(20, 80), step(30, 70), step(10, 60)];
    assert!(std::panic::catch_unwind(|| ways(&again, &functions)).is_err());
}
