//! What an operator does at the terminal: look at events, and mend what went wrong.

mod operator;

mod filter;

mod event;

mod bulk;

pub(crate) mod status;

pub(crate) mod events;

pub(crate) mod dead;

pub(crate) mod replay;

pub(crate) mod pause;

pub(crate) mod purge;

pub(crate) mod relays;

pub(crate) mod audit;

pub(crate) mod doctor;
