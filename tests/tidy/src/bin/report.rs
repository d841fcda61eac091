//! Prints the measures of the tree; with `--places`, also where each place of a list is.

use tidy::Tree;
use tidy::report;

fn main() {
    let places = std::env::args().any(|argument| argument == "--places");
    for row in report::rows(&Tree::here()) {
        println!("{:>8}  {}", row.count, row.name);
        for place in row.places.iter().filter(|_| places) {
            println!("          {place}");
        }
    }
}
