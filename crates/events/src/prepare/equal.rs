//! Whether two values are the same to whoever prepared them.

use bson::Bson;

/// As MongoDB compares them (1, 1L and 1.0 are equal), but for the fields of documents, which
/// come in any order: two libraries seldom write the same one.
pub(super) fn equal(a: &Bson, b: &Bson) -> bool {
    match (a, b) {
        (Bson::Document(a), Bson::Document(b)) => {
            let has_equal = |(name, value)| b.get(name).is_some_and(|other| equal(value, other));
            a.len() == b.len() && a.iter().all(has_equal)
        }
        (Bson::Array(a), Bson::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        _ => match (Number::of(a), Number::of(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
    }
}

/// A number of any kind, exactly: none is rounded for the sake of another.
#[derive(Debug, PartialEq)]
enum Number {
    Nan,
    Infinite {
        negative: bool,
    },
    /// `digits` × 10^`exponent`, without zeros at either end; zero has no digits.
    Finite {
        negative: bool,
        digits: String,
        exponent: i64,
    },
}

impl Number {
    fn of(value: &Bson) -> Option<Self> {
        /// More digits than these no double has.
        const DIGITS: usize = 767;
        let text = match value {
            Bson::Int32(number) => number.to_string(),
            Bson::Int64(number) => number.to_string(),
            Bson::Double(number) => format!("{number:.DIGITS$e}"),
            Bson::Decimal128(number) => number.to_string(),
            _ => return None,
        };
        Self::read(&text)
    }

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
        let exponent: i64 = exponent.parse().ok()?;
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_end_matches('0');
        let zeros = digits.len() - significant.len();
        let digits = significant.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self::Finite { negative: false, digits, exponent: 0 });
        }
        let shift = i64::try_from(zeros).ok()? - i64::try_from(fraction.len()).ok()?;
        Some(Self::Finite { negative, digits, exponent: exponent + shift })
    }
}

#[cfg(test)]
mod tests {
    use bson::{Decimal128, bson};

    use super::*;

    fn decimal(text: &str) -> Bson {
        Bson::Decimal128(text.parse::<Decimal128>().unwrap())
    }

    #[test]
    fn the_order_of_fields_does_not_matter_at_any_depth() {
        let a = bson!({ "a": [{ "x": 1, "y": { "p": null, "q": "" } }], "b": true });
        let b = bson!({ "b": true, "a": [{ "y": { "q": "", "p": null }, "x": 1 }] });

        assert!(equal(&a, &b));
    }

    #[test]
    fn the_order_of_an_array_does() {
        assert!(!equal(&bson!([1, 2]), &bson!([2, 1])));
        assert!(!equal(&bson!([1]), &bson!([1, 1])));
        assert!(!equal(&bson!([1]), &bson!(1)));
    }

    #[test]
    fn a_field_more_is_another_value() {
        assert!(!equal(&bson!({ "a": 1 }), &bson!({ "a": 1, "b": null })));
        assert!(!equal(&bson!({ "a": 1, "b": null }), &bson!({ "a": 1 })));
        assert!(!equal(&bson!({ "a": 1 }), &bson!({ "b": 1 })));
        assert!(!equal(&Bson::Null, &bson!({})));
    }

    #[test]
    fn a_number_is_the_same_in_every_type() {
        let ones = [bson!(1_i32), bson!(1_i64), bson!(1.0), decimal("1"), decimal("1.00")];
        for (a, b) in ones.iter().flat_map(|a| ones.iter().map(move |b| (a, b))) {
            assert!(equal(a, b), "{a:?} {b:?}");
        }
        assert!(equal(&bson!({ "n": [100] }), &bson!({ "n": [decimal("1E+2")] })));
        assert!(equal(&bson!(-0.0), &bson!(0)));
        assert!(equal(&decimal("-0E+3"), &bson!(0)));
        assert!(equal(&bson!(f64::NAN), &decimal("NaN")));
        assert!(equal(&bson!(f64::NEG_INFINITY), &decimal("-Infinity")));
        assert!(equal(&bson!(i64::MIN), &bson!(-9_223_372_036_854_775_808.0)));
        assert!(equal(&bson!(0.5), &decimal("0.50")));
    }

    #[test]
    fn no_number_is_rounded_to_be_equal() {
        assert!(!equal(&bson!(9_007_199_254_740_993_i64), &bson!(9_007_199_254_740_992.0)));
        assert!(!equal(&bson!(i64::MAX), &bson!(9_223_372_036_854_775_808.0)));
        assert!(!equal(&bson!(0.1), &decimal("0.1")));
        assert!(!equal(&bson!(1), &bson!("1")));
        assert!(!equal(&bson!(1), &bson!(true)));
        assert!(!equal(&bson!(1), &bson!(-1)));
        assert!(!equal(&bson!(f64::INFINITY), &bson!(f64::NEG_INFINITY)));
        assert!(!equal(&bson!(f64::MIN_POSITIVE), &bson!(0)));
    }
}
