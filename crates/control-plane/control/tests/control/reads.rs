//! What lists, metrics and reviews of alarms read of a large inventory: counted in records, and as
//! much of 40 VMs as of 400. What they find is what a walk over all VMs finds.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use strongroom_api::access::{CreateFolder, CreateGrant, CreateUser, Scope};
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::vm::{PatchVm, PowerState, StartVm, VmListQuery, VmSort, VmSummary};
use strongroom_api::volume::VolumeListQuery;
use strongroom_control::engine::Control;
use strongroom_control::engine::access::Rights;
use strongroom_control::records::Principal;
use strongroom_host::protocol::{OffReason, PowerState as HostPower};
use strongroom_types::VmId;

use crate::support::passwords::Argon2id;
use crate::support::{Site, caller, create, settle_down, with_vms};

/// What a page of ten may read: its VMs with their states, and what stands beside it.
const PAGE_READS_MAX: u64 = 40;

fn site_of(vms: usize) -> (Site, Control) {
    let names: Vec<String> = (0..vms).map(|number| format!("vm{number:03}-{}", number % 7)).collect();
    let (site, control) = with_vms(&names.iter().map(String::as_str).collect::<Vec<_>>());
    // What has just changed is looked at once.
    control.sample();
    control.review().unwrap();
    (site, control)
}

/// The number of records that are read.
fn reads(control: &Control, act: impl FnOnce(&Control)) -> u64 {
    let before = control.inventory.read().rows_read();
    act(control);
    control.inventory.read().rows_read() - before
}

fn list(query: VmListQuery) -> impl FnOnce(&Control) {
    move |control| drop(control.list_vms(&VmListQuery { limit: Some(10), ..query }).unwrap())
}

/// Each thing that users or the control plane do all the time, with the records that it reads.
fn all_reads(site: &Site, control: &Control) -> Vec<(&'static str, u64)> {
    let named = |part: &str| VmListQuery { name: Some(part.to_owned()), ..VmListQuery::default() };
    let middle = control.list_vms(&VmListQuery { limit: Some(20), ..VmListQuery::default() }).unwrap();
    vec![
        ("first page", reads(control, list(VmListQuery::default()))),
        (
            "later page",
            reads(control, list(VmListQuery { cursor: middle.next.clone(), ..VmListQuery::default() })),
        ),
        (
            "backwards",
            reads(control, list(VmListQuery { sort: VmSort::NameDescending, ..VmListQuery::default() })),
        ),
        (
            "of a host",
            reads(control, list(VmListQuery { host: Some("host1".to_owned()), ..VmListQuery::default() })),
        ),
        (
            "of a datastore",
            reads(control, list(VmListQuery { datastore: Some("ds1".to_owned()), ..VmListQuery::default() })),
        ),
        ("encrypted", reads(control, list(VmListQuery { encrypted: Some(true), ..VmListQuery::default() }))),
        ("search for a part of all names", reads(control, list(named("vm0")))),
        ("search with one find", reads(control, list(named("M017")))),
        ("search without a find", reads(control, list(named("vm017-nothing")))),
        (
            "some by their ids",
            reads(control, |control| {
                let ids: Vec<VmId> = middle.items.iter().map(|vm| vm.id).collect();
                list(VmListQuery { ids: Some(ids), ..VmListQuery::default() })(control);
            }),
        ),
        (
            "filter by power",
            reads(control, list(VmListQuery { power: Some(PowerState::Running), ..VmListQuery::default() })),
        ),
        (
            "page of volumes",
            reads(control, |control| {
                drop(
                    control
                        .list_volumes(&VolumeListQuery { limit: Some(10), ..VolumeListQuery::default() })
                        .unwrap(),
                );
            }),
        ),
        ("hosts", reads(control, |control| drop(control.list_hosts()))),
        ("datastores", reads(control, |control| drop(control.list_datastores()))),
        ("review of alarms", reads(control, |control| control.review().unwrap())),
        (
            "review a minute later, when keys are asked for again",
            reads(control, |control| {
                site.pass(Duration::from_secs(61));
                control.review().unwrap();
            }),
        ),
        ("settling", reads(control, |control| control.settle().unwrap())),
        ("disk counters", reads(control, Control::sample)),
    ]
}

