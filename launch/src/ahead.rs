//! Compiling ahead: while the image is linked, which takes one processor for minutes, and guests are made ready, the
//! tests are compiled on the others.

use std::process::{Command, Stdio};
use std::thread::{self, JoinHandle};

use crate::command::{self, shell_line};
use crate::progress;

/// Commands that are run in the background, one after the other.
pub struct Ahead(JoinHandle<()>);

impl Ahead {
    /// Starts running `commands`. What they print is not shown: one that fails is run again by whoever needs it, which
    /// says why.
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

    /// Waits until all have ended.
    pub fn finish(self) {
        let step = progress::step("compiling the tests");
        let _ = self.0.join();
        step.done("done");
    }
}
