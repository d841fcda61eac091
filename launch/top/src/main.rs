//! The program behind `./isthmus top`.

use std::process::ExitCode;

fn main() -> ExitCode {
    top::main()
}
