//! Real QEMUs: what they are told, and that it is so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::process::ExitCode;

use strongroom_hypervisor::PowerEvent;
use strongroom_hypervisor::machine::MachineType;

use self::support::{Lab, SOON, await_event, run, small, trial};

fn main() -> ExitCode {
    run(vec![trial("a_machine_is_started_paused_runs_resets_and_ends", a_machine_lives)])
}

fn a_machine_lives() {
    for machine in [MachineType::Pc, MachineType::Q35] {
        let lab = Lab::new();
        let qemu = lab.start(&small(machine));
        let qmp = qemu.qmp();
        assert_eq!(qmp.status().unwrap().word, "prelaunch");
        qmp.cont().unwrap();
        await_event(qmp, |event| *event == PowerEvent::Resumed);
        qmp.stop().unwrap();
        await_event(qmp, |event| *event == PowerEvent::Stopped);
        assert!(!qmp.status().unwrap().running);
        qmp.cont().unwrap();
        qmp.reset().unwrap();
        await_event(qmp, |event| matches!(event, PowerEvent::Reset { guest: false }));
        qmp.press_power_button().unwrap();
        await_event(qmp, |event| *event == PowerEvent::PowerDownRequested);
        qmp.quit().unwrap();
        await_event(
            qmp,
            |event| matches!(event, PowerEvent::Shutdown { guest: false, reason } if reason == "host-qmp-quit"),
        );
        assert!(qemu.wait(SOON));
        println!("{machine:?}: {:?}", qemu.shortfalls());
    }
}
