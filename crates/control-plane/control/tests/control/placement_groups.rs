//! Placement groups: which VMs are kept on different hosts, and which near each other.

use std::fmt::Debug;
use std::sync::Barrier;
use std::thread;

use serde_json::json;
use strongroom_api::placement::{PlacementGroup, SetPlacementGroup};
use strongroom_api::vm::CreateVm;
use strongroom_api::{ErrorCode, Problem, Reference};
use strongroom_control::engine::Control;

use crate::moves::to;
use crate::placement::{host_of, on, shared};
use crate::support::{Site, caller, create, settle_down};

fn group(control: &Control, name: &str, keep: &str) {
    let wish = serde_json::from_value(json!({ "name": name, "keep": keep })).unwrap();
    control.create_placement_group(&caller(700), &wish).unwrap();
}

fn reference(named: &str) -> Reference {
    Reference::try_from(named.to_owned()).unwrap()
}

fn set(control: &Control, named: &str, add: &[&str], remove: &[&str]) -> Result<PlacementGroup, Problem> {
    let all = |names: &[&str]| names.iter().map(|name| reference(name)).collect();
    control.set_placement_group(
        &caller(701),
        named,
        &SetPlacementGroup { add: all(add), remove: all(remove) },
    )
}

fn grouped(name: &str, group: &str) -> CreateVm {
    CreateVm { placement_group: Some(reference(group)), ..create(name, true) }
}

fn made(site: &Site, control: &Control, request: u64, wish: &CreateVm) -> Result<String, Problem> {
    control.create_vm(&caller(request), wish)?;
    assert!(settle_down(site, control));
    Ok(host_of(control, wish.name.as_str()))
}

#[test]
fn vms_that_are_kept_apart_are_on_different_hosts() {
    let (site, control) = shared(1);
    group(&control, "db", "apart");
    let hosts =
        [1, 2].map(|number| made(&site, &control, number, &grouped(&format!("db{number}"), "db")).unwrap());
    assert_ne!(hosts[0], hosts[1]);
    // There is no third host, and others' VMs are not named.
    let refused = made(&site, &control, 3, &grouped("db3", "db")).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NoHost);
    assert!(refused.message.contains("has a VM of placement group db, which are kept apart"), "{refused}");
    assert!(!refused.message.contains("db1") && !refused.message.contains("db2"), "{refused}");
    // A move is a placement, too.
    let refused = control.move_to_host(&caller(4), "db1", &to(&hosts[1])).unwrap_err();
    assert!(refused.message.contains("kept apart"), "{refused}");
    // Who is on a host with one of them does not join.
    made(&site, &control, 5, &on("web1", &hosts[0])).unwrap();
    let refused = set(&control, "db", &["web1"], &[]).unwrap_err();
    assert!(refused.message.contains("VM web1 is on a host with VM db1"), "{refused}");
    let left = set(&control, "db", &["web1"], &["db1"]).unwrap();
    let names: Vec<_> = left.vms.iter().map(|vm| vm.name.to_string()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    control.delete_placement_group(&caller(6), "db").unwrap();
    control.move_to_host(&caller(7), "db1", &to(&hosts[1])).unwrap();
}

#[test]
fn vms_that_are_kept_together_are_on_one_host_as_long_as_it_fits() {
    let (site, control) = shared(2);
    group(&control, "shop", "together");
    let first = made(&site, &control, 1, &grouped("shop1", "shop")).unwrap();
    // Others have more memory left, which would be better.
    for number in 2..=4 {
        assert_eq!(made(&site, &control, number, &grouped(&format!("shop{number}"), "shop")).unwrap(), first);
    }
    crate::placement::maintenance(&control, &first, true);
    let other = made(&site, &control, 5, &grouped("shop5", "shop")).unwrap();
    assert_ne!(other, first);
}

#[test]
fn a_vm_on_its_way_counts_at_both_ends() {
    let (site, control) = shared(1);
    group(&control, "db", "apart");
    for number in 0..2 {
        made(&site, &control, number, &on(&format!("db{number}"), "host1")).unwrap();
    }
    set(&control, "db", &["db0"], &[]).unwrap();
    control.move_to_host(&caller(10), "db0", &to("host2")).unwrap();
    let refused = set(&control, "db", &["db1"], &[]).unwrap_err();
    assert!(refused.message.contains("is on a host with VM db0"), "{refused}");
    for host in ["host1", "host2"] {
        let wish = CreateVm { host: Some(host.to_owned()), ..grouped("db2", "db") };
        assert_eq!(control.create_vm(&caller(11), &wish).unwrap_err().code, ErrorCode::NoHost, "{host}");
    }
    assert!(settle_down(&site, &control));
    set(&control, "db", &["db1"], &[]).unwrap();
}

/// Two requests at the same time, of which one makes the other wrong.
fn one_of_two<A, B>(
    one: impl FnOnce() -> Result<A, Problem> + Send,
    other: impl FnOnce() -> Result<B, Problem> + Send,
) -> (bool, bool)
where
    A: Send + Debug,
    B: Send + Debug,
{
    let both = Barrier::new(2);
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(|| {
            both.wait();
            other()
        });
        both.wait();
        (one(), other.join().unwrap())
    });
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    (one.is_ok(), other.is_ok())
}

#[test]
fn moves_at_the_same_time_do_not_both_take_the_host_that_is_left() {
    let (site, control) = shared(2);
    group(&control, "db", "apart");
    for (number, host) in ["host1", "host2"].into_iter().enumerate() {
        let wish = CreateVm { host: Some(host.to_owned()), ..grouped(&format!("db{number}"), "db") };
        made(&site, &control, number as u64, &wish).unwrap();
    }
    for round in 0..30 {
        let moves = |number: u64, host: &str| {
            control.move_to_host(&caller(100 + round * 10 + number), &format!("db{}", number % 2), &to(host))
        };
        let (first, _) = one_of_two(|| moves(0, "host3"), || moves(1, "host3"));
        assert!(settle_down(&site, &control));
        if first { moves(2, "host1") } else { moves(3, "host2") }.unwrap();
        assert!(settle_down(&site, &control));
    }
}

#[test]
fn a_vm_that_moves_does_not_join_a_group_of_its_next_host() {
    let (site, control) = shared(1);
    group(&control, "db", "apart");
    made(&site, &control, 1, &CreateVm { host: Some("host2".to_owned()), ..grouped("db1", "db") }).unwrap();
    made(&site, &control, 2, &on("web1", "host1")).unwrap();
    for round in 0..30 {
        let request = caller(100 + round * 10);
        let moves = || control.move_to_host(&request, "web1", &to("host2"));
        let (moved, joined) = one_of_two(moves, || set(&control, "db", &["web1"], &[]));
        assert!(settle_down(&site, &control));
        if moved {
            control.move_to_host(&caller(101 + round * 10), "web1", &to("host1")).unwrap();
        }
        if joined {
            set(&control, "db", &[], &["web1"]).unwrap();
        }
        assert!(settle_down(&site, &control));
    }
}
