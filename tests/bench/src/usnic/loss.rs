//! How fast messages get to a stock receiver that loses 1 % of what arrives: from the engine on a host's sockets,
//! and from a stock sender. Both run in turns, with the same seeds, so that what else the machine does meets both;
//! the medians are compared.

use anyhow::Result;
use launch::progress;
use usnic_tests::loss::{self, Load};

use crate::report::Report;

/// Thousandths.
const LOSS: u32 = 10;
const ROUNDS: u64 = 7;
/// Bytes of a message.
const LENGTH: usize = 65_536;

/// Adds both ratios: messages a second of the engine by those of the stock sender.
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
