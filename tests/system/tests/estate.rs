//! A small estate of simulated hosts under a mixed load, while hosts are cut off and come back.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use strongroom_estate::api::Api;
use strongroom_estate::load::{self, KnownVm, LoadConfig};
use strongroom_estate::machines::{self, Joining};
use strongroom_estate::measure::Measured;
use strongroom_estate::network;
use strongroom_estate::site::Site;
use strongroom_system_tests::{CommandLine, Scratch};

const HOSTS: u16 = 3;
const VMS: usize = 60;
const WORKERS: usize = 8;
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn nothing_that_was_acknowledged_is_lost_when_simulated_hosts_are_cut_off() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    // The network is that of the thread.
    std::thread::spawn(|| {
        network::enter_own(ADDRESS).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(load_while_hosts_are_cut_off());
    })
    .join()
    .unwrap();
}

async fn load_while_hosts_are_cut_off() {
    let scratch = Scratch::new();
    let program = CommandLine::new(&scratch).program();
    let site = Site::start(program, &scratch.make_directory("site"), ADDRESS).unwrap();
    let api = Api::of(site.home()).unwrap();
    let joining = Joining { address: ADDRESS, operation_takes: Duration::from_millis(5) };
    let mut machines = machines::join(&api, HOSTS, &scratch.make_directory("hosts"), joining).await.unwrap();
    let mut vms: Vec<KnownVm> = (0..VMS)
        .map(|number| KnownVm::new(format!("vm-{number}"), machines::datastore(number % usize::from(HOSTS))))
        .collect();
    load::fill(&api, &vms, WORKERS, true).await.unwrap();
    load::start(&api, &mut vms[..VMS / 3], WORKERS).await.unwrap();

    let config = LoadConfig { duration: Duration::from_secs(6), workers: WORKERS, encrypted: true, seed: 20 };
    let load = load::run(&api, vms, config);
    tokio::pin!(load);
    let mut cut = 0;
    let loaded = loop {
        let next = tokio::time::sleep(Duration::from_secs(1));
        tokio::select! {
            loaded = &mut load => break loaded.unwrap(),
            () = next => {
                let machine = &mut machines[cut % usize::from(HOSTS)];
                machine.cut().await;
                machine.mend().await.unwrap();
                cut += 1;
            }
        }
    };
    assert!(cut >= 3, "hosts were cut off {cut} times");
    assert_eq!(loaded.failures, [""; 0]);
    assert!(loaded.count() > 100, "{:?}", loaded.counts);
    // The last host that was cut off is heard from again.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    let mut connection = api.connect().await.unwrap();
    while !connection.knows_all(loaded.vms.len(), machines.len()).await.unwrap() {
        assert!(tokio::time::Instant::now() < deadline, "a host stays away");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let on_hosts: Vec<_> = machines.iter().flat_map(|machine| machine.host.vms()).collect();
    let differences = load::differences(&api, &loaded.vms, &on_hosts).await.unwrap();
    assert_eq!(differences, [""; 0]);

    // Nobody asks for anything, and nothing goes on record.
    let measured = Measured { site: &site, api: &api, machines: &machines };
    let idle = measured.idle(Duration::from_secs(3)).await.unwrap();
    assert_eq!((idle.access_log_entries, idle.audit_log_bytes), (0, 0), "{idle:?}");
    drop(machines);
    site.stop().unwrap();
}
