//! Traces a write through the crates, from its frames to the volume, and its reply back. In no chain of calls may a
//! crate be entered a second time.
//!
//! A host writes 4 KiB to a volume in memory. The test single-steps the rounds of the loop that handle it, and looks up
//! each entered function and its crate in the symbols of this program. An inlined function counts as its caller, and so
//! does a function of a foreign crate.

mod functions;
mod host;
mod steps;

use functions::{Function, functions};
use host::Lab;
use std::collections::{BTreeSet, HashMap};
use steps::Step;

/// Crates that a frame, a request or a reply can pass.
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

/// Permitted callbacks: from the first crate to the second, which is already in the chain. A new chain starts there.
const CALLS_BACK: &[(&str, &str)] = &[
    // A port passes each frame, as its own bytes, to a closure of the loop (`Port::receive_each`).
    ("drivers", "appliance"),
    // RTRS executes a request in place (`rtrs::server::Execute`). RNBD does that, and its server polls RTRS.
    ("rtrs", "storage"),
];

/// The crates of a chain of calls. Successive calls within a crate count once.
type Chain<'a> = Vec<&'a str>;

/// Returns the crate of a function. The cable of the test counts as a driver.
fn krate(function: &Function) -> Option<&'static str> {
    if ["write_way", "test_cable"].iter().any(|module| function.name.contains(module)) {
        return Some("drivers");
    }
    let name = function.krate.as_deref()?;
    CRATES.iter().find(|krate| **krate == name).copied()
}

/// Returns the chain of the stack, with `entered` as its last crate.
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

/// A function on the stack: the address of its return address, and its crate.
struct Call {
    stack: u64,
    krate: Option<&'static str>,
}

/// The chains of calls on the way to the volume, and on the way back.
#[derive(Default)]
struct Chains {
    down: BTreeSet<Chain<'static>>,
    back: BTreeSet<Chain<'static>>,
}

/// Returns the chains of calls in these steps.
fn chains(steps: &[Step], functions: &HashMap<u64, Function>) -> Chains {
    let mut chains = Chains::default();
    let mut is_back = false;
    let mut stack = vec![Call { stack: u64::MAX, krate: Some("appliance") }];
    for step in steps {
        // A function has returned if the stack pointer is above the address of its return address.
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
            if is_back { &mut chains.back } else { &mut chains.down }.insert(chain);
        }
        stack.push(Call { stack: step.stack, krate });
    }
    chains
}

/// Returns whether a chain passes these crates in this order.
fn passes(chains: &BTreeSet<Chain<'_>>, crates: &[&str]) -> bool {
    chains.iter().any(|chain| {
        let mut passed = chain.iter();
        crates.iter().all(|wanted| passed.any(|krate| krate == wanted))
    })
}

#[test]
fn no_crate_is_entered_twice_by_a_write_and_its_reply() {
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
    let Chains { down, back } = chains(&steps, &functions());
    println!("down: {down:?}\nback: {back:?}");
    // Packets and the memory they address, the server and the key of the chunk, the volume.
    assert!(passes(&down, &["appliance", "roce", "softverbs"]), "{down:?}");
    assert!(passes(&down, &["appliance", "roce", "drivers"]), "{down:?}");
    assert!(passes(&down, &["appliance", "storage", "softverbs"]), "{down:?}");
    assert!(passes(&down, &["appliance", "storage", "rtrs"]), "{down:?}");
    // The reply is posted, and its packets are built.
    assert!(passes(&back, &["appliance", "storage", "roce"]), "{back:?}");
    assert!(passes(&back, &["appliance", "roce", "drivers"]), "{back:?}");
}

#[test]
fn reentered_crate_is_detected() {
    let function = |name: &str| Function { name: name.into(), krate: Some(name.into()) };
    let functions = [(10, function("storage")), (20, function("roce")), (30, function("other"))];
    let functions = HashMap::from(functions);
    let step = |address, stack| Step { address, stack };
    // Storage calls RoCE twice, which returns each time.
    let fine = [step(10, 90), step(20, 80), step(15, 90), step(20, 80)];
    let found = chains(&fine, &functions).down;
    let expected: [Chain; 2] = [vec!["appliance", "storage"], vec!["appliance", "storage", "roce"]];
    assert_eq!(found, BTreeSet::from(expected));
    // Storage calls RoCE, which calls storage through another crate.
    let again = [step(10, 90), step(20, 80), step(30, 70), step(10, 60)];
    assert!(std::panic::catch_unwind(|| chains(&again, &functions)).is_err());
}
