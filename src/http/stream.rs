//! Lists in their forms, no faster than the client takes them.

use std::error::Error;

use axum::http::{HeaderMap, header};
use axum::response::Response;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::http::answers::{Answering, PART_BYTES, PartError, PartText, Parts};
use crate::http::problem::Problem;

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// `{"items": […], "next": …}`.
    Json,
    /// One item per line.
    Lines,
    /// A bare array, without `next`.
    Array,
    /// Server-sent events, one for each item.
    Events,
}

impl ListForm {
    /// The form that the client accepts.
    pub fn accepted(headers: &HeaderMap) -> Self {
        if accepts(headers, "application/x-ndjson") { Self::Lines } else { Self::Json }
    }

    /// The form that a client of the Wow framework accepts.
    pub fn accepted_by_wow(headers: &HeaderMap) -> Self {
        if accepts(headers, "text/event-stream") { Self::Events } else { Self::Array }
    }

    /// What stands before the first item, between two, and behind each.
    fn marks(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Json => ("{\"items\":[", ",", ""),
            Self::Array => ("[", ",", ""),
            Self::Lines => ("", "", "\n"),
            Self::Events => ("", "", "\n\n"),
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::Array => "application/json",
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }
}

pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let wanted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = wanted.flat_map(|text| text.split(','));
    kinds.any(|wanted| {
        let mut parts = wanted.split(';').map(str::trim);
        let is_kind = parts.next().unwrap_or_default().eq_ignore_ascii_case(kind);
        let is_refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        is_kind && !is_refused
    })
}

/// An item with the cursor of the part that begins with it.
type Item<T, E> = Result<(String, T), E>;

/// The text of a list, an item at a time.
pub(super) struct ListText {
    form: ListForm,
    /// How many items may follow.
    left: u32,
    is_begun: bool,
    is_over: bool,
}

impl ListText {
    /// A list of at most this many items.
    pub(super) fn new(form: ListForm, limit: u32) -> Self {
        Self { form, left: limit, is_begun: false, is_over: false }
    }

    pub(super) fn content_type(&self) -> &'static str {
        self.form.content_type()
    }

    /// How many items may follow.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Writes an item.
    pub(super) fn push(
        &mut self,
        text: &mut String,
        item: &impl Serialize,
    ) -> serde_json::Result<()> {
        let (before, between, behind) = self.form.marks();
        text.push_str(if self.is_begun { between } else { before });
        self.is_begun = true;
        if self.form == ListForm::Events {
            text.push_str("data:");
        }
        text.push_str(&serde_json::to_string(item)?);
        text.push_str(behind);
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    /// Writes the end, with the cursor of what follows.
    pub(super) fn end(&mut self, text: &mut String, next: Option<&str>) -> serde_json::Result<()> {
        self.is_over = true;
        if !self.is_begun {
            text.push_str(self.form.marks().0);
        }
        match self.form {
            ListForm::Json => {
                let next = serde_json::to_string(&next)?;
                text.push_str(&format!("],\"next\":{next}}}"));
            }
            ListForm::Array => text.push(']'),
            ListForm::Lines | ListForm::Events => {}
        }
        Ok(())
    }
}

/// A list whose items come one by one.
struct ListParts<T, E> {
    items: BoxStream<'static, Item<T, E>>,
    list: ListText,
}

/// Answers with at most `limit` items. One more item is the beginning of the next part.
///
/// # Errors
///
/// The errors of the first items. A later one cuts the answer, which began with 200.
pub async fn streamed<T, E>(
    items: BoxStream<'static, Item<T, E>>,
    limit: Option<u32>,
    form: ListForm,
    answering: Answering,
) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
    E: Error + Into<Problem> + Send + Sync + 'static,
{
    let list = ListText::new(form, limit.unwrap_or(u32::MAX));
    let parts = ListParts { items, list };
    answering.stream(form.content_type(), parts, CancellationToken::new()).await
}

impl<T, E> Parts for ListParts<T, E>
where
    T: Serialize + Send + 'static,
    E: Error + Into<Problem> + Send + Sync + 'static,
{
    type Error = E;

    fn read(&mut self) -> BoxFuture<'_, PartText<E>> {
        self.read_items().boxed()
    }
}

impl<T: Serialize, E> ListParts<T, E> {
    async fn read_items(&mut self) -> PartText<E> {
        let list = &mut self.list;
        if list.is_over() {
            return Ok(None);
        }
        let mut text = String::new();
        while text.len() < PART_BYTES {
            let next = self.items.next().await.transpose()?;
            let encoded = match next {
                Some((_, item)) if list.left() > 0 => list.push(&mut text, &item),
                next => {
                    let cursor = next.map(|(cursor, _)| cursor);
                    list.end(&mut text, cursor.as_deref())
                }
            };
            encoded.map_err(PartError::Encode)?;
            if list.is_over() {
                break;
            }
        }
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use serde::Serializer;

    use super::*;
    use crate::events::feed::FeedError;
    use crate::http::answers::Answers;

    /// One of two items.
    enum Either {
        Left(String),
        Right(Broken),
    }

    impl Serialize for Either {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            match self {
                Self::Left(text) => text.serialize(to),
                Self::Right(broken) => broken.serialize(to),
            }
        }
    }

    fn answering() -> Answering {
        Answering::new(std::sync::Arc::new(Answers::new(1)))
    }

    /// An item that has no JSON.
    struct Broken;

    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("broken"))
        }
    }

    #[tokio::test]
    async fn item_that_cannot_be_encoded_ends_the_answer_with_an_error() {
        let whole = "x".repeat(PART_BYTES);
        for form in [ListForm::Json, ListForm::Lines, ListForm::Array, ListForm::Events] {
            let broken = Ok::<_, FeedError>((String::new(), Either::Right(Broken)));
            let items = [Ok((String::new(), Either::Left(whole.clone()))), broken];

            let answer = streamed(stream::iter(items).boxed(), None, form, answering());

            let body = axum::body::to_bytes(answer.await.unwrap().into_body(), usize::MAX).await;
            assert!(body.is_err(), "{form:?}: {body:?}");
        }
    }

    #[tokio::test]
    async fn error_of_the_first_items_is_a_problem() {
        let broken = Ok::<_, FeedError>((String::new(), Broken));
        let answer = streamed(stream::iter([broken]).boxed(), None, ListForm::Json, answering());

        assert_eq!(answer.await.unwrap_err().status.as_u16(), 500);
    }

    #[test]
    fn lines_are_sent_to_a_client_that_accepts_them() {
        for (accepted, form) in [
            ("application/x-ndjson", ListForm::Lines),
            ("application/json, application/X-NDJSON;q=0.9", ListForm::Lines),
            ("application/json", ListForm::Json),
            ("*/*", ListForm::Json),
            ("application/x-ndjson;q=0, application/json", ListForm::Json),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accepted.parse().unwrap())]);

            assert_eq!(ListForm::accepted(&headers), form, "{accepted}");
        }
    }
}
