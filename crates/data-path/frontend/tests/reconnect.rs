//! A client that reconnects: no request of its old connection may run after the new one has
//! started.

mod support;

use parking_lot::{Mutex, MutexGuard};
use strongroom_io::RequestKind;
use support::client::*;
use support::memory_disk::MemoryDisk;
use support::{Local, log};

/// The tests wait for lines of one log, so they run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    log::capture();
    ALONE.lock()
}

#[test]
fn a_reconnecting_client_waits_until_its_old_requests_have_ended() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut old = Client::enter(&local.socket);
    disk.hold();
    old.write(0, 1, 0, &[0xaa; 4096]);
    disk.await_held(1);
    drop(old);

    let logged = log::count();
    let mut new = Client::connect(&local.socket);
    // It may negotiate, up to the point where transmission would start.
    assert_eq!(new.option(OPT_INFO, &[0; 6]).last().unwrap().0, REP_ACK);
    new.option_without_reply(OPT_GO, &[0; 6]);
    log::await_line(logged, &["client waits for the end of broken connections"]);
    new.stream.set_nonblocking(true).unwrap();
    let early = std::io::Read::read(&mut new.stream, &mut [0; 1]);
    assert_eq!(early.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(disk.content()[..4096], [0; 4096], "the old write is still under way");

    disk.release();
    new.stream.set_nonblocking(false).unwrap();
    assert_eq!(new.option_replies(OPT_GO).last().unwrap().0, REP_ACK);
    assert_eq!(disk.content()[..4096], [0xaa; 4096], "the old write ended before the new client started");
    new.write(0, 2, 0, &[0xbb; 4096]);
    assert_eq!(new.error_of(2), 0);
    assert_eq!(disk.content()[..4096], [0xbb; 4096]);
    local.server.stop().unwrap();
}

#[test]
fn what_a_dead_client_left_unread_is_never_executed() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut old = Client::enter(&local.socket);
    disk.hold();
    // As many as are served at once, and more that wait in the server's inbox and in the socket.
    let requests: Vec<u8> = (0..1000).flat_map(|cookie| request(TRIM, 0, cookie, 0, 4096)).collect();
    old.send(&requests);
    disk.await_held(128);
    drop(old);

    let logged = log::count();
    let mut new = Client::connect(&local.socket);
    new.option_without_reply(OPT_GO, &[0; 6]);
    log::await_line(logged, &["client waits for the end of broken connections"]);
    disk.release();
    assert_eq!(new.option_replies(OPT_GO).last().unwrap().0, REP_ACK);
    assert_eq!(disk.log().len(), 128);
    new.request(FLUSH, 0, 7, 0, 0);
    assert_eq!(new.error_of(7), 0);
    assert_eq!(disk.log()[128..].iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [RequestKind::Flush]);
    local.server.stop().unwrap();
}

#[test]
fn a_client_that_waits_and_gives_up_leaves_its_place() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start_with(&disk, |config| config.connections_max = 2);
    let mut old = Client::enter(&local.socket);
    disk.hold();
    old.write(0, 1, 0, &[0xaa; 512]);
    disk.await_held(1);
    drop(old);
    for _ in 0..3 {
        let logged = log::count();
        let mut waiting = Client::connect(&local.socket);
        waiting.option_without_reply(OPT_GO, &[0; 6]);
        log::await_line(logged, &["client waits for the end of broken connections"]);
        drop(waiting);
        log::await_line(logged, &["NBD connection ended"]);
    }
    disk.release();
    let mut new = Client::enter(&local.socket);
    new.request(READ, 0, 1, 0, 512);
    assert_eq!(new.reply().data, [0xaa; 512]);
    local.server.stop().unwrap();
}
