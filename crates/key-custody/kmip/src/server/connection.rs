//! One connection, from its handshake to its end.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use strongroom_serving::HandshakeError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::debug;
use zeroize::Zeroizing;

use super::registry::{Order, Slot};
use super::run::Shared;
use super::{Peer, RefusalReason, Service};
use crate::codec::DecodeError;
use crate::message::{MalformedRequest, RequestMessage, ResponseMessage};
use crate::protocol::{ProtocolVersion, ResultReason};
use crate::tls_residue::wipe_received;
use crate::ttlv::{HEADER_BYTES, Tag, message_length_bytes};

/// How many bytes of a refused client's remaining data are read and discarded, so that the kernel
/// does not reset the connection before the client has read the refusal.
const LINGER_BYTES: usize = 256 * 1024;

/// How long discarding may take.
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Why a connection ends.
enum End {
    /// It was refused; the refusal is recorded.
    Refused(RefusalReason),
    /// The client or the network ended it, or it was idle for too long.
    Gone,
}

impl From<RefusalReason> for End {
    fn from(reason: RefusalReason) -> Self {
        Self::Refused(reason)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        debug!(%error, "a connection broke");
        Self::Gone
    }
}

pub(super) async fn serve<S: Service>(
    shared: Arc<Shared<S>>,
    tcp: TcpStream,
    address: SocketAddr,
    tls: Arc<ServerConfig>,
    slot: Slot,
) {
    let handshake = tokio::select! {
        biased;
        () = slot.told_to_end() => return,
        () = slot.displaced() => return,
        shaken = shake_hands(tcp, tls, shared.limits.handshake_time) => shaken,
    };
    let mut stream = match handshake {
        Ok(stream) => stream,
        Err(reason) => return shared.refuse(address, None, &reason),
    };
    let Some(peer) = peer_of(&stream, address) else {
        return shared.refuse(address, None, &RefusalReason::NoCertificate);
    };
    let conversation = Conversation { shared: &shared, peer: &peer, slot: &slot };
    if let Err(End::Refused(reason)) = conversation.hold(&mut stream).await {
        shared.refuse(address, Some(&peer), &reason);
    }
    // Without a limit, a client that reads nothing would keep the connection open.
    let _ = timeout(LINGER_TIME, stream.shutdown()).await;
}

async fn shake_hands(
    tcp: TcpStream,
    tls: Arc<ServerConfig>,
    time: Duration,
) -> Result<TlsStream<TcpStream>, RefusalReason> {
    // Requests are small and wait for their answers: delaying packets gains nothing.
    tcp.set_nodelay(true).map_err(|error| RefusalReason::Handshake(error.to_string()))?;
    strongroom_serving::shake_hands(&TlsAcceptor::from(tls), tcp, time).await.map_err(|error| match error {
        HandshakeError::Late => RefusalReason::HandshakeTime,
        HandshakeError::Failed(error) => RefusalReason::Handshake(error.to_string()),
    })
}

fn peer_of(stream: &TlsStream<TcpStream>, address: SocketAddr) -> Option<Arc<Peer>> {
    let (_, connection) = stream.get_ref();
    let leaf = connection.peer_certificates()?.first()?;
    Some(Arc::new(Peer::new(leaf.clone().into_owned(), address)))
}

/// The conversation of a client and the server.
struct Conversation<'c, S> {
    shared: &'c Shared<S>,
    peer: &'c Arc<Peer>,
    slot: &'c Slot,
}

