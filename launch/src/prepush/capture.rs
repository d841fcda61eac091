//! Runs the commands of checks. Prints each command when it starts, and its output only if it fails.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::{end_with_us, shell_line};

/// Runs all commands, even after a failure. Fails with the output of the failed commands.
pub(super) fn all(commands: impl IntoIterator<Item = Command>) -> Result<String> {
    let failures: Vec<String> = commands
        .into_iter()
        .filter_map(|mut command| run(&mut command).err().map(|error| format!("{error:#}")))
        .collect();
    if !failures.is_empty() {
        bail!("{}", failures.join("\n"));
    }
    Ok(String::new())
}

fn run(command: &mut Command) -> Result<()> {
    let line = shell_line(command);
    eprintln!("$ {line}");
    end_with_us(command);
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("could not start `{line}`"))?;
    if !output.status.success() {
        let [out, err] = [output.stdout, output.stderr].map(|text| {
            let text = String::from_utf8_lossy(&text).trim_end().to_string();
            if text.is_empty() { text } else { text + "\n" }
        });
        bail!("{out}{err}`{line}` failed: {}", output.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_commands_run_and_failures_show_their_output() {
        let directory = tempfile::tempdir().unwrap();
        let command = |script: &str| {
            let mut shell = Command::new("sh");
            shell.current_dir(directory.path()).args(["-c", script]);
            shell
        };
        let error = all([command("echo out; echo err >&2; false"), command("touch ran")]);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("out\nerr\n"), "{error}");
        assert!(directory.path().join("ran").exists());
        assert_eq!(all([command("true")]).unwrap(), "");
    }
}
