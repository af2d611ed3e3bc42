//! Passes bytes on between two streams.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use zeroize::Zeroizing;

/// The bytes that are on their way in one direction.
const BUFFER_BYTES: usize = 64 << 10;

/// Passes bytes on in both directions until `there` has nothing more to say, which ends `here` in
/// order. A `here` that has nothing more to say may still listen. The buffers are wiped.
///
/// # Errors
/// If one of the streams fails, or `here` breaks off without an end in order.
pub async fn relay(here: impl AsyncRead + AsyncWrite, there: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let ((from_here, to_here), (from_there, to_there)) = (split(here), split(there));
    let (mut back, mut forth) = (Box::pin(pass(from_there, to_here)), Box::pin(pass(from_here, to_there)));
    tokio::select! {
        ended = &mut back => return ended,
        ended = &mut forth => ended?,
    }
    back.await
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = Zeroizing::new(vec![0; BUFFER_BYTES]);
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn what_is_said_arrives_and_an_end_ends_it() {
        let ((mut client, here), (there, mut guest)) = (duplex(16), duplex(16));
        let relayed = tokio::spawn(relay(here, there));
        client.write_all(b"hello").await.unwrap();
        client.shutdown().await.unwrap();
        let mut heard = Vec::new();
        guest.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"hello");
        // The client still listens.
        guest.write_all(b"more than the buffers hold").await.unwrap();
        let told = tokio::spawn(async move {
            let mut told = Vec::new();
            client.read_to_end(&mut told).await.map(|_| told)
        });
        guest.shutdown().await.unwrap();
        assert_eq!(told.await.unwrap().unwrap(), b"more than the buffers hold");
        relayed.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_client_that_does_not_leave_ends_with_its_guest() {
        let ((_client, here), (there, guest)) = (duplex(16), duplex(16));
        let relayed = tokio::spawn(relay(here, there));
        drop(guest);
        relayed.await.unwrap().unwrap();
    }
}
