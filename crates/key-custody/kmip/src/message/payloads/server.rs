//! Operations that have to do with the server itself.

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
        /// Those that the client speaks, best first; all where none is named.
        protocol_versions: Vec<ProtocolVersion> = PROTOCOL_VERSION,
    }
}

structure! {
    /// The versions that both speak, or all that the server does.
    #[derive(Default)]
    pub struct DiscoverVersionsResponse {
        /// The versions, best first.
        protocol_versions: Vec<ProtocolVersion> = PROTOCOL_VERSION,
    }
}

structure! {
    /// What can the server do (section 4.25)?
    #[derive(Default)]
    pub struct QueryRequest {
        /// What is asked.
        query_functions: Vec<QueryFunction> = QUERY_FUNCTION,
    }
}

structure! {
    /// What the server can do, as far as it was asked.
    #[derive(Default)]
    pub struct QueryResponse {
        /// Operations.
        operations: Vec<Operation> = OPERATION,
        /// Objects.
        object_types: Vec<ObjectType> = OBJECT_TYPE,
        /// Whose server it is.
        vendor_identification: Option<String> = VENDOR_IDENTIFICATION,
        /// What the vendor says about it: a structure with any fields.
        server_information: Option<Value> = SERVER_INFORMATION,
        /// Whose application specific information is taken.
        application_namespaces: Vec<String> = APPLICATION_NAMESPACE,
        /// Tags that the vendor added.
        extension_information: Vec<ExtensionInformation> = EXTENSION_INFORMATION since V1_1,
        /// How clients can attest themselves.
        attestation_types: Vec<AttestationType> = ATTESTATION_TYPE since V1_2,
        /// How random numbers are made.
        rng_parameters: Vec<RngParameters> = RNG_PARAMETERS since V1_3,
        /// Profiles.
        profile_information: Vec<ProfileInformation> = PROFILE_INFORMATION since V1_3,
        /// Validations.
        validation_information: Vec<ValidationInformation> = VALIDATION_INFORMATION since V1_3,
        /// Capabilities.
        capability_information: Vec<CapabilityInformation> = CAPABILITY_INFORMATION since V1_3,
        /// How a client becomes known.
        client_registration_methods: Vec<ClientRegistrationMethod> = CLIENT_REGISTRATION_METHOD since V1_3,
    }
}

structure! {
    /// Give up an operation that is still under way (section 4.27).
    pub struct CancelRequest {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
    }
}

structure! {
    /// What became of that.
    pub struct CancelResponse {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
        /// Whether it was given up.
        cancellation_result: CancellationResult = CANCELLATION_RESULT,
    }
}

structure! {
    /// Ask how an operation goes (section 4.28). The answer is that of the operation itself.
    pub struct PollRequest {
        /// Which one.
        asynchronous_correlation_value: ByteString = ASYNCHRONOUS_CORRELATION_VALUE,
    }
}
