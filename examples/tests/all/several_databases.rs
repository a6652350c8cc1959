//! The example `several_databases`.

#[test]
fn each_database_delivers_its_own_events() {
    let mut lines = crate::run::lines(env!("CARGO_BIN_EXE_several_databases"));
    lines.sort();
    let said = ["bern: order 1", "bern: order 2", "oslo: order 10", "oslo: order 20"];
    assert_eq!(lines, said);
}
