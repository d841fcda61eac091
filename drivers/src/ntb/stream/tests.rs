use super::*;
use crate::hal::Arena;
use proptest::prelude::*;
use std::string::ToString;
use std::vec::Vec;

const SIZE: usize = 4096;

/// Memory: the exposed part, followed by a guard.
fn memory() -> Window {
    let memory = Arena::on_heap(4 * SIZE).alloc(2 * SIZE, 64).unwrap();
    memory.fill(0xa5);
    memory
}

fn end(memory: &Window) -> Stream {
    let exposed = memory.slice(0, SIZE).unwrap();
    exposed.fill(0);
    Stream::new(exposed)
}

fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = std::vec![0; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}

/// Takes all bytes that an end sends.
fn sent_by(end: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    while !end.outgoing().is_empty() {
        all.extend(end.outgoing());
        end.sent(end.outgoing().len());
    }
    all
}

/// Two ends that have greeted each other.
fn pair() -> [Stream; 2] {
    let mut ends = [0; 2].map(|_| end(&memory()));
    ends.iter_mut().for_each(Stream::open);
    let greetings = ends.each_mut().map(sent_by);
    for (end, greeting) in ends.iter_mut().zip(greetings.iter().rev()) {
        assert!(!end.link() && end.window().is_empty());
        end.receive(greeting);
        assert!(end.link() && end.window().len() == SIZE);
    }
    ends
}

fn greeting(magic: &[u8; 4], version: u32, size: u64) -> Vec<u8> {
    [&magic[..], &version.to_le_bytes(), &size.to_le_bytes()].concat()
}

