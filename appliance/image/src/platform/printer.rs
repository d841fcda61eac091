//! `write!` for output that bypasses the console's queue.

use super::uart::print;

/// `write!` for [`print`], each newline as CR and LF.
#[derive(Debug)]
pub struct Printer;

impl core::fmt::Write for Printer {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                print("\r\n");
            }
            print(line);
        }
        Ok(())
    }
}
