//! A guest's console output is kept, and is in no file in the clear.

use strongroom_host::protocol::{DiskKey, OperationKind, OperationOutcome, PowerState, StartOptions};

use super::FORCED;
use crate::support::{Host, KeySite, boot_sector, kill, until};

/// The guest's output: it echoes its input.
const MARKER: &str = "strongroom-marker-on-a-console";

pub fn kept() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = host.spec("secret1", 1);
    spec.disks[0].key = DiskKey::provider(site.key.clone(), None);
    let Some(OperationOutcome::Volumes(made)) = host.done(&spec, 0, host.create(&spec)) else { panic!() };
    spec.disks[0].key = DiskKey::provider(site.key.clone(), made[0].kek);
    host.import(&spec, &boot_sector());
    let start = |generation| {
        let kind = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
        assert_eq!(host.done(&spec, generation, kind), None);
    };
    start(1);
    let mut console = host.console(&spec);
    console.await_line("ready");
    console.say(MARKER);
    console.await_text(MARKER);
    until("it is kept", || host.console_log(&spec).contains(MARKER).then_some(()));

    // Another supervisor continues the log.
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    kill(running.supervisor_pid.unwrap());
    let adopted = host.await_vm(&spec, |vm| {
        vm.power == PowerState::Running
            && vm.supervisor_pid.is_some()
            && vm.supervisor_pid != running.supervisor_pid
    });
    assert_eq!(adopted.qemu_pid, running.qemu_pid);
    let mut console = host.console(&spec);
    console.say("after");
    console.await_text("after");
    host.done(&spec, 1, FORCED);
    let off = host.console_log(&spec);
    let (before, after) = (off.find(MARKER).unwrap(), off.find("after").unwrap());
    assert!(off.contains("ready\r\n") && before < after, "{off:?}");
    start(2);
    host.console(&spec).await_line("ready");
    host.done(&spec, 2, FORCED);
    let both = host.console_log(&spec);
    assert!(both.starts_with(&off) && both.len() > off.len(), "{both:?}");
    host.assert_nowhere(MARKER.as_bytes());
    host.done(&spec, 0, OperationKind::Delete);
    host.assert_nobody_left();
}
