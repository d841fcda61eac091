//! Users of the console, by the tokens of the configuration.

use crate::config::Config;
use crate::console::Session;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The session of the user with this name and token.
pub(crate) fn session(config: &Config, name: &str, token: &[u8]) -> Option<Session> {
    let token: [u8; 32] = Sha256::digest(token).into();
    let user = config.user.iter().find(|user| user.name.as_str() == name)?;
    let is_right = bool::from(user.token_sha256?.0.ct_eq(&token));
    is_right.then(|| Session { name: name.into(), role: user.role, token })
}

/// Whether the user still has this role and token.
pub(crate) fn is_known(config: &Config, session: &Session) -> bool {
    config.user.iter().any(|user| {
        user.name.as_str() == session.name
            && user.role == session.role
            && user.token_sha256.is_some_and(|token| token.0 == session.token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Role, check};

    #[test]
    fn only_the_user_s_own_token_opens_a_session_until_it_changes() {
        let document = |token: &str, role: &str| {
            let hash: [u8; 32] = Sha256::digest(token).into();
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            let user = format!("[[user]]\nname = \"ann\"\nrole = \"{role}\"\n");
            let other = "[[user]]\nname = \"cert\"\nrole = \"admin\"\n";
            let text = format!("{user}token_sha256 = \"{hash}\"\n{other}");
            check(text.as_bytes()).unwrap()
        };
        let config = document("wonderful", "operate");
        let open = session(&config, "ann", b"wonderful").unwrap();
        assert_eq!(open.role, Role::Operate);
        for (name, token) in
            [("ann", "wonderful!"), ("ann", ""), ("bob", "wonderful"), ("cert", "")]
        {
            assert_eq!(session(&config, name, token.as_bytes()), None, "{name} {token}");
        }
        assert!(is_known(&config, &open));
        assert!(!is_known(&document("other", "operate"), &open));
        assert!(!is_known(&document("wonderful", "admin"), &open));
        assert!(!is_known(&Config::default(), &open));
    }
}
