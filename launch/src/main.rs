//! The command behind `./isthmus`, without the verbs that link protocol engines or drivers, so that it compiles in
//! seconds. It runs `launch-full` for those verbs.

use std::process::ExitCode;

fn main() -> ExitCode {
    launch::cli::main()
}
