//! Numbers of a status, declared once: the structure, its JSON, the lines for people and the metrics follow from one list.

use std::fmt;

/// One number of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Name of the metric. That of a counter ends in `_total`.
    pub name: &'static str,
    /// Meaning.
    pub help: &'static str,
    /// The number.
    pub value: u64,
    /// Whether it never decreases.
    pub is_counter: bool,
}

/// A value that a status shows as a number.
pub trait Number {
    /// The number.
    fn number(&self) -> u64;
}

impl Number for u64 {
    fn number(&self) -> u64 {
        *self
    }
}

impl Number for usize {
    fn number(&self) -> u64 {
        *self as u64
    }
}

impl Number for bool {
    fn number(&self) -> u64 {
        (*self).into()
    }
}

/// Numbers as lines for people: a value and its meaning.
#[derive(Debug)]
pub struct Lines<'r>(pub &'r [Row]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in self.0 {
            writeln!(f, "{:>16}  {}", row.value, row.help)?;
        }
        Ok(())
    }
}

/// Declares a status: a structure with JSON in the order of its fields, and `rows()` with its numbers.
///
/// Each field is a `value` without a metric, a `gauge` or a `counter`. The text is its meaning: documentation, line for
/// people and help of the metric. The metric has the prefix and the name of the field, or the name after `as`. A field
/// without a type is a `u64`.
///
/// ```
/// xgvmi_daemon::status! {
///     /// State of a shop.
///     #[derive(Default)]
///     pub struct Shop("shop_") {
///         pub value name: String, "Name of the shop.";
///         pub gauge guests: usize, "Guests.";
///         pub counter sold as "sales", "Sales.";
///     }
/// }
/// let shop = Shop { name: "a".to_owned(), guests: 2, sold: 7 };
/// let rows: Vec<_> = shop.rows().iter().map(|row| (row.name, row.value)).collect();
/// assert_eq!(rows, [("shop_guests", 2), ("shop_sales_total", 7)]);
/// ```
#[macro_export]
macro_rules! status {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($prefix:literal) {
            $(
                $(#[$attribute:meta])*
                $seen:vis $kind:ident $field:ident $(: $type:ty)? $(as $metric:literal)?,
                $help:literal;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        $vis struct $name {
            $(
                #[doc = $help]
                $(#[$attribute])*
                $seen $field: $crate::status!(@type $($type)?),
            )*
        }

        impl $name {
            /// The numbers, in the order of the fields.
            #[must_use]
            $vis fn rows(&self) -> Vec<$crate::Row> {
                let mut rows = Vec::new();
                $(
                    $crate::status!(
                        @push $kind rows, self.$field, $help, $prefix, $field $($metric)?
                    );
                )*
                rows
            }
        }
    };
    (@type) => { u64 };
    (@type $type:ty) => { $type };
    (@push value $($rest:tt)*) => {};
    (@push gauge $rows:ident, $value:expr, $help:literal, $($name:tt)*) => {
        $rows.push($crate::Row {
            name: $crate::status!(@name "", $($name)*),
            help: $help,
            value: $crate::Number::number(&$value),
            is_counter: false,
        });
    };
    (@push counter $rows:ident, $value:expr, $help:literal, $($name:tt)*) => {
        $rows.push($crate::Row {
            name: $crate::status!(@name "_total", $($name)*),
            help: $help,
            value: $crate::Number::number(&$value),
            is_counter: true,
        });
    };
    (@name $end:literal, $prefix:literal, $field:ident) => {
        concat!($prefix, stringify!($field), $end)
    };
    (@name $end:literal, $prefix:literal, $field:ident $metric:literal) => {
        concat!($prefix, $metric, $end)
    };
}
