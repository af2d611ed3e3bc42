package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipserver"
	"github.com/ovh/kmip-go/payloads"
)

// service answers the operations that a client of symmetric keys needs.
type service struct {
	objects *store
}

func (s *service) route(executor *kmipserver.BatchExecutor, without []string) {
	routes := map[kmip.Operation]kmipserver.OperationHandler{
		kmip.OperationQuery:            kmipserver.HandleFunc(s.query),
		kmip.OperationCreate:           kmipserver.HandleFunc(s.create),
		kmip.OperationRegister:         kmipserver.HandleFunc(s.register),
		kmip.OperationActivate:         kmipserver.HandleFunc(s.activate),
		kmip.OperationGet:              kmipserver.HandleFunc(s.get),
		kmip.OperationGetAttributes:    kmipserver.HandleFunc(s.getAttributes),
		kmip.OperationGetAttributeList: kmipserver.HandleFunc(s.getAttributeList),
		kmip.OperationAddAttribute:     kmipserver.HandleFunc(s.addAttribute),
		kmip.OperationLocate:           kmipserver.HandleFunc(s.locate),
		kmip.OperationRevoke:           kmipserver.HandleFunc(s.revoke),
		kmip.OperationDestroy:          kmipserver.HandleFunc(s.destroy),
	}
	for operation, handler := range routes {
		if !slices.Contains(without, name(operation)) {
			executor.Route(operation, handler)
		}
	}
	if slices.Contains(without, "DiscoverVersions") {
		executor.Route(kmip.OperationDiscoverVersions, kmipserver.HandleFunc(
			func(context.Context, *payloads.DiscoverVersionsRequestPayload) (*payloads.DiscoverVersionsResponsePayload, error) {
				return nil, kmipserver.ErrOperationNotSupported
			}))
	}
}

func (s *service) query(_ context.Context, request *payloads.QueryRequestPayload) (*payloads.QueryResponsePayload, error) {
	response := &payloads.QueryResponsePayload{}
	for _, function := range request.QueryFunction {
		switch function {
		case kmip.QueryFunctionOperations:
			response.Operations = []kmip.Operation{kmip.OperationQuery, kmip.OperationDiscoverVersions, kmip.OperationCreate,
				kmip.OperationRegister, kmip.OperationActivate, kmip.OperationGet, kmip.OperationGetAttributes,
				kmip.OperationGetAttributeList, kmip.OperationAddAttribute, kmip.OperationLocate, kmip.OperationRevoke,
				kmip.OperationDestroy}
		case kmip.QueryFunctionObjects:
			response.ObjectType = []kmip.ObjectType{kmip.ObjectTypeSymmetricKey, kmip.ObjectTypeSecretData}
		case kmip.QueryFunctionServerInformation:
			response.VendorIdentification = "kmip-go"
		}
	}
	return response, nil
}

func (s *service) create(ctx context.Context, request *payloads.CreateRequestPayload) (*payloads.CreateResponsePayload, error) {
	if request.ObjectType != kmip.ObjectTypeSymmetricKey {
		return nil, kmipserver.Errorf(kmip.ResultReasonInvalidField, "only symmetric keys are created here")
	}
	made := &object{attributes: request.TemplateAttribute.Attribute}
	length, _ := made.get(kmip.AttributeNameCryptographicLength)
	algorithm, _ := made.get(kmip.AttributeNameCryptographicAlgorithm)
	bits, _ := length.(int32)
	if algorithm != kmip.CryptographicAlgorithmAES || !slices.Contains([]int32{128, 192, 256}, bits) {
		return nil, kmipserver.Errorf(kmip.ResultReasonInvalidField, "only AES keys of 128, 192 or 256 bits are created here")
	}
	key := make([]byte, bits/8)
	_, _ = rand.Read(key) // never fails
	id, err := s.add(ctx, kmip.ObjectTypeSymmetricKey, made.attributes, &kmip.SymmetricKey{KeyBlock: kmip.KeyBlock{
		KeyFormatType:          kmip.KeyFormatTypeRaw,
		KeyValue:               &kmip.KeyValue{Plain: &kmip.PlainKeyValue{KeyMaterial: kmip.KeyMaterial{Bytes: &key}}},
		CryptographicAlgorithm: kmip.CryptographicAlgorithmAES,
		CryptographicLength:    bits,
	}})
	if err != nil {
		return nil, err
	}
	return &payloads.CreateResponsePayload{ObjectType: kmip.ObjectTypeSymmetricKey, UniqueIdentifier: id}, nil
}

