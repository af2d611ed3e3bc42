//! The life of connections and of the server: reconnecting, stalling, misbehaving, stopping.

mod support;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use strongroom_frontend::nbd::StopError;
use strongroom_io::{Errno, IoError, RequestKind};
use support::client::*;
use support::memory_disk::{DEADLINE, MemoryDisk};
use support::{Local, noise};

#[test]
fn connections_that_live_do_not_wait_for_each_other() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut first = Client::enter(&local.socket);
    disk.hold();
    first.write(0, 1, 0, &[1; 512]);
    disk.await_held(1);
    let mut second = Client::enter(&local.socket);
    disk.release();
    second.request(READ, 0, 2, 512, 512);
    assert_eq!(second.reply().data, [0; 512]);
    assert_eq!(first.error_of(1), 0);
    local.server.stop().unwrap();
}

#[test]
fn errors_reach_the_client_and_the_connection_goes_on() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut client = Client::enter(&local.socket);
    client.request(99, 0, 1, 0, 0);
    assert_eq!(client.error_of(1), 22);
    client.write(0, 2, (1 << 20) - 100, &[1; 101]);
    assert_eq!(client.error_of(2), 28);
    client.write(1 << 15, 3, 0, &[1; 100_000]);
    assert_eq!(client.error_of(3), 22);
    client.request(READ, 0, 4, 1 << 20, 1);
    assert_eq!(client.error_of(4), 22);
    client.request(BLOCK_STATUS, 0, 5, 0, 512);
    assert_eq!(client.error_of(5), 22);
    client.request(READ, 0, 6, 0, 33 << 20);
    assert_eq!(client.error_of(6), 75);
    client.write(0, 7, 0, &vec![1; 34 << 20]);
    assert_eq!(client.error_of(7), 22);
    for (error, number) in [
        (IoError::NoSpace, 28),
        (IoError::ReadOnly, 1),
        (IoError::Device(Errno(5)), 5),
        (IoError::Closed, 108),
    ] {
        disk.fail(RequestKind::Write, error);
        client.write(FUA, 8, 0, &[1; 512]);
        let reply = client.reply();
        assert_eq!((reply.cookie, reply.error), (8, number));
        assert_eq!(String::from_utf8(reply.data).unwrap(), error.to_string());
    }
    client.request(READ, DF, 9, 0, 512);
    assert_eq!(client.reply().data, [0; 512]);
    client.request(DISCONNECT, 0, 0, 0, 0);
    assert!(client.await_close());
    local.server.stop().unwrap();
}

#[test]
fn one_clients_nonsense_harms_that_client_alone() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut good = Client::enter(&local.socket);
    let mut bad = Client::enter(&local.socket);
    bad.send(&noise(3, 1000));
    assert!(bad.await_close());
    let mut worse = Client::connect(&local.socket);
    worse.send(&noise(4, 1000));
    assert!(worse.await_close());
    // An old client that does not know options.
    let mut stream = UnixStream::connect(&local.socket).unwrap();
    stream.write_all(&[0; 4]).unwrap();
    assert!(Client { stream }.await_close());
    // A client that ends in the middle of a write.
    let mut cut = Client::enter(&local.socket);
    cut.send(&request(WRITE, 0, 1, 0, 4096));
    cut.send(&[1; 1000]);
    drop(cut);
    good.write(FUA, 5, 0, &[7; 512]);
    assert_eq!(good.error_of(5), 0);
    assert_eq!(disk.content()[..600], [&[7; 512][..], &[0; 88]].concat());
    local.server.stop().unwrap();
}

