//! Sealing and unsealing: the storage root key, the sealed object under it, and the policy on PCRs.

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_memory::secret::SecretBytes;

use super::PcrSelection;
use super::command::{Authorization, Code, Entity, Reader, Tpm, Writer};
use super::error::TpmError;
use super::session::{
    AES_KEY_BITS, ALGORITHM_AES, ALGORITHM_CFB, ALGORITHM_SHA256, COORDINATE_BYTES, Kind, Point, Session,
};
use crate::root::error::RootError;

const CREATE_PRIMARY: Code = Code { number: 0x131, name: "TPM2_CreatePrimary" };
const CREATE: Code = Code { number: 0x153, name: "TPM2_Create" };
const LOAD: Code = Code { number: 0x157, name: "TPM2_Load" };
const UNSEAL: Code = Code { number: 0x15e, name: "TPM2_Unseal" };
const POLICY_PCR: Code = Code { number: 0x17f, name: "TPM2_PolicyPCR" };
const POLICY_GET_DIGEST: Code = Code { number: 0x189, name: "TPM2_PolicyGetDigest" };

const OWNER_HIERARCHY: u32 = 0x4000_0001;
const ALGORITHM_KEYED_HASH: u16 = 0x0008;
const ALGORITHM_NULL: u16 = 0x0010;
const ALGORITHM_ECC: u16 = 0x0023;
const CURVE_NIST_P256: u16 = 0x0003;

/// TPMA_OBJECT (Part 2, 8.3).
const FIXED_TPM: u32 = 1 << 1;
const FIXED_PARENT: u32 = 1 << 4;
const SENSITIVE_DATA_ORIGIN: u32 = 1 << 5;
const USER_WITH_AUTH: u32 = 1 << 6;
const NO_DA: u32 = 1 << 10;
const RESTRICTED: u32 = 1 << 16;
const DECRYPT: u32 = 1 << 17;

/// The storage root key, loaded.
pub(super) struct StorageRoot {
    entity: Entity,
    point: Point,
    pub name: Vec<u8>,
}

/// A sealed object outside the TPM.
pub(super) struct SealedObject {
    pub public: Vec<u8>,
    pub private: Vec<u8>,
}

impl Tpm {
    /// Makes the storage root key: ECC P-256, AES-128-CFB, as in the TCG's TPM 2.0 Provisioning
    /// Guidance. The TPM derives it from its owner seed and the template, so it is the same until
    /// the TPM is cleared.
    pub fn storage_root(&mut self) -> Result<StorageRoot, RootError> {
        let attributes =
            FIXED_TPM | FIXED_PARENT | SENSITIVE_DATA_ORIGIN | USER_WITH_AUTH | NO_DA | RESTRICTED | DECRYPT;
        let mut template = Writer::new();
        template.u16(ALGORITHM_ECC).u16(ALGORITHM_SHA256).u32(attributes).sized(&[]);
        template.u16(ALGORITHM_AES).u16(AES_KEY_BITS).u16(ALGORITHM_CFB);
        template.u16(ALGORITHM_NULL).u16(CURVE_NIST_P256).u16(ALGORITHM_NULL);
        template.sized(&[]).sized(&[]);
        let mut parameters = Writer::new();
        let no_secret = [0; 4];
        parameters.sized(&no_secret).sized(template.as_bytes()).sized(&[]).u32(0);
        let owner = Entity::permanent(OWNER_HIERARCHY);
        let response =
            self.run(CREATE_PRIMARY, &[&owner], Authorization::EmptyPassword, parameters, true, None)?;
        let handle = response.handle.unwrap_or_default();
        self.keep(handle);
        let mut reader = Reader::new(&response.parameters, CREATE_PRIMARY.name);
        let public = reader.sized()?;
        let point = point_of(public)?;
        let name = name_of(public);
        Ok(StorageRoot { entity: Entity { handle, name: name.clone() }, point, name })
    }

    /// Seals `secret` under `parent`.
    pub fn seal(
        &mut self,
        parent: &StorageRoot,
        pcrs: &PcrSelection,
        secret: &SecretBytes,
    ) -> Result<SealedObject, RootError> {
        let policy = if pcrs.is_empty() { Vec::new() } else { self.pcr_policy(parent, pcrs)? };
        // With a policy the empty password must not open it.
        let authorised_by = if pcrs.is_empty() { USER_WITH_AUTH } else { 0 };
        let mut template = Writer::new();
        template.u16(ALGORITHM_KEYED_HASH).u16(ALGORITHM_SHA256);
        template.u32(FIXED_TPM | FIXED_PARENT | NO_DA | authorised_by).sized(&policy);
        template.u16(ALGORITHM_NULL).sized(&[]);
        let mut sensitive = Writer::new();
        sensitive.sized(&[]).sized(secret.expose());
        let mut parameters = Writer::new();
        parameters.sized(sensitive.as_bytes()).sized(template.as_bytes()).sized(&[]).u32(0);

        let mut session = self.start_session(&parent.entity, &parent.point, Kind::Hmac)?;
        let authorization = Authorization::Session { session: &mut session, encrypts_command: true };
        let response = self.run(CREATE, &[&parent.entity], authorization, parameters, false, None)?;
        let mut reader = Reader::new(&response.parameters, CREATE.name);
        Ok(SealedObject { private: reader.sized()?.to_vec(), public: reader.sized()?.to_vec() })
    }

