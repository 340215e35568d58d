//! What routes and templates look at.

use postrider_outbox::content::Content;
use postrider_outbox::header::HeaderValue;

/// What routes and templates look at.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// The record's `type`.
    pub kind: &'a str,
    /// Its `key`.
    pub key: Option<&'a str>,
    /// Its `destination`.
    pub destination: Option<&'a str>,
    /// Its `tenantId`.
    pub tenant_id: Option<&'a str>,
    /// Its headers.
    pub headers: &'a [(String, HeaderValue)],
}

impl<'a> From<&'a Content> for RouteInput<'a> {
    fn from(content: &'a Content) -> Self {
        Self {
            kind: &content.kind,
            key: content.key.as_deref(),
            destination: content.destination.as_deref(),
            tenant_id: content.tenant_id.as_deref(),
            headers: &content.headers,
        }
    }
}
