//! Bearer tokens, each with a name, scopes and limits.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tracing::warn;

use crate::http::problem::Problem;
use crate::http::token_limits::Limits;

/// A permission of tokens; none implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Writing events, snapshots, prepare keys and records.
    Append,
    /// Reading everything.
    Read,
    /// Administrative operations: requeue, discard, pause.
    Admin,
    /// Taking the events of pull subscriptions: pull, ack and park.
    Consume,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 4] = [Self::Append, Self::Read, Self::Admin, Self::Consume];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Read => "read",
            Self::Admin => "admin",
            Self::Consume => "consume",
        }
    }
}

/// The configured tokens as digests, which have one length, so that comparisons reveal nothing.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    tokens: Vec<KnownToken>,
}

#[derive(Clone)]
struct KnownToken {
    digest: [u8; 32],
    holder: Arc<TokenHolder>,
}

impl std::fmt::Debug for KnownToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.holder.fmt(f)
    }
}

/// The name of a token, and what it permits.
#[derive(Clone, Debug)]
pub struct TokenHolder {
    /// The name.
    pub(super) name: Arc<str>,
    /// The kinds of calls.
    pub(super) scopes: Vec<Scope>,
    /// What these calls may reach.
    pub(super) limits: Limits,
}

impl TokenHolder {
    /// A client of an API without tokens.
    fn anonymous() -> Self {
        Self { name: "anonymous".into(), scopes: Scope::ALL.into(), limits: Limits::default() }
    }
}

impl Tokens {
    /// Whether no token is configured.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a token; `false` where it is known already.
    pub fn add(&mut self, name: &str, token: &str, scopes: Vec<Scope>, limits: Limits) -> bool {
        let is_new = self.find(token).is_none();
        let holder = TokenHolder { name: name.into(), scopes, limits };
        let digest = Sha256::digest(token).into();
        self.tokens.push(KnownToken { digest, holder: Arc::new(holder) });
        is_new
    }

    /// Finds the holder of a token. Compares it with all known ones, in constant time.
    pub fn find(&self, token: &str) -> Option<&Arc<TokenHolder>> {
        let presented: [u8; 32] = Sha256::digest(token).into();
        self.tokens.iter().fold(None, |found, known| {
            if known.digest.ct_eq(&presented).into() { Some(&known.holder) } else { found }
        })
    }

    /// Admits a caller by the header `Authorization`.
    ///
    /// # Errors
    ///
    /// No known token, or one without the scope.
    pub(super) fn admit(
        &self,
        scope: Scope,
        presented: Option<&str>,
    ) -> Result<Arc<TokenHolder>, Problem> {
        if self.is_empty() {
            return Ok(Arc::new(TokenHolder::anonymous()));
        }
        let token = presented.and_then(bearer);
        let holder = token.and_then(|token| self.find(token)).ok_or_else(Problem::unauthorized)?;
        if !holder.scopes.contains(&scope) {
            return Err(Problem::forbidden(&holder.name, scope.name()));
        }
        Ok(holder.clone())
    }
}

/// The least interval of lines about refused logins.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Reports requests without a known token, which may be guesses, in at most one line a minute.
#[derive(Debug, Default)]
pub(super) struct RefusedLogins {
    unreported: Mutex<Unreported>,
}

#[derive(Debug, Default)]
struct Unreported {
    refused: u64,
    reported_at: Option<Instant>,
}

impl RefusedLogins {
    /// Counts a refused login, and logs it with those before it if a line is due.
    pub(super) fn note(&self, peer: Option<SocketAddr>) {
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refused) = unreported.add(Instant::now()) {
            let peer = peer.map(tracing::field::display);
            warn!(peer, refused, "refused requests without a known token");
        }
    }
}

impl Unreported {
    /// Adds one. Returns how many a line reports, if one is due now.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        let is_due = self.reported_at.is_none_or(|at| now.duration_since(at) >= REPORT_INTERVAL);
        is_due.then(|| {
            self.reported_at = Some(now);
            std::mem::take(&mut self.refused)
        })
    }
}

/// The token of `Bearer …`.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_matched_whole_with_their_scopes() {
        let mut tokens = Tokens::default();
        let mut add = |name, token, scopes| tokens.add(name, token, scopes, Limits::default());
        assert!(add("one", "alpha", vec![Scope::Read]));
        assert!(add("two", "beta", Scope::ALL.into()));
        assert!(!add("three", "beta", Scope::ALL.into()));

        let may =
            |scope, presented| tokens.admit(scope, presented).map(|holder| holder.name.to_string());

        assert_eq!(may(Scope::Read, Some("Bearer alpha")).unwrap(), "one");
        assert_eq!(may(Scope::Append, Some("bearer  beta")).ok().as_deref(), Some("three"));
        assert_eq!(may(Scope::Append, Some("Bearer alpha")).unwrap_err().status.as_u16(), 403);
        for wrong in [None, Some("alpha"), Some("Basic alpha"), Some("Bearer alph"), Some("Bearer")]
        {
            assert_eq!(may(Scope::Read, wrong).unwrap_err().status.as_u16(), 401, "{wrong:?}");
        }
    }

    #[test]
    fn refused_logins_are_reported_once_a_minute_with_their_number() {
        let (mut unreported, begin) = (Unreported::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);

        let reported = [0, 1, 59, 60, 61, 200].map(|seconds| unreported.add(after(seconds)));

        assert_eq!(reported, [Some(1), None, None, Some(3), None, Some(2)]);
    }

    #[test]
    fn every_caller_is_admitted_without_tokens() {
        assert!(Tokens::default().admit(Scope::Admin, None).is_ok());
    }
}
