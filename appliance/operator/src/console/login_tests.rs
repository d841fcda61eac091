//! Tests of the login with an operator's keys.

use crate::config::Role;
use crate::console::Console;
use crate::console::tests::{Appliance, NOW, session};

/// A machine whose console asks for a login.
fn machine() -> (Appliance, Console) {
    let mut appliance = Appliance::default();
    for (path, value) in [
        ("user.0.name", "ann"),
        ("user.0.role", "admin"),
        ("user.0.token_sha256", &*"ab".repeat(32)),
        ("console.login", "true"),
    ] {
        appliance.document.set(path, value).unwrap();
    }
    (appliance, Console::default())
}

fn pass(seconds: u64) {
    NOW.set(NOW.get() + seconds * 1_000_000_000);
}

fn log_in(appliance: &mut Appliance, console: &mut Console) {
    let shown = session(appliance, console, b"ann\rwonderful\r");
    assert!(shown.ends_with("isthmus> "), "{shown}");
}

#[test]
fn command_is_executed_only_after_a_login() {
    let (mut appliance, mut console) = machine();
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert_eq!(shown, "\nlogin: show version\ntoken: ");
    assert_eq!(console.caller(true).role, Role::Read);
    let shown = session(&mut appliance, &mut console, b"\x03ann\rwonderful\rshow version\r");
    assert!(!shown.contains("wonderful"), "the token is not shown: {shown}");
    assert!(shown.contains("login: ann\ntoken: \n") && shown.contains("topic"), "{shown}");
    let caller = console.caller(true);
    assert_eq!((caller.to_string().as_str(), caller.role), ("console ann", Role::Admin));
    let shown = session(&mut appliance, &mut console, b"logout\rshow version\r");
    assert!(shown.contains("logged out\nlogin: show version\ntoken: "), "{shown}");
    // The next user cannot recall the lines of the last one.
    let shown = session(&mut appliance, &mut console, b"\x03ann\rwonderful\r\x1b[A");
    assert!(shown.ends_with("isthmus> "), "{shown}");
}

#[test]
fn wrong_tries_are_slowed_down_and_reported_at_the_next_login() {
    let (mut appliance, mut console) = machine();
    for wait in [1, 2, 4] {
        let shown = session(&mut appliance, &mut console, b"ann\rwrong\r");
        assert!(shown.contains("wrong name or token"), "{shown}");
        pass(wait - 1);
        let shown = session(&mut appliance, &mut console, b"ann\rwonderful\r");
        assert!(shown.contains("too soon"), "{shown}");
        pass(1);
    }
    let shown = session(&mut appliance, &mut console, b"nobody\rwonderful\r");
    assert!(shown.contains("wrong name or token"), "{shown}");
    pass(100);
    let shown = session(&mut appliance, &mut console, b"ann\rwonderful\r");
    assert!(shown.contains("wrong tries since the last login: 4\nisthmus> "), "{shown}");
}

#[test]
fn user_is_logged_out_when_idle_or_removed() {
    let (mut appliance, mut console) = machine();
    session(&mut appliance, &mut console, b"");
    log_in(&mut appliance, &mut console);
    pass(599);
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert!(shown.contains("topic"), "{shown}");
    pass(600);
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert!(shown.contains("logged out") && !shown.contains("topic"), "{shown}");
    session(&mut appliance, &mut console, b"\x03");
    log_in(&mut appliance, &mut console);
    appliance.document.set("user.0.name", "bob").unwrap();
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert!(shown.contains("logged out") && !shown.contains("topic"), "{shown}");
}

#[test]
fn console_without_a_login_asks_nobody() {
    let (mut appliance, mut console) = machine();
    appliance.document.set("console.login", "false").unwrap();
    let shown = session(&mut appliance, &mut console, b"logout\r");
    assert!(shown.contains("error: the console has no login"), "{shown}");
    assert_eq!(console.caller(false).role, Role::Admin);
    // From now on it does.
    appliance.document.set("console.login", "true").unwrap();
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert!(shown.contains("login: ") && !shown.contains("topic"), "{shown}");
    // An administrator over HTTP may end that.
    appliance.document.set("console.login", "false").unwrap();
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert!(shown.contains("topic"), "{shown}");
}

#[test]
fn login_that_would_lock_everybody_out_is_refused() {
    let mut appliance = Appliance::default();
    let refused = appliance.document.set("console.login", "true").unwrap_err();
    assert!(refused[0].reason.contains("nobody could log in"), "{refused:?}");
    let (mut appliance, _) = machine();
    assert!(appliance.document.set("user.0.role", "read").is_err());
    assert!(appliance.document.unset("user.0").is_err());
}
