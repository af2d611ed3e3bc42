//! Checks that a volume's files agree with its descriptor. It changes nothing.

use std::fmt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_keys::Kek;
use strongroom_types::display_bytes;

use super::add_layer::is_leftover;
use super::descriptor::{Descriptor, LayerRecord};
use super::directory::{
    CONTROL_SOCKET, DESCRIPTOR, DESCRIPTOR_NEW, VolumeDirectory, discards_name, layer_name, system, tags_name,
};
use super::error::DatastoreError;
use super::open_files::{chain_of, check_discards_length, check_length, check_tags_length, open_envelopes};
use super::reserve::is_spare;
use super::storage::{BY_PATH, Storage, StoredFile};
use super::{layer_files, log};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is lost.
    Notice,
    /// The volume cannot be trusted, or not opened.
    Error,
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The finding, as a sentence.
    pub message: String,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notice => "notice",
            Self::Error => "error",
        })
    }
}

impl Finding {
    fn new(severity: Severity, message: impl ToString) -> Self {
        Self { severity, message: message.to_string() }
    }
}

/// Checks the volume at `path`. With its KEK it also checks that the descriptor is authentic and
/// that every envelope opens. Returns no findings for a sound volume. It may run while the volume
/// is in use.
pub fn check(path: &Path, kek: Option<&Kek>) -> Result<Vec<Finding>, DatastoreError> {
    check_on(BY_PATH, path, kek)
}

/// As [`check`], on another file system.
pub fn check_on(
    storage: &dyn Storage,
    path: &Path,
    kek: Option<&Kek>,
) -> Result<Vec<Finding>, DatastoreError> {
    let directory = VolumeDirectory::open(storage, path)?;
    directory.file_system()?;
    let encoded = match directory.read_descriptor() {
        Ok(encoded) => encoded,
        Err(error @ DatastoreError::NotAVolume { .. }) => return Err(error),
        Err(error) => return Ok(vec![Finding::new(Severity::Error, error)]),
    };
    let mut findings = Vec::new();
    let descriptor = match kek {
        None => {
            if encoded.unverified().encryption.is_some() {
                let message =
                    "without its key the descriptor was not authenticated and no envelope was opened";
                findings.push(Finding::new(Severity::Notice, message));
            }
            encoded.unverified().clone()
        }
        Some(kek) => match encoded.verify(path, kek) {
            Ok(descriptor) => descriptor,
            Err(error) => return Ok(vec![Finding::new(Severity::Error, error)]),
        },
    };
    if let Err(error) = chain_of(path, &descriptor) {
        findings.push(Finding::new(Severity::Error, error));
    }
    if descriptor.reencrypting.is_some() {
        let left = descriptor.layers.iter().filter(|layer| !descriptor.is_reencrypted(layer)).count();
        let message =
            format!("it is being re-encrypted: {left} of {} layers are left", descriptor.layers.len());
        findings.push(Finding::new(Severity::Notice, message));
    }
    for layer in &descriptor.layers {
        check_layer(&directory, &descriptor, layer, kek, &mut findings)?;
    }
    for name in directory.names()? {
        let known = layer_files::are_of(&descriptor, &name)
            || [DESCRIPTOR, CONTROL_SOCKET].contains(&name.as_str())
            || is_spare(&name);
        let message = match name.as_str() {
            _ if known => continue,
            DESCRIPTOR_NEW => {
                "a descriptor that was being written when the power went; it is not used".to_owned()
            }
            leftover if is_leftover(&descriptor, leftover) => format!(
                "'{leftover}' is left of the addition of a layer that was interrupted, or is under way; it is not used, and goes away with the next addition, or with the volume"
            ),
            _ => format!("'{name}' is not a part of the volume"),
        };
        findings.push(Finding::new(Severity::Notice, message));
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

fn check_layer(
    directory: &VolumeDirectory,
    descriptor: &Descriptor,
    layer: &LayerRecord,
    kek: Option<&Kek>,
    findings: &mut Vec<Finding>,
) -> Result<(), DatastoreError> {
    let path = &directory.path;
    match directory.file(&layer_name(layer.id), OFlags::RDONLY) {
        Ok(file) => {
            let wanted = descriptor.layer_size(layer).block_aligned_bytes();
            if let Err(error) = check_length(path, layer, &*file, wanted) {
                findings.push(Finding::new(Severity::Error, error));
            }
            let beyond = file.length().unwrap_or(0).saturating_sub(wanted);
            if beyond > 0 {
                let beyond = display_bytes(beyond);
                let message =
                    format!("layer {} has {beyond} beyond its end, from an interrupted growth", layer.id);
                findings.push(Finding::new(Severity::Notice, message));
            }
        }
        Err(Errno::NOENT) => {
            let error = DatastoreError::MissingLayer { path: path.clone(), layer: layer.id };
            findings.push(Finding::new(Severity::Error, error));
        }
        Err(errno) => return Err(system("open a layer of", path)(errno)),
    }
    match log::describe(directory, descriptor, layer) {
        Ok(_) => {}
        Err(error @ (DatastoreError::MissingLog { .. } | DatastoreError::Log { .. })) => {
            findings.push(Finding::new(Severity::Error, error));
        }
        Err(error) => return Err(error),
    }
    if let Some(integrity) = layer.integrity {
        let missing = DatastoreError::MissingTags { path: path.clone(), layer: layer.id };
        check_beside(directory, &tags_name(layer.id, integrity), missing, findings, |tags| {
            check_tags_length(path, layer, tags, descriptor)
        })?;
    }
    if layer.parent.is_some() {
        let missing = DatastoreError::MissingDiscards { path: path.clone(), layer: layer.id };
        check_beside(directory, &discards_name(layer.id), missing, findings, |discards| {
            check_discards_length(path, layer, discards, descriptor)
        })?;
    }
    if let Some(kek) = kek
        && !is_under_another(descriptor, layer, kek)
        && let Err(error) = open_envelopes(path, descriptor, layer, kek)
    {
        findings.push(Finding::new(Severity::Error, error));
    }
    Ok(())
}

/// Whether a re-encryption that is under way has this layer under its other KEK only.
fn is_under_another(descriptor: &Descriptor, layer: &LayerRecord, kek: &Kek) -> bool {
    let mut envelopes = layer.epochs.iter().flat_map(|record| &record.envelopes);
    descriptor.reencrypting.is_some()
        && envelopes.all(|envelope| envelope.kek() != kek.id() && descriptor.is_under(envelope.kek()))
}

/// Checks that a file beside a layer exists and is long enough.
fn check_beside(
    directory: &VolumeDirectory,
    name: &str,
    missing: DatastoreError,
    findings: &mut Vec<Finding>,
    check_length: impl Fn(&dyn StoredFile) -> Result<(), DatastoreError>,
) -> Result<(), DatastoreError> {
    let checked = match directory.file(name, OFlags::RDONLY) {
        Ok(file) => check_length(&*file),
        Err(Errno::NOENT) => Err(missing),
        Err(errno) => return Err(system("open a file of", &directory.path)(errno)),
    };
    if let Err(error) = checked {
        findings.push(Finding::new(Severity::Error, error));
    }
    Ok(())
}
