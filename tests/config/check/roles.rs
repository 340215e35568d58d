//! The script that creates the roles, by mongosh on a server with access control.

use std::path::Path;
use std::time::Duration;

use bson::{Bson, doc};
use mongodb::Database;
use postrider::config::Config;
use postrider::context::ContextSettings;
use postrider::schema::roles::{ADOPT, Configured, ROLES, SOURCE_ACTIONS, roles_script};

use crate::support::outbox::TestOutbox;
use crate::support::process::call;
use crate::support::roles;
use crate::support::schema::mongosh;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-roles.js");

/// A role's privileges, sorted.
async fn permitted(database: &Database, role: &str) -> Vec<String> {
    let question = doc! { "rolesInfo": role, "showPrivileges": true };
    let answer = database.run_command(question).await.unwrap();
    let role = answer.get_array("roles").unwrap()[0].as_document().unwrap().clone();
    in_order(role.get_array("privileges").unwrap().iter().cloned())
}

/// Privileges as single actions, sorted: a server groups those on one resource.
fn in_order(privileges: impl IntoIterator<Item = Bson>) -> Vec<String> {
    let mut single = Vec::new();
    for privilege in privileges {
        let privilege = privilege.as_document().unwrap();
        let on = privilege.get_document("resource").unwrap();
        for action in privilege.get_array("actions").unwrap() {
            single.push(format!("{} on {on}", action.as_str().unwrap()));
        }
    }
    single.sort();
    single.dedup();
    single
}

fn wanted(
    role: &postrider::schema::roles::Role,
    database: &str,
    prefix: &str,
    retention: Duration,
) -> Vec<String> {
    let configured =
        Configured { retention, change_stream: true, append: true, names: true, erasures: true };
    let context = ContextSettings::new(database);
    let privileges = roles::privileges_for(role, &context, database, prefix, configured);
    in_order(privileges.into_iter().map(Bson::Document))
}

#[fixture::test]
async fn the_printed_script_is_the_one_of_the_repository() {
    let printed = call(&["schema", "print", "--roles"]).await.with_code(0);

    assert_eq!(printed.stdout, std::fs::read_to_string(SCRIPT).unwrap());
}

#[fixture::test]
async fn the_script_creates_and_updates_the_roles() {
    let outbox = TestOutbox::restricted().await;
    let database = outbox.client.database(&outbox.database);
    roles::forget(&database).await;
    let name = outbox.database.as_str();
    let admin = roles::admin_uri();
    let run = async |file: &Path, environment: &[(&str, &str)]| {
        mongosh(&admin, name, file, environment).await
    };
    let prefixed = tempfile::Builder::new().suffix(".js").tempfile().unwrap();
    let mut config = Config::default();
    config.outbox.collection_prefix = "shop_".into();
    config.outbox.retention = Duration::ZERO;
    std::fs::write(prefixed.path(), roles_script(&config)).unwrap();

    let first = run(Path::new(SCRIPT), &[]).await;
    for role in &ROLES {
        let as_wanted = wanted(role, name, "", Duration::MAX);
        assert_eq!(permitted(&database, role.name).await, as_wanted, "{}", role.name);
    }
    let relay = "postrider_relay";
    let less = doc! { "updateRole": relay, "privileges": [
        { "resource": { "db": name, "collection": "outbox_records" }, "actions": ["remove"] },
        { "resource": { "db": name, "collection": "mine" }, "actions": ["find"] },
    ] };
    database.run_command(less).await.unwrap();
    let second = run(Path::new(SCRIPT), &[]).await;
    let updated = permitted(&database, relay).await;
    let third = run(prefixed.path(), &[]).await;
    let both = permitted(&database, relay).await;
    let wrong = run(Path::new(SCRIPT), &[("OUTBOX_PREFIX", "a b")]).await;
    let source = run(Path::new(SCRIPT), &[("ADOPT_COLLECTION", "old_outbox_records")]).await;
    let adopting = permitted(&database, "postrider_adopt").await;

    for (output, words) in [
        (&first, "created role postrider_relay"),
        (&second, "role postrider_relay in database"),
        (&third, "is up to date"),
    ] {
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(words), "{output:?}");
    }
    let mine = format!("find on {}", doc! { "db": name, "collection": "mine" });
    let with_mine = |mut privileges: Vec<String>| {
        privileges.push(mine.clone());
        privileges.sort();
        privileges.dedup();
        privileges
    };
    assert_eq!(updated, with_mine(wanted(&ROLES[0], name, "", Duration::MAX)));
    let prefixes = [
        wanted(&ROLES[0], name, "", Duration::MAX),
        wanted(&ROLES[0], name, "shop_", Duration::ZERO),
    ];
    assert_eq!(both, with_mine(prefixes.concat()), "an outbox beside the other");
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(source.status.success(), "{source:?}");
    let mut with_source = wanted(&ADOPT, name, "", Duration::MAX);
    for (collection, actions) in
        [("old_outbox_records", &SOURCE_ACTIONS[..]), ("old_outbox_instances", &["find"])]
    {
        let on = doc! { "db": name, "collection": collection };
        with_source.extend(actions.iter().map(|action| format!("{action} on {on}")));
    }
    with_source.extend(wanted(&ADOPT, name, "shop_", Duration::ZERO));
    with_source.sort();
    with_source.dedup();
    assert_eq!(adopting, with_source);
}
