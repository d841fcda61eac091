//! [`Caller`]: who gives a command, from where, and what it may do.

use crate::config::Role;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

/// The origin of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the user; empty if it has none: the console without login, the token of `http.token_sha256`.
    pub name: String,
    /// Address of the client; None on the console.
    pub from: Option<SocketAddr>,
    /// What the caller may do.
    pub role: Role,
    /// Known by a certificate, not by a token.
    pub by_certificate: bool,
}

impl Caller {
    /// The operator at the console.
    pub fn console() -> Caller {
        Caller { name: String::new(), from: None, role: Role::Admin, by_certificate: false }
    }

    /// The client's IP address.
    pub fn host(&self) -> Option<IpAddr> {
        self.from.map(|from| from.ip())
    }

    /// Checks the role. The error is a message for the caller.
    pub fn needs(&self, role: Role) -> Result<(), String> {
        match self.role >= role {
            true => Ok(()),
            false => Err(format!("needs the role {role}; {self} has {}", self.role)),
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "" } else { " " };
        match self.from {
            None => write!(f, "console{name}{}", self.name),
            Some(from) => {
                let how = if self.by_certificate { " by certificate" } else { "" };
                write!(f, "http{name}{}{how} from {from}", self.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_is_shown_with_name_and_address() {
        let from = Some("10.0.0.7:40122".parse().unwrap());
        let caller = |name: &str, from| Caller { name: name.into(), from, ..Caller::console() };
        assert_eq!(Caller::console().to_string(), "console");
        assert_eq!(caller("", from).to_string(), "http from 10.0.0.7:40122");
        assert_eq!(caller("ci", from).to_string(), "http ci from 10.0.0.7:40122");
        let certified = Caller { by_certificate: true, ..caller("ci", from) };
        assert_eq!(certified.to_string(), "http ci by certificate from 10.0.0.7:40122");
        assert_eq!(caller("ann", None).to_string(), "console ann");
    }

    #[test]
    fn role_includes_those_below_it() {
        let operator = Caller { role: Role::Operate, ..Caller::console() };
        assert!(operator.needs(Role::Read).is_ok() && operator.needs(Role::Operate).is_ok());
        let refused = operator.needs(Role::Admin).unwrap_err();
        assert_eq!(refused, "needs the role admin; console has operate");
    }
}