impl<S: Service> Conversation<'_, S> {
    async fn hold(&self, stream: &mut TlsStream<TcpStream>) -> Result<(), End> {
        self.slot.identify(self.peer)?;
        if !self.shared.service.admits(self.peer) {
            return Err(RefusalReason::NotAdmitted.into());
        }
        // Made once, because to wait for an order or a time takes locks.
        let mut told_to_end = pin!(self.slot.told_to_end());
        let mut idle = pin!(sleep(self.shared.limits.idle_time));
        while self.slot.order() == Order::Serve {
            idle.as_mut().reset(Instant::now() + self.shared.limits.idle_time);
            let received = tokio::select! {
                biased;
                () = &mut told_to_end => break,
                received = self.receive(stream, idle.as_mut()) => received,
            };
            let decoded = match received {
                Ok((message, _memory)) => RequestMessage::decode(&message, &self.shared.limits.message),
                Err(End::Refused(RefusalReason::Malformed(error))) => {
                    Err(MalformedRequest { version: ProtocolVersion::V1_0, error })
                }
                Err(end) => return Err(end),
            };
            match decoded {
                Ok(request) => {
                    let response = self.shared.service.handle(self.peer, request).await;
                    if self.slot.order() == Order::Close {
                        return Err(RefusalReason::Withdrawn.into());
                    }
                    self.send(stream, &response).await?;
                }
                Err(malformed) => self.refuse_request(stream, malformed).await?,
            }
        }
        Ok(())
    }

    /// Reads one whole request, and reserves its memory until it is decoded. Its first bytes must
    /// arrive before `idle` ends.
    async fn receive(
        &self,
        stream: &mut TlsStream<TcpStream>,
        idle: Pin<&mut Sleep>,
    ) -> Result<(Zeroizing<Vec<u8>>, SemaphorePermit<'_>), End> {
        let limits = &self.shared.limits;
        let mut header = [0; HEADER_BYTES];
        let first_bytes = tokio::select! {
            biased;
            read = stream.read(&mut header) => read?,
            () = idle => 0,
        };
        if first_bytes == 0 {
            return Err(End::Gone);
        }
        let rest = async {
            if let Some(missing) = header.get_mut(first_bytes..) {
                stream.read_exact(missing).await?;
            }
            let length_bytes = message_length_bytes(header, Tag::REQUEST_MESSAGE, &limits.message)
                .map_err(|error| RefusalReason::Malformed(error.into()))?;
            let memory = self.memory_for(length_bytes).await?;
            let mut message = Zeroizing::new(Vec::with_capacity(length_bytes));
            message.extend_from_slice(&header);
            message.resize(length_bytes, 0);
            stream.read_exact(message.get_mut(HEADER_BYTES..).unwrap_or_default()).await?;
            wipe_received(stream.get_mut().1);
            Ok((message, memory))
        };
        timeout(limits.request_time, rest).await.unwrap_or_else(|_| Err(RefusalReason::RequestTime.into()))
    }

    /// Waits until the server has that much memory for requests.
    async fn memory_for(&self, length_bytes: usize) -> Result<SemaphorePermit<'_>, End> {
        // A server with less memory than the longest request still accepts such requests, one at a
        // time.
        let kib = length_bytes.div_ceil(1024).min(self.shared.limits.requests_kib);
        let permits = u32::try_from(kib).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.shared.memory.acquire_many(permits).await.map_err(|_| End::Gone)
    }

    async fn send(&self, stream: &mut TlsStream<TcpStream>, response: &ResponseMessage) -> Result<(), End> {
        let encoded = response.encode();
        let written = async {
            stream.write_all(&encoded).await?;
            stream.flush().await
        };
        match timeout(self.shared.limits.response_time, written).await {
            Ok(written) => Ok(written?),
            Err(_) => Err(RefusalReason::ResponseTime.into()),
        }
    }

    /// Refuses a request. The conversation continues if the start of the next request is known.
    async fn refuse_request(
        &self,
        stream: &mut TlsStream<TcpStream>,
        malformed: MalformedRequest,
    ) -> Result<(), End> {
        let MalformedRequest { version, error } = malformed;
        let response = ResponseMessage::failure(version, ResultReason::from(&error), error.to_string());
        let lost = matches!(error, DecodeError::Ttlv(_));
        let reason = RefusalReason::Malformed(error);
        if !lost {
            self.shared.refuse(self.peer.address, Some(self.peer), &reason);
            return self.send(stream, &response).await;
        }
        self.send(stream, &response).await?;
        let _ = timeout(LINGER_TIME, linger(stream)).await;
        Err(reason.into())
    }
}

/// Ends our half of a connection and reads on for a while.
async fn linger(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    stream.shutdown().await?;
    let mut thrown_away = [0; 4096];
    let mut read_bytes = 0;
    while read_bytes < LINGER_BYTES {
        match stream.read(&mut thrown_away).await? {
            0 => break,
            bytes => read_bytes += bytes,
        }
    }
    Ok(())
}