#[test]
fn lists_searches_and_reviews_read_as_much_of_few_vms_as_of_many() {
    let [few, many] = [40, 400].map(|vms| {
        let (site, control) = site_of(vms);
        all_reads(&site, &control)
    });
    let both = few.into_iter().zip(many).map(|((what, few), (_, many))| (what, few, many));
    let too_many: Vec<_> =
        both.filter(|(_, few, many)| *few > PAGE_READS_MAX || *many > PAGE_READS_MAX).collect();
    assert!(too_many.is_empty(), "read of 40 VMs, and of 400: {too_many:?}");
}

#[test]
fn a_review_reads_the_vm_that_has_changed_and_no_other() {
    let (site, control) = site_of(100);
    control.start_vm(&caller(1), "vm017-3", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    site.host.guest("vm017-3", |vm| (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied)));
    let host = control.hosts()[0];
    assert!(control.observe(host, Duration::ZERO).unwrap());
    let read = reads(&control, |control| control.review().unwrap());
    assert!((1..=20).contains(&read), "{read}");
    assert_eq!(reads(&control, |control| control.review().unwrap()), 0, "nothing has changed since");
}

/// All pages of a list.
fn paged(control: &Control, rights: &Rights, query: &VmListQuery) -> Vec<VmSummary> {
    let (mut all, mut cursor, mut total) = (Vec::new(), None, None);
    loop {
        let asked = VmListQuery { limit: Some(3), cursor, ..query.clone() };
        let page = control.list_vms_for(rights, &asked).unwrap();
        assert!(page.items.len() <= 3);
        assert_eq!(*total.get_or_insert(page.total), page.total);
        all.extend(page.items);
        if page.next.is_none() {
            assert_eq!(Some(all.len() as u64), total, "{query:?}");
            return all;
        }
        cursor = page.next;
    }
}

fn has(vm: &VmSummary, query: &VmListQuery) -> bool {
    let lower = vm.name.as_str().to_ascii_lowercase();
    query.name.as_ref().is_none_or(|part| lower.contains(&part.to_ascii_lowercase()))
        && query.power.is_none_or(|power| vm.power == power)
        && query.host.as_ref().is_none_or(|host| vm.host.as_ref() == Some(host))
        && query.datastore.as_ref().is_none_or(|datastore| vm.datastore == *datastore)
        && query.encrypted.is_none_or(|encrypted| vm.encrypted == encrypted)
        && query.ids.as_ref().is_none_or(|ids| ids.contains(&vm.id))
        && query.tag.as_ref().is_none_or(|wanted| {
            wanted
                .split(',')
                .all(|wanted| vm.tags.iter().any(|tag| tag.to_string() == wanted || tag.key() == wanted))
        })
}

