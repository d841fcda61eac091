//! Tests of the messages about mistakes in a document.

use super::*;

#[test]
fn invalid_secret_is_not_quoted() {
    for (section, key) in [("http", "token_sha256"), ("system", "upgrade_key")] {
        let text = format!("[{section}]\n{key} = \"correct horse\"\n");
        let problems = check(text.as_bytes()).unwrap_err();
        let text = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains(key) && !text.contains("horse"), "{text}");
        let mut document = Document::default();
        let problems = document.set(&format!("{section}.{key}"), "correct-horse").unwrap_err();
        assert!(!problems[0].to_string().contains("horse"), "{}", problems[0]);
    }
}

#[test]
fn invalid_vlan_is_reported() {
    for (text, expected) in [
        (
            "[[net]]\nvlan = 4095",
            "line 2: net.0.vlan: 4095 is out of range; accepted: a whole number from 1 to 4094",
        ),
        (
            "[[net]]\nvlan = 5\nroce = \"hardware\"",
            "line 3: net.0.roce: RoCE on a VLAN is done in software; accepted: \"software\" with `vlan`",
        ),
        (
            "[[net]]\nvlan = 0",
            "line 2: net.0.vlan: 0 is out of range; accepted: a whole number from 1 to 4094",
        ),
    ] {
        let problems = check(text.as_bytes()).unwrap_err();
        assert_eq!(problems[0].to_string(), expected);
    }
}

#[test]
fn rule_to_the_appliance_itself_is_refused_by_check_and_set_but_boots() {
    let text = |backend: &str| {
        format!(
            "[[net]]\naddress = [\"10.0.0.1/24\", \"fd00::1/64\"]\n\
             [[rule]]\nname = \"r\"\nlisten = 99\nbackend = [\"10.0.0.9:99\", \"{backend}\"]\n"
        )
    };
    assert!(check(text("10.0.0.2:99").as_bytes()).is_ok());
    for own in ["10.0.0.1:99", "10.0.0.1:5", "[fd00::1]:99", "127.0.0.1:99", "[::ffff:10.0.0.1]:9"]
    {
        let problems = check(text(own).as_bytes()).unwrap_err();
        let reason = problems[0].to_string();
        assert!(reason.contains("a rule cannot connect to the appliance itself"), "{reason}");
        // A saved document with such a backend still boots.
        let saved = text(own);
        let sources = Sources { disk: Some(saved.as_bytes()), ..Sources::default() };
        let (document, problems) = Document::load(&sources);
        assert!(problems.is_empty() && document.config().rule.len() == 1, "{problems:?}");
        let (mut document, _) =
            Document::load(&Sources { disk: Some(saved.as_bytes()), ..sources });
        assert!(document.set("rule.0.backend", own).is_err());
        assert!(document.set("rule.0.backend", "10.0.0.9:99").is_ok());
    }
}