#[test]
fn a_client_that_does_not_take_its_replies_is_not_read_any_more() {
    let disk = MemoryDisk::new(64 << 20);
    let local = Local::start(&disk);
    let mut lazy = Client::enter(&local.socket);
    // Far more content than all buffers between here and the disk together.
    let requests: Vec<u8> = (0..2000).flat_map(|cookie| request(READ, 0, cookie, 0, 1 << 20)).collect();
    lazy.stream.set_nonblocking(true).unwrap();
    let sent = lazy.stream.write(&requests).unwrap();
    assert!(sent >= request(READ, 0, 0, 0, 0).len());
    let mut other = Client::enter(&local.socket);
    for cookie in 0..100 {
        other.request(READ, 0, cookie, 0, 512);
        assert_eq!(other.error_of(cookie), 0);
    }
    // The memory for content limits how much was read: 48 MiB, plus the sockets' buffers.
    let reads = disk.log().iter().filter(|(_, extent)| extent.length() == 1 << 20).count();
    assert!(reads <= 60, "{reads}");
    // It gets all of it once it reads again.
    lazy.stream.set_nonblocking(false).unwrap();
    lazy.send(&requests[sent..]);
    let mut cookies: Vec<u64> = (0..2000).map(|_| lazy.reply().cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..2000));
    local.server.stop().unwrap();
}

#[test]
fn a_full_queue_is_served_in_any_order_and_never_overfilled() {
    let disk = MemoryDisk::new(64 << 20);
    let local = Local::start(&disk);
    let mut client = Client::enter(&local.socket);
    disk.hold();
    let requests: Vec<u8> = (0..300).flat_map(|cookie| request(READ, 0, cookie, cookie * 512, 512)).collect();
    client.send(&requests);
    disk.await_held(128);
    disk.release();
    let mut cookies: Vec<u64> = (0..300).map(|_| client.reply().cookie).collect();
    assert!(!cookies.is_sorted(), "the disk answers out of order");
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..300));
    assert_eq!(disk.most_in_flight(), 128);
    local.server.stop().unwrap();
}

#[test]
fn the_largest_requests_are_cut_and_joined() {
    let disk = MemoryDisk::new(70 << 20);
    let local = Local::start(&disk);
    let mut client = Client::enter(&local.socket);
    let content = noise(5, 32 << 20);
    client.write(FUA, 1, 4096 + 1, &content);
    assert_eq!(client.error_of(1), 0);
    assert!(disk.content()[4097..4097 + (32 << 20)] == content);
    let log = disk.log();
    let writes: Vec<_> = log.iter().filter(|(kind, _)| *kind == RequestKind::Write).collect();
    assert_eq!(writes.len(), 33);
    assert!(writes[1..].iter().all(|(_, extent)| extent.offset() % (1 << 20) == 0));
    assert_eq!(log.last().unwrap().0, RequestKind::Flush, "force unit access, once for all pieces");
    // Several at once need more memory than there is, and are served one after another.
    for cookie in 10..14 {
        client.request(READ, DF, cookie, 4097, 32 << 20);
    }
    for _ in 10..14 {
        assert!(client.reply().data == content);
    }
    client.request(CACHE, 0, 20, 0, 70 << 20);
    assert_eq!(client.error_of(20), 0);
    client.request(TRIM, FUA, 21, 0, 64 << 20);
    assert_eq!(client.error_of(21), 0);
    assert_eq!(disk.log().last().unwrap().0, RequestKind::Flush);
    local.server.stop().unwrap();
}

#[test]
fn a_client_that_does_not_finish_its_negotiation_is_cut_off() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start_with(&disk, |config| config.handshake_timeout = Duration::from_millis(50));
    // It sends nothing at all: its bytes might arrive after the end.
    let stream = UnixStream::connect(&local.socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert!(Client { stream }.await_close());
    local.server.stop().unwrap();
}

#[test]
fn when_all_places_are_taken_idle_negotiations_make_room_and_clients_do_not() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start_with(&disk, |config| config.connections_max = 2);
    let mut first = Client::enter(&local.socket);
    let mut idle = Client::connect(&local.socket);
    let mut second = Client::enter(&local.socket);
    assert!(idle.await_close());
    let mut third = Client { stream: UnixStream::connect(&local.socket).unwrap() };
    assert!(third.await_close());
    for client in [&mut first, &mut second] {
        client.request(FLUSH, 0, 1, 0, 0);
        assert_eq!(client.error_of(1), 0);
    }
    local.server.stop().unwrap();
}

