//! A VM's directory on a real cluster: made, changed, handed over and deleted by two processes'
//! connections, as two hosts have them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use strongroom_datastore::file::storage::{
    BY_PATH, cluster_path, file_system_of, is_gone, mount, replace_file, unmount,
};
use strongroom_datastore::file::{
    CreateOptions, DatastoreError, FileSystemKind, Protection, Provisioning, create, describe, identify_on,
    identity,
};
use strongroom_host::protocol::{HandoverId, Problem, VmSpec};
use strongroom_host::vm_directory::{
    StagedVm, VmRecord, delete_vm, entries_of, has_handover, remove_handover, write_handover,
};
use strongroom_rbd::{ClusterConf, ClusterOptions, RbdOptions, RbdStorage};
use strongroom_test_peers::CephCluster;
use strongroom_types::{VmId, VolumeSize};

fn spec(datastore: &Path) -> VmSpec {
    let (id, datastore) = (VmId::random(), serde_json::to_string(datastore).unwrap());
    let disk = r#"{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}"#;
    let text = format!(
        r#"{{"id":"{id}","name":"web1","datastore":{datastore},"memory_bytes":33554432,"disks":[{disk}]}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn add_volume(directory: &Path) {
    let options = CreateOptions {
        size: VolumeSize::new(1 << 20).unwrap(),
        provisioning: Provisioning::Thin,
        protection: Protection::Unencrypted,
        log_bytes: None,
        integrity: None,
    };
    create(&directory.join("disk0"), &options).unwrap();
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_vms_directory_lives_on_a_cluster() {
    let cluster = CephCluster::start(2);
    let options = RbdOptions {
        cluster: ClusterOptions {
            conf: ClusterConf::File(cluster.conf.clone()),
            user: "client.admin".to_owned(),
        },
        pool: "rep2".to_owned(),
        data_pool: None,
        namespace: "site".to_owned(),
    };
    let (first, second) = (RbdStorage::connect(&options).unwrap(), RbdStorage::connect(&options).unwrap());
    let id = identify_on(&first, Path::new("")).unwrap();
    assert_eq!(identify_on(&second, Path::new("")).unwrap(), id, "both are one datastore");
    let datastore = cluster_path(id);
    let spec = spec(&datastore);
    let refused = StagedVm::begin(&spec).unwrap_err();
    assert_eq!(refused.code(), "not_mounted", "{refused}");
    mount(id, Arc::new(first.clone()));
    assert_eq!(identity(&datastore).unwrap(), Some(id));
    assert_eq!(file_system_of(&datastore).unwrap().kind, FileSystemKind::Ceph);

    // A creation that is killed leaves what the next one removes.
    let killed = StagedVm::begin(&spec).unwrap().unwrap();
    add_volume(killed.path());
    assert!(is_gone(&spec.directory()));
    let staged = StagedVm::begin(&spec).unwrap().unwrap();
    add_volume(staged.path());
    VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
    staged.take_name().unwrap();
    assert!(StagedVm::begin(&spec).unwrap().is_none(), "it is there");
    assert!(!datastore.exists(), "nothing of it is on the host's file systems");
    let other = VmSpec { id: VmId::random(), ..spec.clone() };
    assert_eq!(StagedVm::begin(&other).unwrap_err().code(), "name_taken");

    let moves = |record: &mut VmRecord| {
        record.generation.0 += 1;
        Ok::<_, Problem>(())
    };
    VmRecord::change(&spec, moves).unwrap();
    let handover = HandoverId::random();
    write_handover(&spec.directory(), handover).unwrap();

    // The next host finds what the former one has written, and goes on.
    mount(id, Arc::new(second));
    assert_eq!(VmRecord::read_of(&spec.directory(), spec.id).unwrap().generation.0, 1);
    assert!(has_handover(&spec.directory(), handover).unwrap());
    assert!(!has_handover(&spec.directory(), HandoverId::random()).unwrap());
    remove_handover(&spec.directory()).unwrap();
    remove_handover(&spec.directory()).unwrap();
    VmRecord::change(&spec, moves).unwrap();
    assert_eq!(describe(&spec.directory().join("disk0")).unwrap().descriptor.size_bytes.bytes(), 1 << 20);
    let names: Vec<_> = entries_of(&spec.directory()).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["disk0", "vm.json"]);

    // What is not the VM's is left alone.
    let directory = BY_PATH.open_directory(&spec.directory()).unwrap();
    replace_file(&*directory, "notes", b"mine").unwrap();
    assert_eq!(delete_vm(&datastore, &spec.directory(), spec.id).unwrap_err().code(), "stranger");
    directory.remove("notes").unwrap();
    assert!(directory.open("vm.json", OFlags::RDONLY).is_ok());
    delete_vm(&datastore, &spec.directory(), spec.id).unwrap();
    delete_vm(&datastore, &spec.directory(), spec.id).unwrap();
    assert!(is_gone(&spec.directory()));

    unmount(id);
    let refused = describe(&spec.directory().join("disk0")).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotMounted { .. }), "{refused}");
}
