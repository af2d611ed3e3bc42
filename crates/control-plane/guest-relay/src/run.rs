//! The process: it takes connections that are handed over, until the control plane has gone, and
//! ends when the last of them has.

use std::io;
use std::sync::Arc;

use strongroom_host::wire::{Wire, WireError};
use tokio::sync::Semaphore;

use crate::handover::{Handover, Received};
use crate::session::serve;

/// The most connections at a time. Each has a few buffers of 64 KiB.
const SESSIONS_MAX: usize = 256;

/// Serves what the control plane hands over at `wire`.
///
/// # Errors
/// If there are no threads.
pub fn run(wire: &Wire) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let room = Arc::new(Semaphore::new(SESSIONS_MAX));
    loop {
        let (handover, mut files) = match wire.receive::<Handover>() {
            Ok((handover, files)) => (handover, files.into_iter()),
            Err(WireError::Gone) => break,
            Err(error) => {
                tracing::error!(%error, "what was handed over cannot be read");
                continue;
            }
        };
        let Some(browser) = files.next() else { continue };
        let received = Received { handover, browser, host: files.next() };
        // The browser sees a connection that ends.
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!("{SESSIONS_MAX} consoles and screens are open in browsers: one more is refused");
            continue;
        };
        runtime.spawn(async move {
            serve(received).await;
            drop(place);
        });
    }
    // Their control plane is another one by now, and they go on.
    let all = u32::try_from(SESSIONS_MAX).unwrap_or(u32::MAX);
    let _ = runtime.block_on(room.acquire_many(all));
    Ok(())
}
