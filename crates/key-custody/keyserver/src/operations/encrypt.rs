//! Encrypt and Decrypt (KMIP 1.4, 4.29 and 4.30), if enabled: AES in ECB, CBC and GCM.

use strongroom_kmip::message::{DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse};
use strongroom_kmip::protocol::{
    AttributeName, AttributeValue, BlockCipherMode, CryptographicAlgorithm, CryptographicParameters,
    CryptographicUsageMask, PaddingMethod, ProtocolVersion, ResultReason,
};
use strongroom_kmip::ttlv::ByteString;
use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroizing;

use super::Context;
use super::ciphers::{self, BLOCK_BYTES, CipherError, GCM_NONCE_BYTES, Mode, Padding};
use super::wrap::{check_may_be_used, parameters_of, use_allowance};
use crate::failure::Failure;
use crate::objects::object::Object;

/// The default length of a tag: the full length.
const WHOLE_TAG_BYTES: usize = 16;

/// Encrypts a client's data with a key that may protect.
pub fn encrypt(context: &mut Context<'_, '_>, request: &EncryptRequest) -> Result<EncryptResponse, Failure> {
    check_in_one_part(&request.correlation_value, request.init_indicator, request.final_indicator)?;
    let data = request.data.as_ref().ok_or_else(missing_data)?;
    let mut key = context.online_object(request.unique_identifier.as_ref())?;
    check_may_be_used(&key, CryptographicUsageMask::ENCRYPT)?;
    if !key.life.may_protect(context.work.now()) {
        return Err(Failure::denied("the key may not protect now; see its state and dates"));
    }
    let parameters = Parameters::of(request.cryptographic_parameters.as_ref(), &key)?;
    let given_iv = request.iv_counter_nonce.as_ref();
    let secret = aes_key(&key)?;
    let mut answer = EncryptResponse {
        unique_identifier: key.id.to_string(),
        data: None,
        iv_counter_nonce: None,
        correlation_value: None,
        authenticated_encryption_tag: None,
    };
    let iv = |length_bytes| parameters.iv(given_iv, length_bytes);
    match parameters.mode {
        BlockCipherMode::Ecb => {
            answer.data =
                Some(ciphers::encrypt(secret, Mode::Ecb, parameters.padding, data.expose())?.into());
        }
        BlockCipherMode::Cbc => {
            let (iv, made) = iv(BLOCK_BYTES)?;
            let mode = Mode::Cbc(exactly(&iv)?);
            answer.data = Some(ciphers::encrypt(secret, mode, parameters.padding, data.expose())?.into());
            answer.iv_counter_nonce = made.then(|| iv.into());
        }
        _ => {
            let (nonce, made) = iv(GCM_NONCE_BYTES)?;
            let additional = request.additional_data.as_ref().map_or(&[][..], ByteString::expose);
            let (mut text, tag) =
                ciphers::seal_gcm(secret, &nonce, additional, data.expose(), parameters.tag_bytes)?;
            if context.version < ProtocolVersion::V1_4 {
                let mut with_tag = Zeroizing::new(Vec::with_capacity(text.len() + tag.len()));
                with_tag.extend_from_slice(&text);
                with_tag.extend_from_slice(&tag);
                text = with_tag;
            } else {
                answer.authenticated_encryption_tag = Some(tag.into());
            }
            answer.data = Some(text.into());
            answer.iv_counter_nonce = made.then(|| nonce.into());
        }
    }
    if use_allowance(&mut key, data.len())? {
        key.touch(context.work.now());
        context.work.replace(key)?;
    }
    Ok(answer)
}

/// Decrypts a client's data with a key that may process.
pub fn decrypt(context: &mut Context<'_, '_>, request: &DecryptRequest) -> Result<DecryptResponse, Failure> {
    check_in_one_part(&request.correlation_value, request.init_indicator, request.final_indicator)?;
    let data = request.data.as_ref().ok_or_else(missing_data)?;
    let key = context.online_object(request.unique_identifier.as_ref())?;
    check_may_be_used(&key, CryptographicUsageMask::DECRYPT)?;
    if !key.life.may_process(context.work.now()) {
        return Err(Failure::denied("the key may not process now; see its state and dates"));
    }
    let parameters = Parameters::of(request.cryptographic_parameters.as_ref(), &key)?;
    let secret = aes_key(&key)?;
    let iv = || {
        let missing = || Failure::new(ResultReason::InvalidMessage, "the initialisation vector is missing");
        request.iv_counter_nonce.as_ref().ok_or_else(missing)
    };
    let text = match parameters.mode {
        BlockCipherMode::Ecb => ciphers::decrypt(secret, Mode::Ecb, parameters.padding, data.expose())?,
        BlockCipherMode::Cbc => {
            let mode = Mode::Cbc(exactly(iv()?.expose())?);
            ciphers::decrypt(secret, mode, parameters.padding, data.expose())?
        }
        _ => {
            let nonce = iv()?.expose();
            let additional = request.additional_data.as_ref().map_or(&[][..], ByteString::expose);
            let (text, tag) = match &request.authenticated_encryption_tag {
                Some(tag) => (data.expose(), tag.expose()),
                None if context.version < ProtocolVersion::V1_4 => data
                    .expose()
                    .split_at_checked(data.len().saturating_sub(parameters.tag_bytes))
                    .ok_or(CipherError::DoesNotDecrypt)?,
                None => {
                    return Err(Failure::new(
                        ResultReason::InvalidMessage,
                        "the authentication tag is missing",
                    ));
                }
            };
            ciphers::open_gcm(secret, nonce, additional, text, tag)?
        }
    };
    Ok(DecryptResponse {
        unique_identifier: key.id.to_string(),
        data: Some(text.into()),
        correlation_value: None,
    })
}