func (s *service) register(ctx context.Context, request *payloads.RegisterRequestPayload) (*payloads.RegisterResponsePayload, error) {
	id, err := s.add(ctx, request.ObjectType, request.TemplateAttribute.Attribute, request.Object)
	if err != nil {
		return nil, err
	}
	return &payloads.RegisterResponsePayload{UniqueIdentifier: id}, nil
}

// add creates a pre-active object, or an active one if its activation date has come.
func (s *service) add(ctx context.Context, kind kmip.ObjectType, attributes []kmip.Attribute, value kmip.Object) (string, error) {
	now := time.Now().Truncate(time.Second)
	o := &object{id: newID(), kind: kind, attributes: attributes, value: value}
	state := kmip.StatePreActive
	if date, ok := o.get(kmip.AttributeNameActivationDate); ok && !date.(time.Time).After(now) {
		state = kmip.StateActive
	}
	o.set(kmip.AttributeNameUniqueIdentifier, o.id)
	o.set(kmip.AttributeNameObjectType, kind)
	o.set(kmip.AttributeNameState, state)
	o.set(kmip.AttributeNameInitialDate, now)
	o.set(kmip.AttributeNameLastChangeDate, now)
	s.objects.mutex.Lock()
	defer s.objects.mutex.Unlock()
	kmipserver.SetIdPlaceholder(ctx, o.id)
	return o.id, s.objects.save(o)
}

func newID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", raw[:4], raw[4:6], raw[6:8], raw[8:10], raw[10:])
}

// change modifies one object, of the request or of the batch so far, under the lock, and stores it.
func (s *service) change(ctx context.Context, wanted string, do func(*object, time.Time) error) (string, error) {
	id, err := kmipserver.GetIdOrPlaceholder(ctx, wanted)
	if err != nil {
		return "", err
	}
	s.objects.mutex.Lock()
	defer s.objects.mutex.Unlock()
	o, err := s.objects.load(id)
	if err != nil {
		return "", err
	}
	now := time.Now().Truncate(time.Second)
	if err := do(o, now); err != nil {
		return "", err
	}
	o.set(kmip.AttributeNameLastChangeDate, now)
	return id, s.objects.save(o)
}

func (s *service) activate(ctx context.Context, request *payloads.ActivateRequestPayload) (*payloads.ActivateResponsePayload, error) {
	id, err := s.change(ctx, request.UniqueIdentifier, func(o *object, now time.Time) error {
		if o.state() != kmip.StatePreActive {
			return kmipserver.Errorf(kmip.ResultReasonPermissionDenied, "the object is not pre-active")
		}
		o.set(kmip.AttributeNameState, kmip.StateActive)
		o.set(kmip.AttributeNameActivationDate, now)
		return nil
	})
	return &payloads.ActivateResponsePayload{UniqueIdentifier: id}, err
}

func (s *service) revoke(ctx context.Context, request *payloads.RevokeRequestPayload) (*payloads.RevokeResponsePayload, error) {
	id, err := s.change(ctx, request.UniqueIdentifier, func(o *object, now time.Time) error {
		compromised := request.RevocationReason.RevocationReasonCode == kmip.RevocationReasonCodeKeyCompromise
		switch {
		case compromised && o.state() == kmip.StateDestroyed:
			o.set(kmip.AttributeNameState, kmip.StateDestroyedCompromised)
		case compromised:
			o.set(kmip.AttributeNameState, kmip.StateCompromised)
		case o.state() == kmip.StateActive:
			o.set(kmip.AttributeNameState, kmip.StateDeactivated)
			o.set(kmip.AttributeNameDeactivationDate, now)
		default:
			return kmipserver.Errorf(kmip.ResultReasonPermissionDenied, "the object is not active")
		}
		if compromised {
			o.set(kmip.AttributeNameCompromiseDate, now)
		}
		o.set(kmip.AttributeNameRevocationReason, request.RevocationReason)
		return nil
	})
	return &payloads.RevokeResponsePayload{UniqueIdentifier: id}, err
}

