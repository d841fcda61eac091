//! Runs external commands: shows them as `$ …` before they run, and has them killed when the launcher ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::progress;

/// The command as a shell line.
pub fn shell_line(command: &Command) -> String {
    let mut words = Vec::new();
    if let Some(directory) = command.get_current_dir() {
        words.push(format!("cd {} &&", quote(&directory.to_string_lossy())));
    }
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", name.to_string_lossy(), quote(&value.to_string_lossy())));
        }
    }
    words.push(quote(&command.get_program().to_string_lossy()));
    words.extend(command.get_args().map(|word| quote(&word.to_string_lossy())));
    words.join(" ")
}

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./,:@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Runs a command on this terminal and fails unless it exits with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let line = shell_line(command);
    progress::print(&format!("$ {line}"));
    end_with_us(command);
    let status = command.status().with_context(|| format!("could not start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a command behind a spinner that shows its newest line of output.
/// Output is printed only when the command fails.
pub fn run_quietly(what: &str, command: &mut Command) -> Result<()> {
    let line = shell_line(command);
    progress::print(&format!("$ {line}"));
    let step = progress::step(what);
    let (reader, writer) = std::io::pipe().context("no pipe for the command's output")?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    end_with_us(command);
    let mut child = Running(command.spawn().with_context(|| format!("could not start `{line}`"))?);
    // `command` holds the write ends; without closing them the read below would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    for text in BufReader::new(reader).split(b'\n') {
        let text = String::from_utf8_lossy(&text?).into_owned();
        step.at(&text);
        output.push(text);
    }
    let status = child.0.wait()?;
    if !status.success() {
        step.print(&output.join("\n"));
        bail!("`{line}` failed: {status}");
    }
    step.done("done");
    Ok(())
}

/// Runs a command and returns what it prints to standard output. The command is not shown:
/// for queries that change nothing (`rustc --version`).
pub fn output(command: &mut Command) -> Result<String> {
    let line = shell_line(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("could not start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes the kernel kill the command when the thread that starts it ends, for any reason.
pub fn end_with_us(command: &mut Command) {
    let die = || {
        let signal = Some(rustix::process::Signal::KILL);
        rustix::process::set_parent_process_death_signal(signal).map_err(Into::into)
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; this closure makes one
    // prctl system call and touches no memory that another thread may have locked.
    unsafe { command.pre_exec(die) };
}

/// A child process that is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_line_quotes_words_that_are_special_to_a_shell() {
        let mut command = Command::new("qemu");
        command.args(["-append", "a b", "it's", "", "x=1,y"]).env("K", "v w");
        assert_eq!(shell_line(&command), r"K='v w' qemu -append 'a b' 'it'\''s' '' x=1,y");
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = run_quietly("failing", Command::new("false").arg("x")).unwrap_err();
        assert!(error.to_string().contains("`false x` failed"), "{error}");
    }
}
