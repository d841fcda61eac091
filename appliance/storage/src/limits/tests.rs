use super::*;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proptest::prelude::*;

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(50) + Duration::from_micros(micros)
}

fn requests(all: u32) -> Limits {
    Limits { all: Rate { requests: Some(all), bytes: None }, ..Limits::default() }
}

/// Requests that are admitted in `millis` ms, if there is always one of `bytes` bytes.
fn admitted(limits: &Limits, class: Class, bytes: u64, millis: u64) -> u64 {
    let limiter = Limiter::new(limits);
    let mut count = 0;
    for ms in 0..millis {
        while limiter.credit(class, at(ms * 1000)).is_some() {
            limiter.charge(class, bytes, at(ms * 1000));
            count += 1;
        }
    }
    count
}

#[test]
fn limiter_admits_its_rate_one_burst_and_one_request() {
    for rate in [100, 999, 30_000, 1_000_000] {
        let count = admitted(&requests(rate), Class::Read, 4096, 10_000);
        let rate = u64::from(rate);
        let most = rate * 10 + rate / 10 + 1;
        assert!((rate * 10 - rate / 1000 - 1..=most).contains(&count), "{rate}: {count}");
    }
    for (rate, bytes) in
        [(1 << 20, 128 << 10), (100 << 20, 4096), (10 << 30, 4096), (1 << 20, 4 << 20)]
    {
        let limits =
            Limits { writes: Rate { requests: None, bytes: Some(rate) }, ..Limits::default() };
        let count = admitted(&limits, Class::Write, bytes, 10_000) * bytes;
        let most = rate * 10 + rate / 10 + bytes;
        assert!((rate * 10 - rate / 1000..=most).contains(&count), "{rate} {bytes}: {count}");
        let limiter = Limiter::new(&limits);
        for _ in 0..100 {
            limiter.charge(Class::Read, bytes, at(0));
        }
        assert_eq!(limiter.credit(Class::Read, at(0)), Some(u64::MAX), "reads are not limited");
    }
}

#[test]
fn request_of_any_size_is_admitted_at_last_and_paid_for() {
    let limits = Limits { all: Rate { requests: None, bytes: Some(1 << 20) }, ..Limits::default() };
    let limiter = Limiter::new(&limits);
    assert!(limiter.credit(Class::Write, at(0)).is_some());
    limiter.charge(Class::Write, 256 << 20, at(0));
    assert!(limiter.credit(Class::Read, at(255_000_000)).is_none());
    assert!(limiter.credit(Class::Read, at(256_000_000)).is_some());
    // The largest sizes there are do not wrap.
    limiter.charge(Class::Write, u64::MAX, at(256_000_000));
    limiter.charge(Class::Write, u64::MAX, at(256_000_000));
    assert!(limiter.credit(Class::Write, at(900_000_000)).is_none());
    limiter.set(&requests(100));
    assert!(
        limiter.credit(Class::Write, at(900_000_000)).is_some(),
        "the debt was of another limit"
    );
    limiter.set(&Limits::default());
    assert!(!limiter.is_limited());
}

proptest! {
    /// Over any interval, whatever arrives when.
    #[test]
    fn no_interval_gets_more_than_rate_burst_and_one_request(
        steps in prop::collection::vec((0u64..50_000, 1u64..200_000), 1..300),
        rate in (1u64 << 20)..(1 << 30),
    ) {
        let limits = Limits { all: Rate { requests: None, bytes: Some(rate) }, ..Limits::default() };
        let limiter = Limiter::new(&limits);
        let (mut micros, mut taken) = (0, Vec::new());
        for (pause, bytes) in steps {
            micros += pause;
            if limiter.credit(Class::Read, at(micros)).is_some() {
                limiter.charge(Class::Read, bytes, at(micros));
                taken.push((micros, bytes));
            }
        }
        for first in 0..taken.len() {
            let (mut sum, mut largest) = (0, 0);
            for &(micros, bytes) in &taken[first..] {
                (sum, largest) = (sum + bytes, largest.max(bytes));
                let time = micros - taken[first].0 + 100_000;
                prop_assert!(sum <= rate * time / 1_000_000 + largest + 1);
            }
        }
    }
}

