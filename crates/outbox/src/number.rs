//! Numbers by their decimal value: of every BSON type, and as JSON writes them.

use bson::Bson;
use serde_json::value::RawValue;

/// The most significant digits of a double: those of the smallest normal numbers.
const DOUBLE_DIGITS: usize = 767;

/// The largest power of ten that divides a double without being in its power of two: 5^22 < 2^53 < 5^23.
const MAX_DOUBLE_ZEROS: i64 = 22;

/// The most significant digits of a Decimal128.
const DECIMAL_DIGITS: usize = 34;

/// A number of any BSON type, without rounding.
#[derive(Debug, PartialEq)]
pub enum Number {
    /// Not a number.
    Nan,
    /// An infinity.
    Infinite {
        /// Whether it is the negative one.
        negative: bool,
    },
    /// `digits` × 10^`exponent`.
    Finite {
        /// Whether it is below zero.
        negative: bool,
        /// Without zeros at either end; zero has no digits.
        digits: String,
        /// The power of ten; 0 for zero.
        exponent: i64,
    },
}

impl Number {
    /// The value of a BSON number; `None` for another type.
    pub fn of(value: &Bson) -> Option<Self> {
        let text = match value {
            Bson::Int32(number) => number.to_string(),
            Bson::Int64(number) => number.to_string(),
            Bson::Double(number) => format!("{number:.DOUBLE_DIGITS$e}"),
            Bson::Decimal128(number) => number.to_string(),
            _ => return None,
        };
        Self::read(&text)
    }

    /// Reads a number as Rust, JSON or MongoDB write it; `None` if its exponent has more than 64 bits.
    fn read(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        match text {
            "NaN" => return Some(Self::Nan),
            "inf" | "Infinity" => return Some(Self::Infinite { negative }),
            _ => {}
        }
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let zeros = digits.len() - significant.len();
        let digits = significant.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self::Finite { negative: false, digits, exponent: 0 });
        }
        let exponent: i64 = exponent.parse().ok()?;
        let shift = i64::try_from(zeros).ok()? - i64::try_from(fraction.len()).ok()?;
        Some(Self::Finite { negative, digits, exponent: exponent.checked_add(shift)? })
    }

    /// Whether this is the exact value of a finite double.
    fn is_exactly(&self, double: f64) -> bool {
        // All digits of a double can take 0.2 ms. So only a number of so many digits is compared: its last digit
        // has the place that the last digit of the double has.
        let may_be = match self {
            Self::Finite { exponent, .. } if *exponent < 0 => -exponent == fraction_bits(double),
            Self::Finite { exponent, .. } => *exponent <= MAX_DOUBLE_ZEROS,
            _ => false,
        };
        may_be && Self::of(&double.into()).as_ref() == Some(self)
    }
}

/// The bits of a finite double behind the point: as many as its decimal digits there.
fn fraction_bits(double: f64) -> i64 {
    const BITS: u32 = f64::MANTISSA_DIGITS - 1;
    let bits = double.abs().to_bits();
    let (power, mantissa) = match (bits >> BITS, bits & ((1 << BITS) - 1)) {
        (0, mantissa) => (1, mantissa),
        (power, mantissa) => (power, mantissa | 1 << BITS),
    };
    // (1075: the power of the last bit of a mantissa.)
    let last =
        i64::try_from(power).unwrap_or_default() - 1_075 + i64::from(mantissa.trailing_zeros());
    (-last).max(0)
}

/// An integer as int32 if it fits, else as int64.
pub fn smallest(integer: i64) -> Bson {
    i32::try_from(integer).map_or(Bson::Int64(integer), Bson::Int32)
}

