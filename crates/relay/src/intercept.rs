//! Interceptors: the application's own code around every dispatch.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use posthaste_core::{
    Envelope, Failure, Key,
    transport::{Outcome, Transport},
};
use tokio::time::{Instant, timeout_at};

use crate::dispatch::guarded;

/// Wraps every dispatch, to whichever destination.
///
/// Interceptors run in the order in which they were given before, and in reverse after. One that
/// refuses an event before keeps it from its destination, those behind it do not see it, and later
/// events of its ordering key wait for it. What fails after is only logged: the event has been
/// delivered, or not, already.
///
/// All of it, with the publish between, has the relay's dispatch timeout. Before the events of a batch
/// are handed over, interceptors have what the publish leaves of it
/// ([`longest_publish`](posthaste_core::transport::Capabilities::longest_publish)), and half of it where that
/// is not known. What takes longer fails its event, unless others of the batch have taken most of that
/// time; events that were not asked about come again, and the others go. What hangs after an event is cut off.
#[async_trait]
pub trait Interceptor: Send + Sync + 'static {
    /// Before the event is handed over. A failure goes to retry, or dead, as it says.
    async fn before(&self, destination: &str, envelope: &Envelope) -> Result<(), Failure> {
        let _ = (destination, envelope);
        Ok(())
    }

    /// After its destination has answered, with the error if there was one.
    async fn after(
        &self,
        destination: &str,
        envelope: &Envelope,
        error: Option<&str>,
    ) -> Result<(), Failure> {
        let _ = (destination, envelope, error);
        Ok(())
    }
}

/// Publishes what the interceptors let through, and tells them what became of it.
pub(crate) async fn around(
    transport: &dyn Transport,
    interceptors: &[Arc<dyn Interceptor>],
    batch: &[Envelope],
    timeout: Duration,
) -> Vec<Outcome> {
    let name = transport.name();
    let began = Instant::now();
    let left = || timeout.saturating_sub(began.elapsed());
    let longest = transport.capabilities().longest_publish.unwrap_or(timeout / 2);
    let (seen, refused) = ask(interceptors, name, batch, timeout.saturating_sub(longest)).await;
    let admitted: Vec<Envelope> = batch
        .iter()
        .zip(&refused)
        .filter(|(_, refusal)| refusal.is_none())
        .map(|(envelope, _)| envelope.clone())
        .collect();
    let mut published = if admitted.is_empty() {
        Vec::new()
    } else {
        guarded(transport, &admitted, left(), timeout).await
    }
    .into_iter();
    let mut outcomes = Vec::with_capacity(batch.len());
    for ((envelope, refusal), by) in batch.iter().zip(refused).zip(seen) {
        let outcome = match refusal {
            Some(refusal) => refusal,
            None => published.next().unwrap_or_else(|| Outcome::retry("it got no answer")),
        };
        after(&interceptors[..by], name, envelope, outcome.error(), left).await;
        outcomes.push(outcome);
    }
    outcomes
}