    /// Opens a sealed object.
    pub fn unseal(
        &mut self,
        parent: &StorageRoot,
        pcrs: &PcrSelection,
        object: &SealedObject,
    ) -> Result<SecretBytes, RootError> {
        let mut parameters = Writer::new();
        parameters.sized(&object.private).sized(&object.public);
        let response =
            self.run(LOAD, &[&parent.entity], Authorization::EmptyPassword, parameters, true, None)?;
        let handle = response.handle.unwrap_or_default();
        self.keep(handle);
        let entity = Entity { handle, name: name_of(&object.public) };

        let kind = if pcrs.is_empty() { Kind::Hmac } else { Kind::Policy };
        let mut session = self.start_session(&parent.entity, &parent.point, kind)?;
        if kind == Kind::Policy {
            self.apply_pcrs(&session, pcrs)?;
        }
        let authorization = Authorization::Session { session: &mut session, encrypts_command: false };
        let named = Some(pcrs).filter(|pcrs| !pcrs.is_empty());
        let response = self.run(UNSEAL, &[&entity], authorization, Writer::new(), false, named)?;
        let data = Reader::new(&response.parameters, UNSEAL.name).sized()?;
        let mut secret = SecretBytes::zeroed(data.len())?;
        secret.expose_mut().copy_from_slice(data);
        Ok(secret)
    }

    /// The policy digest for the present values of `pcrs`.
    fn pcr_policy(&mut self, parent: &StorageRoot, pcrs: &PcrSelection) -> Result<Vec<u8>, RootError> {
        let trial = self.start_session(&parent.entity, &parent.point, Kind::Trial)?;
        self.apply_pcrs(&trial, pcrs)?;
        let response =
            self.run(POLICY_GET_DIGEST, &[trial.entity()], Authorization::None, Writer::new(), false, None)?;
        Ok(Reader::new(&response.parameters, POLICY_GET_DIGEST.name).sized()?.to_vec())
    }

    fn apply_pcrs(&mut self, session: &Session, pcrs: &PcrSelection) -> Result<(), TpmError> {
        let mut parameters = Writer::new();
        let map = pcrs.bit_map();
        // No digest from us: the TPM uses the actual PCRs.
        parameters.sized(&[]).u32(1).u16(ALGORITHM_SHA256).u8(map.len() as u8).bytes(&map);
        self.run(POLICY_PCR, &[session.entity()], Authorization::None, parameters, false, Some(pcrs))?;
        Ok(())
    }
}

/// The name of an object: the algorithm, and the hash of its public area (Part 1, 16).
fn name_of(public: &[u8]) -> Vec<u8> {
    let mut name = ALGORITHM_SHA256.to_be_bytes().to_vec();
    name.extend_from_slice(digest(&SHA256, public).as_ref());
    name
}

/// The point in a TPMT_PUBLIC of the storage root key's template.
pub(super) fn point_of(public: &[u8]) -> Result<Point, TpmError> {
    let mut reader = Reader::new(public, CREATE_PRIMARY.name);
    let (algorithm, name_algorithm, _attributes) = (reader.u16()?, reader.u16()?, reader.u32()?);
    let _policy = reader.sized()?;
    // Symmetric algorithm, key bits, mode, scheme, curve, key derivation: as requested.
    let _parameters = reader.take(12)?;
    let coordinate = |bytes: &[u8]| {
        // A TPM may leave out leading zeroes.
        let mut padded = [0; COORDINATE_BYTES];
        let start = COORDINATE_BYTES.checked_sub(bytes.len())?;
        padded[start..].copy_from_slice(bytes);
        Some(padded)
    };
    let (x, y) = (coordinate(reader.sized()?), coordinate(reader.sized()?));
    match (algorithm, name_algorithm, x, y) {
        (ALGORITHM_ECC, ALGORITHM_SHA256, Some(x), Some(y)) => Ok(Point { x, y }),
        _ => {
            let why = "the storage root key is not of the kind that was asked for";
            Err(TpmError::Protocol { command: CREATE_PRIMARY.name, why })
        }
    }
}
