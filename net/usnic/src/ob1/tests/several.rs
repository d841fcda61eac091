//! Tests of a peer that sends over several interfaces.

use super::*;

/// Over two interfaces, the second of two messages arrives first. There is memory for one. The first message gets it,
/// because the peer takes back the first before the second.
#[test]
fn message_that_overtakes_waits_for_the_earlier_one() {
    for whole in [false, true] {
        // A peer may use all but a sixteenth.
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
        assert!(out(&mut mirror, &mut budget).is_empty(), "its rest is not requested");
        assert_eq!((mirror.under_way(), mirror.counters().waited), ((1, 1), 1));
        give(&mut mirror, &mut budget, begins).unwrap();
        let answers = out(&mut mirror, &mut budget);
        let requested = answers.iter().filter(|bytes| bytes[0] == 68).count();
        assert_eq!(requested, 1, "the rest of one message is requested: {answers:?}");
        let parts = answers.iter().filter(|bytes| bytes[0] == 68);
        let parts = parts.flat_map(|ack| rank.answer(ack)).collect();
        carry(&mut mirror, &mut budget, &mut rank, parts);
        let expected = if whole { vec![(2, second)] } else { vec![(1, first), (2, second)] };
        assert!(rank.done == expected, "{whole}");
        assert_eq!((mirror.under_way(), budget.free()), ((0, 0), all));
    }
}
