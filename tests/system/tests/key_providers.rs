//! A user sets up a key provider and makes volumes under its keys; its servers fail, and come back.

use std::path::Path;

use serde_json::json;
use strongroom_system_tests::{KeyServerUser, Scratch};
use strongroom_test_peers::{Pki, Server, ServerKind};

/// Two KMIP servers of one cluster, and the files that a user needs to reach them.
struct Cluster {
    pki: Pki,
    servers: [Server; 2],
    _objects: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Self {
        let (pki, objects) = (Pki::new(), tempfile::tempdir().unwrap());
        let start = || Server::start(ServerKind::KmipGo, &pki, objects.path(), &[]);
        let servers = [start(), start()];
        Self { pki, servers, _objects: objects }
    }

    fn kill(&mut self) {
        self.servers.iter_mut().for_each(Server::kill);
    }

    /// The arguments after `key-provider add NAME`.
    fn arguments(&self) -> Vec<String> {
        let identity = self.pki.client("host1");
        let path = |path: &Path| path.display().to_string();
        let mut arguments = Vec::new();
        for server in &self.servers {
            arguments.extend(["--kmip".to_owned(), server.address()]);
        }
        arguments.extend(["--ca".to_owned(), path(&self.pki.authority())]);
        arguments.extend(["--cert".to_owned(), path(&identity.certificate)]);
        arguments.extend(["--key".to_owned(), path(&identity.key)]);
        arguments
    }
}

/// Sets the cluster up as the provider `corp`.
fn add(user: &KeyServerUser<'_>, cluster: &Cluster, more: &[&str]) {
    let arguments = cluster.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    user.runs(&[&["key-provider", "add", "corp"], &*arguments, more].concat());
}

/// The stdout and stderr of a command that must fail.
#[track_caller]
fn is_refused(user: &KeyServerUser<'_>, arguments: &[&str]) -> String {
    user.is_refused(&[arguments, &["1>&2"]].concat())
}

#[test]
fn a_provider_is_set_up_tried_listed_and_removed() {
    let (scratch, mut cluster) = (Scratch::new(), Cluster::start());
    let user = KeyServerUser::new(&scratch);
    assert!(user.runs(&["key-provider", "list"]).contains("no key provider is set up here"));
    add(&user, &cluster, &["--cryptoperiod", "365"]);
    let arguments = cluster.arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = is_refused(&user, &[&["key-provider", "add", "corp"], &*arguments].concat());
    assert!(told.contains("'corp' is set up already"), "{told}");

    let listed = user.json(&["key-provider", "list"]);
    assert_eq!(listed["items"][0]["servers"], json!(cluster.servers.each_ref().map(Server::address)));
    let tried = user.json(&["key-provider", "test", "corp"]);
    assert_eq!(tried["well"], true, "{tried}");
    let steps: Vec<_> =
        tried["servers"][1]["steps"].as_array().unwrap().iter().map(|step| &step["step"]).collect();
    assert_eq!(
        steps,
        [
            "connect",
            "shake hands",
            "agree on a version",
            "ask what it offers",
            "create a key",
            "get the key",
            "destroy the key"
        ]
    );
    let read = user.runs(&["key-provider", "test", "corp"]);
    assert!(read.contains("KMIP 1.4") && read.contains("corp: all 2 servers are well"), "{read}");

    cluster.servers[0].kill();
    let told = is_refused(&user, &["key-provider", "test", "corp"]);
    assert!(told.contains("is the server running") && told.contains("corp: 1 of 2 servers failed"), "{told}");
    user.runs(&["key-provider", "remove", "corp", "--yes"]);
    let told = is_refused(&user, &["key-provider", "test", "corp"]);
    assert!(told.contains("no key provider 'corp' is set up here"), "{told}");
}

#[test]
fn volumes_take_their_keys_from_a_provider() {
    let (scratch, mut cluster) = (Scratch::new(), Cluster::start());
    let user = KeyServerUser::new(&scratch);
    add(&user, &cluster, &["--cryptoperiod", "30"]);
    let created = user.json(&["volume", "create", "ds/vm1", "--size", "64M", "--key-provider", "corp"]);
    let info = || user.json(&["volume", "info", "ds/vm1", "--key-provider", "corp"]);
    assert_eq!(info()["authenticated"], true);
    let listed = user.json(&["key-provider", "list", "--keys"]);
    let key = &listed["keys"][0];
    assert_eq!((&key["state"], &key["provider"]), (&json!("active"), &json!("corp")), "{listed}");
    let month = 30 * 86_400;
    let dates = key["created_unix_seconds"].as_u64().zip(key["expires_unix_seconds"].as_u64());
    assert!(dates.is_some_and(|(created, expires)| expires - created >= month), "{listed}");

    // Without the preferred server, nothing changes.
    cluster.servers[0].kill();
    assert_eq!(info()["volume_id"], created["volume_id"]);

    // Without both, the volume's key is unavailable; the message names the key and its provider,
    // and the volume is not changed.
    cluster.kill();
    let told = is_refused(&user, &["volume", "check", "ds/vm1"]);
    assert!(told.contains("key-unavailable: key provider corp, key"), "{told}");
    let address = cluster.servers[1].address();
    assert!(told.contains(&address) && told.contains("is the server running"), "{told}");

    cluster.servers[1].restart();
    assert_eq!(info()["authenticated"], true);
    user.runs(&["volume", "check", "ds/vm1"]);

    // Without the provider the key is unavailable. After the provider is added again under its
    // name, the key is available.
    user.runs(&["key-provider", "remove", "corp", "--yes"]);
    let told = is_refused(&user, &["volume", "check", "ds/vm1"]);
    assert!(told.contains("key-unavailable") && told.contains("no key provider 'corp'"), "{told}");
    add(&user, &cluster, &[]);
    assert_eq!(info()["authenticated"], true);
}
