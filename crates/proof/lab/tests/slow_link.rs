//! What passes over a slow link is late, and no more of it than the rate allows. Only least times
//! are asserted: a busy machine makes everything later.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use strongroom_lab::link::{ADDRESSES, Apart, Slowness};

/// Moves this thread to an end of the link. Its sockets, and its threads, are there from now on.
fn enter(apart: &Apart, end: usize) {
    let file = std::fs::File::open(format!("/run/netns/{}", apart.namespaces[end])).expect("its name");
    let moved = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
    moved.expect("leave to enter it");
}

#[test]
fn a_slow_link_is_as_slow_as_it_says_both_ways_and_loses_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    const BYTES: usize = 4 << 20;
    let delay = Duration::from_millis(20);
    let bytes_per_second = NonZeroU64::new(16 << 20);
    let apart = Apart::over(Some(Slowness { delay, bytes_per_second })).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|at| ((at / 256) ^ at) as u8).collect();
    std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (apart, content) = (&apart, &content);
        scope.spawn(move || {
            enter(apart, 1);
            let listener = TcpListener::bind((ADDRESSES[1], 5000)).unwrap();
            ready.send(()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            let mut byte = [0];
            peer.read_exact(&mut byte).unwrap();
            peer.write_all(&byte).unwrap();
            let mut received = vec![0; BYTES];
            peer.read_exact(&mut received).unwrap();
            assert!(received == *content);
            peer.write_all(&received).unwrap();
        });
        scope.spawn(move || {
            enter(apart, 0);
            is_ready.recv().unwrap();
            let began = Instant::now();
            let mut peer = TcpStream::connect((ADDRESSES[1], 5000)).unwrap();
            peer.set_nodelay(true).unwrap();
            peer.write_all(&[7]).unwrap();
            let mut byte = [0];
            peer.read_exact(&mut byte).unwrap();
            // One round trip to connect, and one for the answer.
            assert!(began.elapsed() >= delay * 4, "{:?}", began.elapsed());
            let began = Instant::now();
            peer.write_all(content).unwrap();
            let mut received = vec![0; BYTES];
            peer.read_exact(&mut received).unwrap();
            assert!(received == *content);
            // A quarter of a second each way.
            let least = Duration::from_millis(500) + delay * 2;
            assert!(began.elapsed() >= least, "{:?}", began.elapsed());
        });
    });
}
