//! TCP: nothing is served without TLS, and no client without an admitted certificate.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use rcgen::SanType;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::nbd::{Identity, NbdConfig, NbdServer, StartError, TlsConfig};
use support::certificates::Authority;
use support::client::*;
use support::memory_disk::{DEADLINE, MemoryDisk, Served};
use support::{export, lanes, log, noise, run, run_well};

fn start(disk: &Arc<MemoryDisk>, authority: &Authority, admitted: &[&str]) -> NbdServer {
    let mut config = NbdConfig::new(export());
    config.tls = Some(tls(authority, admitted));
    let lanes = lanes(&config);
    NbdServer::start(config, on_tcp(), Arc::new(Served(Arc::clone(disk))), lanes).unwrap()
}

fn tls(authority: &Authority, admitted: &[&str]) -> TlsConfig {
    let pem = |name: &str| fs::read(authority.path("server").join(name)).unwrap();
    let admitted: Vec<Identity> = admitted.iter().map(|identity| identity.parse().unwrap()).collect();
    let (certificate, key) = (pem("server-cert.pem"), pem("server-key.pem"));
    TlsConfig::from_pem(&certificate, &key, &pem("ca-cert.pem"), admitted).unwrap()
}

fn on_tcp() -> Listener {
    Listener::bind(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap()
}

/// The server's port.
fn port(server: &NbdServer) -> u16 {
    let address = server.uri().strip_prefix("nbds://127.0.0.1:").unwrap();
    address.strip_suffix("/disk").unwrap().parse().unwrap()
}

fn uri(server: &NbdServer, certificates: &Path) -> String {
    format!("nbds://localhost:{}/disk?tls-certificates={}", port(server), certificates.display())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn plain_client(server: &NbdServer) -> Client<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port(server))).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut client = Client { stream };
    client.greet();
    client
}

#[test]
fn admitted_clients_are_served_by_name_uri_or_fingerprint() {
    log::capture();
    let (disk, authority) = (MemoryDisk::new(50 << 20), Authority::new());
    let by_name = authority.issue("by-name", &[dns("backup.example")]);
    let by_uri = authority.issue("by-uri", &[SanType::URI("spiffe://example/host/7".try_into().unwrap())]);
    let by_fingerprint = authority.issue("by-fingerprint", &[]);
    let fingerprint = Authority::fingerprint(&by_fingerprint);
    let admitted = ["dns:Backup.Example", "uri:spiffe://example/host/7", &fingerprint];
    let server = start(&disk, &authority, &admitted);
    for certificates in [&by_name, &by_uri, &by_fingerprint] {
        let info = run_well("nbdinfo", &[&uri(&server, certificates)]);
        assert!(info.contains("protocol: newstyle-fixed with TLS"), "{info}");
    }
    log::await_line(0, &["client admitted", "uri:spiffe://example/host/7"]);

    let (image, back) = (authority.path("image"), authority.path("back"));
    fs::write(&image, noise(6, 50 << 20)).unwrap();
    let (image, back) = (image.to_str().unwrap(), back.to_str().unwrap());
    let uri = uri(&server, &by_name);
    run_well("nbdcopy", &["--connections=4", "--flush", image, &uri]);
    assert!(disk.content() == fs::read(image).unwrap());
    run_well("nbdcopy", &["--request-size=33554432", &uri, back]);
    assert!(disk.content() == fs::read(back).unwrap());
    server.stop().unwrap();
}

#[test]
fn tcp_is_served_under_tls_and_nothing_else_is() {
    let (disk, authority) = (MemoryDisk::new(1 << 20), Authority::new());
    let mut config = NbdConfig::new(export());
    let lanes = lanes(&config);
    let start = |config: &NbdConfig, listener| {
        let disk = Arc::new(Served(Arc::clone(&disk)));
        NbdServer::start(config.clone(), listener, disk, lanes.clone())
    };
    assert!(matches!(start(&config, on_tcp()), Err(StartError::TcpWithoutTls)));
    config.tls = Some(tls(&authority, &["dns:admitted.example"]));
    let unix = Listener::bind(&Address::Unix(authority.path("nbd.sock"))).unwrap();
    assert!(matches!(start(&config, unix), Err(StartError::TlsWithoutTcp)));
}

