//! The certificates of this machine's own clients. The server renews them itself, before and after
//! they expire.
//!
//! A client renews its own certificate before it expires. A machine that was off for longer than a
//! certificate's lifetime would otherwise lose access to its own keys, and so would its
//! administrator. The user who starts the server opens the root key and reads the files of its
//! home, which is sufficient authority; each renewal is recorded. This does not apply to clients on
//! other machines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_audit::AuditLog;
use strongroom_keyserver::access::Role;
use strongroom_keyserver::authority::{Authority, claimed_identity};
use strongroom_keyserver::recovery::renew_own;
use time::OffsetDateTime;

use super::certificates::{ClientFiles, NewKey};
use crate::api::CONTROL_DIRECTORY;
use crate::error::CliError;

/// How long before it expires a certificate is renewed.
pub const RENEW_BEFORE: time::Duration = time::Duration::days(30);

/// The issuer and the files of the certificates.
#[derive(Clone)]
pub struct OwnCertificates {
    authority: Arc<Authority>,
    audit: Arc<AuditLog>,
    places: Vec<(PathBuf, Role)>,
}

impl OwnCertificates {
    /// The certificates of the clients of `home`, at the server whose state is in `directory`.
    pub fn new(authority: &Arc<Authority>, audit: &Arc<AuditLog>, home: &Path, directory: &Path) -> Self {
        let places = vec![
            (directory.join("admin"), Role::Admin),
            (home.join("key-providers/embedded"), Role::Client),
            (home.join(CONTROL_DIRECTORY).join("identity"), Role::Control),
            (home.join(CONTROL_DIRECTORY).join("auditor"), Role::Auditor),
            (home.join("hostd/identity"), Role::Host),
        ];
        Self { authority: Arc::clone(authority), audit: Arc::clone(audit), places }
    }

    /// Without those that `serve` renews itself while it runs.
    pub fn of_nobody_else(mut self) -> Self {
        self.places.retain(|(_, role)| matches!(role, Role::Admin | Role::Client));
        self
    }

    /// Renews the certificates that have expired at `now`, or will soon. If one cannot be renewed,
    /// this is logged, and the certificate does not change.
    pub fn renew(&self, now: OffsetDateTime) {
        for (directory, role) in &self.places {
            match self.renew_one(&ClientFiles::in_directory(directory), *role, now) {
                Ok(true) => tracing::info!("the certificate in {} was renewed", directory.display()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("the certificate in {} is not renewed: {error}", directory.display());
                }
            }
        }
    }

    fn renew_one(&self, files: &ClientFiles, role: Role, now: OffsetDateTime) -> Result<bool, CliError> {
        if !files.are_there() {
            return Ok(false);
        }
        files.settle()?;
        let identity = claimed_identity(&files.read_certificate()?);
        // A certificate of another server, or for another role, is not renewed.
        let Some(identity) = identity.filter(|identity| identity.role == role) else { return Ok(false) };
        if identity.not_after >= now + RENEW_BEFORE {
            return Ok(false);
        }
        let key = NewKey::generate()?;
        let issued =
            renew_own(&self.authority, &self.audit, identity.client, role, &key.signing_request, now);
        match issued.map_err(|error| CliError::Usage(error.to_string()))? {
            Some(issued) => {
                files.write(&key, &issued.record.pem(), &issued.roots_pem())?;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keyserver::process::open_state;
    use strongroom_keyserver::root::{self, Access, Way};
    use time::Duration;

    use super::super::directory::ServerSettings;
    use super::super::init::issue;
    use super::*;

    #[test]
    fn what_has_ended_is_renewed_for_the_same_client_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("keyserver");
        std::fs::create_dir(&directory).unwrap();
        let key = root::create(&directory, &Way::PlainFile, &Access::default()).unwrap();
        let settings = ServerSettings::default();
        let state = open_state(&directory, &key, settings.authority(), settings.audit.options()).unwrap();
        let own = OwnCertificates::new(&state.authority, &state.audit, home.path(), &directory);
        let files: Vec<_> = own.places.iter().map(|(path, _)| ClientFiles::in_directory(path)).collect();
        for (files, (_, role)) in files.iter().zip(&own.places).take(4) {
            issue(&state.authority, *role, role.name(), files).unwrap();
        }
        let identity = |files: &ClientFiles| claimed_identity(&files.read_certificate().unwrap()).unwrap();
        let before: Vec<_> = files[..4].iter().map(identity).collect();
        let now = OffsetDateTime::now_utc();
        own.renew(now);
        assert_eq!(files[..4].iter().map(identity).collect::<Vec<_>>(), before, "they are good for long");
        // After three months without a start. The auditor was revoked meanwhile, and another
        // client's file replaced that of the control plane.
        state.authority.revoke_client(before[3].client, "left", now).unwrap();
        std::fs::copy(&files[1].certificate, &files[2].certificate).unwrap();
        let later = now + Duration::days(120);
        own.clone().of_nobody_else().renew(later);
        own.renew(later);
        let after: Vec<_> = files[..4].iter().map(identity).collect();
        for number in [0, 1] {
            assert_eq!(
                (after[number].client, after[number].role),
                (before[number].client, before[number].role)
            );
            assert!(before[number].not_after < later && after[number].not_after > later + RENEW_BEFORE);
            assert_ne!(after[number].public_key, before[number].public_key);
            files[number].read_key().unwrap();
        }
        assert_eq!(
            (after[2].certificate, after[3].certificate),
            (before[1].certificate, before[3].certificate)
        );
        assert!(!files[4].are_there());
        let renewed = || std::fs::read_dir(directory.join("audit")).unwrap().flatten();
        let log: String =
            renewed().map(|file| std::fs::read_to_string(file.path()).unwrap_or_default()).collect();
        assert_eq!(log.matches("certificate renewed at home").count(), 2);
    }
}
