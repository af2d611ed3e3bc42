//! Operations about the server itself.

use crate::codec::structure;
use crate::protocol::{
    AttestationType, CancellationResult, CapabilityInformation, ClientRegistrationMethod,
    ExtensionInformation, ObjectType, Operation, ProfileInformation, ProtocolVersion, QueryFunction,
    RngParameters, ValidationInformation,
};
use crate::ttlv::{ByteString, Value};

structure! {
    /// Which versions are spoken (section 4.26, KMIP 1.1)?
    #[derive(Default)]
    pub struct DiscoverVersionsRequest {
        /// The versions that the client speaks, preferred first; all if none is named.
        protocol_versions: Vec<ProtocolVersion> = PROTOCOL_VERSION,
    }
}

structure! {
    /// The versions that both speak, or all that the server speaks.
    #[derive(Default)]
    pub struct DiscoverVersionsResponse {
        /// The versions, preferred first.
        protocol_versions: Vec<ProtocolVersion> = PROTOCOL_VERSION,
    }
}

structure! {
    /// Queries the server's capabilities (section 4.25).
    #[derive(Default)]
    pub struct QueryRequest {
        /// The functions to query.
        query_functions: Vec<QueryFunction> = QUERY_FUNCTION,
    }
}

structure! {
    /// The answers to the queried functions.
    #[derive(Default)]
    pub struct QueryResponse {
        /// Operations.
        operations: Vec<Operation> = OPERATION,
        /// Objects.
        object_types: Vec<ObjectType> = OBJECT_TYPE,
        /// The server's vendor.
        vendor_identification: Option<String> = VENDOR_IDENTIFICATION,
        /// The vendor's description: a structure with any fields.
        server_information: Option<Value> = SERVER_INFORMATION,
        /// The namespaces of application specific information that the server accepts.
        application_namespaces: Vec<String> = APPLICATION_NAMESPACE,
        /// Tags that the vendor added.
        extension_information: Vec<ExtensionInformation> = EXTENSION_INFORMATION since V1_1,
        /// How clients can attest their state.
        attestation_types: Vec<AttestationType> = ATTESTATION_TYPE since V1_2,
        /// How random numbers are made.
        rng_parameters: Vec<RngParameters> = RNG_PARAMETERS since V1_3,
        /// Profiles.
        profile_information: Vec<ProfileInformation> = PROFILE_INFORMATION since V1_3,
        /// Validations.
        validation_information: Vec<ValidationInformation> = VALIDATION_INFORMATION since V1_3,
        /// Capabilities.
        capability_information: Vec<CapabilityInformation> = CAPABILITY_INFORMATION since V1_3,
        /// How clients register.
        client_registration_methods: Vec<ClientRegistrationMethod> = CLIENT_REGISTRATION_METHOD since V1_3,
    }
}

structure! {
    /// Cancel an operation in progress (section 4.27).
    pub struct CancelRequest {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
    }
}

structure! {
    /// The result of a cancellation.
    pub struct CancelResponse {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
        /// Whether the operation was cancelled.
        cancellation_result: CancellationResult = CANCELLATION_RESULT,
    }
}

structure! {
    /// Poll for the answer of an operation (section 4.28), which is that of the operation itself.
    pub struct PollRequest {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
    }
}
