//! A TPM moves with its running guest: what it has acknowledged is there, and its registers are as
//! they were, also if processes are killed between the hosts.

use std::time::Duration;

use strongroom_host::migration::Decision;
use strongroom_host::protocol::{DiskKey, OperationKind, OperationState, PowerState, StartOptions};
use strongroom_test_peers::CephCluster;

use super::{SETTINGS, SOURCE, Site, Step, TARGET, Victim, harmed};
use crate::FORCED;
use crate::clusters::mount_as;
use crate::support::{Host, KeySite, kill, until};
use crate::tpm::{MARKER, TpmGuest};

/// When the supervisor is killed that takes a TPM over, which takes some 60 ms.
const BETWEEN_MOMENTS: Duration = Duration::from_millis(8);
const MOMENTS: u32 = 24;

impl Site {
    /// With a VM that is encrypted and has a TPM, which its guest counts in.
    fn with_tpm() -> Self {
        let hosts = [Host::start(), Host::start()];
        let keys = KeySite::start(&hosts[0]);
        keys.serve(&hosts[1]);
        Self::of(hosts, Some(keys), |spec| spec.tpm = true)
    }

    /// With one that is not encrypted.
    fn with_clear_tpm() -> Self {
        Self::of([Host::start(), Host::start()], None, |spec| spec.tpm = true)
    }

    fn guest(&self) -> TpmGuest {
        TpmGuest::found(&self.hosts[self.at], &self.spec)
    }

    pub(super) fn begins_with_tpm(&mut self) {
        let mut guest = TpmGuest::booted(&self.hosts[self.at], &self.spec);
        guest.define();
        guest.write(self.count.into());
        self.register = Some(guest.register());
    }

    /// The guest has booted on: its TPM has the last count, and its registers are new.
    pub(super) fn boots_with_tpm(&mut self) {
        let mut guest = TpmGuest::booted(&self.hosts[self.at], &self.spec);
        guest.has(self.count.into());
        let register = guest.register();
        assert_eq!(register, [0; 32]);
        self.register = Some(register);
    }

    /// The guest counts on in its TPM, which has not been reset.
    pub(super) fn works_with_tpm(&mut self) {
        let mut guest = self.guest();
        guest.has(self.count.into());
        assert_eq!(Some(guest.register()), self.register);
        self.count += 1;
        guest.write(self.count.into());
        guest.has(self.count.into());
        guest.extend(self.count.into());
        self.register = Some(guest.register());
    }

    fn swtpm_of(&self, host: usize) -> Option<u32> {
        let run = self.hosts[host].path("run/vms").join(self.spec.id.to_string());
        let state = std::fs::read(run.join("state.json")).ok()?;
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        state["swtpm"]["pid"].as_u64().map(|pid| u32::try_from(pid).unwrap())
    }

    pub(super) fn kill_swtpm(&self, host: usize) {
        if let Some(pid) = self.swtpm_of(host) {
            kill(pid);
        }
    }

    fn stop_and_start(&mut self) {
        self.hosts[self.at].done(&self.spec, self.generation, FORCED);
        self.starts_again();
    }

    fn starts_again(&mut self) {
        self.attempts += 1;
        self.generation = self.attempts;
        let (spec, how) = (Box::new(self.spec.clone()), StartOptions::default());
        self.hosts[self.at].done(&self.spec, self.generation, OperationKind::Start { spec, how });
        self.boots_with_tpm();
    }

    /// A swtpm was killed. A guest that had it has a TPM that fails, until it boots again.
    pub(super) fn goes_on_without_swtpm(&mut self, end: usize, step: Step, from: usize) {
        let was_at = if end == SOURCE { from } else { 1 - from };
        self.is_in_one_place();
        if self.at != was_at {
            return self.works();
        }
        until("its TPM is lost", || self.vm(self.at).is_some_and(|vm| vm.tpm_lost).then_some(()));
        eprintln!("{step:?}: its TPM is lost");
        self.stop_and_start();
        self.works();
    }

    /// Everybody of the VM and hostd are killed, and the VM starts again where it is.
    fn loses_its_power(&mut self) {
        let host = &mut self.hosts[self.at];
        host.kill_hostd();
        host.end_vms();
        host.start_hostd();
        until("it is off", || {
            self.vm(self.at).is_some_and(|vm| vm.power == PowerState::Crashed).then_some(())
        });
        self.starts_again();
    }

    /// The VM is deleted, and nothing of it is left.
    fn ends(self) {
        let host = &self.hosts[self.at];
        host.done(&self.spec, self.generation, FORCED);
        host.done(&self.spec, self.generation, OperationKind::Delete);
        for host in &self.hosts {
            host.assert_nobody_left();
        }
    }

    /// Where the state is that counts when the VM starts.
    fn state_file(&self) -> std::path::PathBuf {
        self.spec.tpm_state_path().join("tpm2-00.permall")
    }
}

pub fn there_and_back() {
    let mut site = Site::with_tpm();
    assert!(matches!(site.spec.disks[0].key, DiskKey::Provider { .. }));
    site.works();
    for _ in 0..3 {
        assert_eq!(site.attempt(None), Decision::Committed);
        site.is_in_one_place();
        site.works();
        let now = site.vm(site.at).unwrap();
        assert_eq!((now.power, now.supervisor_deaths, now.tpm_lost), (PowerState::Running, 0, false));
    }
    for host in &site.hosts {
        host.assert_nowhere(MARKER);
    }
}

