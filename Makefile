# The few things one does here. `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help demo build fips test test-full test-newer-qemu measure measure-first-writes measure-kmip fuzz fuzz-slice power-cuts power-cuts-file-systems rekey-volumes

help: ## list these
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 32

demo: ## from nothing to guests on an encrypted and a plain volume, in under ten minutes
	@scripts/demo

build: ## the strongroom program, in target/release
	scripts/install-packages demo
	cargo build --release --package strongroom-cli

fips: ## the same with the FIPS 140-3 validated module of AWS-LC, in target/fips; docs/COMPLIANCE.md
	scripts/install-packages fips
	CARGO_TARGET_DIR=target/fips cargo build --release --package strongroom-cli --features fips

test: ## format, lints, every test but the long ones, a slice of fuzzing; what CI runs
	scripts/install-packages test
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- --deny warnings
	cargo test --workspace
	scripts/fuzz 5 kmip

test-full: ## the same, the long whole-system tests, libvirt, and every supported file system
	scripts/install-packages full
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --quiet -- --deny warnings
	cargo test --workspace --features strongroom-system-tests/full,strongroom-sim/full,strongroom-hypervisor/full,strongroom-control/full
	scripts/test-file-systems

power-cuts: ## 100,000 power cuts beneath volumes and 20,000 each beneath the store and the audit log on a simulated file system; some three minutes
	cargo test -p strongroom-sim --features full --test power_cuts --test store_cuts --test audit_cuts -- --nocapture

rekey-volumes: ## 1,000 volumes move to other keys by a job that is killed at random; some minutes
	scripts/install-packages test
	cargo test -p strongroom-system-tests --features full --test rekeys_volumes -- --nocapture

power-cuts-file-systems: ## power cuts beneath ext4, XFS and btrfs, over a device that records; as root, some minutes
	scripts/install-packages test
	scripts/test-power-cuts

test-newer-qemu: ## guests again, under the newest QEMU that Debian 12 has
	scripts/install-packages test
	STRONGROOM_QEMU=$$(scripts/newer-qemu) cargo test --package strongroom-system-tests --features full \
	  --test boots_from_vhost_user --test killed_under_a_guest --test migrates --test hot_plug --test live_resize
	STRONGROOM_QEMU=$$(scripts/newer-qemu) cargo test --package strongroom-hypervisor --features full \
	  --test machines --test guests

measure: build ## the figures of docs/PERFORMANCE.md, on a quiet machine; some fifteen minutes
	scripts/install-packages test
	@scripts/measure-nbd

measure-first-writes: build ## first writes beside overwriting and beside qcow2, on ext4, XFS and btrfs; as root, long
	scripts/measure-first-writes

measure-kmip: ## how often the key server releases a key, beside PyKMIP's and kmip-go's; on a quiet machine, some minutes
	scripts/install-packages test
	@scripts/measure-kmip

fuzz: ## what a hostile front end, guest or KMIP peer sends, guided by coverage; ten minutes for each target
	scripts/install-packages fuzz
	scripts/fuzz

fuzz-slice: ## the same, twenty seconds for each target
	scripts/install-packages fuzz
	scripts/fuzz 20
