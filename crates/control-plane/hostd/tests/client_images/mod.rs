//! Disks are filled with images that clients have, and that hostd's jobs ask them for.

use std::io::{self, Read, Seek};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use strongroom_host::protocol::{DiskKey, ImageFormat, OperationId, OperationState, TicketRequest, VmSpec};
use strongroom_streams::{ImageGiver, ImageStreamError};
use strongroom_types::VolumeSize;

use super::walls::{Image, convert};
use crate::support::{Host, KeySite, until};

const DISK_BYTES: usize = 24 << 20;
/// Occurs nowhere but in the image.
const MARKER: &[u8] = b"strongroom-marker-in-an-uploaded-image";

/// Content with zeroes between, and the marker at both ends.
fn content() -> Vec<u8> {
    let mut content: Vec<u8> =
        (0..DISK_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    content[4 << 20..9 << 20].fill(0);
    content[..MARKER.len()].copy_from_slice(MARKER);
    content[DISK_BYTES - MARKER.len()..].copy_from_slice(MARKER);
    content
}

fn vm(host: &Host) -> VmSpec {
    let mut spec = host.spec("web1", 1);
    spec.disks[0].size_bytes = VolumeSize::new(DISK_BYTES as u64).unwrap();
    host.done(&spec, 0, host.create(&spec));
    spec
}

/// A client that is let in with another ticket.
fn comes(host: &Host, spec: &VmSpec) -> UnixStream {
    let disk = spec.disks[0].name.clone();
    let ticket = host.ticket(spec, TicketRequest::Upload { disk }).unwrap();
    host.upload(&ticket, None).into_inner()
}

/// Answers for an image, the first `answers` times; then the connection is lost.
fn gives(stream: UnixStream, image: Vec<u8>, answers: usize) -> JoinHandle<Result<(), ImageStreamError>> {
    thread::spawn(move || {
        let (mut left, line) = (answers, stream.try_clone()?);
        ImageGiver::begin(stream, image.len() as u64)?.answer(|offset, into| {
            if left == 0 {
                line.shutdown(Shutdown::Both)?;
                return Err(io::ErrorKind::NotConnected.into());
            }
            left -= 1;
            let offset = offset as usize;
            into.copy_from_slice(&image[offset..offset + into.len()]);
            Ok(())
        })
    })
}

/// Has the VM's disk filled with the image of a client.
fn begins(host: &Host, spec: &VmSpec, format: ImageFormat) -> (OperationId, UnixStream) {
    let disk = spec.disks[0].name.clone();
    let ticket = host.ticket(spec, TicketRequest::Upload { disk: disk.clone() }).unwrap();
    let client = host.upload(&ticket, None).into_inner();
    (host.begin_import_with(spec, disk, &ticket, format), client)
}

fn holds(host: &Host, spec: &VmSpec, content: &[u8]) {
    let (told, mut image) = host.export_as(spec, "disk0", ImageFormat::Raw);
    assert!(told.contains("done"), "{told}");
    let mut held = Vec::new();
    image.rewind().unwrap();
    image.read_to_end(&mut held).unwrap();
    assert!(held == content, "the disk holds something else");
}

fn is_away(host: &Host, operation: OperationId) {
    until("the client is missed", || {
        let now = host.operation(operation);
        assert!(!now.state.is_final(), "{now:?}");
        now.progress.is_some_and(|progress| progress.client_is_away).then_some(())
    });
}

/// Each format is converted on its way, by a qemu-img that has no file.
pub fn formats() {
    let host = Host::start();
    let spec = vm(&host);
    let content = content();
    let scratch = tempfile::tempdir().unwrap();
    let raw = scratch.path().join("raw");
    std::fs::write(&raw, &content).unwrap();
    for format in ["qcow2", "vmdk", "vhdx"] {
        let path = scratch.path().join(format);
        convert(&Image { format: "raw", path: &raw }, &Image { format, path: &path });
        let (operation, client) = begins(&host, &spec, ImageFormat::Auto);
        let client = gives(client, std::fs::read(&path).unwrap(), usize::MAX);
        let ended = host.await_operation(operation);
        assert_eq!(ended.state, OperationState::Done, "{format}: {ended:?}");
        client.join().unwrap().unwrap();
        holds(&host, &spec, &content);
    }
    // What is no image of the format, or has a larger disk, changes nothing.
    let mut cut = std::fs::read(scratch.path().join("qcow2")).unwrap();
    cut.truncate(5 << 20);
    let larger = vec![0; DISK_BYTES + 512];
    let bad = [(ImageFormat::Qcow2, cut), (ImageFormat::Raw, larger), (ImageFormat::Auto, content.clone())];
    for ((format, image), code) in
        bad.into_iter().zip(["image_damaged", "image_too_large", "image_format_unknown"])
    {
        let (operation, client) = begins(&host, &spec, format);
        let client = gives(client, image, usize::MAX);
        let ended = host.await_operation(operation);
        assert_eq!(ended.error.as_ref().map(|problem| problem.code.as_str()), Some(code), "{ended:?}");
        assert!(client.join().unwrap().is_err(), "the connection is closed");
    }
    holds(&host, &spec, &content);
    host.assert_nobody_left();
}

pub fn comes_back() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = host.spec("web1", 1);
    spec.disks[0].size_bytes = VolumeSize::new(DISK_BYTES as u64).unwrap();
    spec.disks[0].key = DiskKey::provider(site.key.clone(), None);
    host.done(&spec, 0, host.create(&spec));
    let content = content();
    let (operation, client) = begins(&host, &spec, ImageFormat::Raw);
    gives(client, content.clone(), 3).join().unwrap().unwrap_err();
    is_away(&host, operation);

    // Another image is none of which a part is here, whatever its size.
    let mut other = content.clone();
    other[100] ^= 1;
    let mut longer = content.clone();
    longer.extend_from_slice(&[0; 512]);
    for image in [other, longer] {
        let refused = gives(comes(&host, &spec), image, usize::MAX).join().unwrap().unwrap_err();
        assert!(refused.to_string().contains("it is not the image"), "{refused}");
        is_away(&host, operation);
    }
    // One that comes while the former one is still connected takes its place.
    let silent = ImageGiver::begin(comes(&host, &spec), DISK_BYTES as u64).unwrap();
    let back = gives(comes(&host, &spec), content.clone(), usize::MAX);
    let ended = host.await_operation(operation);
    assert_eq!(ended.state, OperationState::Done, "{ended:?}");
    back.join().unwrap().unwrap();
    drop(silent);
    holds(&host, &spec, &content);
    host.assert_nowhere(MARKER);
    host.assert_nobody_left();
}

pub fn cancelled() {
    let host = Host::start();
    let spec = vm(&host);
    let content = content();
    let (operation, client) = begins(&host, &spec, ImageFormat::Raw);
    gives(client, content.clone(), usize::MAX).join().unwrap().unwrap();
    assert_eq!(host.await_operation(operation).state, OperationState::Done);
    let (operation, client) = begins(&host, &spec, ImageFormat::Raw);
    gives(client, vec![7; DISK_BYTES], 2).join().unwrap().unwrap_err();
    is_away(&host, operation);
    host.cancel(operation);
    assert_eq!(host.await_operation(operation).state, OperationState::Cancelled);
    holds(&host, &spec, &content);
    host.assert_nobody_left();
}
