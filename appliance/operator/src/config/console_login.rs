//! `[console]`: the login of the serial console.

use super::item::section;
use super::schema::Config;
use super::user::Role;
use core::time::Duration;

section! {
    /// The serial console.
    Console {
        /// Whether the console asks for the name and the token of a `[[user]]`, whose role then applies.
        login: bool = false => AtOnce;
        /// Seconds without input after which a user is logged out; 0 never.
        idle_logout: u32 [0, 86400] = 600 => AtOnce;
    }
}

impl Config {
    /// Whether a user can log in who may change the configuration.
    pub fn has_console_admin(&self) -> bool {
        self.user.iter().any(|user| user.role == Role::Admin && user.token_sha256.is_some())
    }

    /// Whether the console requires a login: `console.login` is set, and an administrator has a token. Without one an
    /// operator at the console could not correct the configuration.
    pub fn asks_for_login(&self) -> bool {
        self.console.login && self.has_console_admin()
    }

    /// Time without input after which a user at the console is logged out.
    pub fn idle_logout(&self) -> Option<Duration> {
        let seconds = self.console.idle_logout;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }
}
