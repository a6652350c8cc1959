//! The list of all cases, as the macro that turns them into tests.

/// Turns every case of the suite into a `#[test]`: give it an async function that makes a
/// [`Subject`](crate::conformance::Subject), or `None` when its database is not to be had here.
///
/// The function must be in scope by its name where the macro stands. Two databases of one kind take
/// two modules:
///
/// ```ignore
/// mod postgres_15 {
///     use super::subject_15;
///     posthaste_testkit::store_conformance!(subject_15);
/// }
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($subject:ident) => {
        $crate::store_conformance! { @themes $subject
            schema {
                migrating_again_changes_nothing
                processes_that_start_at_once_can_all_migrate
            }
        }
    };
    (@themes $subject:ident $($theme:ident { $($case:ident)* })*) => {$(
        mod $theme {
            $(
                #[test]
                fn $case() {
                    $crate::conformance::run(
                        super::$subject,
                        $crate::conformance::$theme::$case,
                    );
                }
            )*
        }
    )*};
}
