//! Users with the rights of their roles only, on the server with access control.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::{Client, Database};
use postrider::context::ContextSettings;
use postrider::schema::roles::{Configured, Places, ROLES, Role};

use super::environment::variable;
use super::outbox::eventually;

/// The variable with the URI of that server, and of its administrator.
const URI: &str = "POSTRIDER_TEST_MONGODB_AUTH_URI";

/// The password of each: no error and no `Debug` may show it.
pub const PASSWORD: &str = "password-of-the-role";

/// The server's URI for its administrator.
pub fn admin_uri() -> String {
    variable(URI)
}

/// The URI for any user of a database.
pub fn uri(user: &str, password: &str, database: &str) -> String {
    let admin = admin_uri();
    let (_, rest) = admin.split_once('@').unwrap();
    let (host, options) = rest.split_once("/?").unwrap();
    let options = options.replace("authSource=admin", &format!("authSource={database}"));
    format!("mongodb://{user}:{password}@{host}/{database}?{options}")
}

/// The URI for the user with this role, and its name.
pub fn uri_of(role: &Role, database: &str) -> String {
    uri(role.name, PASSWORD, database)
}

/// The privileges of a role without the append path, as MongoDB takes them.
pub fn privileges(role: &Role, database: &str, prefix: &str, retention: Duration) -> Vec<Document> {
    let configured =
        Configured { retention, change_stream: true, append: false, names: true, erasures: true };
    privileges_for(role, &ContextSettings::new(database), database, prefix, configured)
}

/// The same for any configuration; of the context's databases that of the outbox alone.
pub fn privileges_for(
    role: &Role,
    context: &ContextSettings,
    database: &str,
    prefix: &str,
    configured: Configured,
) -> Vec<Document> {
    let places = Places { outbox: database, prefix, context };
    let needed = role.privileges.iter().filter(|privilege| privilege.when.applies(&configured));
    let privilege = needed.filter_map(|privilege| {
        let (of, collection) = privilege.on.resource(&places);
        let resource = doc! { "db": &of, "collection": collection };
        let actions = privilege.actions.to_vec();
        (of == database).then(|| doc! { "resource": resource, "actions": actions })
    });
    privilege.collect()
}

/// Makes each role in a database, as the repository's script does, and a user with it.
pub async fn make(admin: &Client, database: &str, prefix: &str, retention: Duration) {
    for role in &ROLES {
        let privileges = privileges(role, database, prefix, retention);
        user_with(&admin.database(database), role.name, privileges).await;
    }
}

/// Makes a user with its own privileges, by a role of the same name.
pub async fn user_with(database: &Database, name: &str, privileges: Vec<Document>) {
    let role = doc! { "createRole": name, "privileges": privileges, "roles": [] };
    database.run_command(role).await.unwrap();
    let user = doc! {
        "createUser": name,
        "pwd": PASSWORD,
        "roles": [name],
        "mechanisms": ["SCRAM-SHA-256"],
    };
    database.run_command(user).await.unwrap();
}

/// Replaces a role's privileges; connected users have them at once.
pub async fn permit(
    database: &Database,
    role: &str,
    privileges: Vec<Document>,
) -> mongodb::error::Result<()> {
    let role = doc! { "updateRole": role, "privileges": privileges };
    database.run_command(role).await.map(|_| ())
}

/// Removes a database's users and roles, which stay when it is dropped.
pub async fn forget(database: &Database) {
    for command in ["dropAllUsersFromDatabase", "dropAllRolesFromDatabase"] {
        // Again, if a connection was lost: the driver repeats no administrative command.
        eventually(command, async || database.run_command(doc! { command: 1 }).await.is_ok()).await;
    }
}
