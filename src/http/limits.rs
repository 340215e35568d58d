//! What a token may reach of what its scopes permit.
//!
//! A token with limits may do only what its limits cover. A call states by type what it reaches
//! ([`Reach`]): by default everything, which no limited token may. So a new call is refused to limited
//! tokens until it names the part that they may reach, and checks what it reads and writes.

use std::sync::Arc;

use bson::raw::cstr;
use bson::{Bson, Regex};
use postrider_settings::Glob;

use crate::events::{EventStore, Tenancy};
use crate::http::auth::TokenHolder;
use crate::http::params::{AggregatePath, KindPath, NoParameters, RecordPath, VersionPath};
use crate::http::problem::Problem;
use crate::http::token_limits::Limits;
use crate::names::{AggregateId, AggregateName};
use crate::outbox::scope::RecordScope;

/// The part of the API that a call reaches, as a type.
pub trait Reach: Sized + Send {
    /// The part that this token may reach.
    ///
    /// # Errors
    ///
    /// The limits of the token do not cover it.
    fn of(holder: &Arc<TokenHolder>) -> Result<Self, Problem>;
}

/// Parameters of a path that a limit may exclude.
pub trait Confined<R> {
    /// Checks them.
    ///
    /// # Errors
    ///
    /// They are beyond a limit of the token.
    fn check(&self, reach: &R) -> Result<(), Problem>;
}

/// All of the deployment: for tokens without limits.
#[derive(Clone, Copy, Debug)]
pub struct Whole;

impl Reach for Whole {
    fn of(holder: &Arc<TokenHolder>) -> Result<Self, Problem> {
        let set = holder.limits.set();
        if set.is_empty() {
            return Ok(Self);
        }
        let detail = format!(
            "is limited by {}, and this call cannot be limited; use a token without limits",
            set.join(", ")
        );
        Err(Problem::beyond_limits(&holder.name, &detail))
    }
}

impl<P> Confined<Whole> for P {
    fn check(&self, _: &Whole) -> Result<(), Problem> {
        Ok(())
    }
}

/// The events and snapshots of some aggregate names and tenants.
#[derive(Clone, Debug)]
pub struct InStreams(Arc<TokenHolder>);

impl Reach for InStreams {
    fn of(holder: &Arc<TokenHolder>) -> Result<Self, Problem> {
        covered(holder, "the calls of events", &["aggregates"], true).map(Self)
    }
}

impl InStreams {
    /// Checks an aggregate name.
    ///
    /// # Errors
    ///
    /// It is beyond the limits.
    pub fn name(&self, name: &AggregateName) -> Result<(), Problem> {
        within(&self.0, "aggregates", &self.0.limits.aggregates, name.as_str())
    }

    /// The aggregate names that a reader of the feed wants, if they are within the limits. Without any: all
    /// that the token names.
    ///
    /// # Errors
    ///
    /// One is beyond the limits, or the token has patterns, and the reader must name its names.
    pub fn names(&self, wanted: Vec<String>) -> Result<Vec<String>, Problem> {
        let Some(allowed) = &self.0.limits.aggregates else { return Ok(wanted) };
        if wanted.is_empty() {
            let named: Option<Vec<String>> = allowed.iter().map(Glob::literal).collect();
            return named.ok_or_else(|| {
                let detail = format!("is limited to aggregates {}", listed(allowed));
                let detail = format!("{detail}; name those to read in the parameter aggregates");
                Problem::beyond_limits(&self.0.name, &detail)
            });
        }
        for name in &wanted {
            within(&self.0, "aggregates", &self.0.limits.aggregates, name)?;
        }
        Ok(wanted)
    }

    /// Checks the names of events, which are the types of their records.
    ///
    /// # Errors
    ///
    /// One is beyond the limits.
    pub fn types<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<(), Problem> {
        for name in names {
            within(&self.0, "types", &self.0.limits.types, name)?;
        }
        Ok(())
    }

    /// The tenant of a request: the one that it names, else the only one of the token.
    ///
    /// # Errors
    ///
    /// It is beyond the limits, or the token has several, and the request must name one.
    pub fn tenant(&self, named: Option<String>) -> Result<Option<String>, Problem> {
        tenant(&self.0, named)
    }

    /// The tenants of the token, if it is limited to some.
    pub fn tenants(&self) -> Option<&[String]> {
        self.0.limits.tenants.as_deref()
    }

