//! A hostile client.

use std::os::fd::{AsFd, OwnedFd};

use rustix::net::SendFlags;
use strongroom_datastore::file::storage::Storage;
use strongroom_wire::PacketSocket;

use crate::support::{client, dial, server};

fn packet(text: &str, data: &[u8]) -> Vec<u8> {
    let mut packet = (text.len() as u32).to_le_bytes().to_vec();
    packet.extend_from_slice(text.as_bytes());
    packet.extend_from_slice(data);
    packet
}

/// Whatever is sent to one socket, other clients are served.
#[test]
fn nonsense_ends_one_connection_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let server = server();
    let bystander = client(&server);
    let opened = bystander.open_directory(directory.path()).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let ask = |message: &str| packet(&format!(r#"{{"format":1,"message":{message}}}"#), &[]);
    for nonsense in [
        vec![0],
        vec![255; 4],
        packet("", b"data"),
        packet(r#"{"format":2,"message":"length"}"#, &[]),
        packet(r#"{"format":1,"message":{"no":1}}"#, &[]),
        vec![b'x'; 130_000],
        ask(r#""length""#),
        ask(r#"{"read_at":{"offset":0,"bytes":18446744073709551615}}"#),
        ask(r#"{"open":{"name":"x","flags":2}}"#),
    ] {
        let socket: OwnedFd = dial(&server);
        let files = [null.as_fd(), null.as_fd()];
        strongroom_wire::send(&socket, &nonsense, &files, SendFlags::empty()).unwrap();
        let socket = PacketSocket::adopt(socket).unwrap();
        let mut room = [0; 4096];
        // It is refused, or the connection is closed.
        if let Ok((answer, _)) = socket.receive(&mut room, 3) {
            assert!(String::from_utf8_lossy(answer).contains("failed"), "{nonsense:?}");
        }
        assert_eq!(opened.names().unwrap(), [""; 0]);
    }
}
