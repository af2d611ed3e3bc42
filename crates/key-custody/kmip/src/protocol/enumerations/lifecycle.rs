//! Enumerations: the types and states of objects (KMIP 1.4, section 9.1.3.2).

use super::enumeration;

enumeration! {
    /// The type of a managed object.
    pub enum ObjectType: OBJECT_TYPE {
        Certificate = 0x01 "Certificate",
        SymmetricKey = 0x02 "SymmetricKey",
        PublicKey = 0x03 "PublicKey",
        PrivateKey = 0x04 "PrivateKey",
        SplitKey = 0x05 "SplitKey",
        Template = 0x06 "Template",
        SecretData = 0x07 "SecretData",
        OpaqueObject = 0x08 "OpaqueObject",
        PgpKey = 0x09 "PGPKey",
    }
}

enumeration! {
    /// The state of an object.
    pub enum State: STATE {
        PreActive = 0x01 "PreActive",
        Active = 0x02 "Active",
        Deactivated = 0x03 "Deactivated",
        Compromised = 0x04 "Compromised",
        Destroyed = 0x05 "Destroyed",
        DestroyedCompromised = 0x06 "DestroyedCompromised",
    }
}

enumeration! {
    /// The type of a name.
    pub enum NameType: NAME_TYPE {
        UninterpretedTextString = 0x01 "UninterpretedTextString",
        Uri = 0x02 "URI",
    }
}

enumeration! {
    /// How one object is related to another.
    pub enum LinkType: LINK_TYPE {
        Certificate = 0x101 "CertificateLink",
        PublicKey = 0x102 "PublicKeyLink",
        PrivateKey = 0x103 "PrivateKeyLink",
        DerivationBaseObject = 0x104 "DerivationBaseObjectLink",
        DerivedKey = 0x105 "DerivedKeyLink",
        ReplacementObject = 0x106 "ReplacementObjectLink",
        ReplacedObject = 0x107 "ReplacedObjectLink",
        Parent = 0x108 "ParentLink",
        Child = 0x109 "ChildLink",
        Previous = 0x10A "PreviousLink",
        Next = 0x10B "NextLink",
        Pkcs12Certificate = 0x10C "PKCS_12CertificateLink",
        Pkcs12Password = 0x10D "PKCS_12PasswordLink",
        WrappingKey = 0x10E "WrappingKeyLink",
    }
}

enumeration! {
    /// Why an object is revoked.
    pub enum RevocationReasonCode: REVOCATION_REASON_CODE {
        Unspecified = 0x01 "Unspecified",
        KeyCompromise = 0x02 "KeyCompromise",
        CaCompromise = 0x03 "CACompromise",
        AffiliationChanged = 0x04 "AffiliationChanged",
        Superseded = 0x05 "Superseded",
        CessationOfOperation = 0x06 "CessationOfOperation",
        PrivilegeWithdrawn = 0x07 "PrivilegeWithdrawn",
    }
}

enumeration! {
    /// The kind of secret in a Secret Data object.
    pub enum SecretDataType: SECRET_DATA_TYPE {
        Password = 0x01 "Password",
        Seed = 0x02 "Seed",
    }
}

enumeration! {
    /// The type of an opaque object; every value is a vendor's.
    pub enum OpaqueDataType: OPAQUE_DATA_TYPE {
    }
}

enumeration! {
    /// The kind of certificate.
    pub enum CertificateType: CERTIFICATE_TYPE {
        X509 = 0x01 "X_509",
        Pgp = 0x02 "PGP",
    }
}

enumeration! {
    /// How a request for a certificate is encoded.
    pub enum CertificateRequestType: CERTIFICATE_REQUEST_TYPE {
        Crmf = 0x01 "CRMF",
        Pkcs10 = 0x02 "PKCS_10",
        Pem = 0x03 "PEM",
        Pgp = 0x04 "PGP",
    }
}

enumeration! {
    /// The unit that a usage limit counts.
    pub enum UsageLimitsUnit: USAGE_LIMITS_UNIT {
        Byte = 0x01 "Byte",
        Object = 0x02 "Object",
    }
}

enumeration! {
    /// The member of a group to locate.
    pub enum ObjectGroupMember: OBJECT_GROUP_MEMBER {
        Fresh = 0x01 "GroupMemberFresh",
        Default = 0x02 "GroupMemberDefault",
    }
}

enumeration! {
    /// The type of an alternative name.
    pub enum AlternativeNameType: ALTERNATIVE_NAME_TYPE {
        UninterpretedTextString = 0x01 "UninterpretedTextString",
        Uri = 0x02 "URI",
        ObjectSerialNumber = 0x03 "ObjectSerialNumber",
        EmailAddress = 0x04 "EmailAddress",
        DnsName = 0x05 "DNSName",
        X500DistinguishedName = 0x06 "X_500DistinguishedName",
        IpAddress = 0x07 "IPAddress",
    }
}

enumeration! {
    /// The type of a key value's location.
    pub enum KeyValueLocationType: KEY_VALUE_LOCATION_TYPE {
        UninterpretedTextString = 0x01 "UninterpretedTextString",
        Uri = 0x02 "URI",
    }
}

enumeration! {
    /// How a key was split.
    pub enum SplitKeyMethod: SPLIT_KEY_METHOD {
        Xor = 0x01 "XOR",
        PolynomialSharingGf2_16 = 0x02 "PolynomialSharingGF2_16",
        PolynomialSharingPrimeField = 0x03 "PolynomialSharingPrimeField",
        PolynomialSharingGf2_8 = 0x04 "PolynomialSharingGF2_8",
    }
}
