//! Who may do what: bearer tokens, each with a name and scopes.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::http::problem::Problem;
use crate::http::state::Shared;

/// What a token may be good for; none implies another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Events, snapshots, prepare keys and records may be written.
    Append,
    /// Everything may be read.
    Read,
    /// The relay and its records may be meddled with.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Append, Self::Read, Self::Admin];

    /// As configurations name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Read => "read",
            Self::Admin => "admin",
        }
    }
}

/// The tokens that there are, as digests: of one length, so that a comparison tells nothing.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    known: Vec<Known>,
}

#[derive(Clone)]
struct Known {
    digest: [u8; 32],
    holder: Holder,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.holder.fmt(f)
    }
}

/// Whose token it is.
#[derive(Clone, Debug)]
pub struct Holder {
    name: Arc<str>,
    scopes: Vec<Scope>,
}

impl Tokens {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds one; `false` where it is there already.
    pub fn add(&mut self, name: &str, token: &str, scopes: Vec<Scope>) -> bool {
        let is_new = self.find(token).is_none();
        let holder = Holder { name: name.into(), scopes };
        self.known.push(Known { digest: Sha256::digest(token).into(), holder });
        is_new
    }

    /// Whose this is. Looks at all of them, whichever it is.
    pub fn find(&self, token: &str) -> Option<&Holder> {
        let presented: [u8; 32] = Sha256::digest(token).into();
        self.known.iter().fold(None, |found, known| {
            match bool::from(known.digest.ct_eq(&presented)) {
                true => Some(&known.holder),
                false => found,
            }
        })
    }

    /// Who calls, if he may.
    fn admit(&self, scope: Scope, presented: Option<&str>) -> Result<Arc<str>, Problem> {
        if self.is_empty() {
            return Ok("anybody".into());
        }
        let token = presented.and_then(bearer);
        let holder = token.and_then(|token| self.find(token)).ok_or_else(Problem::unauthorized)?;
        match holder.scopes.contains(&scope) {
            true => Ok(holder.name.clone()),
            false => Err(Problem::forbidden(&holder.name, scope.name())),
        }
    }
}

/// The token of `Bearer …`.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
}

/// A caller who may append.
#[derive(Clone, Copy, Debug)]
pub struct Append;
/// A caller who may read.
#[derive(Clone, Copy, Debug)]
pub struct Read;
/// A caller who may administer.
#[derive(Clone, Copy, Debug)]
pub struct Admin;

/// What stands for a scope in a handler's signature.
pub trait Needs {
    /// That scope.
    const SCOPE: Scope;
}

impl Needs for Append {
    const SCOPE: Scope = Scope::Append;
}
impl Needs for Read {
    const SCOPE: Scope = Scope::Read;
}
impl Needs for Admin {
    const SCOPE: Scope = Scope::Admin;
}

/// Whoever calls, who has been found to have the scope. The first argument of every handler: the
/// rest of a request is not looked at before.
#[derive(Clone, Debug)]
pub struct Caller<S> {
    /// The token's name, for logs.
    pub name: Arc<str>,
    scope: PhantomData<S>,
}

impl<S: Needs + Send> FromRequestParts<Shared> for Caller<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Problem> {
        let presented = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let name = shared.tokens.admit(S::SCOPE, presented)?;
        Ok(Self { name, scope: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_whole_and_with_its_own_scopes() {
        let mut tokens = Tokens::default();
        assert!(tokens.add("one", "alpha", vec![Scope::Read]));
        assert!(tokens.add("two", "beta", Scope::ALL.into()));
        assert!(!tokens.add("three", "beta", Scope::ALL.into()));

        let may = |scope, presented| tokens.admit(scope, presented).map(|name| name.to_string());

        assert_eq!(may(Scope::Read, Some("Bearer alpha")).unwrap(), "one");
        assert_eq!(may(Scope::Append, Some("bearer  beta")).ok().as_deref(), Some("three"));
        assert_eq!(may(Scope::Append, Some("Bearer alpha")).unwrap_err().status.as_u16(), 403);
        for wrong in [None, Some("alpha"), Some("Basic alpha"), Some("Bearer alph"), Some("Bearer")]
        {
            assert_eq!(may(Scope::Read, wrong).unwrap_err().status.as_u16(), 401, "{wrong:?}");
        }
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        assert!(Tokens::default().admit(Scope::Admin, None).is_ok());
    }
}