/// How data is encrypted.
struct Parameters {
    mode: BlockCipherMode,
    padding: Padding,
    random_iv: bool,
    tag_bytes: usize,
}

impl Parameters {
    fn of(asked: Option<&CryptographicParameters>, key: &Object) -> Result<Self, Failure> {
        let parameters = parameters_of(asked, key).ok_or_else(|| {
            Failure::new(ResultReason::MissingData, "neither the request nor the key says how")
        })?;
        let mode = match parameters.block_cipher_mode {
            Some(mode @ (BlockCipherMode::Ecb | BlockCipherMode::Cbc | BlockCipherMode::Gcm)) => mode,
            Some(other) => return Err(Failure::not_offered(format!("{other} is not offered here"))),
            None => return Err(Failure::new(ResultReason::MissingData, "a Block Cipher Mode is needed")),
        };
        let padding = match parameters.padding_method {
            None | Some(PaddingMethod::None) => Padding::None,
            Some(PaddingMethod::Pkcs5) => Padding::Pkcs5,
            Some(other) => return Err(Failure::not_offered(format!("{other} is not offered here"))),
        };
        let tag_bytes = match parameters.tag_length {
            None => WHOLE_TAG_BYTES,
            Some(length) => usize::try_from(length).map_err(|_| CipherError::TagLength)?,
        };
        Ok(Self { mode, padding, random_iv: parameters.random_iv.unwrap_or(false), tag_bytes })
    }

    /// The client's initialisation vector, or one made by the server (`true`).
    fn iv(&self, given: Option<&ByteString>, length_bytes: usize) -> Result<(Vec<u8>, bool), Failure> {
        match given {
            Some(iv) => Ok((iv.expose().to_vec(), false)),
            None if self.random_iv => Ok((SecretBytes::random(length_bytes)?.expose().to_vec(), true)),
            None => Err(Failure::new(
                ResultReason::InvalidMessage,
                "the initialisation vector is missing, and Random IV does not ask for one",
            )),
        }
    }
}

impl From<CipherError> for Failure {
    fn from(error: CipherError) -> Self {
        match error {
            CipherError::Secret(error) => error.into(),
            // The standard's test cases expect no more specific reason.
            CipherError::TagLength => Self::new(ResultReason::GeneralFailure, error.to_string()),
            error => Self::new(ResultReason::CryptographicFailure, error.to_string()),
        }
    }
}

/// Refuses data in parts: data must come whole, in one message.
pub(super) fn check_in_one_part(
    correlation_value: &Option<ByteString>,
    init: Option<bool>,
    last: Option<bool>,
) -> Result<(), Failure> {
    // A first part that is the last part as well is the whole.
    let whole = matches!((init, last), (None | Some(false), None) | (Some(true), Some(true)));
    if correlation_value.is_some() || !whole {
        return Err(Failure::not_offered("data comes in one part here"));
    }
    Ok(())
}

pub(super) fn missing_data() -> Failure {
    Failure::new(ResultReason::MissingData, "there are no data")
}

fn aes_key(key: &Object) -> Result<&SecretBytes, Failure> {
    let is_aes = key.attributes.get(&AttributeName::CryptographicAlgorithm)
        == Some(&AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes));
    key.plain_key().filter(|_| is_aes).ok_or_else(|| {
        Failure::new(ResultReason::CryptographicFailure, "only plain keys of AES encrypt and decrypt here")
    })
}

fn exactly<const BYTES: usize>(bytes: &[u8]) -> Result<[u8; BYTES], Failure> {
    bytes.try_into().map_err(|_| {
        Failure::new(
            ResultReason::CryptographicFailure,
            format!("the initialisation vector has {BYTES} bytes here"),
        )
    })
}