#[test]
fn lists_find_what_a_walk_over_all_vms_finds() {
    let names = ["web1", "web2", "Web-West", "db1", "db1-old", "ab", "cache", "web10", "x"];
    let (site, control) = with_vms(&names);
    let set = |request: u64, vm: &str, wish: serde_json::Value| {
        let wish: PatchVm = serde_json::from_value(wish).unwrap();
        control.set_vm(&caller(request), vm, &wish, None).unwrap();
        assert!(settle_down(&site, &control));
    };
    control.create_vm(&caller(1), &create("plain", false)).unwrap();
    assert!(settle_down(&site, &control));
    set(2, "web1", json!({ "tags": { "set": ["tier=front", "paid"] } }));
    set(3, "web2", json!({ "tags": { "set": ["tier=back"] } }));
    set(4, "db1", json!({ "tags": { "set": ["paid"] } }));
    control.start_vm(&caller(5), "web1", &StartVm::default()).unwrap();
    control.start_vm(&caller(6), "db1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    // Names, tags and folders that change take their VMs along.
    set(7, "cache", json!({ "name": "webcache" }));
    set(8, "db1", json!({ "tags": { "remove": ["paid"] } }));
    for name in ["shop", "lab"] {
        control.create_folder(&caller(9), &CreateFolder { name: name.parse().unwrap() }).unwrap();
    }
    let move_to = |request: u64, vm: &str, folder: &str| {
        let wish = serde_json::from_value(json!({ "folder": folder })).unwrap();
        control.move_vm(&caller(request), vm, &wish).unwrap();
        assert!(settle_down(&site, &control));
    };
    move_to(20, "web1", "shop");
    move_to(21, "web2", "shop");
    move_to(22, "db1", "lab");
    let everything = Rights::of(&control.inventory.read(), Principal::Machine);
    let user = |name: &str, scopes: &[Scope]| {
        let machine = strongroom_control::engine::Caller::machine("test");
        let wish =
            CreateUser { name: name.parse().unwrap(), password: "correct horse battery".to_owned().into() };
        let user = control.create_user(&machine, &wish, &Argon2id).unwrap().user;
        for scope in scopes {
            let grant = CreateGrant {
                user: Some(name.to_owned().try_into().unwrap()),
                group: None,
                role: "operator".parse().unwrap(),
                scope: scope.clone(),
            };
            control.create_grant(&machine, &grant).unwrap();
        }
        Rights::of(&control.inventory.read(), Principal::User(user.id))
    };
    let folder =
        |name: &str| serde_json::from_value::<Scope>(json!({ "type": "folder", "folder": name })).unwrap();
    let vm = |name: &str| serde_json::from_value::<Scope>(json!({ "type": "vm", "vm": name })).unwrap();
    let callers = [
        (everything, None),
        (user("ada", &[folder("shop")]), Some(vec!["web1", "web2"])),
        (user("ben", &[folder("lab"), vm("plain"), vm("web1")]), Some(vec!["db1", "plain", "web1"])),
        (user("eve", &[]), Some(vec![])),
    ];
    let some = |text: &str| Some(text.to_owned());
    let mut queries = vec![VmListQuery::default()];
    let none = VmListQuery::default;
    for part in ["", "w", "we", "web", "WEB", "web1", "b1-", "nothing", "x", "ab", "1-o"] {
        queries.push(VmListQuery { name: some(part), ..none() });
        queries.push(VmListQuery { name: some(part), power: Some(PowerState::Running), ..none() });
        queries.push(VmListQuery { name: some(part), encrypted: Some(false), ..none() });
    }
    for tag in ["tier", "tier=front", "paid", "tier,paid", "tier=back,paid", "other"] {
        queries.push(VmListQuery { tag: some(tag), ..none() });
    }
    for power in PowerState::ALL {
        queries.push(VmListQuery { power: Some(power), ..none() });
    }
    queries.push(VmListQuery { host: some("host1"), ..none() });
    queries.push(VmListQuery { host: some("host1"), encrypted: Some(true), ..none() });
    queries.push(VmListQuery { encrypted: Some(true), ..none() });
    let known = |names: &[&str]| names.iter().map(|name| control.show_vm(name).unwrap().summary.id).collect();
    let ids: Vec<VmId> = known(&["web1", "db1", "plain", "x"]);
    queries.push(VmListQuery { ids: Some(vec![VmId::random()]), ..none() });
    queries.push(VmListQuery { ids: Some([ids.as_slice(), &[VmId::random()]].concat()), ..none() });
    queries.push(VmListQuery { ids: Some(ids.clone()), power: Some(PowerState::Running), ..none() });
    queries.push(VmListQuery { ids: Some(ids), name: some("web"), ..none() });
    let compare = || {
        for (rights, sees) in &callers {
            let whole =
                control.list_vms_for(rights, &VmListQuery { limit: Some(1000), ..none() }).unwrap().items;
            if let Some(sees) = sees {
                assert_eq!(whole.iter().map(|vm| vm.name.as_str()).collect::<Vec<_>>(), *sees);
            }
            for query in &queries {
                if query.host.is_some() && sees.is_some() {
                    // Hosts are the site's.
                    continue;
                }
                let mut wanted: Vec<&VmSummary> = whole.iter().filter(|vm| has(vm, query)).collect();
                assert_eq!(paged(&control, rights, query).iter().collect::<Vec<_>>(), wanted, "{query:?}");
                wanted.reverse();
                let backwards = VmListQuery { sort: VmSort::NameDescending, ..query.clone() };
                assert_eq!(
                    paged(&control, rights, &backwards).iter().collect::<Vec<_>>(),
                    wanted,
                    "{query:?}"
                );
            }
        }
    };
    compare();
    assert_eq!(control.list_vms(&none()).unwrap().total, 10);
    // What a host that is away said last does not count.
    site.host.lock().down = true;
    assert!(!control.observe(control.hosts()[0], Duration::ZERO).unwrap());
    compare();
}

/// The alarms, as kinds and objects.
fn alarms(control: &Control) -> BTreeSet<String> {
    let index = control.inventory.read();
    index.alarms.iter().map(|alarm| format!("{}/{}", alarm.kind.as_str(), alarm.object.name)).collect()
}

/// Checks that the alarms are those that a control plane raises which looks at everything anew.
fn same_as_anew(site: &Site, control: &Control, with: &[&str]) {
    assert!(settle_down(site, control));
    control.review().unwrap();
    let followed = alarms(control);
    for alarm in with {
        assert!(followed.contains(*alarm), "{alarm}: {followed:?}");
    }
    let anew = site.control().unwrap();
    assert!(settle_down(site, &anew));
    anew.review().unwrap();
    assert_eq!(followed, alarms(&anew));
}

#[test]
fn alarms_that_follow_changes_are_those_of_a_look_at_everything() {
    let (site, control) = with_vms(&["web1", "db1", "lost", "doubled"]);
    let id = |name: &str| control.show_vm(name).unwrap().summary.id;
    let (lost, doubled) = (id("lost"), id("doubled"));
    same_as_anew(&site, &control, &[]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    for _ in 0..4 {
        site.host.guest("web1", |vm| (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied)));
        assert!(settle_down(&site, &control));
    }
    control.review().unwrap();
    assert!(alarms(&control).contains("vm_crashed/web1"), "{:?}", alarms(&control));
    // Time alone ends it.
    site.pass(Duration::from_secs(11 * 60));
    same_as_anew(&site, &control, &[]);
    assert!(!alarms(&control).contains("vm_crashed/web1"));
    // One is gone from its datastore, and one is there that nobody knows.
    let taken = site.host.lock().vms.remove(&lost).unwrap();
    let mut stranger = site.host.lock().vms[&doubled].clone();
    stranger.spec.name = "stranger".parse().unwrap();
    let unknown = VmId::random();
    site.host.lock().vms.insert(unknown, stranger);
    site.host.restart();
    same_as_anew(&site, &control, &["vm_missing/lost", "orphan/stranger"]);
    // The host is away: nothing is known of what it has.
    site.host.lock().down = true;
    assert!(!control.observe(control.hosts()[0], Duration::ZERO).unwrap());
    control.review().unwrap();
    assert!(alarms(&control).contains("host_down/host1"), "{:?}", alarms(&control));
    assert!(
        !alarms(&control).iter().any(|alarm| alarm.starts_with("vm_missing") || alarm.starts_with("orphan"))
    );
    site.host.lock().down = false;
    same_as_anew(&site, &control, &["vm_missing/lost", "orphan/stranger"]);
    site.host.lock().vms.remove(&unknown);
    site.host.lock().vms.insert(lost, taken);
    site.host.restart();
    same_as_anew(&site, &control, &[]);
    assert!(alarms(&control).iter().all(|alarm| !alarm.ends_with("lost") && !alarm.ends_with("stranger")));
}

#[test]
fn an_alarm_comes_and_goes_with_time_alone() {
    let (site, control) = with_vms(&["web1"]);
    let day = Duration::from_secs(86_400);
    let end = control.now_unix_ms() / 1000 + 31 * 86_400;
    site.keys.lock().expires_unix_seconds = Some(end);
    let severity = || {
        control.review().unwrap();
        let index = control.inventory.read();
        let alarm = index.alarms.iter().find(|alarm| alarm.kind == AlarmKind::KeyExpiry);
        alarm.map(|alarm| alarm.severity)
    };
    site.pass(Duration::from_secs(61));
    assert_eq!(severity(), None);
    site.pass(day);
    assert_eq!(severity(), Some(Severity::Warning));
    site.pass(31 * day);
    assert_eq!(severity(), Some(Severity::Critical));
    site.keys.lock().expires_unix_seconds = None;
    site.pass(Duration::from_secs(61));
    assert_eq!(severity(), None);
}
