//! Which files of the sources an image goes through while it does something: a plugin of QEMU's counts how often each
//! instruction is executed, and the image's symbols tell in which file its function stands.
//!
//! What the compiler has put into the place where it is called belongs to the function there.

mod executed;
mod functions;

use std::collections::BTreeMap;
use std::fmt;

pub use executed::{Counts, Executed};
pub use functions::Functions;

/// A file of which this many instructions are executed is one that the work goes through: it takes some thousands in all.
/// What has fewer is a helper of who calls it.
const OWN: usize = 28;

/// How many instructions of each file are executed for each of some equal pieces of work.
#[derive(Default)]
pub struct Files(BTreeMap<String, usize>);

/// A time in which work was done, and one in which nothing was.
pub struct Phases<'a> {
    /// Counts before the work, after it, and after as long a time without.
    pub counts: [&'a Counts; 3],
    /// Pieces of work.
    pub pieces: u64,
}

impl Phases<'_> {
    /// Instructions that are executed for most pieces of work, and not without it.
    fn instructions(&self) -> impl Iterator<Item = u64> {
        let [start, done, rested] = self.counts;
        let most = self.pieces / 2;
        let each = done.since(start).zip(rested.since(done));
        let each = each.filter(move |((_, busy), (_, idle))| *busy >= idle + most && *idle < most);
        each.map(|((address, _), _)| address)
    }

    /// The files that they are from.
    pub fn files(&self, functions: &Functions) -> Files {
        let mut files = Files::default();
        for address in self.instructions() {
            let file = functions.file(address).unwrap_or("elsewhere");
            *files.0.entry(file.to_string()).or_default() += 1;
        }
        files
    }
}

impl Files {
    /// The files of this repository that the work goes through, by their paths.
    pub fn passed(&self) -> Vec<&str> {
        let passed = self.0.iter().filter(|(name, count)| name.ends_with(".rs") && **count >= OWN);
        passed.map(|(name, _)| name.as_str()).collect()
    }
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, count)| writeln!(f, "{count:6} {name}"))
    }
}