fn record(kind: u32, place: u32, value: u32) -> Vec<u8> {
    [kind, place, value].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn writes_of_one_side_reach_the_other() {
    let [mut a, mut b] = pair();
    let window = a.window();
    a.put(&window.slice(8, 16).unwrap(), &[1, 2, 3]);
    a.put32(&window.slice(32, 4).unwrap(), 7);
    let from = Arena::on_heap(4096).alloc(64, 64).unwrap();
    from.fill(0x55);
    a.submit(&window.slice(40, 4).unwrap(), &from);
    a.submit(&window.slice(SIZE - 64, 64).unwrap(), &from);
    a.set_peer_scratchpad(3, 9);
    assert!(contents(&a.exposed()).iter().all(|&byte| byte == 0), "only addresses are used");
    b.receive(&sent_by(&mut a));
    let mut words = [0; 4];
    b.exposed().load_words(8, &mut words);
    assert_eq!(words, [1, 2, 0, 7], "nothing beyond the slice");
    assert_eq!(b.exposed().load32(40), 0x5555_5555);
    assert_eq!(b.exposed().load32(44), 0);
    assert_eq!(b.exposed().load32(SIZE - 4), 0x5555_5555);
    assert_eq!((b.scratchpad(3), a.scratchpad(3)), (9, 0));
    assert!(!b.pending());
    a.ring();
    b.receive(&sent_by(&mut a));
    assert!(b.pending());
    assert_eq!([b.rung(), b.rung(), a.rung()], [true, false, false]);
}

#[test]
fn closed_connection_drops_all_state() {
    let [mut a, mut b] = pair();
    b.receive(&record(SCRATCHPAD, 1, 5));
    b.receive(&record(BELL, 0, 0));
    // Half a record, then another connection.
    b.receive(&record(BYTES, 0, 100));
    b.receive(&[7; 40]);
    a.put32(&a.window().slice(0, 4).unwrap(), 1);
    for end in [&mut a, &mut b] {
        end.close();
        assert!(!end.link() && !end.rung());
        assert_eq!((end.scratchpad(1), end.outgoing().len()), (0, 0));
    }
    a.put32(&a.exposed().slice(0, 4).unwrap(), 1);
    a.set_peer_scratchpad(0, 1);
    assert!(a.outgoing().is_empty(), "nothing is written without a connection");
    a.open();
    b.open();
    b.receive(&sent_by(&mut a));
    b.receive(&record(CELL, 8, 3));
    assert!(b.link());
    assert_eq!(b.exposed().load32(8), 3);
    assert_eq!(contents(&b.exposed())[40], 0);
}

#[test]
fn foreign_greetings_are_refused_with_the_reason() {
    let size = SIZE as u64;
    let wrong_size = Wrong::Size { ours: size, theirs: size + (1 << 32) };
    let cases = [
        (greeting(b"GET ", 1, size), Wrong::Greeting, "not the bridge"),
        (greeting(b"iNTB", 2, size), Wrong::Version(2), "version 2"),
        (greeting(b"iNTB", 1, size + (1 << 32)), wrong_size, "the same `memory`"),
    ];
    for (bytes, wrong, text) in cases {
        let mut end = end(&memory());
        end.open();
        end.receive(&bytes);
        assert_eq!(end.wrong(), Some(wrong));
        assert!(!end.link() && wrong.to_string().contains(text), "{wrong}");
    }
}

#[test]
fn records_beyond_the_exposed_memory_end_the_connection() {
    let size = SIZE as u32;
    let cases = [
        (record(BYTES, 0, size + 1), Wrong::Place(0)),
        (record(BYTES, size, 1), Wrong::Place(size)),
        (record(BYTES, 1, u32::MAX), Wrong::Place(1)),
        (record(BYTES, u32::MAX, 8), Wrong::Place(u32::MAX)),
        (record(CELL, size, 1), Wrong::Place(size)),
        (record(CELL, size - 2, 1), Wrong::Place(size - 2)),
        (record(CELL, 6, 1), Wrong::Place(6)),
        (record(SCRATCHPAD, 4, 1), Wrong::Place(4)),
        (record(0, 0, 0), Wrong::Kind(0)),
        (record(5, 0, 0), Wrong::Kind(5)),
    ];
    for (bytes, wrong) in cases {
        let [_, mut end] = pair();
        end.receive(&bytes);
        assert_eq!(end.wrong(), Some(wrong));
        assert!(!end.link());
        // Nothing is received or sent after that.
        end.receive(&record(CELL, 0, 1));
        end.receive(&[1; 100]);
        end.ring();
        assert!(contents(&end.exposed()).iter().all(|&byte| byte == 0));
        assert!(end.outgoing().is_empty());
        end.open();
        assert_eq!(end.wrong(), None);
    }
    for good in [record(BYTES, 0, size), record(BYTES, size, 0), record(CELL, size - 4, 1)] {
        let [_, mut end] = pair();
        end.receive(&good);
        assert_eq!(end.wrong(), None);
    }
}

#[test]
fn writer_that_checks_for_room_never_overflows() {
    let [mut a, mut b] = pair();
    let large = Arena::on_heap(2 * SIZE).alloc(SIZE, 64).unwrap();
    let mut turns = 0;
    for _ in 0..3 {
        while a.has_room() {
            for _ in 0..TURN / (SIZE + 16) {
                a.submit(&a.window(), &large);
            }
            turns += 1;
        }
        assert_eq!(a.wrong(), None);
        b.receive(&sent_by(&mut a));
        assert!(b.link());
    }
    assert!(turns >= 6, "{turns}");
    // A writer that does not check loses the connection, and the ring does not grow.
    (0..2 * WAITING / SIZE).for_each(|_| a.submit(&a.window(), &large));
    assert_eq!(a.wrong(), Some(Wrong::Stuck));
    assert!(sent_by(&mut a).len() <= WAITING);
}

#[derive(Clone, Debug)]
enum Write {
    Bytes(usize, Vec<u8>),
    Words(usize, Vec<u64>),
    Cell(usize, u32),
    Scratchpad(usize, u32),
}

fn write() -> impl Strategy<Value = Write> {
    let bytes = proptest::collection::vec(any::<u8>(), 1..600);
    let words = proptest::collection::vec(any::<u64>(), 1..20);
    prop_oneof![
        (0..SIZE, bytes).prop_map(|(at, bytes)| Write::Bytes(at, bytes)),
        (0..SIZE / 8, words).prop_map(|(at, words)| Write::Words(8 * at, words)),
        (0..SIZE / 4, any::<u32>()).prop_map(|(at, value)| Write::Cell(4 * at, value)),
        (0..SCRATCHPADS, any::<u32>()).prop_map(|(n, value)| Write::Scratchpad(n, value)),
    ]
}

proptest! {
    /// All writes arrive in order, for any split of the stream and any wrap of the ring.
    #[test]
    fn writes_arrive_for_any_split_of_the_stream(
        writes in proptest::collection::vec(write(), 1..60),
        cuts in proptest::collection::vec(1..2000usize, 1..40),
        before in 0..WAITING,
    ) {
        let [mut a, mut b] = pair();
        a.waiting.push(&std::vec![0; before]);
        a.sent(a.outgoing().len());
        let mut expected = std::vec![0; SIZE];
        let mut scratchpads = [0; SCRATCHPADS];
        let mut cuts = cuts.iter().cycle();
        for write in &writes {
            let window = a.window();
            let from = |at: usize| window.slice(at, SIZE - at).unwrap();
            let place = |expected: &mut Vec<u8>, at: usize, bytes: &[u8]| {
                let len = bytes.len().min(SIZE - at);
                expected[at..at + len].copy_from_slice(&bytes[..len]);
            };
            match write {
                Write::Bytes(at, bytes) => {
                    let source = Arena::on_heap(SIZE).alloc(bytes.len(), 8).unwrap();
                    source.write(0, bytes).unwrap();
                    a.submit(&from(*at), &source.slice(0, bytes.len()).unwrap());
                    place(&mut expected, *at, bytes);
                }
                Write::Words(at, words) => {
                    a.put(&from(*at), words);
                    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                    place(&mut expected, *at, &bytes);
                }
                Write::Cell(at, value) => {
                    a.put32(&from(*at), *value);
                    place(&mut expected, *at, &value.to_le_bytes());
                }
                Write::Scratchpad(n, value) => {
                    a.set_peer_scratchpad(*n, *value);
                    scratchpads[*n] = *value;
                }
            }
            let piece = a.outgoing();
            let piece = piece[..piece.len().min(*cuts.next().unwrap())].to_vec();
            a.sent(piece.len());
            b.receive(&piece);
        }
        for piece in sent_by(&mut a).chunks(*cuts.next().unwrap()) {
            b.receive(piece);
        }
        prop_assert_eq!(b.wrong(), None);
        prop_assert!(contents(&b.exposed()) == expected);
        prop_assert_eq!([0, 1, 2, 3].map(|n| b.scratchpad(n)), scratchpads);
    }

    /// Arbitrary bytes with any split never change memory after the exposed part.
    #[test]
    fn arbitrary_bytes_stay_within_the_exposed_memory(
        records in proptest::collection::vec(
            (0..6u32, prop_oneof![0..5000u32, any::<u32>()], prop_oneof![0..5000u32, any::<u32>()]),
            0..40,
        ),
        noise in proptest::collection::vec(any::<u8>(), 0..2000),
        cut in 1..500usize,
    ) {
        let memory = memory();
        let mut end = end(&memory);
        end.open();
        let mut bytes = greeting(b"iNTB", VERSION, SIZE as u64);
        for (kind, place, value) in records {
            bytes.extend(record(kind, place, value));
            if kind == BYTES {
                bytes.resize(bytes.len() + (value as usize).min(SIZE), 0xff);
            }
        }
        bytes.extend(noise);
        bytes.chunks(cut).for_each(|piece| end.receive(piece));
        let guard = memory.slice(SIZE, SIZE).unwrap();
        prop_assert!(contents(&guard).iter().all(|&byte| byte == 0xa5));
    }
}
