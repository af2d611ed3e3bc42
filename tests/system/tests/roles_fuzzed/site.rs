//! The site that is attacked: its objects, and the part of its state that callers might change.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use strongroom_serving::{client_of, roots_of};
use strongroom_system_tests::{Scratch, Serving};
use ureq::Agent;
use ureq::http::Request;

use super::rights::VM_FIELDS;

/// Timeout of an answer, and of the tasks that a turn leaves behind.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(180);

/// VMs of the site: name, whether it is encrypted, whether it is in the folder.
pub const VMS: [(&str, bool, bool); 3] =
    [("inside1", true, true), ("outside1", true, false), ("clear1", false, true)];
pub const FOLDER: &str = "tenant1";
pub const DATASTORE: &str = "ds";
pub const NETWORK: &str = "net1";

/// What callers make many of, in the order in which it can be deleted; and what the site has.
const MADE: [(&str, &str); 9] = [
    ("tokens", "first"),
    ("users", "u1"),
    ("roles", "role1"),
    ("recipients", "r1"),
    ("emergency-credentials", "e1"),
    ("policies", "p1"),
    ("placement-groups", "pg1"),
    ("networks", NETWORK),
    ("folders", FOLDER),
];

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }
}

/// A client of the API, which trusts its certificate.
pub struct Client {
    agent: Agent,
    url: String,
    first_token: String,
    /// The directory of the site's datastore.
    directory: PathBuf,
}

impl Client {
    pub fn of(serving: &Serving<'_>, scratch: &Scratch) -> Self {
        let read = |file: &str| std::fs::read(scratch.path(&format!("home/control/{file}"))).unwrap();
        let config = client_of(roots_of(&read("api.crt")).unwrap());
        // Bodies are sent with any method.
        let config = config.timeout_global(Some(ANSWERS_WITHIN)).allow_non_standard_methods(true);
        let first_token = String::from_utf8(read("token")).unwrap().trim().to_owned();
        Self {
            agent: config.build().new_agent(),
            url: serving.api_url(),
            first_token,
            directory: scratch.path("ds"),
        }
    }

