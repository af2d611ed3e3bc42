//! Enumerations: algorithms, modes and encodings (KMIP 1.4, section 9.1.3.2).

use super::enumeration;

enumeration! {
    /// The algorithm of a key.
    pub enum CryptographicAlgorithm: CRYPTOGRAPHIC_ALGORITHM {
        Des = 0x01 "DES",
        TripleDes = 0x02 "DES3",
        Aes = 0x03 "AES",
        Rsa = 0x04 "RSA",
        Dsa = 0x05 "DSA",
        Ecdsa = 0x06 "ECDSA",
        HmacSha1 = 0x07 "HMAC_SHA1",
        HmacSha224 = 0x08 "HMAC_SHA224",
        HmacSha256 = 0x09 "HMAC_SHA256",
        HmacSha384 = 0x0A "HMAC_SHA384",
        HmacSha512 = 0x0B "HMAC_SHA512",
        HmacMd5 = 0x0C "HMAC_MD5",
        Dh = 0x0D "DH",
        Ecdh = 0x0E "ECDH",
        Ecmqv = 0x0F "ECMQV",
        Blowfish = 0x10 "Blowfish",
        Camellia = 0x11 "Camellia",
        Cast5 = 0x12 "CAST5",
        Idea = 0x13 "IDEA",
        Mars = 0x14 "MARS",
        Rc2 = 0x15 "RC2",
        Rc4 = 0x16 "RC4",
        Rc5 = 0x17 "RC5",
        Skipjack = 0x18 "SKIPJACK",
        Twofish = 0x19 "Twofish",
        Ec = 0x1A "EC",
        OneTimePad = 0x1B "OneTimePad",
        ChaCha20 = 0x1C "ChaCha20",
        Poly1305 = 0x1D "Poly1305",
        ChaCha20Poly1305 = 0x1E "ChaCha20Poly1305",
        Sha3_224 = 0x1F "SHA3_224",
        Sha3_256 = 0x20 "SHA3_256",
        Sha3_384 = 0x21 "SHA3_384",
        Sha3_512 = 0x22 "SHA3_512",
        HmacSha3_224 = 0x23 "HMAC_SHA3_224",
        HmacSha3_256 = 0x24 "HMAC_SHA3_256",
        HmacSha3_384 = 0x25 "HMAC_SHA3_384",
        HmacSha3_512 = 0x26 "HMAC_SHA3_512",
        Shake128 = 0x27 "SHAKE_128",
        Shake256 = 0x28 "SHAKE_256",
    }
}

enumeration! {
    /// The mode of a block cipher.
    pub enum BlockCipherMode: BLOCK_CIPHER_MODE {
        Cbc = 0x01 "CBC",
        Ecb = 0x02 "ECB",
        Pcbc = 0x03 "PCBC",
        Cfb = 0x04 "CFB",
        Ofb = 0x05 "OFB",
        Ctr = 0x06 "CTR",
        Cmac = 0x07 "CMAC",
        Ccm = 0x08 "CCM",
        Gcm = 0x09 "GCM",
        CbcMac = 0x0A "CBC_MAC",
        Xts = 0x0B "XTS",
        AesKeyWrapPadding = 0x0C "AESKeyWrapPadding",
        NistKeyWrap = 0x0D "NISTKeyWrap",
        X9102AesKw = 0x0E "X9_102AESKW",
        X9102TdKw = 0x0F "X9_102TDKW",
        X9102Akw1 = 0x10 "X9_102AKW1",
        X9102Akw2 = 0x11 "X9_102AKW2",
        Aead = 0x12 "AEAD",
    }
}

enumeration! {
    /// How data is padded to whole blocks.
    pub enum PaddingMethod: PADDING_METHOD {
        None = 0x01 "None",
        Oaep = 0x02 "OAEP",
        Pkcs5 = 0x03 "PKCS5",
        Ssl3 = 0x04 "SSL3",
        Zeros = 0x05 "Zeros",
        AnsiX923 = 0x06 "ANSIX9_23",
        Iso10126 = 0x07 "ISO10126",
        Pkcs1V15 = 0x08 "PKCS1V1_5",
        X931 = 0x09 "X9_31",
        Pss = 0x0A "PSS",
    }
}