/// Takes a turn at `now`, charging one request each.
fn turn(throttle: &mut Throttle<u32, u32>, now: Instant) -> Vec<(u32, u32)> {
    let mut taken = Vec::new();
    throttle.begin_turn(now);
    while let Some(next) = throttle.next(now) {
        throttle.limiter().charge(Class::Read, 512, now);
        taken.push(next);
    }
    throttle.end_turn(false, now);
    taken
}

#[test]
fn owners_take_turns_whatever_they_have_waiting() {
    let limiter = Arc::new(Limiter::new(&requests(1000)));
    let mut throttle = Throttle::new(limiter.clone());
    while !throttle.must_wait(Class::Read, at(0)) {
        limiter.charge(Class::Read, 512, at(0));
    }
    for request in 0..500 {
        throttle.wait(Class::Read, 1, request, at(0));
    }
    throttle.wait(Class::Write, 2, 1000, at(0));
    throttle.wait(Class::Read, 3, 2000, at(0));
    throttle.wait(Class::Read, 3, 2001, at(0));
    let taken = turn(&mut throttle, at(6_000));
    let wanted = [(1, 0), (2, 1000), (3, 2000), (1, 1), (3, 2001), (1, 2)];
    assert!(taken.len() >= 6 && taken[..6].iter().all(|one| wanted.contains(one)), "{taken:?}");
    assert!(throttle.must_wait(Class::Read, at(10_000_000)), "others wait already");
    let (delayed, time) = limiter.delays();
    assert_eq!((delayed, time), (503, Duration::from_millis(6)));
}

#[test]
fn loops_share_a_limit_and_none_takes_all() {
    let limiter = Arc::new(Limiter::new(&requests(100_000)));
    let mut loops: Vec<_> = (0..4).map(|_| Throttle::new(limiter.clone())).collect();
    for one in &mut loops {
        for request in 0..200_000 {
            one.wait(Class::Read, 1, request, at(0));
        }
    }
    let mut counts = [0; 4];
    // Always in the same order, one behind the other: the worst that can happen.
    for step in 0..2000 {
        for (number, one) in loops.iter_mut().enumerate() {
            counts[number] += turn(one, at(step * 500 + number as u64)).len();
        }
    }
    let sum: usize = counts.iter().sum();
    assert!((100_000..=110_001).contains(&sum), "{counts:?}");
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(least * 100 > most * 36, "{counts:?}");
    drop(loops);
    assert_eq!(limiter.loops.load(Ordering::Relaxed), 0);
}

#[test]
fn owner_that_is_gone_leaves_nothing() {
    let limiter = Arc::new(Limiter::new(&requests(100)));
    let mut throttle = Throttle::new(limiter.clone());
    limiter.charge(Class::Read, 0, at(0));
    for request in 0..10 {
        throttle.wait(Class::Read, request % 2, request, at(0));
    }
    assert_eq!(throttle.extract(at(1), |_, request| request == 4), [4]);
    assert_eq!(throttle.forget(0, at(2)), [0, 2, 6, 8]);
    assert!(throttle.due().is_some());
    assert_eq!(throttle.forget(1, at(3)), [1, 3, 5, 7, 9]);
    assert!(throttle.is_empty() && throttle.due().is_none());
    assert_eq!(limiter.loops.load(Ordering::Relaxed), 0);
    assert_eq!(throttle.forget(1, at(4)), []);
}

#[test]
fn limit_that_is_lifted_lets_all_continue() {
    let limiter = Arc::new(Limiter::new(&requests(100)));
    let mut throttle = Throttle::new(limiter.clone());
    for request in 0..5000 {
        throttle.wait(Class::Read, 1, request, at(0));
    }
    assert!(throttle.due().unwrap() <= at(10_000), "changes are seen within 10 ms");
    assert!(turn(&mut throttle, at(10_000)).len() < 20);
    limiter.set(&Limits::default());
    assert_eq!(turn(&mut throttle, at(20_000)).len(), 5000 - 11);
    assert!(throttle.due().is_none());
}