    /// Whether the caller may know of a stream: it is of this tenant, or the token is not limited to tenants.
    ///
    /// # Errors
    ///
    /// Those of MongoDB.
    pub async fn knows(
        &self,
        store: &EventStore,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<bool, Problem> {
        let Some(tenants) = self.tenants() else { return Ok(true) };
        let one = tenant.map(|tenant| [tenant.to_owned()]);
        let tenants = one.as_ref().map_or(tenants, |one| one.as_slice());
        Ok(store.tenancy(name, id, tenants).await? == Tenancy::Own)
    }
}

impl Confined<InStreams> for NoParameters {
    fn check(&self, _: &InStreams) -> Result<(), Problem> {
        Ok(())
    }
}

impl Confined<InStreams> for KindPath {
    fn check(&self, reach: &InStreams) -> Result<(), Problem> {
        reach.name(&self.name)
    }
}

impl Confined<InStreams> for AggregatePath {
    fn check(&self, reach: &InStreams) -> Result<(), Problem> {
        reach.name(&self.name)
    }
}

impl Confined<InStreams> for VersionPath {
    fn check(&self, reach: &InStreams) -> Result<(), Problem> {
        reach.name(&self.name)
    }
}

/// The records of some types, destinations and tenants.
#[derive(Clone, Debug)]
pub struct InRecords(Arc<TokenHolder>);

impl Reach for InRecords {
    fn of(holder: &Arc<TokenHolder>) -> Result<Self, Problem> {
        covered(holder, "the calls of the outbox", &["types", "destinations"], true).map(Self)
    }
}

impl InRecords {
    /// Checks a new record.
    ///
    /// # Errors
    ///
    /// It is beyond the limits.
    pub fn record(&self, kind: &str, destination: Option<&str>) -> Result<(), Problem> {
        let limits = &self.0.limits;
        within(&self.0, "types", &limits.types, kind)?;
        let Some(destination) = destination else { return Ok(()) };
        within(&self.0, "destinations", &limits.destinations, destination)
    }

    /// The tenant of a new record, as [`InStreams::tenant`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tenant(&self, named: Option<String>) -> Result<Option<String>, Problem> {
        tenant(&self.0, named)
    }

    /// The stored records that the token may reach.
    pub fn scope(&self) -> RecordScope {
        let Limits { types, destinations, tenants, .. } = &self.0.limits;
        let filters = |globs: &Vec<Glob>| globs.iter().map(matching).collect();
        let mut scope = RecordScope::default();
        if let Some(types) = types {
            scope = scope.of_types(filters(types));
        }
        if let Some(destinations) = destinations {
            scope = scope.to_destinations(filters(destinations));
        }
        if let Some(tenants) = tenants {
            scope = scope.of_tenants(tenants.iter().map(Into::into).collect());
        }
        scope
    }
}

impl Confined<InRecords> for NoParameters {
    fn check(&self, _: &InRecords) -> Result<(), Problem> {
        Ok(())
    }
}

/// (Its id says nothing; the scope does.)
impl Confined<InRecords> for RecordPath {
    fn check(&self, _: &InRecords) -> Result<(), Problem> {
        Ok(())
    }
}

/// Some subscriptions, by name.
#[derive(Clone, Debug)]
pub struct InSubscriptions(Arc<TokenHolder>);

impl Reach for InSubscriptions {
    fn of(holder: &Arc<TokenHolder>) -> Result<Self, Problem> {
        covered(holder, "the calls of subscriptions", &["subscriptions"], false).map(Self)
    }
}

impl InSubscriptions {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// It is beyond the limits.
    pub fn name(&self, name: &str) -> Result<(), Problem> {
        within(&self.0, "subscriptions", &self.0.limits.subscriptions, name)
    }
}

fn tenant(holder: &TokenHolder, named: Option<String>) -> Result<Option<String>, Problem> {
    let Some(tenants) = &holder.limits.tenants else { return Ok(named) };
    match (named, tenants.as_slice()) {
        (Some(named), tenants) if tenants.contains(&named) => Ok(Some(named)),
        (None, [only]) => Ok(Some(only.clone())),
        (named, tenants) => {
            let what = named.map_or("names none".into(), |named| format!("names {named:?}"));
            let detail =
                format!("is limited to the tenants {}, and tenantId {what}", tenants.join(", "));
            Err(Problem::beyond_limits(&holder.name, &detail))
        }
    }
}

/// Checks a text by a limit.
fn within(
    holder: &TokenHolder,
    limit: &str,
    allowed: &Option<Vec<Glob>>,
    text: &str,
) -> Result<(), Problem> {
    match allowed {
        Some(globs) if !globs.iter().any(|glob| glob.matches(text)) => {
            let detail = format!("is limited to {limit} {}, not {text:?}", listed(globs));
            Err(Problem::beyond_limits(&holder.name, &detail))
        }
        _ => Ok(()),
    }
}