enumeration! {
    /// A hash function.
    pub enum HashingAlgorithm: HASHING_ALGORITHM {
        Md2 = 0x01 "MD2",
        Md4 = 0x02 "MD4",
        Md5 = 0x03 "MD5",
        Sha1 = 0x04 "SHA_1",
        Sha224 = 0x05 "SHA_224",
        Sha256 = 0x06 "SHA_256",
        Sha384 = 0x07 "SHA_384",
        Sha512 = 0x08 "SHA_512",
        Ripemd160 = 0x09 "RIPEMD_160",
        Tiger = 0x0A "Tiger",
        Whirlpool = 0x0B "Whirlpool",
        Sha512_224 = 0x0C "SHA_512_224",
        Sha512_256 = 0x0D "SHA_512_256",
        Sha3_224 = 0x0E "SHA_3_224",
        Sha3_256 = 0x0F "SHA_3_256",
        Sha3_384 = 0x10 "SHA_3_384",
        Sha3_512 = 0x11 "SHA_3_512",
    }
}

enumeration! {
    /// A signature algorithm.
    pub enum DigitalSignatureAlgorithm: DIGITAL_SIGNATURE_ALGORITHM {
        Md2WithRsaEncryption = 0x01 "MD2WithRSAEncryption",
        Md5WithRsaEncryption = 0x02 "MD5WithRSAEncryption",
        Sha1WithRsaEncryption = 0x03 "SHA_1WithRSAEncryption",
        Sha224WithRsaEncryption = 0x04 "SHA_224WithRSAEncryption",
        Sha256WithRsaEncryption = 0x05 "SHA_256WithRSAEncryption",
        Sha384WithRsaEncryption = 0x06 "SHA_384WithRSAEncryption",
        Sha512WithRsaEncryption = 0x07 "SHA_512WithRSAEncryption",
        RsassaPss = 0x08 "RSASSA_PSS",
        DsaWithSha1 = 0x09 "DSAWithSHA_1",
        DsaWithSha224 = 0x0A "DSAWithSHA224",
        DsaWithSha256 = 0x0B "DSAWithSHA256",
        EcdsaWithSha1 = 0x0C "ECDSAWithSHA_1",
        EcdsaWithSha224 = 0x0D "ECDSAWithSHA224",
        EcdsaWithSha256 = 0x0E "ECDSAWithSHA256",
        EcdsaWithSha384 = 0x0F "ECDSAWithSHA384",
        EcdsaWithSha512 = 0x10 "ECDSAWithSHA512",
        Sha3_256WithRsaEncryption = 0x11 "SHA3_256WithRSAEncryption",
        Sha3_384WithRsaEncryption = 0x12 "SHA3_384WithRSAEncryption",
        Sha3_512WithRsaEncryption = 0x13 "SHA3_512WithRSAEncryption",
    }
}

enumeration! {
    /// A mask generation function.
    pub enum MaskGenerator: MASK_GENERATOR {
        Mgf1 = 0x01 "MGF1",
    }
}

enumeration! {
    /// The role of a key in payment systems.
    pub enum KeyRoleType: KEY_ROLE_TYPE {
        Bdk = 0x01 "BDK",
        Cvk = 0x02 "CVK",
        Dek = 0x03 "DEK",
        Mkac = 0x04 "MKAC",
        Mksmc = 0x05 "MKSMC",
        Mksmi = 0x06 "MKSMI",
        Mkdac = 0x07 "MKDAC",
        Mkdn = 0x08 "MKDN",
        Mkcp = 0x09 "MKCP",
        Mkoth = 0x0A "MKOTH",
        Kek = 0x0B "KEK",
        Mac16609 = 0x0C "MAC16609",
        Mac97971 = 0x0D "MAC97971",
        Mac97972 = 0x0E "MAC97972",
        Mac97973 = 0x0F "MAC97973",
        Mac97974 = 0x10 "MAC97974",
        Mac97975 = 0x11 "MAC97975",
        Zpk = 0x12 "ZPK",
        Pvkibm = 0x13 "PVKIBM",
        Pvkpvv = 0x14 "PVKPVV",
        Pvkoth = 0x15 "PVKOTH",
        Dukpt = 0x16 "DUKPT",
        Iv = 0x17 "IV",
        Trkbk = 0x18 "TRKBK",
    }
}

