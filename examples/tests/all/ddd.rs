//! The example `ddd`.

#[test]
fn a_failed_unit_of_work_keeps_its_events_and_the_next_one_writes_them() {
    let mut lines = crate::run::lines(env!("CARGO_BIN_EXE_ddd"));
    // Two keys are delivered side by side.
    lines[2..4].sort();
    let said = [
        "the account is empty: nothing is saved, 2 events stay in memory",
        "saved with 2 events",
        "ada reserved 2500 cents of grace",
        "order 1 was placed for 2500 cents",
        "2 events delivered",
    ];
    assert_eq!(lines, said);
}
