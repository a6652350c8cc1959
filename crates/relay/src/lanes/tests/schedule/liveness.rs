//! Explicit schedules: what goes on, and how soon, whatever others do.

use super::*;

impl World {
    /// A second passes; everything that can be read and handed over is. Answers come from `outcome`.
    fn turn(&mut self, outcome: impl Fn(&mut Self)) {
        self.now += Duration::from_secs(1);
        self.lanes.wake_breakers(self.now);
        for origin in [Origin::Cold, Origin::Due] {
            self.begin_read(origin, 0);
            self.merge_read(0);
        }
        self.begin_catch_up(0);
        self.merge_read(0);
        self.begin_release();
        while !self.reads.is_empty() {
            self.merge_read(0);
        }
        self.dispatch(10);
        while !self.in_flight.is_empty() {
            outcome(self);
        }
        self.begin_settle(true);
        self.end_settle();
    }

    /// Nothing can be reached.
    fn fails(&mut self) {
        self.up[0] = false;
        self.outcome(0, 2);
    }
}

/// The first page of what was passed over is of one key. During the outage each key was tried; then the destination
/// is back, but refuses the first event of that one.
#[test]
fn a_destination_that_is_back_is_tried_with_every_key() {
    for paused in [false, true] {
        let mut world = World::new(OnDead::Skip, false, 1_000);
        for key in [[0; 3 * PAGE].as_slice(), &[2, 3, 2, 3]].concat() {
            world.write(key, None);
        }
        for _ in 0..100 {
            world.turn(World::fails);
        }
        assert_eq!(world.lanes.breakers_open(), 1);
        for key in [0, 2, 3] {
            assert!(world.lanes.was_tried(0, key), "{key}");
        }
        if paused {
            world.paused_keys.insert(Key(0));
            world.lanes.pause(&world.paused_keys, &world.paused, world.now);
        }
        world.up[0] = true;
        for _ in 0..30 {
            world.turn(|world| world.refuse(Some(0)));
        }
        let of_others = world.table.range(3 * PAGE as i64 + 1..);
        assert!(of_others.clone().all(|(_, stored)| stored.is_done()), "{paused}: {of_others:?}");
    }
}

/// Its held events are read at once, and what was passed over takes longer.
#[test]
fn held_events_of_a_key_leave_probes_to_what_was_passed_over() {
    let mut world = World::new(OnDead::Skip, false, 1_000);
    world.write(0, None);
    world.write(0, None);
    world.paused_keys.insert(Key(0));
    world.lanes.pause(&world.paused_keys, &world.paused, world.now);
    for _ in 0..3 {
        world.turn(World::fails);
    }
    world.write(2, None);
    for _ in 0..3 {
        world.turn(World::fails);
    }
    assert_eq!(world.lanes.breakers_open(), 1);
    world.paused_keys.clear();
    world.lanes.pause(&world.paused_keys, &world.paused, world.now);
    world.up[0] = true;
    for _ in 0..60 {
        // Of two reads that begin at the same time that of the lane ends first.
        world.now += Duration::from_millis(500);
        world.lanes.wake_breakers(world.now);
        world.begin_release();
        world.begin_catch_up(0);
        while !world.reads.is_empty() {
            world.merge_read(0);
        }
        world.dispatch(10);
        while !world.in_flight.is_empty() {
            world.refuse(Some(0));
        }
        world.begin_settle(true);
        world.end_settle();
    }
    assert_eq!(world.table[&3].stand, Stand::Sent, "{:?}", world.lanes.destinations[0]);
}
