//! Firmware that takes seconds for a command.

use super::*;
use models::Function;

/// Cards take up to a minute for a command (Linux: `MLX5_CMD_TIMEOUT_MSEC`), and are not reset for it.
#[test]
fn a_command_of_three_seconds_does_not_reset_the_card() {
    let mut bench = Bench::new(false);
    bench.inject(0, Fault::Late(3_000_000_000));
    let pd = bench.device(0).alloc_pd().unwrap();
    assert_eq!(bench.device(0).port().counters().resets, 0);
    bench.inject(0, Fault::Late(1000));
    assert_eq!(bench.device(0).dealloc_pd(pd), Ok(()));
    assert_eq!(bench.pair.complaints(), [""; 0]);
}

/// The time to open a card does not grow with the keys that it may need later.
#[test]
fn a_card_opens_with_few_keys() {
    let mut machine = Metal::new(Mlx5::new(Config::default()), 32 << 20);
    let address = "10.0.0.1".parse().unwrap();
    let card = open(&mut machine, &[address], &mut Rng::new(1)).unwrap();
    let counters = machine.model(|card| card.counters());
    let made = counters.iter().find(|(name, _)| name == "command.CREATE_MKEY");
    assert!(made.is_some_and(|(_, count)| *count <= 70), "{made:?}");
    drop(card);
}
