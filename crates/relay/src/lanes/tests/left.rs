//! Lanes that an earlier owner left.

use super::*;

fn held(sequence: i64, key: u8) -> Fetched {
    Fetched { wait: Some(Wait::Held), ..row(sequence, key) }
}

/// A page of a survey that began while the shard was still ours.
#[test]
fn a_survey_of_a_shard_that_was_handed_over_leaves_nothing_behind() {
    let mut lanes = open(OnDead::Skip);
    lanes.close_shard(0);
    lanes.surveyed(0, &blocked(2, false, false), true);
    lanes.lose_shards(&BTreeSet::from([0]));
    lanes.surveyed(0, &blocked(1, false, false), true);
    assert!(lanes.next_releases().is_empty(), "it is not ours to read");
    // Another relay had it meanwhile: 3 failed, 4 is held.
    lanes.open_shard(0, None);
    lanes.surveyed(0, &blocked(1, true, false), true);
    for release in lanes.next_releases() {
        lanes.released(&release, Some(vec![held(4, 1)]), now());
    }
    assert!(dispatch(&mut lanes).is_empty(), "3 waits for its next attempt");
}