/// Its states are kept after a move as after a start, also by a later supervisor.
pub fn is_kept_where_it_came() {
    let mut site = Site::with_tpm();
    site.works();
    let before = std::fs::read(site.state_file()).unwrap();
    assert_eq!(site.attempt(None), Decision::Committed);
    site.works();
    kill(site.vm(site.at).unwrap().supervisor_pid.unwrap());
    until("another one has it", || {
        let now = site.vm(site.at)?;
        (now.power == PowerState::Running && now.supervisor_deaths == 1).then_some(())
    });
    site.works();
    site.loses_its_power();
    site.works();
    assert_eq!(site.attempt(None), Decision::Committed);
    site.works();
    for host in &site.hosts {
        host.assert_nowhere(MARKER);
    }

    // A state of the other host is an older one.
    site.hosts[site.at].done(&site.spec, site.generation, FORCED);
    let last = std::fs::read(site.state_file()).unwrap();
    std::fs::write(site.state_file(), before).unwrap();
    site.attempts += 1;
    let (spec, how) = (Box::new(site.spec.clone()), StartOptions::default());
    let start = OperationKind::Start { spec, how };
    let refused = site.hosts[site.at].refused(&site.spec, site.attempts, start);
    assert!(refused.message.contains("an older state was put back"), "{refused}");
    std::fs::write(site.state_file(), last).unwrap();
    site.starts_again();
    site.works();
    site.ends();
}

/// The supervisor at the target is killed at moments of the step in which state and key of the TPM
/// take the place of those that the source has left.
pub fn is_killed_while_it_is_taken_over() {
    let mut site = Site::with_tpm();
    let (mut went_on, mut booted) = (0, 0);
    for moment in 0..MOMENTS {
        site.works();
        site.attempts += 1;
        let port = site.receive(site.offer()).unwrap();
        let sent = site.ended(SOURCE, OperationKind::Send(Box::new(site.send(port, SETTINGS))));
        assert_eq!(sent.state, OperationState::Done, "{sent:?}");
        let taken = site.ended(TARGET, OperationKind::TakeUp);
        assert_eq!(taken.state, OperationState::Done, "{taken:?}");
        let there = site.index(TARGET);
        let supervisor = site.vm(there).unwrap().supervisor_pid.unwrap();
        let request = site.hosts[there].request(site.attempts, OperationKind::Settle { here: true });
        site.hosts[there].operate(&site.spec, &request).unwrap();
        std::thread::sleep(BETWEEN_MOMENTS * moment);
        kill(supervisor);
        site.hosts[there].await_operation(request.operation);
        assert_eq!(site.settle(Decision::Committed, None), Decision::Committed);
        until("it has its next supervisor, or is off", || {
            let now = site.vm(site.at).unwrap();
            let is_adopted = now.power == PowerState::Running && now.supervisor_pid != Some(supervisor);
            (now.power.is_off() || is_adopted).then_some(())
        });
        if site.vm(site.at).unwrap().power.is_off() {
            site.starts_again();
            booted += 1;
        } else {
            went_on += 1;
        }
    }
    site.works();
    eprintln!("{went_on} guests went on, {booted} booted");
    assert!(went_on > 0 && booted > 0);
}

/// On a cluster, where a state is replaced before it is recorded.
pub fn on_a_cluster() {
    let mut cluster = CephCluster::start(3);
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let hosts = [Host::start_elsewhere(), Host::start()];
    let keys = KeySite::start(&hosts[0]);
    keys.serve(&hosts[1]);
    let used = hosts[0].try_use_cluster(mount_as(&cluster, "vms", "client.host1"), None).unwrap();
    hosts[1].try_use_cluster(mount_as(&cluster, "vms", "client.host2"), used.id).unwrap();
    let mut site = Site::on(hosts, Some(keys), |spec| {
        (spec.tpm, spec.datastore) = (true, used.path.clone());
        spec.disks[0].integrity = true;
    });
    site.works();
    for _ in 0..2 {
        assert_eq!(site.attempt(None), Decision::Committed);
        site.is_in_one_place();
        site.works();
    }
    harmed(&mut site, Step::Sent, Victim::Qemu(TARGET));
    harmed(&mut site, Step::Decided, Victim::Supervisor(TARGET));
    assert_eq!(site.attempt(None), Decision::Committed);
    site.works();
    site.loses_its_power();
    site.works();
    site.ends();
}

pub fn few_are_killed() {
    let mut site = Site::with_clear_tpm();
    site.works();
    for (step, victim) in [
        (Step::Sent, Victim::Swtpm(TARGET)),
        (Step::Sent, Victim::Hostd(TARGET)),
        (Step::Decided, Victim::Supervisor(TARGET)),
    ] {
        harmed(&mut site, step, victim);
    }
}

pub fn all_are_killed() {
    let mut site = Site::with_clear_tpm();
    site.works();
    for step in [Step::Received, Step::Sent, Step::TakenUp, Step::Decided] {
        for end in [SOURCE, TARGET] {
            let victims =
                [Victim::Hostd(end), Victim::Supervisor(end), Victim::Qemu(end), Victim::Swtpm(end)];
            for victim in victims {
                harmed(&mut site, step, victim);
            }
        }
    }
}
