//! A VM moves between hosts that share no datastore: the one that it moves to fetches
//! its volumes from the other one's port.
//!
//! hostd makes the connection, with TLS, and passes the bytes on: what it sees of an encrypted
//! volume is ciphertext.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use strongroom_host::orders::Task;
use strongroom_host::protocol::{
    FORMAT, GuestHello, HandoverId, OperationOutcome, Problem, VmSpec, VolumesElsewhere,
};
use strongroom_host::vm_directory::{VmRecord, delete_vm, has_handover};
use strongroom_host::vm_lock::VmLock;
use strongroom_serving::{relay, shake_hands_with};
use strongroom_types::Bandwidth;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::operations::{Outcome, PREDECESSOR_ENDS_WITHIN, blocking, do_job, fits, learn, off};
use super::port::notice_loss;
use super::queue::Job;
use super::{Hostd, PortOptions};

/// How long the other host may take to accept a connection, and for the handshake.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
/// The name that is sent in the handshake. A host is known by its certificate.
const HOST: &str = "host.strongroom";

/// Fetches a VM's volumes.
pub async fn fetch(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    spec: VmSpec,
    handover: HandoverId,
    from: VolumesElsewhere,
    bytes_per_second: Option<Bandwidth>,
) -> Outcome {
    must_be_elsewhere(hostd, job)?;
    fits(hostd, &spec).await?;
    let (theirs, wanted) = (Arc::clone(hostd), spec.clone());
    blocking(move || remove_other_attempt(&theirs, &wanted, handover)).await??;
    let socket = connect(hostd.port.as_ref(), &from).await?;
    let task = Task::FetchVolumes { spec: Box::new(spec.clone()), handover, bytes_per_second };
    let volumes = do_job(hostd, job, task, vec![socket]).await?;
    learn(hostd, &spec).await?;
    Ok(Some(OperationOutcome::Volumes(volumes)))
}

/// Deletes the directory that this host has of a VM of another host.
pub async fn remove_copy(hostd: &Arc<Hostd>, job: &Arc<Job>, spec: VmSpec) -> Outcome {
    let (vm, generation) = (job.vm, job.request.generation);
    must_be_elsewhere(hostd, job)?;
    let theirs = Arc::clone(hostd);
    blocking(move || {
        let _lock = VmLock::take(&theirs.run, vm, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
        // An arrival that this host alone knows of is over, also for orders that come late.
        if theirs.residences.has_entry(vm) {
            theirs.residences.leave(vm, generation)?;
        }
        delete_vm(&spec.datastore, &spec.directory(), vm).map_err(Problem::from)
    })
    .await??;
    hostd.vms.forget(vm);
    Ok(None)
}

/// Refuses an operation on a VM of this host.
fn must_be_elsewhere(hostd: &Hostd, job: &Job) -> Result<(), Problem> {
    hostd.residences.must_be_elsewhere(job.vm, job.request.generation)?;
    match hostd.vms.get(job.vm) {
        Some(_) => off(hostd, job.vm).map(drop),
        None => Ok(()),
    }
}

/// Deletes a copy that another attempt has completed: the VM may have changed since.
pub fn remove_other_attempt(hostd: &Hostd, spec: &VmSpec, handover: HandoverId) -> Result<(), Problem> {
    let _lock = VmLock::take(&hostd.run, spec.id, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
    let directory = spec.directory();
    let is_there = VmRecord::read(&directory)?.is_some_and(|record| record.spec.id == spec.id);
    if is_there && !has_handover(&directory, handover)? {
        delete_vm(&spec.datastore, &directory, spec.id)?;
        hostd.vms.forget(spec.id);
    }
    Ok(())
}

/// Connects to the port of the host that has the volumes, and presents the ticket. Returns the
/// socket at which the answer comes.
pub async fn connect(port: Option<&PortOptions>, from: &VolumesElsewhere) -> Result<OwnedFd, Problem> {
    let Some(port) = port else {
        let message = "this host has no certificate under which others know it";
        let next = "start it with an address: `strongroom serve --listen-guests ADDRESS:PORT`";
        return Err(Problem::new("no_port", message).with_next_step(next));
    };
    let not_reached = |error: io::Error| {
        let message = format!("the host at {} cannot be reached: {error}", from.address);
        Problem::new("broke_off", message).with_next_step("see to it that hosts reach each other's ports")
    };
    let config = port.tls.to_host(&from.certificate_sha256).map_err(not_reached)?;
    let name = ServerName::try_from(HOST).map_err(|error| not_reached(io::Error::other(error)))?;
    let connected = async {
        let connecting = tokio::time::timeout(CONNECTS_WITHIN, TcpStream::connect(from.address));
        let stream = connecting.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        notice_loss(&stream)?;
        let shaken = shake_hands_with(config, name, stream, CONNECTS_WITHIN).await;
        let mut tls = shaken.map_err(io::Error::other)?;
        let mut hello = Vec::new();
        serde_json::to_writer(&mut hello, &GuestHello { format: FORMAT, ticket: from.ticket.clone() })?;
        hello.push(b'\n');
        tls.write_all(&hello).await?;
        tls.flush().await?;
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = tokio::net::UnixStream::from_std(ours)?;
        tokio::spawn(async move {
            if let Err(error) = relay(tls, ours).await {
                tracing::debug!(%error, "a connection to another host ended early");
            }
        });
        Ok(theirs.into())
    };
    connected.await.map_err(not_reached)
}
