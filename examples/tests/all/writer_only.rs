//! The example `writer_only`.

#[test]
fn what_is_committed_waits_for_a_relay() {
    let lines = crate::run::lines(env!("CARGO_BIN_EXE_writer_only"));
    assert_eq!(lines, ["2 events wait for a relay"]);
}