#[test]
fn qemu_speaks_either_version_of_tls() {
    let (disk, authority) = (MemoryDisk::new(4 << 20), Authority::new());
    let client = authority.issue("qemu", &[dns("qemu.example")]);
    let server = start(&disk, &authority, &["dns:qemu.example"]);
    for priority in ["NORMAL:-VERS-ALL:+VERS-TLS1.2", "NORMAL:-VERS-ALL:+VERS-TLS1.3"] {
        let credentials =
            format!("tls-creds-x509,id=tls,endpoint=client,dir={},priority={priority}", client.display());
        let image = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls", port(&server));
        let arguments = ["--object", &credentials, "--image-opts", &image];
        let info = run_well("qemu-img", &[&["info"][..], &arguments].concat());
        assert!(info.contains("virtual size: 4 MiB"), "{info}");
        let work = ["-c", "write -P 9 1000 3M", "-c", "flush", "-c", "read -P 9 1000 3M"];
        let output = run_well("qemu-io", &[&work[..], &arguments].concat());
        assert!(!output.contains("failed"), "{output}");
    }
    let old = format!(
        "tls-creds-x509,id=tls,endpoint=client,dir={},priority=NORMAL:-VERS-ALL:+VERS-TLS1.1",
        client.display()
    );
    let image = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=tls", port(&server));
    assert!(!run("qemu-img", &["info", "--object", &old, "--image-opts", &image]).status.success());
    server.stop().unwrap();
}

#[test]
fn others_are_refused_and_named_in_the_log() {
    log::capture();
    let (disk, authority, stranger) = (MemoryDisk::new(1 << 20), Authority::new(), Authority::new());
    let admitted = authority.issue("admitted", &[dns("admitted.example")]);
    let server = start(&disk, &authority, &["dns:admitted.example"]);

    let other = authority.issue("other", &[dns("other.example")]);
    assert!(!run("nbdinfo", &[&uri(&server, &other)]).status.success());
    let fingerprint = Authority::fingerprint(&other).to_lowercase().replace("sha256:", "");
    let line = log::await_line(0, &["not on the export's list", "dns:other.example"]);
    assert!(line.contains(&fingerprint.replace(':', "")), "{line}");

    // The right name from the wrong authority.
    let forged = stranger.issue("forged", &[dns("admitted.example")]);
    fs::copy(admitted.join("ca-cert.pem"), forged.join("ca-cert.pem")).unwrap();
    assert!(!run("nbdinfo", &[&uri(&server, &forged)]).status.success());
    log::await_line(0, &["certificate refused", "dns:admitted.example"]);

    let anonymous = authority.issue("anonymous", &[]);
    fs::remove_file(anonymous.join("client-cert.pem")).unwrap();
    fs::remove_file(anonymous.join("client-key.pem")).unwrap();
    assert!(!run("nbdinfo", &[&uri(&server, &anonymous)]).status.success());

    // Without TLS at all.
    assert!(!run("nbdinfo", &[&format!("nbd://localhost:{}/disk", port(&server))]).status.success());
    assert!(disk.log().is_empty(), "nobody was let through to the disk");
    run_well("nbdinfo", &[&uri(&server, &admitted)]);
    server.stop().unwrap();
}

#[test]
fn before_tls_a_client_learns_nothing() {
    let (disk, authority) = (MemoryDisk::new(1 << 20), Authority::new());
    let server = start(&disk, &authority, &["dns:admitted.example"]);
    let go = |name: &str| [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0, 0]].concat();
    let mut client = plain_client(&server);
    let refused = client.option(OPT_GO, &go("disk"));
    assert_eq!(refused[0].0, REP_ERR_TLS_REQD);
    assert_eq!(refused, client.option(OPT_GO, &go("none")), "what exists looks like what does not");
    for number in [OPT_LIST, OPT_INFO, OPT_STRUCTURED_REPLY, OPT_SET_META_CONTEXT, 99] {
        assert_eq!(client.option(number, &go("disk"))[0], (REP_ERR_TLS_REQD, refused[0].1.clone()));
    }
    assert_eq!(client.option(OPT_ABORT, b"")[0].0, REP_ACK);
    assert!(client.await_close());

    let mut client = plain_client(&server);
    client.option_without_reply(OPT_EXPORT_NAME, b"disk");
    assert!(client.await_close());

    // Bytes that are sent in the clear after STARTTLS must not count as if they had come under TLS.
    let mut client = plain_client(&server);
    let start_tls = [&b"IHAVEOPT"[..], &OPT_START_TLS.to_be_bytes(), &[0; 4]].concat();
    let smuggled = [&b"IHAVEOPT"[..], &OPT_LIST.to_be_bytes(), &[0; 4]].concat();
    client.send(&[start_tls, smuggled].concat());
    assert!(client.await_close());

    // And no TLS after all.
    let mut client = plain_client(&server);
    assert_eq!(client.option(OPT_START_TLS, b"")[0].0, REP_ACK);
    client.option_without_reply(OPT_LIST, b"");
    assert!(client.await_close());
    server.stop().unwrap();
}