enumeration! {
    /// How key material is encoded.
    pub enum KeyFormatType: KEY_FORMAT_TYPE {
        Raw = 0x01 "Raw",
        Opaque = 0x02 "Opaque",
        Pkcs1 = 0x03 "PKCS_1",
        Pkcs8 = 0x04 "PKCS_8",
        X509 = 0x05 "X_509",
        EcPrivateKey = 0x06 "ECPrivateKey",
        TransparentSymmetricKey = 0x07 "TransparentSymmetricKey",
        TransparentDsaPrivateKey = 0x08 "TransparentDSAPrivateKey",
        TransparentDsaPublicKey = 0x09 "TransparentDSAPublicKey",
        TransparentRsaPrivateKey = 0x0A "TransparentRSAPrivateKey",
        TransparentRsaPublicKey = 0x0B "TransparentRSAPublicKey",
        TransparentDhPrivateKey = 0x0C "TransparentDHPrivateKey",
        TransparentDhPublicKey = 0x0D "TransparentDHPublicKey",
        TransparentEcdsaPrivateKey = 0x0E "TransparentECDSAPrivateKey",
        TransparentEcdsaPublicKey = 0x0F "TransparentECDSAPublicKey",
        TransparentEcdhPrivateKey = 0x10 "TransparentECDHPrivateKey",
        TransparentEcdhPublicKey = 0x11 "TransparentECDHPublicKey",
        TransparentEcmqvPrivateKey = 0x12 "TransparentECMQVPrivateKey",
        TransparentEcmqvPublicKey = 0x13 "TransparentECMQVPublicKey",
        TransparentEcPrivateKey = 0x14 "TransparentECPrivateKey",
        TransparentEcPublicKey = 0x15 "TransparentECPublicKey",
        Pkcs12 = 0x16 "PKCS_12",
    }
}

enumeration! {
    /// How a point of an elliptic curve is encoded.
    pub enum KeyCompressionType: KEY_COMPRESSION_TYPE {
        EcPublicKeyTypeUncompressed = 0x01 "ECPublicKeyTypeUncompressed",
        EcPublicKeyTypeX9_62CompressedPrime = 0x02 "ECPublicKeyTypeX9_62CompressedPrime",
        EcPublicKeyTypeX9_62CompressedChar2 = 0x03 "ECPublicKeyTypeX9_62CompressedChar2",
        EcPublicKeyTypeX9_62Hybrid = 0x04 "ECPublicKeyTypeX9_62Hybrid",
    }
}

enumeration! {
    /// Whether a registered wrapped key is returned wrapped.
    pub enum KeyWrapType: KEY_WRAP_TYPE {
        NotWrapped = 0x01 "NotWrapped",
        AsRegistered = 0x02 "AsRegistered",
    }
}

enumeration! {
    /// How a key is wrapped.
    pub enum WrappingMethod: WRAPPING_METHOD {
        Encrypt = 0x01 "Encrypt",
        MacSign = 0x02 "MACSign",
        EncryptThenMacSign = 0x03 "EncryptThenMACSign",
        MacSignThenEncrypt = 0x04 "MACSignThenEncrypt",
        Tr31 = 0x05 "TR_31",
    }
}

enumeration! {
    /// The part of a key that is wrapped.
    pub enum EncodingOption: ENCODING_OPTION {
        NoEncoding = 0x01 "NoEncoding",
        TtlvEncoding = 0x02 "TTLVEncoding",
    }
}

enumeration! {
    /// How a key is derived.
    pub enum DerivationMethod: DERIVATION_METHOD {
        Pbkdf2 = 0x01 "PBKDF2",
        Hash = 0x02 "HASH",
        Hmac = 0x03 "HMAC",
        Encrypt = 0x04 "ENCRYPT",
        Nist800_108C = 0x05 "NIST800_108_C",
        Nist800_108F = 0x06 "NIST800_108_F",
        Nist800_108Dpi = 0x07 "NIST800_108_DPI",
        AsymmetricKey = 0x08 "AsymmetricKey",
    }
}

enumeration! {
    /// Whether a signature or MAC is valid.
    pub enum ValidityIndicator: VALIDITY_INDICATOR {
        Valid = 0x01 "Valid",
        Invalid = 0x02 "Invalid",
        Unknown = 0x03 "Unknown",
    }
}
