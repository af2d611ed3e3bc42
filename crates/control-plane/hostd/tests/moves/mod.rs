//! A VM moves between two hosts that see one datastore. Each hostd is killed in every step, and
//! none starts a VM that it has given up.

use std::time::Duration;

use strongroom_host::protocol::{
    HandoverId, OperationKind, OperationRequest, OperationState, PowerState, StartOptions, VmSpec,
};

use crate::support::{Host, boot_sector};

/// How long after an order its hostd is killed, in microseconds: the whole order takes some
/// milliseconds.
const KILLED_AFTER_US: [u64; 8] = [0, 300, 700, 1200, 2000, 3000, 5000, 8000];

fn start(spec: &VmSpec) -> OperationKind {
    OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() }
}

fn leave(spec: &VmSpec, handover: HandoverId) -> OperationKind {
    OperationKind::Leave { spec: Box::new(spec.clone()), handover }
}

fn arrive(spec: &VmSpec, handover: Option<HandoverId>) -> OperationKind {
    OperationKind::Arrive { spec: Box::new(spec.clone()), handover }
}

const FORCED: OperationKind = OperationKind::Stop { force: true, timeout_s: 0 };

/// Two hosts, and a VM of the first one that boots.
fn two_hosts() -> (Host, Host, VmSpec) {
    let (first, second) = (Host::start(), Host::start());
    let id = first.host().datastores[0].id;
    let refused = second.try_use(&first.path("ds"), Some(strongroom_types::DatastoreId::random()));
    assert!(refused.unwrap_err().to_string().contains("and not"), "it is compared");
    assert_eq!(second.try_use(&first.path("ds"), id).unwrap().id, id);
    let spec = first.spec("web1", 1);
    first.done(&spec, 0, first.create(&spec));
    first.import(&spec, &boot_sector());
    (first, second, spec)
}

fn lists(host: &Host, spec: &VmSpec) -> bool {
    host.vms().vms.iter().any(|vm| vm.vm == spec.id)
}

pub fn moved() {
    let (first, second, spec) = two_hosts();
    first.done(&spec, 1, start(&spec));
    let handover = HandoverId::random();
    assert_eq!(first.refused(&spec, 1, leave(&spec, handover)).code, "running");
    first.done(&spec, 1, FORCED);
    first.done(&spec, 1, leave(&spec, handover));
    first.done(&spec, 1, leave(&spec, handover));
    assert!(!lists(&first, &spec));
    // Whatever comes late.
    for kind in
        [start(&spec), OperationKind::Delete, OperationKind::Configure { spec: Box::new(spec.clone()) }]
    {
        assert_eq!(first.refused(&spec, 9, kind).code, "left_host");
    }
    first.look_through();
    assert!(!lists(&first, &spec), "its directory is there, and it is none of this host's VMs");

    let other = HandoverId::random();
    assert_eq!(second.refused(&spec, 2, arrive(&spec, Some(other))).code, "other_datastore");
    assert_eq!(second.refused(&spec, 1, arrive(&spec, Some(handover))).code, "generation_used");
    second.done(&spec, 2, arrive(&spec, Some(handover)));
    second.done(&spec, 2, arrive(&spec, Some(handover)));
    assert!(!spec.directory().join("handover").exists());
    second.done(&spec, 3, start(&spec));
    let mut console = second.console(&spec);
    console.await_line("ready");
    assert_eq!(second.refused(&spec, 4, arrive(&spec, None)).code, "running");
    assert_eq!(first.refused(&spec, 5, start(&spec)).code, "left_host");
    second.done(&spec, 3, FORCED);

    // It returns, and an order of before comes late.
    let handover = HandoverId::random();
    second.done(&spec, 3, leave(&spec, handover));
    first.done(&spec, 4, arrive(&spec, Some(handover)));
    assert_eq!(first.refused(&spec, 1, leave(&spec, handover)).code, "other_generation");
    first.done(&spec, 5, start(&spec));
    assert_eq!(second.refused(&spec, 6, start(&spec)).code, "left_host");
    first.done(&spec, 5, FORCED);
    first.done(&spec, 5, OperationKind::Delete);
    assert!(!first.path(&format!("home/residence/{}.json", spec.id)).exists());
}

/// Sends an order, kills hostd, starts it again, and repeats the order until it is done.
fn done_though_killed(host: &mut Host, spec: &VmSpec, request: &OperationRequest, after: Duration) {
    host.operate(spec, request).unwrap();
    std::thread::sleep(after);
    host.kill_hostd();
    host.start_hostd();
    host.operate(spec, request).unwrap();
    let ended = host.await_operation(request.operation);
    assert_eq!(ended.state, OperationState::Done, "killed after {after:?}: {ended:?}");
}

pub fn killed() {
    let (first, second, spec) = two_hosts();
    let mut hosts = [first, second];
    let mut generation = 1;
    for after in KILLED_AFTER_US.map(Duration::from_micros) {
        let handover = HandoverId::random();
        let [former, next] = &mut hosts;
        let order = former.request(generation, leave(&spec, handover));
        done_though_killed(former, &spec, &order, after);
        assert_eq!(former.refused(&spec, generation + 1, start(&spec)).code, "left_host", "{after:?}");
        assert!(!lists(former, &spec));
        let order = next.request(generation + 1, arrive(&spec, Some(handover)));
        done_though_killed(next, &spec, &order, after);
        assert!(lists(next, &spec));
        hosts.reverse();
        generation += 2;
    }
    let [here, former] = &mut hosts;
    here.done(&spec, generation, start(&spec));
    here.await_vm(&spec, |vm| vm.power == PowerState::Running);
    former.kill_hostd();
    former.start_hostd();
    assert!(!lists(former, &spec));
    assert_eq!(former.refused(&spec, generation + 1, start(&spec)).code, "left_host");
    here.done(&spec, generation, FORCED);
}
