//! being written
use clap::Args;
use posthaste::Result;

/// d
#[derive(Args)]
pub(crate) struct DemoArgs { #[arg(long)] pub(crate) url: Option<String> }

pub(crate) async fn run(_: DemoArgs) -> Result<()> {
    Ok(())
}
