//! Errors of a TPM. Codes are those of TPM 2.0 Library, Part 2, 6.6.

use std::io;

use thiserror::Error;

use super::{PCR_MAX, PcrSelection, TpmDevice};

/// Why a TPM command failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TpmError {
    /// The TPM cannot be reached.
    #[error(
        "cannot reach the TPM at {device}: {error}; is there one (`ls /dev/tpmrm*`), is it switched on in the firmware, and may this user open it (group tss)?"
    )]
    Unreachable {
        /// The configured device.
        device: TpmDevice,
        /// The system's error.
        error: io::Error,
    },
    /// There is no such PCR.
    #[error("there is no PCR {pcr}: a TPM has 0 to {PCR_MAX}")]
    NoSuchPcr {
        /// The number.
        pcr: u8,
    },
    /// It is another TPM, or was cleared.
    #[error(
        "the TPM at {device} is not the one that the root key was sealed by, or was cleared since; put the disk back into its machine, or restore the server from a backup"
    )]
    OtherTpm {
        /// The TPM's device.
        device: TpmDevice,
    },
    /// The PCRs differ.
    #[error(
        "the TPM keeps the root key closed: PCRs {pcrs} are not as they were when it was sealed (an update of firmware, boot loader or Secure Boot keys changes them). Boot the former state and seal the root anew for the new one, or restore the server from a backup"
    )]
    PcrsChanged {
        /// The PCRs of the policy.
        pcrs: PcrSelection,
    },
    /// The owner hierarchy has a password.
    #[error(
        "the TPM's owner hierarchy has a password, so that its storage root key cannot be made; remove it (`tpm2_changeauth -c owner`), or use another way"
    )]
    OwnerPassword,
    /// The owner hierarchy is switched off.
    #[error("the TPM's owner hierarchy is disabled; enable it in the firmware's settings")]
    OwnerDisabled,
    /// The TPM is locked out after wrong passwords of other users.
    #[error(
        "the TPM is in its lock-out after wrong passwords of other keys; wait until it ends by itself, or run `tpm2_dictionarylockout --clear-lockout`. The root key does not count"
    )]
    LockOut,
    /// The sealed object on record is damaged.
    #[error("the TPM does not take the sealed root key from the record: it was changed")]
    NotAuthentic,
    /// The response is not from the TPM that holds the session's key.
    #[error(
        "the TPM's answer to {command} does not authenticate: something between this program and the TPM changes it"
    )]
    Answer {
        /// The command.
        command: &'static str,
    },
    /// The response is not a TPM response.
    #[error("what answered {command} is no TPM 2.0: {why}")]
    Protocol {
        /// The command.
        command: &'static str,
        /// What is wrong.
        why: &'static str,
    },
    /// Any other refusal.
    #[error("the TPM refused {command} with code {code:#05x} (`tpm2_rc_decode {code:#x}` explains it)")]
    Refused {
        /// The command.
        command: &'static str,
        /// The TPM's code.
        code: u32,
    },
    /// The library of ciphers refused.
    #[error("{call} failed in the cryptographic library")]
    Library {
        /// The call.
        call: &'static str,
    },
}

/// Format-one codes are distinguished by their low six bits and the format bit; the rest identifies
/// the handle, session or parameter.
const FORMAT_ONE: u32 = 0x080;
const FORMAT_ONE_MASK: u32 = 0x0bf;

const RC_LOCKOUT: u32 = 0x921;
const RC_PCR_CHANGED: u32 = 0x128;
const RC_HIERARCHY: u32 = FORMAT_ONE | 0x05;
const RC_AUTH_FAIL: u32 = FORMAT_ONE | 0x0e;
const RC_POLICY_FAIL: u32 = FORMAT_ONE | 0x1d;
const RC_INTEGRITY: u32 = FORMAT_ONE | 0x1f;
const RC_BAD_AUTH: u32 = FORMAT_ONE | 0x22;

impl TpmError {
    /// The error for a response code.
    pub(super) fn of_code(command: &'static str, code: u32, pcrs: Option<&PcrSelection>) -> Self {
        let kind = if code & FORMAT_ONE == 0 { code } else { code & FORMAT_ONE_MASK };
        match (kind, pcrs) {
            (RC_LOCKOUT, _) => Self::LockOut,
            (RC_PCR_CHANGED | RC_POLICY_FAIL, Some(pcrs)) => Self::PcrsChanged { pcrs: pcrs.clone() },
            (RC_INTEGRITY, _) => Self::NotAuthentic,
            (RC_HIERARCHY, _) => Self::OwnerDisabled,
            (RC_BAD_AUTH | RC_AUTH_FAIL, _) if command == "TPM2_CreatePrimary" => Self::OwnerPassword,
            _ => Self::Refused { command, code },
        }
    }
}