/// The BSON number of a JSON number. An integer is int32 or int64 where it fits. Any other number is a double if it is
/// the shortest or the exact decimal form of that double, and else a Decimal128 of the same value.
///
/// # Errors
///
/// What is wrong with a number that MongoDB cannot store exactly, or that a double cannot even approximate: many
/// readers of JSON refuse it, and the document around it.
pub fn of_literal(literal: &str) -> Result<Bson, &'static str> {
    if let Ok(integer) = literal.parse() {
        return Ok(smallest(integer));
    }
    let double: f64 = literal.parse().map_err(|_| "is not a number of JSON")?;
    if double.is_infinite() {
        return Err("is beyond the range of a double (1.8e308); write it as a string");
    }
    let number = Number::read(literal);
    // (Of two forms that are as short and as near, Rust writes one and JSON may have the other.)
    let shortest = [format!("{double:e}"), serde_json::to_string(&double).unwrap_or_default()];
    let is_shortest =
        |number| shortest.iter().any(|form| Number::read(form).as_ref() == Some(number));
    let is_double =
        number.as_ref().is_some_and(|number| is_shortest(number) || number.is_exactly(double));
    match (is_double, number) {
        (true, _) => Ok(Bson::Double(double)),
        (false, Some(number)) => decimal(literal, &number),
        (false, None) => Err(TOO_SMALL),
    }
}

const TOO_LONG: &str =
    "has more than 34 digits, which MongoDB cannot store exactly; write it as a string";
const TOO_SMALL: &str = "is below the range of a Decimal128 (1e-6176); write it as a string";

fn decimal(literal: &str, number: &Number) -> Result<Bson, &'static str> {
    // (The zeros at its end are kept if there is room for them.)
    let decimal = literal.parse().ok().map(Bson::Decimal128);
    decimal.filter(|decimal| Number::of(decimal).as_ref() == Some(number)).ok_or(match number {
        Number::Finite { digits, .. } if digits.len() > DECIMAL_DIGITS => TOO_LONG,
        _ => TOO_SMALL,
    })
}

/// A decimal as a number of JSON. `None` if JSON has no such number (NaN, infinities), or one that many readers of JSON
/// refuse because it is beyond the range of a double.
pub(crate) fn to_literal(decimal: bson::Decimal128) -> Option<Box<RawValue>> {
    let text = decimal.to_string();
    let is_readable = text.parse::<f64>().is_ok_and(f64::is_finite);
    RawValue::from_string(text).ok().filter(|_| is_readable)
}

#[cfg(test)]
mod tests {
    use bson::bson;
    use proptest::prelude::*;

