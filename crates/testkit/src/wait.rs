//! Waiting for what nobody announces, such as a row that another process writes.

use std::time::Duration;

/// Nothing takes so long unless it hangs.
const LIMIT: Duration = Duration::from_mins(1);

/// Asks until the answer is yes.
///
/// # Panics
///
/// If it stays no.
pub async fn asked(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, asking)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"));
}
