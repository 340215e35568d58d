//! The codes of problems (RFC 9457): what is wrong, for programs, with a title and a page for operators.

/// The page with an anchor for each code.
const PAGE: &str = "https://github.com/postrider/postrider/blob/main/docs/http.md";

macro_rules! problem_codes {
    ($($Code:ident $code:literal $title:literal,)+) => {
        /// What is wrong, for programs: it never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ProblemCode { $($Code,)+ }

        impl ProblemCode {
            /// Every code.
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$Code,)+];

            /// Returns the member `code` of a problem.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$Code => $code,)+ }
            }

            /// Returns the member `title` of a problem: the same for each problem of this code.
            pub fn title(self) -> &'static str {
                match self { $(Self::$Code => $title,)+ }
            }
        }
    };
}

problem_codes! {
    AlreadyPrepared "already_prepared" "Key already prepared",
    DuplicateAggregate "duplicate_aggregate" "Aggregate exists already",
    DuplicateRecord "duplicate_record" "Record exists already",
    DuplicateRequest "duplicate_request" "Request id already used",
    Forbidden "forbidden" "Missing scope",
    ForeignHost "foreign_host" "Host is not loopback",
    ForeignOrigin "foreign_origin" "Origin is another site",
    Internal "internal" "Internal error",
    Invalid "invalid" "Invalid request",
    LeaseLost "lease_lost" "Lease lost",
    MalformedJson "malformed_json" "Malformed JSON",
    MemberActive "member_active" "Another member is active",
    MethodNotAllowed "method_not_allowed" "Method not allowed",
    NotFound "not_found" "Not found",
    Overloaded "overloaded" "Too many concurrent requests",
    PayloadTooLarge "payload_too_large" "Body too large",
    PositionAhead "position_ahead" "Position is ahead",
    PositionBehind "position_behind" "Position is behind",
    RecordErased "record_erased" "Content of the record is erased",
    RecordLeased "record_leased" "Record is leased",
    Refused "refused" "Change refused by MongoDB",
    StreamEnded "stream_ended" "Event stream has ended",
    SubscriptionExists "subscription_exists" "Subscription exists already",
    SubscriptionInvalid "subscription_invalid" "Subscription is invalid",
    SubscriptionPaused "subscription_paused" "Subscription is paused",
    TooLarge "too_large" "Record too large",
    TooManyParked "too_many_parked" "Too many parked events",
    TooManySubscriptions "too_many_subscriptions" "Too many subscriptions",
    Unauthorized "unauthorized" "Token required",
    Unavailable "unavailable" "Temporarily unavailable",
    UnsupportedMediaType "unsupported_media_type" "Unsupported form of the body",
    ValueMismatch "value_mismatch" "Value of the key differs",
    VersionConflict "version_conflict" "Version conflict",
    WrongFeed "wrong_feed" "Position of another feed",
    WrongKind "wrong_kind" "Wrong kind of subscription",
    WrongStatus "wrong_status" "Wrong status of the record",
}

impl ProblemCode {
    /// Returns the member `type` of a problem: a link to the documentation of the code.
    pub fn link(self) -> String {
        format!("{PAGE}#{}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_an_anchor_in_the_documentation() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/http.md");
        let page = std::fs::read_to_string(file).unwrap();
        let anchors = page.split("<a id=\"").skip(1).filter_map(|after| after.split_once('"'));

        // (Other anchors of the page have hyphens, a code has none.)
        let of_codes = anchors.map(|(anchor, _)| anchor).filter(|anchor| !anchor.contains('-'));
        let mut documented: Vec<&str> = of_codes.collect();
        documented.sort_unstable();

        let mut codes: Vec<&str> = ProblemCode::ALL.iter().map(|code| code.as_str()).collect();
        codes.sort_unstable();
        assert_eq!(documented, codes);
    }

    #[test]
    fn titles_are_unique() {
        let titles: BTreeSet<&str> = ProblemCode::ALL.iter().map(|code| code.title()).collect();
        assert_eq!(titles.len(), ProblemCode::ALL.len());
    }
}