    use super::*;
    use crate::json_view;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse().unwrap())
    }

    #[test]
    fn literal_has_the_first_type_that_holds_it() {
        for (literal, expected) in [
            ("0", bson!(0)),
            ("-0", bson!(0)),
            ("2147483648", bson!(2_147_483_648_i64)),
            ("-9223372036854775808", bson!(i64::MIN)),
            ("1.0", bson!(1.0)),
            ("1e3", bson!(1000.0)),
            ("0.1", bson!(0.1)),
            ("1.10", bson!(1.1)),
            ("0.30000000000000004", bson!(0.1 + 0.2)),
            ("0.1000000000000000055511151231257827021181583404541015625", bson!(0.1)),
            ("1E23", bson!(1e23)),
            ("99999999999999991611392", bson!(1e23)),
            ("9223372036854775808", bson!(9_223_372_036_854_775_808.0)),
            ("5e-324", bson!(5e-324)),
            ("1.7976931348623157e308", bson!(f64::MAX)),
            ("-0.0", bson!(-0.0)),
            ("0e99999999999999999999", bson!(0.0)),
            // What a double does not hold.
            ("123456789012345.6789", decimal("123456789012345.6789")),
            ("123456789012345.67890", decimal("123456789012345.67890")),
            ("0.10000000000000001", decimal("0.10000000000000001")),
            (
                "0.1000000000000000055511151231257827",
                decimal("0.1000000000000000055511151231257827"),
            ),
            ("9007199254740993.0", decimal("9007199254740993.0")),
            ("9223372036854775809", decimal("9223372036854775809")),
            ("1234567890123456789012345678901234", decimal("1234567890123456789012345678901234")),
            ("1e-400", decimal("1E-400")),
            ("-1.5E-6175", decimal("-1.5E-6175")),
            ("1e-6176", decimal("1E-6176")),
            // More zeros than there is room for.
            (
                "1234567890123456789012345678901234000",
                decimal("1.234567890123456789012345678901234E+36"),
            ),
            (
                "12345678901234567890123456.789000000000",
                decimal("12345678901234567890123456.78900000"),
            ),
        ] {
            assert_eq!(of_literal(literal), Ok(expected), "{literal}");
        }
        let zero = of_literal("-0.0").unwrap().as_f64().unwrap();
        assert!(zero.is_sign_negative());
    }

    #[test]
    fn literal_that_loses_digits_or_that_a_double_cannot_approximate_is_refused() {
        for (literal, reason) in [
            ("12345678901234567890123456789012345", "34 digits"),
            ("1.2345678901234567890123456789012345", "34 digits"),
            ("1e400", "range of a double"),
            ("-1e309", "range of a double"),
            ("1e99999999999999999999", "range of a double"),
            ("1e-6177", "range of a Decimal128"),
            ("1.5e-6176", "range of a Decimal128"),
            ("1e-99999999999999999999", "range of a Decimal128"),
        ] {
            let refused = of_literal(literal).unwrap_err();

            assert!(refused.contains(reason), "{literal}: {refused}");
        }
    }

    #[test]
    fn decimal_that_json_does_not_have_is_extended_json() {
        for text in ["NaN", "Infinity", "-Infinity", "1E+400"] {
            let expected = format!(r#"{{"$numberDecimal":"{text}"}}"#);

            assert_eq!(json_view::text(&decimal(text)), expected);
        }
    }

    fn literals() -> impl Strategy<Value = String> {
        prop_oneof![
            "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?",
            "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,14})?([eE][+-]?[0-9]{1,2})?",
            any::<f64>().prop_filter("finite", |double| double.is_finite()).prop_flat_map(
                |double| {
                    let exact = format!("{double:.DOUBLE_DIGITS$e}");
                    prop_oneof![
                        Just(format!("{double:e}")),
                        Just(exact),
                        Just(format!("{double:.16e}"))
                    ]
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn literal_comes_back_with_its_value(literal in literals()) {
            let number = Number::read(&literal);
            match of_literal(&literal) {
                Err(_) => {
                    // A double that holds it, or a decimal, is never refused.
                    let double: f64 = literal.parse().unwrap();
                    let shortest = Number::read(&format!("{double:e}"));
                    prop_assert!(number != shortest && number != Number::of(&double.into()));
                    let decimal = literal.parse().ok().map(Bson::Decimal128);
                    let held = decimal.is_some_and(|decimal| Number::of(&decimal) == number);
                    prop_assert!(!held || double.is_infinite());
                }
                Ok(stored) => {
                    let out = json_view::text(&stored);
                    let double = stored.as_f64();
                    let is_exact = double.is_some() && Number::of(&stored) == number;
                    prop_assert!(Number::read(&out) == number || is_exact, "{}", out);
                    // And again.
                    let again = of_literal(&out).unwrap();
                    prop_assert_eq!(json_view::text(&again), out);
                    prop_assert_eq!(Number::of(&again), Number::of(&stored));
                    let written: f64 = literal.parse().unwrap();
                    prop_assert!(double.is_none_or(|double| double.to_bits() == written.to_bits()));
                }
            }
        }

        #[test]
        fn stored_decimal_is_read_back(bytes in any::<[u8; 16]>()) {
            let decimal = bson::Decimal128::from_bytes(bytes);
            if let Some(literal) = to_literal(decimal) {
                let again = of_literal(literal.get()).unwrap();
                let is_same = Number::of(&again) == Number::of(&decimal.into());
                // A decimal that is the shortest form of a double is that double.
                let is_double = again.as_f64().is_some_and(|double| {
                    Number::read(&format!("{double:e}")) == Number::of(&decimal.into())
                });
                prop_assert!(is_same || is_double, "{}", literal.get());
            }
        }
    }
}