func (s *service) destroy(ctx context.Context, request *payloads.DestroyRequestPayload) (*payloads.DestroyResponsePayload, error) {
	id, err := s.change(ctx, request.UniqueIdentifier, func(o *object, now time.Time) error {
		switch o.state() {
		case kmip.StateActive:
			return kmipserver.Errorf(kmip.ResultReasonPermissionDenied, "the object is active; revoke it first")
		case kmip.StateDestroyed, kmip.StateDestroyedCompromised:
			return kmipserver.ErrItemNotFound
		case kmip.StateCompromised:
			o.set(kmip.AttributeNameState, kmip.StateDestroyedCompromised)
		default:
			o.set(kmip.AttributeNameState, kmip.StateDestroyed)
		}
		o.set(kmip.AttributeNameDestroyDate, now)
		o.value = &kmip.SymmetricKey{KeyBlock: kmip.KeyBlock{KeyFormatType: kmip.KeyFormatTypeRaw}}
		return nil
	})
	return &payloads.DestroyResponsePayload{UniqueIdentifier: id}, err
}

func (s *service) addAttribute(ctx context.Context, request *payloads.AddAttributeRequestPayload) (*payloads.AddAttributeResponsePayload, error) {
	id, err := s.change(ctx, request.UniqueIdentifier, func(o *object, _ time.Time) error {
		if _, ok := o.get(request.Attribute.AttributeName); ok {
			return kmipserver.Errorf(kmip.ResultReasonIllegalOperation, "the object has that attribute already")
		}
		o.attributes = append(o.attributes, request.Attribute)
		return nil
	})
	return &payloads.AddAttributeResponsePayload{UniqueIdentifier: id, Attribute: request.Attribute}, err
}

func (s *service) read(ctx context.Context, wanted string) (*object, error) {
	id, err := kmipserver.GetIdOrPlaceholder(ctx, wanted)
	if err != nil {
		return nil, err
	}
	return s.objects.load(id)
}

func (s *service) getAttributes(ctx context.Context, request *payloads.GetAttributesRequestPayload) (*payloads.GetAttributesResponsePayload, error) {
	s.objects.mutex.RLock()
	defer s.objects.mutex.RUnlock()
	o, err := s.read(ctx, request.UniqueIdentifier)
	if err != nil {
		return nil, err
	}
	response := &payloads.GetAttributesResponsePayload{UniqueIdentifier: o.id}
	for _, attribute := range o.attributes {
		if len(request.AttributeName) == 0 || slices.Contains(request.AttributeName, attribute.AttributeName) {
			response.Attribute = append(response.Attribute, attribute)
		}
	}
	return response, nil
}

func (s *service) getAttributeList(ctx context.Context, request *payloads.GetAttributeListRequestPayload) (*payloads.GetAttributeListResponsePayload, error) {
	s.objects.mutex.RLock()
	defer s.objects.mutex.RUnlock()
	o, err := s.read(ctx, request.UniqueIdentifier)
	if err != nil {
		return nil, err
	}
	response := &payloads.GetAttributeListResponsePayload{UniqueIdentifier: o.id}
	for _, attribute := range o.attributes {
		response.AttributeName = append(response.AttributeName, attribute.AttributeName)
	}
	return response, nil
}

func (s *service) locate(ctx context.Context, request *payloads.LocateRequestPayload) (*payloads.LocateResponsePayload, error) {
	s.objects.mutex.RLock()
	defer s.objects.mutex.RUnlock()
	objects, err := s.objects.all()
	if err != nil {
		return nil, err
	}
	response := &payloads.LocateResponsePayload{}
	for _, o := range objects {
		matches := !slices.ContainsFunc(request.Attribute, func(wanted kmip.Attribute) bool {
			value, ok := o.get(wanted.AttributeName)
			return !ok || !reflect.DeepEqual(value, wanted.AttributeValue)
		})
		if matches && (request.MaximumItems == 0 || len(response.UniqueIdentifier) < int(request.MaximumItems)) {
			response.UniqueIdentifier = append(response.UniqueIdentifier, o.id)
		}
	}
	if len(response.UniqueIdentifier) == 1 {
		kmipserver.SetIdPlaceholder(ctx, response.UniqueIdentifier[0])
	}
	return response, nil
}
