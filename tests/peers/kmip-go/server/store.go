package main

import (
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipserver"
	"github.com/ovh/kmip-go/payloads"
	"github.com/ovh/kmip-go/ttlv"
)

// object is a managed object: its attributes, including state and dates, and its key unless it was
// destroyed.
type object struct {
	id         string
	kind       kmip.ObjectType
	attributes []kmip.Attribute
	value      kmip.Object
}

func (o *object) get(name kmip.AttributeName) (any, bool) {
	for _, attribute := range o.attributes {
		if attribute.AttributeName == name {
			return attribute.AttributeValue, true
		}
	}
	return nil, false
}

func (o *object) set(name kmip.AttributeName, value any) {
	for i := range o.attributes {
		if o.attributes[i].AttributeName == name {
			o.attributes[i].AttributeValue = value
			return
		}
	}
	o.attributes = append(o.attributes, kmip.Attribute{AttributeName: name, AttributeValue: value})
}

func (o *object) state() kmip.State {
	state, _ := o.get(kmip.AttributeNameState)
	known, _ := state.(kmip.State)
	return known
}

// store keeps objects in memory, or as files of a directory that several servers share.
type store struct {
	mutex     sync.RWMutex
	directory string
	memory    map[string]*object
}

func newStore(directory string) *store {
	if directory != "" {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			log.Fatal(err)
		}
	}
	return &store{directory: directory, memory: make(map[string]*object)}
}

func (s *store) load(id string) (*object, error) {
	if s.directory == "" {
		if found, ok := s.memory[id]; ok {
			return found, nil
		}
		return nil, kmipserver.ErrItemNotFound
	}
	if filepath.Base(id) != id {
		return nil, kmipserver.ErrItemNotFound
	}
	text, err := os.ReadFile(filepath.Join(s.directory, id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, kmipserver.ErrItemNotFound
	} else if err != nil {
		return nil, err
	}
	return decode(id, text)
}

func (s *store) save(o *object) error {
	if s.directory == "" {
		s.memory[o.id] = o
		return nil
	}
	temporary, err := os.CreateTemp(s.directory, ".writing-")
	if err != nil {
		return err
	}
	defer temporary.Close()
	if _, err := temporary.Write(encode(o)); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), filepath.Join(s.directory, o.id))
}

func (s *store) all() ([]*object, error) {
	var found []*object
	if s.directory == "" {
		for _, o := range s.memory {
			found = append(found, o)
		}
		return found, nil
	}
	entries, err := os.ReadDir(s.directory)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if entry.Name()[0] == '.' {
			continue
		}
		o, err := s.load(entry.Name())
		if err != nil {
			return nil, err
		}
		found = append(found, o)
	}
	return found, nil
}

// An object's file is the KMIP Register request that would create it. A destroyed object has an
// empty key.
func encode(o *object) []byte {
	message := kmip.NewRequestMessage(kmip.V1_4, &payloads.RegisterRequestPayload{
		ObjectType:        o.kind,
		TemplateAttribute: kmip.TemplateAttribute{Attribute: o.attributes},
		Object:            o.value,
	})
	return ttlv.MarshalTTLV(&message)
}

func decode(id string, text []byte) (*object, error) {
	var message kmip.RequestMessage
	if err := ttlv.UnmarshalTTLV(text, &message); err != nil {
		return nil, err
	}
	register, ok := message.BatchItem[0].RequestPayload.(*payloads.RegisterRequestPayload)
	if !ok {
		return nil, errors.New("the object's file holds no object")
	}
	return &object{id: id, kind: register.ObjectType, attributes: register.TemplateAttribute.Attribute, value: register.Object}, nil
}
