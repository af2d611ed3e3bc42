//! A writer that numbers its writes: each goes to one of the disks when the one before is complete.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use super::nbd::NbdClient;
use crate::support::{SOON, until};

/// The offset of the block that is written.
pub const MARK_AT: u64 = 512 << 10;

/// A disk that is written.
#[derive(Clone)]
pub struct Place {
    pub socket: PathBuf,
    pub volume: PathBuf,
}

pub struct Writer {
    is_over: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    places: u64,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(places: &[Place]) -> Self {
        let (is_over, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, done, sockets) = (
            Arc::clone(&is_over),
            Arc::clone(&written),
            places.iter().map(|place| place.socket.clone()).collect::<Vec<_>>(),
        );
        let thread = std::thread::spawn(move || {
            let mut clients: Vec<Option<NbdClient>> = sockets.iter().map(|_| None).collect();
            for number in 1_u64.. {
                let at = number as usize % sockets.len();
                let block: Vec<u8> = number.to_le_bytes().repeat(512);
                // A client connects again when another worker serves.
                let begun = Instant::now();
                while clients[at].as_mut().is_none_or(|client| client.write(MARK_AT, &block).is_err()) {
                    assert!(begun.elapsed() < SOON, "write {number}");
                    clients[at] = NbdClient::connect(&sockets[at]).ok();
                }
                done.store(number, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        Self { is_over, written, places: places.len() as u64, thread: Some(thread) }
    }

    /// Waits until every disk is written some times more.
    pub fn await_more(&self) {
        let wanted = self.written.load(Ordering::SeqCst) + 4 * self.places;
        until("the writer goes on", || {
            let is_gone = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!is_gone, "the writer has failed");
            (self.written.load(Ordering::SeqCst) >= wanted).then_some(())
        });
    }

    pub fn end(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}
