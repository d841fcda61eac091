//! The command behind `./isthmus`, without what links protocol engines or drivers: it is compiled in seconds, and hands
//! over to `launch-full` for the rest.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::cli::main()
}
