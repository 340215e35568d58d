//! Access rights, in Kafka's own protocol.
//!
//! librdkafka can do this, but its Rust crate cannot, and the broker's command for it is not among
//! the jars. The three requests have one body, in a version without tagged fields:
//! <https://kafka.apache.org/protocol#The_Messages_CreateAcls>.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::outbox::eventually;

/// The object of a right.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    /// A topic; `*` is all of them.
    Topic(&'a str),
    Cluster,
}

#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Operation {
    All = 2,
    Write = 4,
    Create = 5,
    Describe = 8,
    IdempotentWrite = 12,
}

#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Permission {
    /// Overrides whatever allows the same.
    Deny = 2,
    Allow = 3,
}

/// A right that a user has, or is denied.
#[derive(Clone, Copy, Debug)]
pub struct Acl<'a> {
    pub permission: Permission,
    /// `*` is every user.
    pub user: &'a str,
    pub operation: Operation,
    pub resource: Resource<'a>,
}

#[derive(Clone, Copy)]
#[repr(i16)]
enum Request {
    Describe = 29,
    Create = 30,
    Delete = 31,
}

impl Acl<'_> {
    /// Creates it, and waits until the broker applies it; `broker` must accept this client as a
    /// super user.
    pub async fn create(&self, broker: &str) {
        self.call(broker, Request::Create).await;
        eventually("the broker to go by an ACL", || self.is_known(broker)).await;
    }

    /// Deletes it.
    pub async fn delete(&self, broker: &str) {
        self.call(broker, Request::Delete).await;
        let forgotten = || async { !self.is_known(broker).await };
        eventually("the broker to forget an ACL", forgotten).await;
    }

    async fn is_known(&self, broker: &str) -> bool {
        let answer = self.call(broker, Request::Describe).await;
        // The number of matching resources follows the error and its null message.
        answer[4..8] != [0; 4]
    }

    /// The answer from its first error code on, which must be zero.
    async fn call(&self, broker: &str, request: Request) -> Vec<u8> {
        let (kind, name) = match self.resource {
            Resource::Topic(name) => (2, name),
            Resource::Cluster => (4, "kafka-cluster"),
        };
        const LITERAL: u8 = 3;
        let mut body = vec![kind];
        put(&mut body, name);
        body.push(LITERAL);
        put(&mut body, &format!("User:{}", self.user));
        put(&mut body, "*"); // from every host
        body.extend([self.operation as u8, self.permission as u8]);
        let is_list = !matches!(request, Request::Describe);
        let mut message = Vec::new();
        message.extend((request as i16).to_be_bytes());
        message.extend(1_i16.to_be_bytes()); // version
        message.extend(0_i32.to_be_bytes()); // correlation
        put(&mut message, "test");
        if is_list {
            message.extend(1_i32.to_be_bytes());
        }
        message.extend(body);
        let mut stream = TcpStream::connect(broker).await.unwrap();
        stream.write_i32(i32::try_from(message.len()).unwrap()).await.unwrap();
        stream.write_all(&message).await.unwrap();
        let length = stream.read_i32().await.unwrap();
        let mut answer = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut answer).await.unwrap();
        // Before the error: correlation, throttle time, and the length of the list.
        let result = answer.split_off(if is_list { 12 } else { 8 });
        assert_eq!(result[..2], [0, 0], "{self:?}: {}", String::from_utf8_lossy(&result));
        result
    }
}

fn put(message: &mut Vec<u8>, text: &str) {
    message.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    message.extend(text.as_bytes());
}
