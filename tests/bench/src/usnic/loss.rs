//! Rate of messages to a stock receiver that loses 1 % of the packets: from the engine over a host's sockets, and from
//! a stock sender. Both run in turns with the same seeds, so that other load of the machine affects both. The medians
//! are compared.

use anyhow::Result;
use launch::progress;
use usnic_tests::loss::{self, Load};

use crate::report::Report;

/// Loss in thousandths.
const LOSS: u32 = 10;
const ROUNDS: u64 = 7;
/// Bytes of a message.
const LENGTH: usize = 65_536;

/// Adds both ratios of messages per second: of the engine to the stock sender.
pub fn measure(report: &mut Report) -> Result<()> {
    for (key, each, count) in
        [("loss_1pct_64k_ratio", true, 200), ("loss_1pct_bulk_ratio", false, 2000)]
    {
        let step = progress::step(key);
        let load = Load { count, length: LENGTH, each };
        let (mut ours, mut stock) = (Vec::new(), Vec::new());
        for seed in 0..ROUNDS {
            ours.push(loss::ours(load, (LOSS, seed))?);
            stock.push(loss::stock(load, (LOSS, seed))?);
        }
        let (ours, stock) = (median(ours), median(stock));
        step.done(&format!("{ours:.0} messages a second, the stock sender {stock:.0}"));
        report.ratio(key, ours, stock);
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
