//! Clients that append events over HTTP, and the check of their appends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use rand::RngExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::instance::Instance;
use crate::ledger::EventOf;
use crate::support::history::Arrival;
use crate::support::outbox::TestOutbox;
use crate::traffic::{PLAIN, STREAM};

/// The name of the aggregates.
const NAME: &str = "order";

/// Few, so that the clients conflict.
const AGGREGATES: usize = 3;

/// The pause between two appends of a client.
const APPEND_PAUSE: Duration = Duration::from_millis(120);

/// An append as its client was answered, or as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub aggregate: String,
    pub request: String,
    pub version: i64,
    pub events: i64,
}

/// An error in appends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A version is missing, or there twice.
    Gap { aggregate: String, version: i64 },
    /// A request was stored twice.
    Twice { request: String },
    /// An append was acknowledged and is not there unchanged.
    Forgotten { request: String },
    /// An event has no record.
    NoRecord { aggregate: String, version: i64, index: i64 },
    /// A record has no event.
    NoEvent { id: String },
    /// The first delivery of `late` came after that of a later event of its aggregate.
    Late { late: String, overtaker: String },
}

/// Running clients.
pub struct Appenders {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    answered: Arc<Mutex<Vec<Append>>>,
}

impl Appenders {
    /// Starts clients that append through any of the instances.
    pub fn start(instances: &Arc<Vec<Instance>>, count: usize) -> Self {
        let mut appenders = Self {
            stop: CancellationToken::new(),
            tasks: JoinSet::new(),
            answered: Arc::default(),
        };
        for number in 0..count {
            let client = Client {
                number,
                instances: instances.clone(),
                // Without an answer for this long, the client asks another instance.
                http: reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap(),
                answered: appenders.answered.clone(),
            };
            appenders.tasks.spawn(client.run(appenders.stop.clone()));
        }
        appenders
    }

    /// Ends them; returns what was acknowledged.
    pub async fn stop(mut self) -> Vec<Append> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.answered.lock().unwrap())
    }
}

struct Client {
    number: usize,
    instances: Arc<Vec<Instance>>,
    http: reqwest::Client,
    answered: Arc<Mutex<Vec<Append>>>,
}

impl Client {
    async fn run(self, stop: CancellationToken) {
        let mut versions = [0_i64; AGGREGATES];
        for n in 0.. {
            let which = rand::random_range(0..AGGREGATES);
            let aggregate = format!("a{which}");
            let request = format!("{}-{n}", self.number);
            let kind = if which == 0 { STREAM } else { PLAIN };
            let event = json!({ "name": kind, "body": { "n": n } });
            let events = rand::rng().random_range(1..=3);
            let body = json!({
                "requestId": request,
                "expectedVersion": versions[which],
                "events": vec![event; events],
            });
            loop {
                if stop.is_cancelled() {
                    return;
                }
                // A repeated request has the first one's answer.
                match self.append(&aggregate, &body).await {
                    Some((200 | 201, answer)) => {
                        let (version, events) =
                            (number(&answer, "version"), number(&answer, "size"));
                        versions[which] = version;
                        let append = Append { aggregate, request, version, events };
                        self.answered.lock().unwrap().push(append);
                        break;
                    }
                    Some((409, answer)) => {
                        versions[which] = number(&answer, "actualVersion");
                        break;
                    }
                    _ => tokio::time::sleep(APPEND_PAUSE).await,
                }
            }
            tokio::time::sleep(APPEND_PAUSE).await;
        }
    }

    async fn append(&self, aggregate: &str, body: &Value) -> Option<(u16, Value)> {
        let instance = &self.instances[rand::random_range(0..self.instances.len())];
        let address = instance.api().await?;
        let url = format!("http://{address}/v1/aggregates/{NAME}/{aggregate}/events");
        let answer = self.http.post(url).json(body).send().await.ok()?;
        let status = answer.status().as_u16();
        assert!(status != 422, "an append is invalid: {:?}", answer.text().await);
        Some((status, answer.json().await.ok()?))
    }
}

fn number(answer: &Value, field: &str) -> i64 {
    answer[field].as_i64().unwrap_or_else(|| panic!("{field}: {answer}"))
}

/// The appends that a majority has.
pub async fn stored(outbox: &TestOutbox) -> Vec<Append> {
    let streams = outbox.client.database(&outbox.database);
    let streams = streams.collection::<Document>(&format!("{NAME}_event_stream"));
    let found = streams.find(doc! {}).read_concern(ReadConcern::majority()).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let number = |of: &Document, field| match of.get(field) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => panic!("{field}: {of}"),
    };
    let append = |of: &Document| Append {
        aggregate: of.get_str("aggregateId").unwrap().to_owned(),
        request: of.get_str("requestId").unwrap().to_owned(),
        version: number(of, "version"),
        events: number(of, "size"),
    };
    found.iter().map(append).collect()
}

/// Compares what is stored with the answers, with the records, and with what arrived. Exempt
/// records have no order.
pub fn judge(
    stored: &[Append],
    answered: &[Append],
    records: &HashMap<String, EventOf>,
    exempt: &HashSet<String>,
    arrivals: &[Arrival],
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    let mut requests: HashMap<&str, &Append> = HashMap::new();
    for append in stored {
        versions.entry(&append.aggregate).or_default().push(append.version);
        if requests.insert(&append.request, append).is_some() {
            faults.push(Fault::Twice { request: append.request.clone() });
        }
    }
    for (aggregate, mut found) in versions {
        found.sort_unstable();
        for (expected, version) in (1..).zip(&found) {
            if *version != expected {
                let aggregate = aggregate.to_owned();
                faults.push(Fault::Gap { aggregate, version: expected });
                break;
            }
        }
    }
    for answer in answered {
        if requests.get(answer.request.as_str()) != Some(&answer) {
            faults.push(Fault::Forgotten { request: answer.request.clone() });
        }
    }
    let mut events: HashSet<EventOf> = HashSet::new();
    for append in stored {
        events.extend((0..append.events).map(|index| EventOf {
            aggregate: append.aggregate.clone(),
            version: append.version,
            index,
        }));
    }
    for (id, event) in records {
        if !events.remove(event) {
            faults.push(Fault::NoEvent { id: id.clone() });
        }
    }
    faults.extend(events.into_iter().map(|event| {
        let EventOf { aggregate, version, index } = event;
        Fault::NoRecord { aggregate, version, index }
    }));
    let mut seen = HashSet::new();
    let mut latest: HashMap<&str, (&EventOf, &str)> = HashMap::new();
    for Arrival { id, .. } in arrivals {
        let Some(event) = records.get(id).filter(|_| !exempt.contains(id)) else { continue };
        if !seen.insert(id) {
            continue;
        }
        let (furthest, by) = *latest.entry(&event.aggregate).or_insert((event, id));
        if event < furthest {
            faults.push(Fault::Late { late: id.clone(), overtaker: by.to_owned() });
        } else {
            latest.insert(&event.aggregate, (event, id));
        }
    }
    faults.sort();
    faults
}