    /// Sends a request. An error is a connection without an answer.
    pub fn ask(
        &self,
        token: &str,
        method: &str,
        target: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, String> {
        let request = Request::builder().method(method).uri(format!("{}{target}", self.url));
        let request = request.header("authorization", format!("Bearer {token}"));
        let request = match body {
            Some(_) => request.header("content-type", "application/json"),
            None => request,
        };
        let request = request.body(body.unwrap_or_default().to_vec()).map_err(|error| error.to_string())?;
        let mut answer = self.agent.run(request).map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(64 << 20).read_to_vec();
        Ok(Answer { status, body: body.map_err(|error| error.to_string())? })
    }

    /// A request of the site's owner.
    pub fn owner(&self, method: &str, target: &str, body: &Value) -> Answer {
        let sent = (!body.is_null()).then(|| body.to_string().into_bytes());
        self.ask(&self.first_token, method, target, sent.as_deref())
            .unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    /// What the owner reads.
    pub fn read(&self, target: &str) -> Value {
        let answer = self.owner("GET", target, &Value::Null);
        assert_eq!(answer.status, 200, "{target}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()
    }

    fn list(&self, target: &str) -> Vec<Value> {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let page = self.read(&format!("{target}?limit=100{next}"));
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            let Some(cursor) = page["next"].as_str() else { return all };
            next = format!("&cursor={}", super::generator::encoded(cursor.as_bytes()));
        }
    }

    /// Has all tasks end, those that wait for a guest by force.
    fn settles(&self) {
        let until = Instant::now() + ENDS_WITHIN;
        let mut is_first = true;
        loop {
            let running = self.read("/v1/tasks?state=running&limit=100")["items"].as_array().unwrap().clone();
            let Some(task) = running.first() else { return };
            assert!(Instant::now() < until, "a task does not end: {task}");
            for task in running.iter().filter(|_| is_first) {
                self.owner("DELETE", &format!("/v1/tasks/{}", task["id"].as_str().unwrap()), &Value::Null);
            }
            is_first = false;
            self.read(&format!("/v1/tasks/{}?wait_s=1", task["id"].as_str().unwrap()));
        }
    }

    fn done(&self, method: &str, target: &str, body: &Value) {
        let answer = self.owner(method, target, body);
        assert_eq!(answer.status, 202, "{method} {target}: {}", String::from_utf8_lossy(&answer.body));
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let until = Instant::now() + ENDS_WITHIN;
        let task = loop {
            let task = self.read(&format!("/v1/tasks/{id}?wait_s=5"));
            if task["state"] != "running" {
                break task;
            }
            assert!(Instant::now() < until, "{task}");
        };
        assert_eq!(task["state"], "done", "{method} {target}: {task}");
    }

    /// Makes what is not there, and undoes what callers with the right to it have changed.
    pub fn restore(&self) {
        let retention = json!({ "keep_s": 366 * 86_400, "room_bytes": 1_u64 << 30 });
        let given = self.owner("PATCH", "/v1/access/log/retention", &retention);
        assert_eq!(given.status, 200, "{}", String::from_utf8_lossy(&given.body));
        self.settles();
        for (kind, own) in MADE {
            for one in self.list(&format!("/v1/{kind}")) {
                let name = one["name"].as_str().unwrap();
                if name != own && one["built_in"] != true {
                    self.owner("DELETE", &format!("/v1/{kind}/{name}"), &Value::Null);
                }
            }
        }
        self.owner("PATCH", "/v1/hosts/host1", &json!({ "maintenance": false }));
        for datastore in self.list("/v1/datastores") {
            let name = datastore["name"].as_str().unwrap();
            if name != DATASTORE {
                self.owner("DELETE", &format!("/v1/datastores/{name}"), &Value::Null);
            }
        }
        let made = |target: &str, body: &Value| {
            let answer = self.owner("POST", target, body);
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert!([201, 202, 409].contains(&answer.status), "{target}: {said}");
        };
        if self.owner("GET", "/v1/datastores/ds", &Value::Null).status == 404 {
            let path = json!({ "name": DATASTORE, "path": self.directory });
            self.done("POST", "/v1/datastores", &path);
        }
        self.owner("PATCH", &format!("/v1/folders/{FOLDER}"), &json!({ "quota": {} }));
        made("/v1/folders", &json!({ "name": FOLDER }));
        made("/v1/networks", &json!({ "name": NETWORK }));
        made("/v1/policies", &json!({ "name": "p1" }));
        made("/v1/placement-groups", &json!({ "name": "pg1", "keep": "apart" }));
        made("/v1/users", &json!({ "name": "u1", "password": "correct horse battery" }));
        made("/v1/grants", &json!({ "user": "u1", "role": "operator", "scope": { "type": "site" } }));
        made("/v1/roles", &json!({ "name": "role1", "privileges": ["view"] }));
        made("/v1/emergency-credentials", &json!({ "name": "e1" }));
        let hook = json!({ "type": "webhook", "url": "https://127.0.0.1:9/" });
        made("/v1/recipients", &json!({ "name": "r1", "to": hook, "severity": "critical" }));
        self.restore_vms();
        self.settles();
    }

    fn restore_vms(&self) {
        for vm in self.list("/v1/vms") {
            let (id, name) = (vm["id"].as_str().unwrap(), vm["name"].as_str().unwrap());
            let meant = VMS.iter().find(|(known, ..)| *known == name);
            let is_as_meant = meant.is_some_and(|(_, encrypted, in_folder)| {
                let shown = self.read(&format!("/v1/vms/{id}"));
                // A schedule, or a deletion that was cancelled, would change them in the turn of
                // another caller.
                let snapshots = self.read(&format!("/v1/vms/{id}/snapshots")).to_string();
                let schedule = self.read(&format!("/v1/vms/{id}/snapshot-schedule"));
                let is_scheduled = schedule["rules"].as_array().is_some_and(|rules| !rules.is_empty());
                !is_scheduled
                    && snapshots.contains("\"s1\"")
                    && !snapshots.contains("changing")
                    && shown["encrypted"] == *encrypted
                    && shown["partly_clear"] == !encrypted
                    && (shown["folder"] == FOLDER) == *in_folder
                    && shown["lifecycle"] == "present"
                    && shown["disks"].as_array().unwrap().len() == 1
                    && shown["template"] != true
            });
            if (&vm["desired"], &vm["power"]) != (&json!("stopped"), &json!("stopped")) {
                self.owner("POST", &format!("/v1/vms/{id}/stop"), &json!({ "force": true }));
            }
            if !is_as_meant {
                self.settles();
                self.owner("POST", &format!("/v1/vms/{id}/template"), &json!({ "undo": true }));
                self.settles();
                self.owner(
                    "DELETE",
                    &format!("/v1/vms/{id}"),
                    &json!({ "with_volumes": true, "leave_to_clones": true }),
                );
            }
        }
        self.settles();
        for (name, encrypted, in_folder) in VMS {
            if self.owner("GET", &format!("/v1/vms/{name}"), &Value::Null).status == 200 {
                continue;
            }
            // One that was only unregistered is still in the datastore.
            let directory =
                json!({ "directory": name, "datastore": DATASTORE, "accept_configuration": true });
            if self.owner("POST", "/v1/vms/register", &directory).status == 202 {
                self.settles();
                self.owner("DELETE", &format!("/v1/vms/{name}"), &json!({ "with_volumes": true }));
                self.settles();
            }
            let folder = if in_folder { json!(FOLDER) } else { Value::Null };
            let wish = json!({ "name": name, "memory_bytes": 64 << 20, "disks": [{ "size_bytes": 8 << 20 }], "nics": [],
                "encryption": { "encrypted": encrypted }, "folder": folder, "datastore": DATASTORE });
            self.done("POST", "/v1/vms", &wish);
            self.done("POST", &format!("/v1/vms/{name}/snapshots"), &json!({ "name": "s1" }));
        }
    }

    /// The objects by the fields and parameters that name them.
    pub fn objects(&self, scratch: &Scratch) -> BTreeMap<&'static str, Vec<String>> {
        let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let ids = |target: &str| -> Vec<String> {
            self.list(target).iter().filter_map(|one| Some(one["id"].as_str()?.to_owned())).collect()
        };
        let vms = VMS.map(|(name, ..)| name);
        let disks = VMS.iter().filter_map(|(name, ..)| {
            Some(self.read(&format!("/v1/vms/{name}"))["disks"][0]["volume"].as_str()?.to_owned())
        });
        let tasks = self.read("/v1/tasks?limit=20");
        let tasks = tasks["items"].as_array().unwrap().iter();
        BTreeMap::from([
            ("vm", names(&vms)),
            ("with", names(&vms)),
            ("volume", disks.collect()),
            ("datastore", names(&[DATASTORE])),
            ("host", names(&["host1"])),
            ("folder", names(&[FOLDER])),
            ("policy", names(&["p1"])),
            ("group", names(&["pg1"])),
            ("placement_group", names(&["pg1"])),
            ("network", names(&[NETWORK])),
            ("user", names(&["u1"])),
            ("role", names(&["role1", "administrator", "operator", "auditor"])),
            ("recipient", names(&["r1"])),
            ("credential", names(&["e1"])),
            ("disk", names(&["disk0"])),
            ("nic", names(&["nic0"])),
            ("dump", names(&["1"])),
            ("snapshot", names(&["s1"])),
            ("key_provider", names(&["embedded"])),
            ("operation", names(&["vm_start", "user_create"])),
            ("grant", ids("/v1/grants")),
            ("session", ids("/v1/sessions")),
            ("task", tasks.filter_map(|task| Some(task["id"].as_str()?.to_owned())).collect()),
            (
                "path",
                vec![scratch.path("ds").display().to_string(), scratch.path("missing").display().to_string()],
            ),
        ])
    }

    /// What callers might change and may not: of the site by kind of object, and of each VM by
    /// field. What the control plane changes by itself is left out.
    pub fn state(&self) -> State {
        let of = |target: &str, fields: &[&str]| -> Value {
            self.list(target).iter().map(|one| picked(one, fields)).collect()
        };
        let review = self.read("/v1/access");
        let users: Value = review["users"]
            .as_array()
            .unwrap()
            .iter()
            .map(|user| picked(user, &["id", "name", "grants"]))
            .collect();
        let site = BTreeMap::from([
            ("users", users),
            ("groups", review["group_grants"].clone()),
            ("providers", review["identity_providers"].clone()),
            ("tokens", review["tokens"].clone()),
            ("roles", review["roles"].clone()),
            ("emergencies", review["emergency_credentials"].clone()),
            ("folders", of("/v1/folders", &["id", "name", "quota"])),
            ("policies", of("/v1/policies", &["id", "name", "description", "rules"])),
            ("recipients", of("/v1/recipients", &["id", "name", "address", "severity"])),
            ("networks", of("/v1/networks", &["id", "name", "vlan", "hosts"])),
            ("datastores", of("/v1/datastores", &["id", "name", "path"])),
            ("hosts", of("/v1/hosts", &["id", "name", "address", "maintenance"])),
            ("placement groups", of("/v1/placement-groups", &["id", "name", "keep", "vms"])),
            ("retention", picked(&self.read("/v1/access/log/retention"), &["keep_s", "room_bytes"])),
        ]);
        let vms = VMS.iter().map(|(name, ..)| {
            let shown = self.owner("GET", &format!("/v1/vms/{name}"), &Value::Null);
            let shown = if shown.status == 200 { shown.json() } else { Value::Null };
            let fields = VM_FIELDS.iter().map(|(field, _)| {
                let parts: &[&str] = match *field {
                    "disks" => &["name", "volume", "size_bytes", "limits"],
                    "snapshots" => &["name"],
                    _ => return (*field, shown[*field].clone()),
                };
                let all = shown[*field].as_array().into_iter().flatten();
                (*field, all.map(|one| picked(one, parts)).collect())
            });
            (*name, fields.collect())
        });
        State { site, vms: vms.collect() }
    }
}

/// What callers might change.
pub struct State {
    pub site: BTreeMap<&'static str, Value>,
    pub vms: BTreeMap<&'static str, BTreeMap<&'static str, Value>>,
}

fn picked(of: &Value, fields: &[&str]) -> Value {
    fields.iter().map(|field| ((*field).to_owned(), of[*field].clone())).collect()
}
