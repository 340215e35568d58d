//! A message as a consumer receives it.

use rdkafka::Message;
use rdkafka::message::{BorrowedMessage, Headers};

/// All that Kafka stores of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub partition: i32,
    pub offset: i64,
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub payload: Option<Vec<u8>>,
    /// In order; a name may come twice.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// In milliseconds of the Unix epoch.
    pub timestamp: i64,
}

impl Record {
    /// The text of the first header of this name; `None` where it is absent or null.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(other, _)| other == name)?;
        Some(std::str::from_utf8(value.as_deref()?).unwrap())
    }

    /// The text of the header `message-id`, which every message of a relay has.
    pub fn id(&self) -> &str {
        self.header("message-id").unwrap_or_else(|| panic!("no message-id: {self:?}"))
    }

    pub(super) fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            partition: message.partition(),
            offset: message.offset(),
            key: message.key().map(<[u8]>::to_vec),
            payload: message.payload().map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect(),
            timestamp: message.timestamp().to_millis().unwrap(),
        }
    }
}
