//! The admin API, the dashboard, metrics and health over HTTP.
