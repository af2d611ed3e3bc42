package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipclient"
	"github.com/ovh/kmip-go/payloads"
)

const cipherMask = kmip.CryptographicUsageEncrypt | kmip.CryptographicUsageDecrypt

// vcenter sends the requests of a vCenter Server 7, in its order. It gives its keys no Name.
func vcenter(ctx context.Context, client *kmipclient.Client) error {
	if client.Version() != kmip.V1_1 {
		return fmt.Errorf("version %v was agreed on, not 1.1", client.Version())
	}
	if _, err := client.Query().ServerInformation().ExecContext(ctx); err != nil {
		return fmt.Errorf("Query: %w", err)
	}
	created, err := client.Create().AES(256, cipherMask).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Create: %w", err)
	}
	id := created.UniqueIdentifier
	custom := []struct{ name, value string }{
		{"x-Product_Version", "7.0.3 build-21477706"}, {"x-Vendor", "VMware, Inc."}, {"x-Product", "VMware vSphere"},
	}
	requests := []kmip.OperationPayload{&payloads.GetAttributesRequestPayload{UniqueIdentifier: id}}
	for _, attribute := range custom {
		requests = append(requests, &payloads.AddAttributeRequestPayload{
			UniqueIdentifier: id,
			Attribute:        kmip.Attribute{AttributeName: kmip.AttributeName(attribute.name), AttributeValue: attribute.value},
		})
	}
	answers, err := client.Batch(ctx, requests...)
	if err != nil {
		return fmt.Errorf("batch: %w", err)
	}
	if _, err := answers.Unwrap(); err != nil {
		return fmt.Errorf("an item of the batch: %w", err)
	}
	got, err := client.Get(id).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Get of a pre-active key: %w", err)
	}
	if err := isKey(got, 32); err != nil {
		return err
	}
	if err := hasState(ctx, client, id, kmip.StatePreActive); err != nil {
		return err
	}
	if _, err := client.Activate(id).ExecContext(ctx); err != nil {
		return fmt.Errorf("Activate: %w", err)
	}
	if err := hasState(ctx, client, id, kmip.StateActive); err != nil {
		return err
	}
	names, err := client.GetAttributeList(id).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("GetAttributeList: %w", err)
	}
	for _, attribute := range custom {
		if !slices.Contains(names.AttributeName, kmip.AttributeName(attribute.name)) {
			return fmt.Errorf("%s is not among the attributes", attribute.name)
		}
	}
	return nil
}

// lifeCycle takes a named key from its creation to its destruction and through the refusals in between.
func lifeCycle(ctx context.Context, client *kmipclient.Client) error {
	if _, err := client.Query().Operations().Objects().ExecContext(ctx); err != nil {
		return fmt.Errorf("Query: %w", err)
	}
	name := fmt.Sprintf("kmip-go-%p", client)
	created, err := client.Create().AES(256, cipherMask).WithName(name).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Create: %w", err)
	}
	id := created.UniqueIdentifier
	located, err := client.Locate().WithName(name).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Locate: %w", err)
	}
	if !slices.Equal(located.UniqueIdentifier, []string{id}) {
		return fmt.Errorf("located %v, not %s", located.UniqueIdentifier, id)
	}
	if _, err := client.Activate(id).ExecContext(ctx); err != nil {
		return fmt.Errorf("Activate: %w", err)
	}
	first, err := client.Get(id).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Get: %w", err)
	}
	second, err := client.Get(id).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Get again: %w", err)
	}
	one, _ := first.SymmetricKey()
	other, _ := second.SymmetricKey()
	if err := isKey(first, 32); err != nil || !bytes.Equal(one, other) {
		return fmt.Errorf("two Gets give two keys (%w)", err)
	}
	if _, err := client.Destroy(id).ExecContext(ctx); err == nil {
		return errors.New("an active key was destroyed")
	}
	revoke := client.Revoke(id).WithRevocationReasonCode(kmip.RevocationReasonCodeCessationOfOperation)
	if _, err := revoke.ExecContext(ctx); err != nil {
		return fmt.Errorf("Revoke: %w", err)
	}
	if err := hasState(ctx, client, id, kmip.StateDeactivated); err != nil {
		return err
	}
	if _, err := client.Destroy(id).ExecContext(ctx); err != nil {
		return fmt.Errorf("Destroy: %w", err)
	}
	if _, err := client.Get(id).ExecContext(ctx); err == nil {
		return errors.New("a destroyed key was given")
	}
	return nil
}

// register registers its own key and gets the same key back.
func register(ctx context.Context, client *kmipclient.Client) error {
	key := []byte("0123456789abcdef0123456789ABCDEF")
	registered, err := client.Register().SymmetricKey(kmip.CryptographicAlgorithmAES, cipherMask, key).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Register: %w", err)
	}
	got, err := client.Get(registered.UniqueIdentifier).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Get: %w", err)
	}
	material, err := got.SymmetricKey()
	if err != nil || !bytes.Equal(material, key) {
		return fmt.Errorf("the registered key came back as another (%w)", err)
	}
	_, err = client.Destroy(registered.UniqueIdentifier).ExecContext(ctx)
	return err
}

