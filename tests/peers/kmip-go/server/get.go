package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipserver"
	"github.com/ovh/kmip-go/payloads"
	"github.com/ovh/kmip-go/ttlv"
)

func name(operation kmip.Operation) string { return ttlv.EnumStr(operation) }

func (s *service) get(ctx context.Context, request *payloads.GetRequestPayload) (*payloads.GetResponsePayload, error) {
	s.objects.mutex.RLock()
	defer s.objects.mutex.RUnlock()
	o, err := s.read(ctx, request.UniqueIdentifier)
	if err != nil {
		return nil, err
	}
	if o.state() == kmip.StateDestroyed || o.state() == kmip.StateDestroyedCompromised {
		return nil, kmipserver.Errorf(kmip.ResultReasonItemNotFound, "the object was destroyed")
	}
	response := &payloads.GetResponsePayload{ObjectType: o.kind, UniqueIdentifier: o.id, Object: o.value}
	if request.KeyWrappingSpecification == nil {
		return response, nil
	}
	response.Object, err = s.wrapped(o, request.KeyWrappingSpecification)
	return response, err
}

// wrapped returns the object's key, wrapped under another key of the store: AES key wrap (RFC 3394),
// over the TTLV of its Key Value, or over the raw key if the request has "no encoding".
func (s *service) wrapped(o *object, specification *kmip.KeyWrappingSpecification) (kmip.Object, error) {
	key, ok := o.value.(*kmip.SymmetricKey)
	information := specification.EncryptionKeyInformation
	if !ok || information == nil || specification.WrappingMethod != kmip.WrappingMethodEncrypt ||
		information.CryptographicParameters == nil ||
		information.CryptographicParameters.BlockCipherMode != kmip.BlockCipherModeNISTKeyWrap {
		return nil, kmipserver.Errorf(kmip.ResultReasonFeatureNotSupported, "only AES key wrap of symmetric keys is done here")
	}
	wrapping, err := s.objects.load(information.UniqueIdentifier)
	if err != nil {
		return nil, err
	}
	wrappingKey, ok := wrapping.value.(*kmip.SymmetricKey)
	if !ok || wrapping.state() != kmip.StateActive {
		return nil, kmipserver.Errorf(kmip.ResultReasonIllegalOperation, "the wrapping key is not an active symmetric key")
	}
	kek, err := wrappingKey.KeyMaterial()
	if err != nil {
		return nil, err
	}
	plain, err := key.KeyMaterial()
	if err != nil {
		return nil, err
	}
	if specification.EncodingOption != kmip.EncodingOptionNoEncoding {
		plain = encodedKeyValue(plain)
	}
	block, err := aes.NewCipher(kek)
	if err != nil {
		return nil, err
	}
	sealed := wrap(block, plain)
	return &kmip.SymmetricKey{KeyBlock: kmip.KeyBlock{
		KeyFormatType:          kmip.KeyFormatTypeRaw,
		KeyValue:               &kmip.KeyValue{Wrapped: &sealed},
		CryptographicAlgorithm: key.KeyBlock.CryptographicAlgorithm,
		CryptographicLength:    key.KeyBlock.CryptographicLength,
		KeyWrappingData: &kmip.KeyWrappingData{
			WrappingMethod:           specification.WrappingMethod,
			EncryptionKeyInformation: information,
			EncodingOption:           specification.EncodingOption,
		},
	}}, nil
}

// encodedKeyValue returns the TTLV of a Key Value structure that holds the raw key.
func encodedKeyValue(key []byte) []byte {
	padded := (len(key) + 7) / 8 * 8
	text := binary.BigEndian.AppendUint32(nil, uint32(kmip.TagKeyValue)<<8|uint32(ttlv.TypeStructure))
	text = binary.BigEndian.AppendUint32(text, uint32(8+padded))
	text = binary.BigEndian.AppendUint32(text, uint32(kmip.TagKeyMaterial)<<8|uint32(ttlv.TypeByteString))
	text = binary.BigEndian.AppendUint32(text, uint32(len(key)))
	return append(append(text, key...), make([]byte, padded-len(key))...)
}

// wrap implements RFC 3394, 2.2.1.
func wrap(block cipher.Block, plain []byte) []byte {
	const initial = 0xA6A6A6A6A6A6A6A6
	n := len(plain) / 8
	out := append(binary.BigEndian.AppendUint64(nil, initial), plain...)
	var buffer [16]byte
	for round := range 6 {
		for i := 1; i <= n; i++ {
			copy(buffer[:8], out[:8])
			copy(buffer[8:], out[i*8:])
			block.Encrypt(buffer[:], buffer[:])
			binary.BigEndian.PutUint64(out, binary.BigEndian.Uint64(buffer[:8])^uint64(n*round+i))
			copy(out[i*8:], buffer[8:])
		}
	}
	return out
}
