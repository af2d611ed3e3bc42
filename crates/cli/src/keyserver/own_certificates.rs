//! The certificates of this machine's own clients, which the server renews itself, before they end
//! and afterwards.
//!
//! A client renews its own certificate while that is good. A machine that was off for longer than a
//! certificate lasts would otherwise be locked out of its own keys, its administrator too. Who
//! starts the server opens the root key and reads the files of its home, so that is enough; each is
//! on record. Clients of other machines are not helped by this.

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

/// How long before its end a certificate is renewed.
pub const RENEW_BEFORE: time::Duration = time::Duration::days(30);

/// Who issues them, and where they are.
#[derive(Clone)]
pub struct OwnCertificates {
    authority: Arc<Authority>,
    audit: Arc<AuditLog>,
    places: Vec<(PathBuf, Role)>,
}

impl OwnCertificates {
    /// Those of the clients of `home`, at the server whose state lies in `directory`.
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

    /// The same, but for those that `serve` renews itself while it runs.
    pub fn of_nobody_else(mut self) -> Self {
        self.places.retain(|(_, role)| matches!(role, Role::Admin | Role::Client));
        self
    }

    /// Renews those that have ended at `now`, or will soon. What cannot be renewed is told, and is
    /// as it was.
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
        // One of another server's, or for something else, is not this server's to renew.
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
        // After a quarter in a drawer. The auditor was revoked meanwhile, and another's file lies
        // where the control plane's was.
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