fn listed(globs: &[Glob]) -> String {
    let texts = globs.iter().map(|glob| format!("{:?}", String::from(glob.clone())));
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { "(none)".into() } else { texts.join(", ") }
}

/// Checks that the limits of a token cover a part of the API, by one of these limits or by tenants alone. The
/// problem names the first of them.
fn covered(
    holder: &Arc<TokenHolder>,
    what: &str,
    own: &[&str],
    has_tenants: bool,
) -> Result<Arc<TokenHolder>, Problem> {
    if holder.limits.covers(own, has_tenants) {
        return Ok(holder.clone());
    }
    let set = holder.limits.set().join(", ");
    let limit = own.first().copied().unwrap_or_default();
    let detail =
        format!("is limited by {set}, which does not cover {what}; give it the limit {limit} too");
    Err(Problem::beyond_limits(&holder.name, &detail))
}

/// What matches the same texts as a pattern in a filter of MongoDB: the text, or a regular expression.
fn matching(glob: &Glob) -> Bson {
    if let Some(text) = glob.literal() {
        return text.into();
    }
    match glob.expression().try_into() {
        Ok(pattern) => Bson::RegularExpression(Regex { pattern, options: cstr!("s").into() }),
        // (It contains no NUL.)
        Err(_) => Bson::from(glob.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(limits: Limits) -> Arc<TokenHolder> {
        Arc::new(TokenHolder { name: "t".into(), scopes: vec![], limits })
    }

    fn globs(texts: &[&str]) -> Option<Vec<Glob>> {
        Some(texts.iter().map(|text| Glob::new(text)).collect())
    }

    fn tenants(names: &[&str]) -> Option<Vec<String>> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn limited_token_reaches_only_what_its_limits_cover() {
        let none = Limits::default;
        for (limits, streams, records, subscriptions) in [
            (none(), true, true, true),
            (Limits { aggregates: globs(&["a"]), ..none() }, true, false, false),
            (Limits { types: globs(&["a"]), ..none() }, false, true, false),
            (Limits { destinations: globs(&[]), ..none() }, false, true, false),
            (Limits { tenants: tenants(&["a"]), ..none() }, true, true, false),
            (Limits { subscriptions: globs(&["a"]), ..none() }, false, false, true),
            (
                Limits { tenants: tenants(&["a"]), types: globs(&["a"]), ..none() },
                false,
                true,
                false,
            ),
        ] {
            let holder = holder(limits.clone());
            let reached = (
                InStreams::of(&holder).is_ok(),
                InRecords::of(&holder).is_ok(),
                InSubscriptions::of(&holder).is_ok(),
            );
            assert_eq!(reached, (streams, records, subscriptions), "{limits:?}");
            assert_eq!(Whole::of(&holder).is_ok(), limits == none(), "{limits:?}");
        }
    }

    #[test]
    fn tenant_of_a_request_is_one_of_the_token() {
        let one = holder(Limits { tenants: tenants(&["a"]), ..Limits::default() });
        let two = holder(Limits { tenants: tenants(&["a", "b"]), ..Limits::default() });
        let of = |holder: &Arc<TokenHolder>, named: Option<&str>| {
            let found = tenant(holder, named.map(str::to_owned));
            found.map_err(|problem| problem.status.as_u16())
        };
        let found = |tenant: &str| Ok(Some(tenant.to_owned()));

        assert_eq!(of(&holder(Limits::default()), Some("z")), found("z"));
        assert_eq!(of(&holder(Limits::default()), None), Ok(None));
        assert_eq!((of(&one, None), of(&one, Some("a"))), (found("a"), found("a")));
        assert_eq!((of(&one, Some("b")), of(&one, Some(""))), (Err(403), Err(403)));
        assert_eq!((of(&two, None), of(&two, Some("b"))), (Err(403), found("b")));
    }

    #[test]
    fn reader_of_the_feed_names_aggregates_if_the_token_has_patterns() {
        let of = |aggregates: &[&str], wanted: &[&str]| {
            let aggregates = globs(aggregates);
            let reach = InStreams(holder(Limits { aggregates, ..Limits::default() }));
            let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
            reach.names(wanted).ok().map(|names| names.join(","))
        };

        assert_eq!(of(&["order", "cart"], &[]).as_deref(), Some("order,cart"));
        assert_eq!(of(&["order", "c*"], &[]), None);
        assert_eq!(of(&["order", "c*"], &["cart"]).as_deref(), Some("cart"));
        assert_eq!(of(&["order", "c*"], &["cart", "person"]), None);
    }
}
