//! Bytes that a program loads and stores, counted by valgrind's lackey, which reports each access with its address.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Addresses that the program prints in a line `trace [marks] [starts] length`.
struct Header {
    /// The program stores to these addresses when a model begins and ends its work, and when counting begins and ends.
    entered: u64,
    left: u64,
    begun: u64,
    ended: u64,
    /// Start addresses and length of the counted memory.
    starts: Vec<u64>,
    length: u64,
}

impl Header {
    fn parse(line: &str) -> Option<Header> {
        let (marks, rest) = line.strip_prefix("trace [")?.split_once("] [")?;
        let (starts, length) = rest.split_once("] ")?;
        let numbers = |list: &str| -> Option<Vec<u64>> {
            list.split(", ").map(|number| number.parse().ok()).collect()
        };
        let [entered, left, begun, ended] = numbers(marks)?[..] else { return None };
        let (starts, length) = (numbers(starts)?, length.trim().parse().ok()?);
        Some(Header { entered, left, begun, ended, starts, length })
    }

    fn is_inside(&self, address: u64) -> bool {
        self.starts.iter().any(|start| (*start..start + self.length).contains(&address))
    }
}

/// Parses an access of the trace, ` S 1ffeffe7e0,8`, as (loads, stores, address, bytes).
fn access(line: &str) -> Option<(bool, bool, u64, u64)> {
    let (loads, stores) = match line.as_bytes().get(..3)? {
        b" L " => (true, false),
        b" S " => (false, true),
        b" M " => (true, true),
        _ => return None,
    };
    let (address, length) = line.get(3..)?.trim().split_once(',')?;
    Some((loads, stores, u64::from_str_radix(address, 16).ok()?, length.parse().ok()?))
}

/// Counts in a trace.
#[derive(Default)]
struct Count {
    header: Option<Header>,
    /// Depth of nested calls of models.
    depth: u64,
    is_counting: bool,
    bytes: u64,
    rounds: u64,
}

impl Count {
    fn take(&mut self, line: &str) {
        let Some(header) = &self.header else {
            self.header = Header::parse(line);
            return;
        };
        let Some((loads, stores, address, length)) = access(line) else { return };
        if stores && address == header.entered {
            self.depth += 1;
        } else if stores && address == header.left {
            self.depth = self.depth.saturating_sub(1);
        } else if stores && address == header.begun {
            self.is_counting = true;
        } else if stores && address == header.ended {
            self.is_counting = false;
            self.rounds += 1;
        } else if self.is_counting && self.depth == 0 && header.is_inside(address) {
            self.bytes += length * (u64::from(loads) + u64::from(stores));
        }
    }
}

/// Bytes of the counted memory that the program loads and stores between its marks, without those of models, per round
/// of `rounds` rounds.
pub fn bytes_touched(program: &Path, scenario: &str, rounds: u64) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "--log-fd=1"]);
    valgrind.arg(program).args([scenario, &rounds.to_string()]).stdout(Stdio::piped());
    let mut process = valgrind.spawn().context("could not start valgrind")?;
    let mut trace = BufReader::with_capacity(1 << 20, process.stdout.take().context("no output")?);
    let (mut count, mut line) = (Count::default(), String::new());
    while trace.read_line(&mut line)? > 0 {
        // Instructions are three quarters of the trace.
        if !line.starts_with('I') {
            count.take(&line);
        }
        line.clear();
    }
    if !process.wait()?.success() || count.rounds != rounds {
        bail!("{scenario}: {} of {rounds} rounds were traced", count.rounds);
    }
    Ok(count.bytes as f64 / rounds as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_of_models_and_to_other_memory_are_not_counted() {
        let mut count = Count::default();
        let lines = [
            " S 00001000,8",
            "trace [16, 17, 18, 19] [4096, 65536] 4096",
            " S 00001000,8",
            " S 00000012,1", // begun
            " S 00001000,8",
            " L 00001ffc,4",
            " M 00010000,2",
            " S 00002000,8", // behind the memory
            " S 00000010,1", // a model, which calls another one
            " S 00000010,1",
            " L 00001000,8",
            " S 00000011,1",
            " L 00001000,8",
            " S 00000011,1",
            " L 00001000,1",
            " L 00000013,1", // a load is not a mark
            " S 00000013,1", // ended
            " S 00001000,8",
        ];
        lines.iter().for_each(|line| count.take(line));
        assert_eq!((count.bytes, count.rounds), (8 + 4 + 4 + 1, 1));
    }
}
