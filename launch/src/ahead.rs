//! Compiles the tests in the background, while the image is linked, which occupies one processor for minutes, and
//! guests are prepared.

use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use crate::command::{self, shell_line};
use crate::progress;

/// Commands that are run in the background, one after the other.
pub struct Ahead(JoinHandle<()>);

impl Ahead {
    /// Starts running `commands` without their output. The suite that needs the result of a failed command runs it
    /// again and shows the error.
    pub fn start(commands: Vec<Command>) -> Ahead {
        for command in &commands {
            eprintln!("$ {} &", shell_line(command));
        }
        Ahead(thread::spawn(|| {
            for mut command in commands {
                command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                command::end_with_us(&mut command);
                let _ = command.status();
            }
        }))
    }

    /// Waits until all commands have ended.
    pub fn finish(self) {
        let step = progress::step("compiling the tests");
        let _ = self.0.join();
        step.done("done");
    }
}
