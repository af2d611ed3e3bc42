//! Enumerations: the capabilities of servers (KMIP 1.4, section 9.1.3.2).

use super::enumeration;

enumeration! {
    /// The subject of a Query.
    pub enum QueryFunction: QUERY_FUNCTION {
        Operations = 0x01 "QueryOperations",
        Objects = 0x02 "QueryObjects",
        ServerInformation = 0x03 "QueryServerInformation",
        ApplicationNamespaces = 0x04 "QueryApplicationNamespaces",
        ExtensionList = 0x05 "QueryExtensionList",
        ExtensionMap = 0x06 "QueryExtensionMap",
        AttestationTypes = 0x07 "QueryAttestationTypes",
        Rngs = 0x08 "QueryRNGs",
        Validations = 0x09 "QueryValidations",
        Profiles = 0x0A "QueryProfiles",
        Capabilities = 0x0B "QueryCapabilities",
        ClientRegistrationMethods = 0x0C "QueryClientRegistrationMethods",
    }
}

enumeration! {
    /// A kind of random number generator.
    pub enum RngAlgorithm: RNG_ALGORITHM {
        Unspecified = 0x01 "Unspecified",
        Fips1862 = 0x02 "FIPS186_2",
        Drbg = 0x03 "DRBG",
        Nrbg = 0x04 "NRBG",
        AnsiX931 = 0x05 "ANSIX9_31",
        AnsiX962 = 0x06 "ANSIX9_62",
    }
}

enumeration! {
    /// A kind of deterministic random bit generator.
    pub enum DrbgAlgorithm: DRBG_ALGORITHM {
        Unspecified = 0x01 "Unspecified",
        DualEc = 0x02 "Dual_EC",
        Hash = 0x03 "Hash",
        Hmac = 0x04 "HMAC",
        Ctr = 0x05 "CTR",
    }
}

enumeration! {
    /// A variation of the generators of FIPS 186.
    pub enum Fips186Variation: FIPS186_VARIATION {
        Unspecified = 0x01 "Unspecified",
        GpXOriginal = 0x02 "GPXOriginal",
        GpXChangeNotice = 0x03 "GPXChangeNotice",
        XOriginal = 0x04 "XOriginal",
        XChangeNotice = 0x05 "XChangeNotice",
        KOriginal = 0x06 "KOriginal",
        KChangeNotice = 0x07 "KChangeNotice",
    }
}

enumeration! {
    /// Who shares a random number generator.
    pub enum RngMode: RNG_MODE {
        Unspecified = 0x01 "Unspecified",
        SharedInstantiation = 0x02 "SharedInstantiation",
        NonSharedInstantiation = 0x03 "NonSharedInstantiation",
    }
}

enumeration! {
    /// The authority that validated a server.
    pub enum ValidationAuthorityType: VALIDATION_AUTHORITY_TYPE {
        Unspecified = 0x01 "Unspecified",
        NistCmvp = 0x02 "NISTCMVP",
        CommonCriteria = 0x03 "CommonCriteria",
    }
}

enumeration! {
    /// The validated part of a server.
    pub enum ValidationType: VALIDATION_TYPE {
        Unspecified = 0x01 "Unspecified",
        Hardware = 0x02 "Hardware",
        Software = 0x03 "Software",
        Firmware = 0x04 "Firmware",
        Hybrid = 0x05 "Hybrid",
    }
}

enumeration! {
    /// Whether a server processes wrapped keys.
    pub enum UnwrapMode: UNWRAP_MODE {
        Unspecified = 0x01 "Unspecified",
        Processed = 0x02 "Processed",
        NotProcessed = 0x03 "NotProcessed",
    }
}

enumeration! {
    /// A server's treatment of a destroyed object.
    pub enum DestroyAction: DESTROY_ACTION {
        Unspecified = 0x01 "Unspecified",
        KeyMaterialDeleted = 0x02 "KeyMaterialDeleted",
        KeyMaterialShredded = 0x03 "KeyMaterialShredded",
        MetaDataDeleted = 0x04 "MetaDataDeleted",
        MetaDataShredded = 0x05 "MetaDataShredded",
        Deleted = 0x06 "Deleted",
        Shredded = 0x07 "Shredded",
    }
}

enumeration! {
    /// How a server shreds.
    pub enum ShreddingAlgorithm: SHREDDING_ALGORITHM {
        Unspecified = 0x01 "Unspecified",
        Cryptographic = 0x02 "Cryptographic",
        Unsupported = 0x03 "Unsupported",
    }
}

enumeration! {
    /// How a client registers with a server.
    pub enum ClientRegistrationMethod: CLIENT_REGISTRATION_METHOD {
        Unspecified = 0x01 "Unspecified",
        ServerPreGenerated = 0x02 "ServerPreGenerated",
        ServerOnDemand = 0x03 "ServerOnDemand",
        ClientGenerated = 0x04 "ClientGenerated",
        ClientRegistered = 0x05 "ClientRegistered",
    }
}
