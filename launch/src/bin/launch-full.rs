//! The command behind `./isthmus` with all verbs.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::cli::main()
}
