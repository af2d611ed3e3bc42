//! Enumerations: operations, their results, and message headers (KMIP 1.4, section 9.1.3.2).

use super::enumeration;
use crate::codec::{DecodeError, Problem};

enumeration! {
    /// The operation that a client requests.
    pub enum Operation: OPERATION {
        Create = 0x01 "Create",
        CreateKeyPair = 0x02 "CreateKeyPair",
        Register = 0x03 "Register",
        ReKey = 0x04 "ReKey",
        DeriveKey = 0x05 "DeriveKey",
        Certify = 0x06 "Certify",
        ReCertify = 0x07 "ReCertify",
        Locate = 0x08 "Locate",
        Check = 0x09 "Check",
        Get = 0x0A "Get",
        GetAttributes = 0x0B "GetAttributes",
        GetAttributeList = 0x0C "GetAttributeList",
        AddAttribute = 0x0D "AddAttribute",
        ModifyAttribute = 0x0E "ModifyAttribute",
        DeleteAttribute = 0x0F "DeleteAttribute",
        ObtainLease = 0x10 "ObtainLease",
        GetUsageAllocation = 0x11 "GetUsageAllocation",
        Activate = 0x12 "Activate",
        Revoke = 0x13 "Revoke",
        Destroy = 0x14 "Destroy",
        Archive = 0x15 "Archive",
        Recover = 0x16 "Recover",
        Validate = 0x17 "Validate",
        Query = 0x18 "Query",
        Cancel = 0x19 "Cancel",
        Poll = 0x1A "Poll",
        Notify = 0x1B "Notify",
        Put = 0x1C "Put",
        ReKeyKeyPair = 0x1D "ReKeyKeyPair",
        DiscoverVersions = 0x1E "DiscoverVersions",
        Encrypt = 0x1F "Encrypt",
        Decrypt = 0x20 "Decrypt",
        Sign = 0x21 "Sign",
        SignatureVerify = 0x22 "SignatureVerify",
        Mac = 0x23 "MAC",
        MacVerify = 0x24 "MACVerify",
        RngRetrieve = 0x25 "RNGRetrieve",
        RngSeed = 0x26 "RNGSeed",
        Hash = 0x27 "Hash",
        CreateSplitKey = 0x28 "CreateSplitKey",
        JoinSplitKey = 0x29 "JoinSplitKey",
        Import = 0x2A "Import",
        Export = 0x2B "Export",
    }
}

enumeration! {
    /// The result of an operation.
    pub enum ResultStatus: RESULT_STATUS {
        Success = 0x00 "Success",
        OperationFailed = 0x01 "OperationFailed",
        OperationPending = 0x02 "OperationPending",
        OperationUndone = 0x03 "OperationUndone",
    }
}

enumeration! {
    /// Why an operation failed.
    pub enum ResultReason: RESULT_REASON {
        ItemNotFound = 0x01 "ItemNotFound",
        ResponseTooLarge = 0x02 "ResponseTooLarge",
        AuthenticationNotSuccessful = 0x03 "AuthenticationNotSuccessful",
        InvalidMessage = 0x04 "InvalidMessage",
        OperationNotSupported = 0x05 "OperationNotSupported",
        MissingData = 0x06 "MissingData",
        InvalidField = 0x07 "InvalidField",
        FeatureNotSupported = 0x08 "FeatureNotSupported",
        OperationCanceledByRequester = 0x09 "OperationCanceledByRequester",
        CryptographicFailure = 0x0A "CryptographicFailure",
        IllegalOperation = 0x0B "IllegalOperation",
        PermissionDenied = 0x0C "PermissionDenied",
        ObjectArchived = 0x0D "ObjectArchived",
        IndexOutOfBounds = 0x0E "IndexOutofBounds",
        ApplicationNamespaceNotSupported = 0x0F "ApplicationNamespaceNotSupported",
        KeyFormatTypeNotSupported = 0x10 "KeyFormatTypeNotSupported",
        KeyCompressionTypeNotSupported = 0x11 "KeyCompressionTypeNotSupported",
        EncodingOptionError = 0x12 "EncodingOptionError",
        KeyValueNotPresent = 0x13 "KeyValueNotPresent",
        AttestationRequired = 0x14 "AttestationRequired",
        AttestationFailed = 0x15 "AttestationFailed",
        Sensitive = 0x16 "Sensitive",
        NotExtractable = 0x17 "NotExtractable",
        ObjectAlreadyExists = 0x18 "ObjectAlreadyExists",
        GeneralFailure = 0x100 "GeneralFailure",
    }
}

/// The result reason for a peer whose message or item cannot be decoded (KMIP 1.4, sections
/// 9.1.3.2.29 and 11).
impl From<&DecodeError> for ResultReason {
    fn from(error: &DecodeError) -> Self {
        match error {
            DecodeError::Ttlv(_) | DecodeError::Version(_) | DecodeError::BatchCount { .. } => {
                Self::InvalidMessage
            }
            DecodeError::Field { problem, .. } => match problem {
                Problem::Missing(_) => Self::MissingData,
                Problem::WrongType { .. } => Self::InvalidMessage,
                Problem::Unexpected(..) | Problem::Repeated(_) | Problem::Value { .. } => Self::InvalidField,
            },
        }
    }
}

enumeration! {
    /// The treatment of the rest of a batch when one item fails.
    pub enum BatchErrorContinuationOption: BATCH_ERROR_CONTINUATION_OPTION {
        Continue = 0x01 "Continue",
        Stop = 0x02 "Stop",
        Undo = 0x03 "Undo",
    }
}

enumeration! {
    /// The result of a cancellation.
    pub enum CancellationResult: CANCELLATION_RESULT {
        Canceled = 0x01 "Canceled",
        UnableToCancel = 0x02 "UnableToCancel",
        Completed = 0x03 "Completed",
        Failed = 0x04 "Failed",
        Unavailable = 0x05 "Unavailable",
    }
}

enumeration! {
    /// How a server puts an object to a client.
    pub enum PutFunction: PUT_FUNCTION {
        New = 0x01 "New",
        Replace = 0x02 "Replace",
    }
}

enumeration! {
    /// The type of a client's credential.
    pub enum CredentialType: CREDENTIAL_TYPE {
        UsernameAndPassword = 0x01 "UsernameAndPassword",
        Device = 0x02 "Device",
        Attestation = 0x03 "Attestation",
    }
}

enumeration! {
    /// How a client proves its state.
    pub enum AttestationType: ATTESTATION_TYPE {
        TpmQuote = 0x01 "TPMQuote",
        TcgIntegrityReport = 0x02 "TCGIntegrityReport",
        SamlAssertion = 0x03 "SAMLAssertion",
    }
}
