//! Equality of the values of prepare keys.

use bson::Bson;
use postrider_outbox::number::Number;

/// Compares values as MongoDB does (1, 1L and 1.0 are equal), but ignores the order of fields, which
/// differs between libraries.
pub(super) fn values_equal(a: &Bson, b: &Bson) -> bool {
    match (a, b) {
        (Bson::Document(a), Bson::Document(b)) => {
            let has_equal =
                |(name, value)| b.get(name).is_some_and(|other| values_equal(value, other));
            a.len() == b.len() && a.iter().all(has_equal)
        }
        (Bson::Array(a), Bson::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| values_equal(a, b))
        }
        _ => match (Number::of(a), Number::of(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a == b,
        },
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
    fn order_of_fields_is_ignored_at_any_depth() {
        let a = bson!({ "a": [{ "x": 1, "y": { "p": null, "q": "" } }], "b": true });
        let b = bson!({ "b": true, "a": [{ "y": { "q": "", "p": null }, "x": 1 }] });

        assert!(values_equal(&a, &b));
    }

    #[test]
    fn order_of_arrays_matters() {
        assert!(!values_equal(&bson!([1, 2]), &bson!([2, 1])));
        assert!(!values_equal(&bson!([1]), &bson!([1, 1])));
        assert!(!values_equal(&bson!([1]), &bson!(1)));
    }

    #[test]
    fn another_field_makes_another_value() {
        assert!(!values_equal(&bson!({ "a": 1 }), &bson!({ "a": 1, "b": null })));
        assert!(!values_equal(&bson!({ "a": 1, "b": null }), &bson!({ "a": 1 })));
        assert!(!values_equal(&bson!({ "a": 1 }), &bson!({ "b": 1 })));
        assert!(!values_equal(&Bson::Null, &bson!({})));
    }

    #[test]
    fn numbers_are_equal_in_every_type() {
        let ones = [bson!(1_i32), bson!(1_i64), bson!(1.0), decimal("1"), decimal("1.00")];
        for (a, b) in ones.iter().flat_map(|a| ones.iter().map(move |b| (a, b))) {
            assert!(values_equal(a, b), "{a:?} {b:?}");
        }
        assert!(values_equal(&bson!({ "n": [100] }), &bson!({ "n": [decimal("1E+2")] })));
        assert!(values_equal(&bson!(-0.0), &bson!(0)));
        assert!(values_equal(&decimal("-0E+3"), &bson!(0)));
        assert!(values_equal(&bson!(f64::NAN), &decimal("NaN")));
        assert!(values_equal(&bson!(f64::NEG_INFINITY), &decimal("-Infinity")));
        assert!(values_equal(&bson!(i64::MIN), &bson!(-9_223_372_036_854_775_808.0)));
        assert!(values_equal(&bson!(0.5), &decimal("0.50")));
    }

    #[test]
    fn numbers_are_not_rounded() {
        assert!(!values_equal(&bson!(9_007_199_254_740_993_i64), &bson!(9_007_199_254_740_992.0)));
        assert!(!values_equal(&bson!(i64::MAX), &bson!(9_223_372_036_854_775_808.0)));
        assert!(!values_equal(&bson!(0.1), &decimal("0.1")));
        assert!(!values_equal(&bson!(1), &bson!("1")));
        assert!(!values_equal(&bson!(1), &bson!(true)));
        assert!(!values_equal(&bson!(1), &bson!(-1)));
        assert!(!values_equal(&bson!(f64::INFINITY), &bson!(f64::NEG_INFINITY)));
        assert!(!values_equal(&bson!(f64::MIN_POSITIVE), &bson!(0)));
    }
}
