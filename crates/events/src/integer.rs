//! Integers in BSON: any numeric type may hold one.

use bson::Bson;
pub(crate) use postrider_outbox::number::smallest;

/// 2^63: the first float above every int64.
const INT64_END: f64 = 9_223_372_036_854_775_808.0;

/// The integer of 64 bits that a number is, whether int32, int64 or double.
pub(crate) fn integral(number: &Bson) -> Option<i64> {
    match *number {
        Bson::Int32(small) => Some(small.into()),
        Bson::Int64(integer) => Some(integer),
        Bson::Double(float) if float.fract() == 0.0 && (-INT64_END..INT64_END).contains(&float) => {
            Some(float as i64)
        }
        _ => None,
    }
}
