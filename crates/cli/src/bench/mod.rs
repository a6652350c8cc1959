//! `posthaste bench`: being written.

use clap::Args;
use posthaste::Result;

/// Measure, each figure beside its baseline.
#[derive(Args)]
pub(crate) struct BenchArgs {}

#[allow(clippy::unused_async, reason = "being written")]
pub(crate) async fn run(_: BenchArgs) -> Result<()> {
    Ok(())
}
