//! The mirror of MPI's messages, with a peer whose messages are the input: each message comes out exactly once, parts
//! never use more memory than their limit, and at the end all memory is free. Also parses records of a rendezvous.

use crate::input::Input;
use usnic::ob1::header::{Envelope, Header, LONGEST};
use usnic::ob1::{Budget, Limits, Mark, Mirror, Out};
use usnic::wire::rendezvous::{LENGTH, Record};

const MEMORY: u64 = 1 << 20;
const EVENTS: usize = 400;
const LIMITS: Limits = Limits { rendezvous: 5, parts: 12, longest: 1 << 19 };

struct World {
    mirror: Mirror<usize>,
    budget: Budget,
    /// By number of the message: memory that it uses while it is stored, 0 if it is not a part.
    takes: Vec<Option<u64>>,
    /// Returned messages without an acknowledgement.
    sent: Vec<(usize, Mark)>,
}

/// Takes a list of events.
pub fn run(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<LENGTH>()
        && let Ok(record) = Record::parse(bytes)
    {
        assert_eq!(Record::parse(&record.emit()), Ok(record));
    }
    let mut world = World {
        mirror: Mirror::new(1, LIMITS),
        budget: Budget::new(MEMORY),
        takes: Vec::new(),
        sent: Vec::new(),
    };
    Input(data).events(EVENTS, |input| world.event(input));
    let World { mirror, budget, takes, sent } = &mut world;
    let mut ended = sent.drain(..).map(|(message, _)| message).collect::<Vec<_>>();
    mirror.clear(budget, |message| ended.push(message));
    for message in ended {
        assert!(takes[message].take().is_some(), "a message came out twice");
    }
    assert!(takes.iter().all(Option::is_none), "a message was kept");
    assert_eq!((budget.free(), mirror.under_way()), (MEMORY, (0, 0)));
}

impl World {
    fn event(&mut self, input: &mut Input) {
        match input.byte() {
            0xff => self.out(input),
            0xfe => {
                if let Some((message, mark)) = self.sent.pop() {
                    assert!(self.takes[message].take().is_some());
                    self.mirror.sent(mark, &mut self.budget);
                }
            }
            choice => self.message(choice, input),
        }
    }

    fn message(&mut self, choice: u8, input: &mut Input) {
        let envelope =
            Envelope { communicator: 0, source: 0, tag: 1, sequence: u16::from(input.byte()) };
        // Existing tokens: the generation, and a slot.
        let token = u64::from(input.byte() & 31) << 32 | u64::from(choice >> 4 & 7);
        let size = u64::from(input.word()) * 8;
        let header = match choice & 3 {
            0 => Header::Match(envelope),
            1 => Header::Rendezvous { envelope, length: size, request: 7 },
            2 => Header::Ack { sender: token, receiver: 9, offset: size, size: 0 },
            _ => Header::Fragment { offset: size, sender: 7, receiver: token },
        };
        let mut head = header.emit().to_vec();
        if choice & 4 > 0 {
            let at = input.below(LONGEST);
            head[at] = input.byte();
        }
        let length = header.length() + usize::from(input.word()) * 8;
        let length = if choice & 8 > 0 { length.saturating_sub(input.below(64)) } else { length };
        head.truncate(length.min(LONGEST));
        let number = self.takes.len();
        let takes = length.next_power_of_two().max(128);
        let is_part = header.tag() == 70;
        self.takes.push(Some(if is_part { takes as u64 } else { 0 }));
        let taken =
            self.mirror.receive(header.tag(), &head, (length, takes), number, &mut self.budget);
        if let Err((_, back)) = taken {
            assert_eq!(back, number);
            self.takes[number] = None;
        }
        let parts: u64 = self.takes.iter().flatten().sum();
        assert!(parts <= MEMORY, "parts take {parts} bytes");
    }

    fn out(&mut self, input: &mut Input) {
        match self.mirror.next_out() {
            Some(Out::Back(header, message, mark)) if input.byte() & 7 == 1 => {
                self.mirror.put_back(Out::Back(header, message, mark));
            }
            Some(Out::Back(_, message, mark)) => self.sent.push((message, mark)),
            Some(Out::Drop(message)) => {
                assert!(self.takes[message].take().is_some(), "a message came out twice");
            }
            Some(Out::Control(_)) | None => {}
        }
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    // As `World::event` reads them: choice, sequence, generation, offset or length, length.
    let begin = |length: u16| [&[1, 1, 0][..], &length.to_be_bytes(), &[0, 60]].concat();
    let part = |generation: u8, offset: u16, length: u16| {
        [&[3, 0, generation][..], &offset.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    let ack = |generation: u8, offset: u16| {
        [&[2, 0, generation][..], &offset.to_be_bytes(), &[0, 0]].concat()
    };
    let (out, acknowledged) = ([0xff, 0], [0xfe]);
    let whole = [
        &begin(600)[..],
        &out,
        &part(1, 60, 240),
        &part(1, 300, 300),
        &out,
        &acknowledged,
        &ack(1, 60),
        &out,
        &out,
        &out,
        &acknowledged,
        &acknowledged,
    ]
    .concat();
    let many =
        [begin(20_000), begin(30_000), begin(40_000), begin(600), part(1, 60, 8000)].concat();
    let small: Vec<u8> = [begin(20_000), out.to_vec()]
        .into_iter()
        .chain((0..16).map(|n| part(1, 60 + n, 1)))
        .flatten()
        .collect();
    vec![whole.clone(), many, small, [&[0, 1, 0, 0, 0, 0, 9, 0xff, 0][..], &whole].concat()]
}
