//! Appends of callers that may reach the streams of some tenants only.

use futures_util::future::join_all;
use postrider::events::{AppendError, Expected, Tenancy};

use crate::events::util::{TestStore, append, id, name};

fn of(tenant: &str) -> [String; 1] {
    [tenant.to_owned()]
}

#[fixture::test]
async fn stream_is_of_the_tenant_of_its_first_append() {
    let test = TestStore::new().await;
    let (order, one) = (name(), id("1"));
    let tenancy = async |tenant: &str| test.store.tenancy(&order, &one, &of(tenant)).await.unwrap();
    assert_eq!(tenancy("a").await, Tenancy::Unknown);
    let missing = append("1", "r").tenant("a").expecting(Expected::Exists);
    let missing = test.store.append_in(missing, &of("a")).await;
    assert!(matches!(missing, Err(AppendError::VersionConflict { actual: 0, .. })), "{missing:?}");

    let first = append("1", "r").tenant("a");
    let done = test.store.append_in(first.clone(), &of("a")).await.unwrap().unwrap();
    let again = test.store.append_in(first, &of("a")).await.unwrap().unwrap();
    let foreign = append("1", "r").tenant("b");
    let foreign = test.store.append_in(foreign, &of("b")).await.unwrap();
    test.store.append(append("1", "s").tenant("b")).await.unwrap();

    assert_eq!((done.version, again.version, again.replayed), (1, 1, true));
    assert_eq!(foreign, None, "not the answer of the other tenant's request");
    assert_eq!((tenancy("a").await, tenancy("b").await), (Tenancy::Own, Tenancy::Foreign));
}

/// Neither sees the other's stream before it begins its own.
#[fixture::test]
async fn one_of_two_tenants_begins_a_stream() {
    let test = TestStore::new().await;
    let appends = (0..20).flat_map(|stream| ["a", "b"].map(|tenant| (stream, tenant)));
    let appends = appends.map(|(stream, tenant)| {
        let append = append(&stream.to_string(), tenant).tenant(tenant);
        let store = test.store.clone();
        async move { (stream, store.append_in(append, &of(tenant)).await.unwrap()) }
    });

    let answers = join_all(appends).await;

    for stream in 0..20 {
        let of_stream = answers.iter().filter(|(of, answer)| *of == stream && answer.is_some());
        assert_eq!(of_stream.count(), 1, "stream {stream}: {answers:?}");
    }
    assert_eq!(test.streams("order").await.len(), 20);
}
