//! Both relays of one attempt, between two QEMUs in two network namespaces: what the lab measures
//! beside QEMU's own ways (`strongroom-lab migrate`). The two hosts are of a site of its own.
//!
//! `relays encrypted|plain SOURCE_NAMESPACE TARGET_NAMESPACE TARGET_ADDRESS SOURCE_SOCKET
//! TARGET_SOCKET`
//!
//! QEMU at the target listens at the one socket. This says `ready` once QEMU at the source can send
//! to the other, and `passed` once everything has.
//!
//! The kernel of this machine has both in one process; their threads are in their namespaces.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::assertions_on_constants,
    reason = "an instrument of the lab"
)]

#[path = "../tests/migrate/site.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests use the rest")]
mod site;

use std::fs::File;
use std::net::{IpAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use strongroom_keyserver::grant::{Secrecy, VmId};
use strongroom_migrate::record::IS_NULL;
use strongroom_migrate::{Migration, Options};

use self::site::{Members, PREPARED, RUNNING};

/// The most channels that a move has.
const OPTIONS: Options = Options { channels_max: 9, bytes_per_second: None, qemu_user: None };

/// Moves this thread to a network namespace: its sockets, and the threads that it starts.
fn enter(namespace: &str) {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

fn main() {
    assert!(!IS_NULL, "it was built with STRONGROOM_NULL_CIPHER, and encrypts nothing");
    pass();
}

/// Passes what one migration sends.
pub fn pass() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [secrecy, source_namespace, target_namespace, address, source_socket, target_socket] = &arguments[..]
    else {
        panic!("the first lines of its source say what it takes");
    };
    let secrecy = match secrecy.as_str() {
        "encrypted" => Secrecy::Encrypted,
        "plain" => Secrecy::Plain,
        other => panic!("{other}: memory passes encrypted or plain"),
    };
    let address: IpAddr = address.parse().unwrap();
    let (members, vm) = (Members::new(), VmId::random());
    let grant = members.grant_with(vm, secrecy);
    thread::scope(|scope| {
        let (listens, address_of_target) = channel();
        let (members, grant) = (&members, &grant);
        let target = scope.spawn(move || {
            enter(target_namespace);
            let listener = TcpListener::bind((address, 0)).unwrap();
            listens.send(listener.local_addr().unwrap()).unwrap();
            let attempt = members.attempt(vm, PREPARED, grant);
            let (site, used) = (members.site_of(&members.target), members.used("target"));
            let qemu = PathBuf::from(target_socket);
            Migration::receive(attempt, site, &used, listener, &qemu, OPTIONS).unwrap().wait().unwrap()
        });
        let source = scope.spawn(move || {
            enter(source_namespace);
            let to = address_of_target.recv().unwrap();
            let attempt = members.attempt(vm, RUNNING, grant);
            let (site, used) = (members.site_of(&members.source), members.used("source"));
            let qemu = UnixListener::bind(source_socket).unwrap();
            let migration = Migration::send(attempt, site, &used, to, qemu, OPTIONS).unwrap();
            assert!(migration.is_established());
            println!("ready");
            migration.wait().unwrap()
        });
        let (sent, received) = (source.join().unwrap(), target.join().unwrap());
        assert_eq!(sent.to_target_bytes, received.to_target_bytes);
        println!("passed");
    });
}
