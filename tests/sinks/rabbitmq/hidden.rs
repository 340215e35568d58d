//! A broker that forbids the look-up of an exchange, as RabbitMQ from 4.2.6 on does for users that
//! may only write. The tests' broker is older: a proxy answers the look-up instead.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use postrider::sink::Sink;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::rabbitmq::closures::{QUEUE, disturbs_once};
use crate::rabbitmq::util::connected;
use crate::support::message::message;
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{address, at};

const METHOD: u8 = 1;
const FRAME_END: u8 = 0xCE;

/// Class and method.
const EXCHANGE_DECLARE: [u8; 4] = [0, 40, 0, 10];
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const CHANNEL_CLOSE_OK: [u8; 4] = [0, 20, 0, 41];

struct Frame {
    kind: u8,
    channel: u16,
    payload: Vec<u8>,
}

impl Frame {
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let kind = from.read_u8().await.ok()?;
        let channel = from.read_u16().await.ok()?;
        let length = from.read_u32().await.ok()?;
        let mut payload = vec![0; usize::try_from(length).ok()?];
        from.read_exact(&mut payload).await.ok()?;
        assert_eq!(from.read_u8().await.ok()?, FRAME_END);
        Some(Self { kind, channel, payload })
    }

    fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap();
        let mut bytes = vec![self.kind];
        bytes.extend(self.channel.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(&self.payload);
        bytes.push(FRAME_END);
        bytes
    }

    fn is(&self, method: [u8; 4]) -> bool {
        self.kind == METHOD && self.payload.starts_with(&method)
    }

    /// `channel.close` for the look-up.
    fn close(channel: u16, code: u16, words: &str) -> Self {
        let mut payload = CHANNEL_CLOSE.to_vec();
        payload.extend(code.to_be_bytes());
        payload.push(u8::try_from(words.len()).unwrap());
        payload.extend(words.as_bytes());
        payload.extend(EXCHANGE_DECLARE);
        Self { kind: METHOD, channel, payload }
    }
}

/// The same broker behind such a proxy.
async fn hiding(uri: &str) -> String {
    let broker = address(uri);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ours = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(pass(client, TcpStream::connect(broker).await.unwrap()));
        }
    });
    at(uri, ours)
}

async fn pass(client: TcpStream, broker: TcpStream) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    // The channels whose `channel.close-ok` answers the proxy.
    let closing = Arc::new(Mutex::new(HashSet::new()));
    let (answers, mut queue) = mpsc::unbounded_channel::<Frame>();
    tokio::spawn(async move {
        while let Some(answer) = queue.recv().await {
            if to_client.write_all(&answer.bytes()).await.is_err() {
                return;
            }
        }
    });
    let (answers_sender, asked) = (answers.clone(), closing.clone());
    tokio::spawn(async move {
        while let Some(frame) = Frame::read(&mut from_broker).await {
            let is_ours = frame.is(CHANNEL_CLOSE_OK)
                && asked.lock().unwrap().remove(&("broker", frame.channel));
            if !is_ours && answers_sender.send(frame).is_err() {
                return;
            }
        }
    });
    let mut header = [0; 8];
    from_client.read_exact(&mut header).await.unwrap();
    to_broker.write_all(&header).await.unwrap();
    while let Some(mut frame) = Frame::read(&mut from_client).await {
        let channel = frame.channel;
        if frame.is(EXCHANGE_DECLARE) {
            closing.lock().unwrap().extend([("broker", channel), ("client", channel)]);
            let words = "ACCESS_REFUSED - configure access to exchange refused for user 'u'";
            answers.send(Frame::close(channel, 403, words)).unwrap();
            frame = Frame::close(channel, 200, "hidden");
        } else if frame.is(CHANNEL_CLOSE_OK) && closing.lock().unwrap().remove(&("client", channel))
        {
            continue;
        }
        if to_broker.write_all(&frame.bytes()).await.is_err() {
            return;
        }
    }
}

/// Regression: after a refused look-up the sink went down, and up again at once, for ever.
#[fixture::test]
async fn an_exchange_without_a_look_up_right_is_published_to() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    amqp.topic("there").await;
    amqp.bind(QUEUE, "there", "#").await;
    let sink = connected(&hiding(&vhost.uri()).await).await;

    sink.publish(message("1", "there", "any")).await.unwrap();
    assert_eq!(amqp.take_ids(QUEUE).await, ["1"]);

    disturbs_once(&sink, "missing").await;
}