/// Gives for each event how many interceptors have seen it, and why it is not to be handed over if
/// that is so. When time is up, those that are left are not asked about.
async fn ask(
    interceptors: &[Arc<dyn Interceptor>],
    name: &str,
    batch: &[Envelope],
    limit: Duration,
) -> (Vec<usize>, Vec<Option<Outcome>>) {
    let until = Instant::now() + limit;
    let (mut seen, mut refused) =
        (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    let mut waiting: Vec<Key> = Vec::new();
    for envelope in batch {
        let waits = |key| waiting.contains(&key);
        if !waiting.is_empty() && envelope.event.key().is_some_and(waits) {
            // It would overtake one that was refused.
            seen.push(0);
            refused.push(Some(Outcome::held()));
            continue;
        }
        let began = Instant::now();
        if began >= until && !seen.is_empty() {
            break;
        }
        let mut by = 0;
        let asked = timeout_at(until, before(interceptors, name, envelope, &mut by)).await;
        seen.push(by);
        let Ok(refusal) = asked else {
            // Others may have taken its time.
            let is_to_blame = until.duration_since(began) >= limit / 2;
            let late = || Outcome::timed_out("an interceptor did not answer in time");
            refused.push(Some(if is_to_blame { late() } else { not_tried() }));
            break;
        };
        if refusal.is_some() {
            waiting.extend(envelope.event.key());
        }
        refused.push(refusal);
    }
    seen.resize(batch.len(), 0);
    refused.resize_with(batch.len(), || Some(not_tried()));
    (seen, refused)
}

/// It comes again, and no attempt is counted.
fn not_tried() -> Outcome {
    Outcome::Retry {
        error: "interceptors took too long for other events of its batch".to_owned(),
        after: Some(Duration::ZERO),
    }
}

/// Returns the refusal, if there was one. Counts the interceptors that have seen the event in `by`.
async fn before(
    interceptors: &[Arc<dyn Interceptor>],
    name: &str,
    envelope: &Envelope,
    by: &mut usize,
) -> Option<Outcome> {
    for interceptor in interceptors {
        *by += 1;
        let asking = AssertUnwindSafe(interceptor.before(name, envelope)).catch_unwind();
        let refusal = match asking.await {
            Ok(Ok(())) => continue,
            Ok(Err(failure)) => failure.into_outcome(),
            // The panic's message can quote the payload: it stays out of the error.
            Err(_) => Outcome::retry("an interceptor panicked"),
        };
        return Some(refusal);
    }
    None
}

/// Also when no time is left: one that does not wait for anything is told all the same.
async fn after(
    interceptors: &[Arc<dyn Interceptor>],
    name: &str,
    envelope: &Envelope,
    error: Option<&str>,
    left: impl Fn() -> Duration,
) {
    for interceptor in interceptors.iter().rev() {
        let telling = AssertUnwindSafe(interceptor.after(name, envelope, error)).catch_unwind();
        let told = tokio::time::timeout(left(), telling).await;
        let reason = match &told {
            Ok(Ok(Ok(()))) => continue,
            Ok(Ok(Err(failure))) => failure.reason(),
            Ok(Err(_)) => "it panicked",
            Err(_) => "it did not come back in time",
        };
        tracing::warn!(
            event.id = %envelope.event.id(),
            destination = name,
            error = reason,
            "an interceptor failed after the dispatch"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::{
            Mutex,
            atomic::{AtomicBool, Ordering},
        },
    };

    use posthaste_core::{
        Event,
        transport::{Acceptance, Capabilities},
    };

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Takes whatever comes, in batches, and keeps their numbers.
    #[derive(Default)]
    struct Prefix {
        taken: Mutex<Vec<i64>>,
        longest_publish: Option<Duration>,
    }

    #[async_trait]
    impl Transport for Prefix {
        fn name(&self) -> &'static str {
            "prefix"
        }

        fn capabilities(&self) -> Capabilities {
            let longest_publish = self.longest_publish;
            let acceptance = Acceptance::Prefix;
            Capabilities { max_batch: 10, acceptance, longest_publish, ..Default::default() }
        }

        async fn publish(&self, batch: &[Envelope]) -> Vec<Outcome> {
            self.taken.lock().unwrap().extend(batch.iter().map(|envelope| envelope.sequence));
            vec![Outcome::Delivered; batch.len()]
        }
    }

    /// Refuses the first event once, or hangs before or after it.
    #[derive(Default)]
    struct First {
        refused: AtomicBool,
        hangs_before: bool,
        hangs_after: bool,
        told: Mutex<Vec<i64>>,
    }

    #[async_trait]
    impl Interceptor for First {
        async fn before(&self, _: &str, envelope: &Envelope) -> Result<(), Failure> {
            if envelope.sequence != 1 || self.hangs_after {
                return Ok(());
            }
            if self.hangs_before {
                pending::<()>().await;
            }
            if self.refused.swap(true, Ordering::Relaxed) {
                return Ok(());
            }
            Err(Failure::retry("not yet"))
        }

        async fn after(&self, _: &str, e: &Envelope, _: Option<&str>) -> Result<(), Failure> {
            self.told.lock().unwrap().push(e.sequence);
            if self.hangs_after {
                pending::<()>().await;
            }
            Ok(())
        }
    }

    fn envelope(sequence: i64, key: &str) -> Envelope {
        Envelope {
            topic: None,
            sequence,
            attempts: 0,
            replay: 0,
            created_at: jiff::Timestamp::UNIX_EPOCH,
            event: Event::builder("E").aggregate("A", key).raw_json("{}").build().unwrap(),
        }
    }

    async fn publish(transport: &Prefix, first: &Arc<First>, batch: &[Envelope]) -> Vec<Outcome> {
        let interceptors = [Arc::clone(first) as Arc<dyn Interceptor>];
        around(transport, &interceptors, batch, TIMEOUT).await
    }

    #[tokio::test]
    async fn followers_of_a_refused_event_are_not_handed_over_and_other_keys_are() {
        let (transport, first) = (Prefix::default(), Arc::new(First::default()));
        let batch = [envelope(1, "a"), envelope(2, "a"), envelope(3, "b"), envelope(4, "a")];
        let answers = publish(&transport, &first, &batch).await;
        assert_eq!(*transport.taken.lock().unwrap(), [3]);
        assert_eq!(answers[0], Outcome::retry("not yet"));
        assert_eq!(answers[2], Outcome::Delivered);
        assert_eq!([&answers[1], &answers[3]], [&Outcome::held(), &Outcome::held()]);
        assert_eq!(*first.told.lock().unwrap(), [1, 3], "only of what an interceptor has seen");
        publish(&transport, &first, &batch[..2]).await;
        assert_eq!(*transport.taken.lock().unwrap(), [3, 1, 2]);
    }

    /// No attempt is counted.
    fn is_not_tried(outcome: &Outcome) -> bool {
        matches!(outcome, Outcome::Retry { after: Some(_), .. })
    }

    #[tokio::test(start_paused = true)]
    async fn an_interceptor_that_hangs_before_ends_as_a_timeout_of_its_event_alone() {
        let hangs = First { hangs_before: true, ..First::default() };
        let (transport, first) = (Prefix::default(), Arc::new(hangs));
        let batch = [envelope(3, "b"), envelope(1, "a"), envelope(2, "a"), envelope(4, "c")];
        let answers = publish(&transport, &first, &batch).await;
        assert!(matches!(answers[1], Outcome::TimedOut { .. }), "{answers:?}");
        assert!(answers[2..].iter().all(is_not_tried), "{answers:?}");
        assert_eq!(answers[0], Outcome::Delivered, "it was let through before");
        assert_eq!(*transport.taken.lock().unwrap(), [3]);
    }

    /// Takes five seconds for each event.
    struct Slow;

    #[async_trait]
    impl Interceptor for Slow {
        async fn before(&self, _: &str, _: &Envelope) -> Result<(), Failure> {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_slow_interceptors_let_through_in_time_is_published_and_the_others_come_again() {
        // The publish keeps what it may need, or half of the time.
        for (longest_publish, in_time) in
            [(Some(Duration::from_secs(12)), 3), (Some(Duration::from_secs(3)), 5), (None, 2)]
        {
            let transport = Prefix { longest_publish, ..Prefix::default() };
            // So that the last one does not end at the same moment as the time.
            let timeout = Duration::from_secs(29);
            let batch: Vec<Envelope> = (0..10).map(|n| envelope(n, &n.to_string())).collect();
            let began = Instant::now();
            let answers = around(&transport, &[Arc::new(Slow)], &batch, timeout).await;
            let (taken, others) = answers.split_at(in_time);
            assert_eq!(taken, vec![Outcome::Delivered; in_time]);
            assert!(others.iter().all(is_not_tried), "{answers:?}");
            assert_eq!(transport.taken.lock().unwrap().len(), in_time);
            let needed = longest_publish.unwrap_or(timeout / 2);
            assert!(began.elapsed() + needed <= timeout, "{:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_takes_all_of_the_time_is_timed_out_and_the_others_come_again() {
        let transport =
            Prefix { longest_publish: Some(Duration::from_secs(26)), ..Prefix::default() };
        let batch = [envelope(1, "a"), envelope(2, "b")];
        let answers = around(&transport, &[Arc::new(Slow)], &batch, TIMEOUT).await;
        assert!(matches!(answers[0], Outcome::TimedOut { .. }), "{answers:?}");
        assert!(is_not_tried(&answers[1]), "{answers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_interceptor_that_hangs_after_does_not_change_what_was_delivered() {
        let hangs = First { hangs_after: true, ..First::default() };
        let (transport, first) = (Prefix::default(), Arc::new(hangs));
        let batch = [envelope(1, "a"), envelope(2, "a")];
        let answers = publish(&transport, &first, &batch).await;
        assert_eq!(answers, [Outcome::Delivered, Outcome::Delivered]);
        assert_eq!(*first.told.lock().unwrap(), [1, 2], "each is told, in what time is left");
    }
}