#[test]
fn stopping_answers_what_is_in_flight_refuses_what_is_new_and_flushes() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut client = Client::enter(&local.socket);
    let mut idle = Client::enter(&local.socket);
    disk.hold();
    client.write(0, 1, 0, &[1; 512]);
    disk.await_held(1);
    let Local { server, directory, socket } = local;
    let stopping = std::thread::spawn(move || server.stop());
    // The idle one is closed at once, which shows that stopping has begun.
    assert!(idle.await_close());
    client.request(READ, 0, 2, 0, 512);
    assert_eq!(client.error_of(2), 108);
    assert!(UnixStream::connect(&socket).is_err());
    disk.release();
    assert_eq!(client.error_of(1), 0);
    assert!(client.await_close());
    stopping.join().unwrap().unwrap();
    assert_eq!(disk.log().last().unwrap().0, RequestKind::Flush);
    assert!(!socket.exists());
    drop(directory);
}

#[test]
fn a_disk_that_does_not_finish_is_a_typed_error_and_not_a_hang() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start_with(&disk, |config| config.drain_timeout = Duration::from_millis(20));
    let mut client = Client::enter(&local.socket);
    disk.hold();
    client.write(0, 1, 0, &[1; 512]);
    disk.await_held(1);
    let stopped = local.server.stop();
    assert!(matches!(stopped, Err(StopError::Busy { connections: 1, .. })), "{stopped:?}");
    assert!(client.await_close());
    disk.release();
}

#[test]
fn a_failed_last_flush_is_told() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    disk.fail(RequestKind::Flush, IoError::FlushFailed);
    assert!(matches!(local.server.stop(), Err(StopError::Flush(IoError::FlushFailed))));
}

#[test]
fn hostile_options_are_answered_or_end_the_connection() {
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start(&disk);
    let mut client = Client::connect(&local.socket);
    client.send(&[&b"IHAVEOPT"[..], &OPT_INFO.to_be_bytes(), &(1_u32 << 20).to_be_bytes()].concat());
    assert_eq!(client.option_replies(OPT_INFO)[0].0, REP_ERR_TOO_BIG);
    client.send(&vec![0; 1 << 20]);
    assert_eq!(client.option(OPT_INFO, &[0; 6]).last().unwrap().0, REP_ACK);
    for _ in 0..200 {
        let refused = client.stream.write_all(&[&b"IHAVEOPT"[..], &[0; 8]].concat());
        if refused.is_err() {
            break;
        }
    }
    assert!(client.await_close());
    local.server.stop().unwrap();
}

#[test]
fn without_structured_replies_content_follows_a_simple_one() {
    let disk = MemoryDisk::new(1 << 20);
    disk.fill(0, &[9; 512]);
    let local = Local::start(&disk);
    let mut client = Client::connect(&local.socket);
    client.option_without_reply(OPT_EXPORT_NAME, b"disk");
    let told = client.read(10);
    assert_eq!(told[..8], (1_u64 << 20).to_be_bytes());
    client.request(READ, 0, 1, 0, 512);
    let header = client.read(16);
    assert_eq!(header, [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], &1_u64.to_be_bytes()].concat());
    assert_eq!(client.read(512), [9; 512]);
    client.request(READ, 0, 2, 1 << 20, 512);
    assert_eq!(client.error_of(2), 22);
    // Two requests with the same cookie are the client's mistake, and are still both answered.
    client.request(FLUSH, 0, 3, 0, 0);
    client.request(FLUSH, 0, 3, 0, 0);
    assert_eq!((client.error_of(3), client.error_of(3)), (0, 0));
    local.server.stop().unwrap();
}
