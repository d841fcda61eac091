//! The engine beside a stock sender, to a stock receiver that loses packets.

use anyhow::Result;
use usnic_tests::loss::{Load, ours, stock};

/// Prints how fast both are; `./isthmus bench usnic` holds one of it to its bars.
#[test]
#[ignore = "it measures: run it alone"]
fn beside_a_stock_sender() -> Result<()> {
    let each = Load { count: 200, length: 65_536, each: true };
    let bulk = Load { count: 1000, length: 65_536, each: false };
    for (name, load) in [("each", each), ("bulk", bulk)] {
        for loss in [1, 10, 50] {
            for seed in 0..3 {
                let [a, b] = [ours(load, (loss, seed))?, stock(load, (loss, seed))?];
                println!(
                    "{name} {loss}: ours {a:.0}, stock {b:.0} messages a second: {:.2}",
                    a / b
                );
            }
        }
    }
    Ok(())
}
