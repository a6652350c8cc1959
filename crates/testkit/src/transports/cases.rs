//! The list of all cases, as the macro that turns them into tests.

/// Turns every case of the suite into a `#[test]`: give it an async function that makes a
/// [`Destination`](crate::transports::Destination), or `None` when its server is not to be had here.
///
/// The function must be in scope by its name where the macro stands. Two set-ups of one transport
/// take two modules:
///
/// ```text
/// mod over_tls {
///     use super::nats_over_tls;
///     posthaste_testkit::transport_conformance!(nats_over_tls);
/// }
/// ```
#[macro_export]
macro_rules! transport_conformance {
    ($subject:ident) => {
        $crate::transport_conformance! { @themes $subject
            deliver {
                what_is_delivered_is_on_the_server
                every_event_of_a_batch_has_its_own_outcome
                an_empty_batch_is_no_error
                the_topic_of_the_route_decides
                publishes_side_by_side_are_all_delivered
            }
            content {
                payloads_arrive_byte_for_byte
                a_payload_of_a_mebibyte_arrives
                headers_arrive_as_they_were_given
                the_content_type_arrives
            }
            format {
                a_raw_message_carries_its_metadata
                a_binary_cloud_event_is_read_by_an_independent_library
                a_structured_cloud_event_is_read_by_an_independent_library
                the_id_travels_in_every_format
            }
            order {
                events_of_a_key_arrive_in_order_beside_other_keys
                events_of_a_key_in_one_batch_arrive_in_order
                a_refused_event_holds_back_its_key_in_the_same_batch
            }
            outage {
                a_transport_is_made_while_its_server_is_down_and_delivers_once_it_is_up
                while_the_server_is_down_every_event_is_told_so
                a_server_killed_in_the_middle_of_a_stream_loses_nothing_and_keeps_order
                a_batch_under_way_when_the_server_dies_is_accepted_as_declared
                a_connection_that_broke_while_idle_is_made_again
                an_acknowledgement_that_does_not_come_is_not_awaited_for_ever
            }
            refuse {
                a_message_that_is_too_large_is_dead_and_the_next_one_goes_on
                wrong_credentials_are_unavailable_and_stay_secret
                no_error_quotes_the_payload_or_the_password
            }
            hang_up {
                a_server_that_hangs_up_on_one_event_takes_the_others
                an_event_that_broke_its_connection_disturbs_nobody_when_it_comes_again
                a_server_that_hangs_up_on_every_event_is_an_outage
            }
            repeat {
                a_repeat_is_dropped_where_that_is_declared
                a_replay_is_not_dropped
            }
            check {
                check_tells_what_it_found_and_publishes_nothing
                check_fails_clearly_while_the_server_is_down
                check_fails_clearly_with_wrong_credentials
            }
        }
    };
    (@themes $subject:ident $($theme:ident { $($case:ident)* })*) => {$(
        mod $theme {
            $(
                #[test]
                fn $case() {
                    $crate::transports::run(
                        super::$subject,
                        $crate::transports::$theme::$case,
                    );
                }
            )*
        }
    )*};
}
