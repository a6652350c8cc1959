//! The example `module_tables`.

#[test]
fn each_module_delivers_its_own_events() {
    let mut lines = crate::run::lines(env!("CARGO_BIN_EXE_module_tables"));
    // Two keys are delivered side by side.
    lines[0..2].sort();
    lines[3..5].sort();
    let said = [
        "orders_outbox: OrderPlaced 1",
        "orders_outbox: OrderPlaced 2",
        "orders delivered 2",
        "billing_outbox: InvoiceDue 1",
        "billing_outbox: InvoiceDue 2",
        "billing delivered 2",
    ];
    assert_eq!(lines, said);
}
