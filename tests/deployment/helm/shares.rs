//! Static partitions: each replica's share.

use serde_json::json;

use super::chart::Chart;
use super::container::Files;
use crate::support::process::finish;

fn chart(replicas: usize) -> Chart {
    let replicas = format!("replicaCount={replicas}");
    Chart::running().set(&["workload.kind=StatefulSet", "staticPartitions=true", &replicas])
}

#[test]
#[ignore = "long: make test-all"]
fn any_number_of_replicas_divides_all_partitions() {
    for replicas in [1, 2, 3, 5, 7, 100, 255, 256] {
        let rendered = chart(replicas).render();
        let shares = &rendered.named("ConfigMap", "shop-postrider-partitions")["data"];

        let mut next = 0;
        for at in 0..replicas {
            let share = shares[format!("shop-postrider-{at}")].as_str().unwrap();
            let (first, last) = share.split_once('-').unwrap();
            let (first, last): (u32, u32) = (first.parse().unwrap(), last.parse().unwrap());
            assert!(first == next && last >= first, "{replicas} replicas, {at}: {share}");
            next = last + 1;
        }
        assert_eq!(next, 256, "{replicas} replicas");
        assert_eq!(shares.as_object().unwrap().len(), replicas);
    }
}

#[fixture::test(long)]
async fn each_pod_owns_the_share_of_its_name() {
    let rendered = chart(3).render();
    let pod = rendered.relay();
    let container = pod.ours()[0];
    let secret = |path: &str| match path {
        "mongo.uri" => "mongodb://mongo/shop".to_owned(),
        _ => "amqp://rabbitmq".to_owned(),
    };
    let files = Files::of(&rendered, &pod, container, secret);
    assert_eq!(pod.of["spec"]["replicas"], json!(3));

    for (at, share) in [(0, "0-84"), (1, "85-169"), (2, "170-255")] {
        let name = format!("shop-postrider-{at}");
        let printed =
            finish(files.command(container, &name, &["config", "print"])).await.with_code(0);

        assert!(printed.stdout.contains(&format!("static = \"{share}\"")), "{printed}");
        let checked = finish(files.command(container, &name, &["check", "--offline"])).await;
        checked.with_code(0);
    }
}
