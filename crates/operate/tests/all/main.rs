//! What operators do, on real databases.

#[macro_use]
mod support;

mod explain;

mod examine;

mod operator;
