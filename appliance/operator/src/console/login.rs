//! The login of the console (`console.login`): a user name, and the token as a password that is not shown.
//!
//! After a wrong try the console checks no other one for a second, twice as long after each further one. A user who is
//! removed, or gets another role or token, is logged out; so is one who types nothing for `console.idle_logout`.

use super::editor::Editor;
use super::system::System;
use super::{Console, INTERRUPT, State};
use crate::caller::Caller;
use crate::config::Role;
use core::time::Duration;
use drivers::hal::Instant;

/// Longest name or token in bytes.
const LONGEST: usize = 128;
/// Wait after a wrong try. It doubles with each further one.
const PENALTY: Duration = Duration::from_secs(1);
/// Maximum doublings.
const DOUBLINGS: u32 = 6;

/// Who is logged in, or tries to.
#[derive(Debug, Default)]
pub(super) struct Login {
    /// The user, and the SHA-256 of the token.
    user: Option<Session>,
    /// The name that was entered.
    name: Option<String>,
    line: String,
    /// Wrong tries since the last right one.
    wrong: u32,
    /// Until when no try is checked.
    blocked: Option<Instant>,
    /// When something was typed last.
    typed: Option<Instant>,
}

/// A user at the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Name.
    pub name: String,
    /// Role.
    pub role: Role,
    /// SHA-256 of the token.
    pub token: [u8; 32],
}

impl Console {
    /// The caller of commands: an administrator where no login is required. Before a login it is a reader, and the console
    /// executes no command.
    pub fn caller(&self, asks_for_login: bool) -> Caller {
        let nobody = || match asks_for_login {
            true => Caller { role: Role::Read, ..Caller::console() },
            false => Caller::console(),
        };
        let user = self.login.user.as_ref().filter(|_| asks_for_login);
        user.map_or_else(nobody, |user| Caller {
            name: user.name.clone(),
            role: user.role,
            ..Caller::console()
        })
    }

    /// Whether log messages may be shown.
    pub(super) fn is_locked(&self) -> bool {
        self.state == State::Login
    }

    /// Asks for a login, or no longer, as the configuration wants it.
    pub(super) fn check_login(&mut self, system: &mut dyn System) {
        if !system.asks_for_login() {
            self.login.user = None;
            if self.state == State::Login {
                self.login = Login::default();
                self.output.text("\n");
                self.prompt();
            }
            return;
        }
        let may_end =
            matches!(self.state, State::New | State::Prompt | State::Paste | State::Follow(_));
        if self.state == State::Login || !may_end {
            return;
        }
        let now = system.log().now();
        let idle = system.idle_logout();
        let Some(user) = &self.login.user else { return self.ask_for_name("\n") };
        let is_idle = idle.zip(self.login.typed).is_some_and(|(idle, typed)| typed + idle <= now);
        if !system.is_known(user) {
            system.note_logout(user, "logout: the user has changed");
        } else if is_idle {
            system.note_logout(user, "logout: idle");
        } else {
            return;
        }
        self.log_out();
    }

    /// Ends the session.
    pub(super) fn log_out(&mut self) {
        self.pasted = None;
        self.report = None;
        // The history of lines may tell the next user what the last one did.
        self.editor = Editor::default();
        self.ask_for_name("\nlogged out\n");
    }

    fn ask_for_name(&mut self, before: &str) {
        let Login { wrong, blocked, .. } = self.login;
        self.login = Login { wrong, blocked, ..Login::default() };
        self.state = State::Login;
        self.output.text(before);
        self.output.text("login: ");
    }

    /// Notes that something was typed.
    pub(super) fn note_typed(&mut self, system: &dyn System) {
        self.login.typed = Some(system.log().now());
    }

    /// Handles typed bytes of a name or a token. Returns whether there were any.
    pub(super) fn handle_login(&mut self, system: &mut dyn System) -> bool {
        let mut any = false;
        while let Some(byte) = self.inbox.pop_front() {
            any = true;
            let shows = self.login.name.is_none();
            match byte {
                b'\r' | b'\n' => {
                    self.output.text("\n");
                    let line = core::mem::take(&mut self.login.line);
                    self.take_line(line.trim(), system);
                    break;
                }
                INTERRUPT => {
                    self.ask_for_name("^C\n");
                    break;
                }
                8 | 127 if self.login.line.pop().is_some() && shows => {
                    self.output.text("\x08 \x08")
                }
                b' '..=b'~' if self.login.line.len() < LONGEST => {
                    self.login.line.push(byte.into());
                    if shows {
                        self.output.text(char::from(byte).encode_utf8(&mut [0; 4]));
                    }
                }
                _ => {}
            }
        }
        any
    }

    fn take_line(&mut self, line: &str, system: &mut dyn System) {
        let Some(name) = self.login.name.take() else {
            if line.is_empty() {
                return self.ask_for_name("");
            }
            self.login.name = Some(line.into());
            return self.output.text("token: ");
        };
        let now = system.log().now();
        if let Some(until) = self.login.blocked.filter(|until| now < *until) {
            let seconds = until.since(now).as_secs() + 1;
            let text = format!("too soon after a wrong try: not checked; wait {seconds} s\n");
            return self.ask_for_name(&text);
        }
        match system.log_in(&name, line.as_bytes()) {
            Some(user) => {
                let about = match self.login.wrong {
                    0 => String::new(),
                    wrong => format!("wrong tries since the last login: {wrong}\n"),
                };
                self.login = Login { user: Some(user), typed: Some(now), ..Login::default() };
                self.output.text(&about);
                self.prompt();
            }
            None => {
                let doublings = self.login.wrong.min(DOUBLINGS);
                self.login.wrong = self.login.wrong.saturating_add(1);
                self.login.blocked = Some(now + PENALTY * (1 << doublings));
                self.ask_for_name("wrong name or token\n");
            }
        }
    }

    /// `logout`.
    pub(super) fn log_out_by_command(&mut self, system: &mut dyn System) {
        match self.login.user.clone().filter(|_| system.asks_for_login()) {
            Some(user) => {
                system.note_logout(&user, "logout");
                self.log_out();
            }
            None => {
                self.output.text("error: the console has no login (console.login)\n");
                self.prompt();
            }
        }
    }
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
