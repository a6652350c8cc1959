//! The list of all cases, as the macro that turns them into tests.

/// Turns every case of the suite into a `#[test]`: give it an async function that makes a
/// [`Subject`](crate::conformance::Subject), or `None` when its database is not to be had here.
///
/// The function must be in scope by its name where the macro stands. Two databases of one kind take
/// two modules:
///
/// ```
/// # use posthaste_testkit::conformance::Subject;
/// # async fn subject_15() -> Option<Subject> { None }
/// mod postgres_15 {
///     use super::subject_15;
///     posthaste_testkit::store_conformance!(subject_15);
/// }
/// # fn main() {}
/// ```
///
/// For a database without [`Database::sql`](crate::conformance::Database::sql), say
/// `store_conformance!(subject, without sql)`: cases that are about plain SQL become ignored tests,
/// so that a report lists them as not run.
#[macro_export]
macro_rules! store_conformance {
    ($subject:ident) => {
        $crate::store_conformance! { @all $subject with_sql }
    };
    ($subject:ident, without sql) => {
        $crate::store_conformance! { @all $subject without_sql }
    };
    (@all $subject:ident $sql:ident) => {
        $crate::store_conformance! { @themes $subject $sql
            schema {
                migrating_again_changes_nothing
                processes_that_start_at_once_can_all_migrate
                a_fresh_outbox_has_all_its_shards_and_they_are_free
                the_number_of_shards_has_a_default
                check_refuses_an_outbox_that_was_never_migrated
                check_refuses_an_older_version
                #[sql] an_outbox_of_an_earlier_build_is_refused_and_left_alone
                #[sql] tables_made_by_other_statements_are_refused
                check_refuses_a_newer_version
                migrate_refuses_a_newer_version_and_changes_nothing
                another_number_of_shards_is_refused
                #[sql] printed_sql_makes_the_same_outbox
                two_outboxes_in_one_database_do_not_mix
            }
            enqueue {
                #[sql] commit_leaves_business_row_and_event
                #[sql] rollback_leaves_neither_business_row_nor_event
                a_savepoint_that_rolled_back_leaves_nothing_of_its_own
                an_event_is_invisible_until_its_commit
                many_events_keep_their_order_and_get_their_answers_in_it
                later_calls_of_one_transaction_get_higher_sequences
                an_event_enqueued_after_a_commit_gets_a_higher_sequence
                no_events_are_no_error
                a_delayed_event_keeps_its_time
                #[sql] the_driver_knows_whether_a_transaction_is_open
                many_writers_at_once_lose_nothing
            }
            idempotent {
                the_same_id_again_gives_the_first_sequence
                the_same_id_twice_in_one_call_is_written_once
                the_same_id_after_delivery_is_not_sent_again
                a_repeat_with_another_payload_keeps_the_first
                transactions_at_once_with_the_same_id_write_one_row
                an_old_snapshot_does_not_hide_the_first_write
                an_id_whose_transaction_rolled_back_can_be_written
                the_same_id_with_another_tenant_type_or_key_is_a_conflict
                no_tenant_is_another_tenant
                one_id_for_two_events_of_one_call_is_a_conflict
                a_call_that_fails_leaves_none_of_its_events
            }
            content {
                every_field_comes_back_as_it_was_enqueued
                payloads_come_back_byte_for_byte
                headers_keep_every_character
                the_longest_names_fit_to_the_character
                the_database_computes_the_shard_as_every_language_does
                #[sql] a_row_of_plain_sql_needs_three_columns
                an_event_was_created_when_it_was_written
                keys_that_look_alike_stay_apart
            }
            leases {
                every_owner_of_a_shard_gets_a_higher_epoch
                only_the_wanted_shards_are_taken
                a_held_shard_is_left_out
                a_shard_under_its_own_name_is_taken_anew
                two_relays_never_share_a_shard
                #[sql] acquire_does_not_wait_for_a_shard_that_is_being_taken
                an_expired_lease_is_taken_by_another_relay
                a_late_heartbeat_does_not_lower_what_may_be_in_hand
                a_lease_of_the_future_is_nobodys
                without_a_report_of_its_owner_all_of_a_shard_is_suspect
                a_released_shard_is_handed_over_with_its_mark
                a_renewal_keeps_the_lease_and_stores_the_mark
                an_expired_lease_that_nobody_took_can_be_renewed
                a_lost_shard_is_not_renewed
                a_lost_shard_is_not_released
                an_old_epoch_of_the_same_owner_is_not_renewed
                a_heartbeat_learns_who_lives_and_who_owns_what
                a_relay_that_stopped_reporting_is_not_alive
                a_retired_relay_is_forgotten
                renewing_and_settling_at_once_do_not_deadlock
            }
            read {
                reading_ahead_comes_in_order_and_in_pages
                reading_ahead_gives_only_the_shards_asked_for
                events_beyond_a_cursor_that_stands_are_told_in_turns
                reading_ahead_leaves_out_what_is_settled_or_waits
                a_position_stays_before_what_was_not_read
                a_delayed_event_falls_due
                the_longest_due_comes_first
                due_events_that_cannot_go_now_are_left_out
                due_events_come_in_pages_whatever_becomes_of_them
                a_due_event_behind_very_many_others_is_found
                a_delayed_event_that_is_due_keeps_its_place
                a_page_ends_where_its_bytes_do
                a_read_walks_over_what_is_settled_in_steps
                held_and_parked_events_are_never_due
                the_held_events_of_a_lane_come_in_order
                a_lane_is_read_with_what_blocks_it
                blocked_lanes_are_told_with_what_blocks_them
                blocked_lanes_come_in_pages_and_can_be_asked_for
                what_blocks_lanes_is_read_when_it_is_due
                reading_writes_nothing
            }
            late {
                transactions_that_commit_in_reverse_order_are_both_found
                a_transaction_that_began_after_the_last_look_is_found
                a_step_ahead_brings_what_came_late
                a_late_commit_larger_than_a_page_is_found_whole
                events_beyond_late_commits_know_those_of_their_key
                a_commit_during_a_walk_over_late_ones_is_found
                what_commits_during_a_walk_keeps_its_own_order
                a_commit_that_began_last_and_took_its_number_first_is_found
                a_common_position_misses_nothing
                a_late_commit_behind_settled_events_is_found
                a_reader_of_one_shard_finds_its_late_commits
                an_open_transaction_stalls_nobody
                a_late_rollback_is_forgotten
                a_new_owner_finds_a_late_commit_from_the_mark
                a_late_commit_survives_the_death_of_the_owner
                the_first_owner_finds_what_was_open_when_it_came
                a_reader_among_many_writers_finds_everything
            }
            hot {
                a_hot_row_knows_the_unsettled_event_before_it
                a_hot_read_leaves_out_what_is_not_fresh
                a_hot_row_knows_the_late_commit_of_its_key
                a_hot_row_looks_only_at_its_own_key
            }
            claim {
                a_claimed_row_is_being_sent
                two_claimers_never_share_a_row
                only_what_is_due_is_claimed
                a_claim_says_that_more_is_due
                a_large_claim_says_that_more_is_due
                a_claim_of_two_brings_both_kinds
                due_rows_that_are_cut_do_not_stop_the_cursor
                a_settled_row_is_not_claimed
                an_expired_row_is_claimed_once_and_an_attempt_is_recorded
                a_valid_lease_is_not_taken_over
                a_row_lease_of_the_future_is_nobodys
                a_stale_token_settles_nothing
                a_claimer_settles_what_it_holds
                a_delivered_row_can_be_deleted
                a_renewed_row_is_kept
                a_locked_row_hinders_no_renewal
                a_renewed_retry_is_kept
                a_row_given_back_after_an_attempt_is_a_retry
                rows_that_are_given_back_are_free
                a_hot_claim_takes_what_is_free
                a_claim_ends_where_its_bytes_do
            }
            sweep {
                the_sweep_finds_what_was_given_back_behind_the_cursor
                the_sweep_keeps_to_its_limit
                the_sweep_finds_late_commits
                a_new_claimer_finds_everything
            }
            settle {
                a_delivered_event_is_sent
                a_large_batch_is_settled_as_one
                what_lies_between_is_not_settled
                an_empty_batch_is_no_error
                a_delivered_event_can_be_deleted
                a_failed_event_waits_and_its_attempts_are_recorded
                repeating_a_settle_is_harmless
                another_event_under_the_number_is_not_settled
                a_repeated_settle_does_not_swallow_a_replay
                coming_back_later_burns_no_attempt
                a_dead_event_is_kept_with_its_reason
                a_parked_event_is_dead_and_blocks_its_lane
                a_held_event_waits_for_its_lane
                a_suspect_has_its_attempt_before_its_dispatch
                a_failed_replay_stays_a_replay
                a_settled_event_never_changes
                a_long_error_is_cut_between_two_characters
                an_error_may_hold_any_character
                a_row_that_cannot_be_decoded_can_be_given_up
                locked_rows_are_told
            }
            fence {
                a_stale_epoch_settles_nothing
                another_owner_with_the_right_epoch_settles_nothing
                an_old_epoch_of_the_same_owner_settles_nothing
                a_released_shard_cannot_be_settled
                a_lost_shard_does_not_hold_back_the_others
                an_event_outside_the_fence_is_not_written
                #[sql] a_takeover_under_way_refuses_the_settle
            }
            inspect {
                an_event_is_found_by_its_id
                a_list_comes_newest_first_and_in_pages
                filters_narrow_the_list
                times_of_a_filter_are_from_and_before
                a_time_range_is_found_whatever_gaps_there_are
                a_page_says_how_many_events_it_looked_at
                every_state_can_be_listed
                a_list_shows_rows_that_cannot_be_decoded
                a_list_tells_how_large_a_payload_is_and_holds_none
                an_event_that_failed_names_its_destination
                every_pending_event_is_counted_once
                what_waits_behind_the_marks_is_counted_once
                the_backlog_is_told_per_tenant
                counts_beyond_the_cap_are_estimates
                a_held_event_names_what_holds_it
                the_oldest_pending_event_tells_the_lag
                a_delayed_event_lags_from_its_own_time
                overdue_events_are_found_in_pages_and_no_others
                a_held_event_is_overdue_when_nothing_holds_it
                shards_show_owner_epoch_and_mark
                relays_show_what_they_reported
                open_breakers_are_seen_by_all_until_they_close
                stalls_are_seen_by_all_until_they_end
            }
            operate {
                a_replay_starts_anew_and_is_found
                a_replay_can_be_claimed
                attempts_of_an_earlier_life_are_kept
                these_are_changed_as_far_as_their_state_allows
                many_are_replayed_in_batches
                a_filtered_replay_takes_only_what_matches
                a_forbidden_step_is_an_error_and_changes_nothing
                an_unknown_event_is_named
                a_discarded_event_is_never_read
                a_filtered_discard_skips_what_it_may_not_touch
                discarding_the_head_of_a_lane_frees_the_next
                discarding_a_freed_event_frees_the_next
                discarding_a_held_event_frees_nobody
                a_replayed_parked_event_heads_its_lane_again
            }
            purge {
                purge_takes_only_what_is_done_with
                the_retention_counts_from_the_delivery
                what_waits_is_never_purged
                purge_works_in_batches
                a_later_cycle_takes_what_an_earlier_one_left
                nothing_of_a_purged_event_stays
                purging_a_parked_event_frees_its_lane
                purge_waits_for_nobody
                a_discarded_event_is_purged_in_its_time
            }
            control {
                a_pause_is_kept_until_it_is_lifted
                #[sql] a_pause_of_a_kind_that_is_not_known_is_left_out
                a_change_is_on_record_before_it_is_made
                the_audit_comes_newest_first_and_in_pages
            }
            diagnose {
                the_database_tells_its_time
                a_sound_outbox_has_nothing_wrong_with_it
                an_outbox_that_was_never_migrated_is_one_problem
                #[sql] a_missing_index_is_named_with_the_statement_that_makes_it
                a_transaction_that_has_written_is_seen_until_it_ends
            }
            wake {
                a_listener_hears_of_a_commit
                a_listener_is_woken_without_a_commit
                waking_nobody_is_no_error
            }
        }
    };
    (@themes $subject:ident $sql:ident
        $($theme:ident { $($(#[$needs:ident])? $case:ident)* })*
    ) => {$(
        mod $theme {
            $($crate::store_conformance! { @case $subject $sql [$($needs)?] $theme $case })*
        }
    )*};
    (@case $subject:ident without_sql [sql] $theme:ident $case:ident) => {
        #[test]
        #[ignore = "needs plain SQL, which this database does not have"]
        fn $case() {
            $crate::conformance::run(super::$subject, $crate::conformance::$theme::$case);
        }
    };
    (@case $subject:ident $sql:ident [$($needs:ident)?] $theme:ident $case:ident) => {
        #[test]
        fn $case() {
            $crate::conformance::run(super::$subject, $crate::conformance::$theme::$case);
        }
    };
}