// wrappedGet gets a key under another one and unwraps it itself.
func wrappedGet(ctx context.Context, client *kmipclient.Client) error {
	kek := []byte("fedcba9876543210FEDCBA9876543210")
	mask := kmip.CryptographicUsageWrapKey | kmip.CryptographicUsageUnwrapKey
	wrapping, err := client.Register().SymmetricKey(kmip.CryptographicAlgorithmAES, mask, kek).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Register: %w", err)
	}
	if _, err := client.Activate(wrapping.UniqueIdentifier).ExecContext(ctx); err != nil {
		return fmt.Errorf("Activate: %w", err)
	}
	created, err := client.Create().AES(256, cipherMask).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Create: %w", err)
	}
	plain, err := client.Get(created.UniqueIdentifier).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("Get: %w", err)
	}
	specification := kmip.KeyWrappingSpecification{
		WrappingMethod: kmip.WrappingMethodEncrypt,
		EncryptionKeyInformation: &kmip.EncryptionKeyInformation{
			UniqueIdentifier:        wrapping.UniqueIdentifier,
			CryptographicParameters: &kmip.CryptographicParameters{BlockCipherMode: kmip.BlockCipherModeNISTKeyWrap},
		},
		EncodingOption: kmip.EncodingOptionNoEncoding,
	}
	wrapped, err := client.Get(created.UniqueIdentifier).WithKeyWrapping(specification).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("wrapped Get: %w", err)
	}
	object, ok := wrapped.Object.(*kmip.SymmetricKey)
	if !ok || object.KeyBlock.KeyValue == nil || object.KeyBlock.KeyValue.Wrapped == nil {
		return errors.New("no wrapped key came")
	}
	unwrapped, err := unwrap(kek, *object.KeyBlock.KeyValue.Wrapped)
	if err != nil {
		return err
	}
	if client.Version() == kmip.V1_0 {
		unwrapped = unwrapped[16:] // the headers of Key Value and Key Material, which only 1.1 lets one do without
	}
	if key, _ := plain.SymmetricKey(); !bytes.Equal(key, unwrapped) {
		return errors.New("the wrapped key is another than the plain one")
	}
	return nil
}

// batch creates and activates a key in one message, with the id placeholder.
func batch(ctx context.Context, client *kmipclient.Client) error {
	answers, err := client.Create().AES(128, cipherMask).
		Then(func(client *kmipclient.Client) kmipclient.PayloadBuilder { return client.Activate("") }).
		Then(func(client *kmipclient.Client) kmipclient.PayloadBuilder { return client.Get("") }).ExecContext(ctx)
	if err != nil {
		return err
	}
	items, err := answers.Unwrap()
	if err != nil {
		return err
	}
	got, ok := items[2].(*payloads.GetResponsePayload)
	if !ok {
		return errors.New("the third item is no answer to Get")
	}
	return isKey(got, 16)
}

func isKey(got *payloads.GetResponsePayload, bytes int) error {
	key, err := got.SymmetricKey()
	if err != nil {
		return err
	}
	if len(key) != bytes {
		return fmt.Errorf("the key has %d bytes, not %d", len(key), bytes)
	}
	return nil
}

func hasState(ctx context.Context, client *kmipclient.Client, id string, wanted kmip.State) error {
	answer, err := client.GetAttributes(id, kmip.AttributeNameState).ExecContext(ctx)
	if err != nil {
		return fmt.Errorf("GetAttributes: %w", err)
	}
	if len(answer.Attribute) != 1 || answer.Attribute[0].AttributeValue != wanted {
		return fmt.Errorf("the state is %v, not %v", answer.Attribute, wanted)
	}
	return nil
}

// unwrap implements RFC 3394, 2.2.2.
func unwrap(kek, wrapped []byte) ([]byte, error) {
	block, err := aes.NewCipher(kek)
	if err != nil {
		return nil, err
	}
	if len(wrapped) < 24 || len(wrapped)%8 != 0 {
		return nil, fmt.Errorf("%d bytes are no wrapped key", len(wrapped))
	}
	out := slices.Clone(wrapped)
	n := len(out)/8 - 1
	var buffer [16]byte
	for round := 5; round >= 0; round-- {
		for i := n; i >= 1; i-- {
			binary.BigEndian.PutUint64(buffer[:8], binary.BigEndian.Uint64(out)^uint64(n*round+i))
			copy(buffer[8:], out[i*8:i*8+8])
			block.Decrypt(buffer[:], buffer[:])
			copy(out[:8], buffer[:8])
			copy(out[i*8:], buffer[8:])
		}
	}
	if binary.BigEndian.Uint64(out) != 0xA6A6A6A6A6A6A6A6 {
		return nil, errors.New("the wrapped key fails its check")
	}
	return out[8:], nil
}
