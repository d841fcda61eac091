//! A peer that sends over several interfaces.

use super::*;

/// Over two interfaces the second of two messages comes first. There is memory for one: the peer takes back the first
/// before the second, so that has it.
#[test]
fn what_overtakes_waits_for_what_was_sent_before() {
    for whole in [false, true] {
        // All but a sixteenth, which a peer leaves to others.
        let all = (needs_of(300_000) + 4096) / 15 * 16;
        let (mut mirror, mut budget) = (Mirror::new(RANK, LIMITS), Budget::new(all));
        mirror.set_several();
        let mut rank = Rank::new(153_568, 1);
        let (first, second) = (data(300_000, 1), data(200_000, 2));
        let begins = match whole {
            true => message(Header::Match(envelope(1)), b"short"),
            false => rank.begin(1, &first),
        };
        let overtakes = rank.begin(2, &second);
        give(&mut mirror, &mut budget, overtakes).unwrap();
        assert!(out(&mut mirror, &mut budget).is_empty(), "it is asked for nothing");
        assert_eq!((mirror.under_way(), mirror.counters().waited), ((1, 1), 1));
        give(&mut mirror, &mut budget, begins).unwrap();
        let answers = out(&mut mirror, &mut budget);
        let asked = answers.iter().filter(|bytes| bytes[0] == 68).count();
        assert_eq!(asked, 1, "one message is asked for: {answers:?}");
        let parts = answers.iter().filter(|bytes| bytes[0] == 68);
        let parts = parts.flat_map(|ack| rank.answer(ack)).collect();
        carry(&mut mirror, &mut budget, &mut rank, parts);
        let expected = if whole { vec![(2, second)] } else { vec![(1, first), (2, second)] };
        assert!(rank.done == expected, "{whole}");
        assert_eq!((mirror.under_way(), budget.free()), ((0, 0), all));
    }
}
