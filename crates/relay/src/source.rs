//! Source: where reading stands, and which read comes next.
//!
//! One read is under way at a time. Reads ahead follow each other back to back while they find
//! something and there is room; reads of late commits and of due events come once a poll. The
//! pause between polls grows from the busy to the idle interval while nothing happens.

use std::time::{Duration, Instant};

use posthaste_core::store::{Due, Page, Position};

use crate::Config;

/// A read to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextRead {
    Ahead(Position, usize),
    Late(Position),
    Due(usize),
}

#[derive(Debug)]
pub(crate) struct Source {
    position: Position,
    /// Rises when the position is set back: a read that began before must not move it.
    generation: u64,
    /// The position is somebody's: ours, or that of the marks it started from.
    placed: bool,
    reading: bool,
    ahead: bool,
    late: bool,
    due: bool,
    caught_up: bool,
    /// Something was found since the last poll.
    found: bool,
    pause: Duration,
    poll_at: Instant,
    due_at: Option<Instant>,
    busy_interval: Duration,
    idle_interval: Duration,
}

impl Source {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        Self {
            position: Position::default(),
            generation: 0,
            placed: false,
            reading: false,
            ahead: true,
            late: true,
            due: true,
            caught_up: false,
            found: false,
            pause: config.busy_interval,
            poll_at: now,
            due_at: None,
            busy_interval: config.busy_interval,
            idle_interval: config.idle_interval,
        }
    }

    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Everything visible was read once, and nothing has been announced since.
    pub(crate) fn exhausted(&self) -> bool {
        self.caught_up && !self.reading && !self.ahead && !self.late && !self.due
    }

    /// All that was visible at the last read ahead has been read.
    pub(crate) fn caught_up(&self) -> bool {
        self.caught_up
    }

    /// New shards: reading starts again where the slowest of them stands. The context stays the
    /// older one, which is the present one, if there is one.
    pub(crate) fn rewind(&mut self, mark: Position) {
        if self.placed {
            self.position.sequence = self.position.sequence.min(mark.sequence);
        } else {
            self.position = mark;
        }
        self.placed = true;
        self.generation += 1;
        self.caught_up = false;
        (self.ahead, self.late, self.due) = (true, true, true);
    }

    /// Nothing is owned any more: the next owner's position is its own.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.placed = false;
        self.position = Position::default();
        self.caught_up = false;
    }

    /// Something was committed.
    pub(crate) fn wake(&mut self) {
        self.ahead = true;
        self.pause = self.busy_interval;
    }

    /// When something is to be done, if nothing happens before.
    pub(crate) fn next_poll(&self) -> Instant {
        self.due_at.map_or(self.poll_at, |due| due.min(self.poll_at))
    }

    /// The read to start now. `room` is how many events lanes can take.
    pub(crate) fn next(&mut self, now: Instant, batch: usize, room: usize) -> Option<NextRead> {
        if self.reading {
            return None;
        }
        if now >= self.poll_at {
            (self.ahead, self.late, self.due) = (true, true, true);
            self.pause = if self.found {
                self.busy_interval
            } else {
                (self.pause * 2).clamp(self.busy_interval, self.idle_interval)
            };
            self.found = false;
            self.poll_at = now + self.pause;
        }
        if self.due_at.is_some_and(|at| now >= at) {
            self.due_at = None;
            self.due = true;
        }
        let limit = batch.min(room);
        // Small reads of a large backlog cost as much as large ones: wait for half a batch of room.
        let roomy = limit >= batch.div_ceil(2);
        let read = if self.due && roomy {
            self.due = false;
            NextRead::Due(limit)
        } else if self.late && roomy {
            self.late = false;
            NextRead::Late(self.position.clone())
        } else if self.ahead && roomy {
            self.ahead = false;
            NextRead::Ahead(self.position.clone(), limit)
        } else {
            return None;
        };
        self.reading = true;
        Some(read)
    }

    /// A read ahead came back, with this many events that were news.
    pub(crate) fn read_ahead(&mut self, page: &Page, generation: u64, news: usize) {
        self.reading = false;
        self.found |= news > 0;
        if generation == self.generation {
            self.position = page.position.clone();
            self.caught_up = page.caught_up;
        }
        self.ahead |= !page.caught_up;
    }

    /// A read of late commits came back.
    pub(crate) fn read_late(&mut self, page: &Page, generation: u64, news: usize) {
        self.reading = false;
        self.found |= news > 0;
        if generation == self.generation {
            self.position.context.clone_from(&page.position.context);
        }
    }

    /// A read of due events came back.
    pub(crate) fn read_due(&mut self, due: &Due, now: Instant, more: bool, news: usize) {
        self.reading = false;
        self.found |= news > 0;
        self.due |= more;
        self.due_at = due.next.map(|wait| now + wait);
    }

    /// A read failed: pause, then all of them again.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.reading = false;
        self.pause = (self.pause * 2).clamp(self.busy_interval, self.idle_interval);
        self.poll_at = now + self.pause;
    }

    /// A retry was written that falls due after this time.
    pub(crate) fn expect_due(&mut self, at: Instant) {
        if self.due_at.is_none_or(|known| at < known) {
            self.due_at = Some(at);
        }
    }
}
