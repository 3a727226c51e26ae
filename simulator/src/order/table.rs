//! The macro of the table of schedules.

/// Makes [`Schedule`](super::Schedule) of lines that name a variant, the row in the schedule's file, and what it does.
macro_rules! schedules {
    ($($schedule:ident: $file:ident::$row:ident, $summary:literal;)*) => {
        /// Every schedule that we can make.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Schedule {
            $(#[doc = $summary] $schedule,)*
        }

        /// All schedules, in the order they are listed to users.
        pub const ALL: [Schedule; [$(Schedule::$schedule),*].len()] = [$(Schedule::$schedule),*];

        impl Schedule {
            /// Returns what the schedule does, in one line.
            pub fn summary(self) -> &'static str {
                match self {
                    $(Self::$schedule => $summary,)*
                }
            }

            fn row(self) -> &'static row::Row {
                match self {
                    $(Self::$schedule => &$file::$row,)*
                }
            }
        }
    };
}
pub(super) use schedules;
