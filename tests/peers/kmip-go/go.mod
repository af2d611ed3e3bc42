module strongroom.test/peers/kmip-go

go 1.25.5

require github.com/ovh/kmip-go v0.8.1
