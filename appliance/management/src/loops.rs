//! Time accounting of a poll loop: counters per stage, and busy, idle and halted time, for `show loops` and the
//! metrics.

/// The stages of a loop, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Stage {
    /// Frames taken from the ports.
    Receive,
    /// Completions taken from the disks.
    Disks,
    /// Protocol servers: completions, requests, answers.
    Serve,
    /// Frames handed to the ports.
    Transmit,
    /// TCP/IP of the control plane, and the servers on top of it.
    Control,
    /// Serial console.
    Console,
}

impl Stage {
    /// All stages, in order.
    pub const ALL: [Stage; 6] = [
        Stage::Receive,
        Stage::Disks,
        Stage::Serve,
        Stage::Transmit,
        Stage::Control,
        Stage::Console,
    ];

    /// Name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Receive => "receive",
            Stage::Disks => "disks",
            Stage::Serve => "serve",
            Stage::Transmit => "transmit",
            Stage::Control => "control",
            Stage::Console => "console",
        }
    }
}

/// How often a stage found work, and how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounters {
    /// Rounds in which the stage found work.
    pub rounds: u64,
    /// Items (frames, completions, bytes of console input) handled.
    pub items: u64,
}

/// Counters of one loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopCounters {
    /// Rounds in all.
    pub rounds: u64,
    /// Nanoseconds in rounds that found work.
    pub busy: u64,
    /// Nanoseconds in rounds without work.
    pub idle: u64,
    /// Nanoseconds halted.
    pub halted: u64,
    /// Number of halts.
    pub halts: u64,
    /// Rounds that handled completions of RoCE cards only.
    pub brief_rounds: u64,
    /// Counters by stage.
    pub stages: [StageCounters; Stage::ALL.len()],
}

impl LoopCounters {
    /// Counts `items` items that `stage` handled in this round.
    #[inline]
    pub fn work(&mut self, stage: Stage, items: usize) {
        if items > 0 {
            let counters = &mut self.stages[stage as usize];
            counters.rounds += 1;
            counters.items += items as u64;
        }
    }

    /// Busy, idle and halted shares of all time so far, each from 0 to 1.
    pub fn shares(&self) -> [f64; 3] {
        let parts = [self.busy, self.idle, self.halted].map(|nanos| nanos as f64);
        let all: f64 = parts.iter().sum();
        parts.map(|p| if all > 0.0 { p / all } else { 0.0 })
    }
}
