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
