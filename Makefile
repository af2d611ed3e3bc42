# The few things one does here. `make` alone lists them.

.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster package test-package test-upgrade build fips test test-guests test-guests-slice test-full test-newer-qemu test-fresh-clones test-fresh-clones-quick measure measure-first-writes measure-snapshots measure-reencryption measure-tags measure-qos measure-estate measure-ceph measure-kmip measure-migrations measure-moves measure-vms measure-volumes prove kill-vms migrations snapshot-groups fuzz fuzz-slice power-cuts power-cuts-file-systems test-ceph test-ceph-newer test-sealed-osds attacks attack-role fuzz-roles mutants rekey-volumes soak page check-page test-page test-page-guests test-page-full soak-page measure-page

# Tests that are compiled together are compiled with the program (crates/cli has tests of it): so it is not compiled twice.
tested_program = $(abspath $(or $(CARGO_TARGET_DIR),target))/debug/strongroom

programs = $(or $(CARGO_TARGET_DIR),target)/release

help: ## list these
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 32

demo: ## from nothing to VMs under keys of their own, and whatever may happen to them, in some ten minutes
	@scripts/demo

demo-cluster: ## a VM on a Ceph cluster of this machine, moved between two hosts, with nothing of it in the clear; needs root or sudo, some five minutes
	@scripts/demo-cluster

build: ## the strongroom program, in target/release
	scripts/install-packages demo
	cargo build --release --package strongroom-cli
	scripts/split-debug-information $(programs)/strongroom

package: ## the Debian package, in target/package; of a program that is built already with STRONGROOM_BIN=FILE
	scripts/install-packages package
	scripts/package

test-package: package ## the package in a clean Debian: installed, a VM run, upgraded under it, removed, purged; as root, some minutes
	scripts/test-package "$$(ls -t target/package/strongroom_*.deb | head -1)"

test-upgrade: ## a VM of the former version lives through the upgrade to this one, in a clean Debian; as root, long the first time
	scripts/install-packages package
	scripts/test-upgrade

fips: ## the same with the FIPS 140-3 validated module of AWS-LC, in target/fips; docs/COMPLIANCE.md
	scripts/install-packages fips
	CARGO_TARGET_DIR=target/fips cargo build --release --package strongroom-cli --features fips
	scripts/split-debug-information target/fips/release/strongroom

test: ## format, lints, every test but the long ones; what CI runs, beside slices of the long ones
	scripts/install-packages test
	cargo fmt --all --check
	STRONGROOM_BIN=$(tested_program) scripts/run-tests --lint --workspace --all-targets

# Each kind of long test once: CI runs these after make test, with what that built.
guest_slice = a_vm_that_runs_moves_to_a_new_key_whoever_dies what_is_killed_during_a_merge_leaves_the_volume_as_it_was \
  a_disk_goes_from_one_running_vm_to_another_with_its_content a_snapshot_is_of_all_disks_or_of_none_whoever_is_killed \
  a_dump_is_sealed_and_opened_whole making_a_snapshot_is_timed_beside_images rewriting_is_measured_beside_copies \
  a_vm_is_re_encrypted_while_it_is_off_and_is_what_it_was the_document_is_valid_and_the_server_keeps_to_it \
  changes_of_a_served_volume_are_ordered_or_refused what_a_hostile_qemu_says_does_not_reach_the_process_with_the_keys \
  the_kek_is_not_in_the_worker_and_the_dek_not_in_the_supervisor a_snapshot_of_several_vms_is_of_all_or_of_none_whoever_is_killed \
  an_exposed_volume_is_encrypted_and_decrypted_while_it_is_used_and_the_job_is_killed \
  an_exposed_volume_is_rekeyed_while_it_is_used_and_the_job_is_killed a_volume_is_rekeyed_with_its_snapshots_though_the_job_is_killed \
  a_volume_moves_to_another_file_system_and_back_though_the_command_is_killed \
  a_datastore_keeps_the_contract_of_the_storage_api a_lost_inventory_comes_back_beside_a_guest_that_runs_on \
  a_hosts_certificate_is_renewed_while_its_guest_runs_and_replaced_when_it_has_ended \
  doctor_judges_a_machine_before_it_serves_and_finds_a_key_that_waits_for_its_vm an_outage_disturbs_nothing \
  hosts_get_an_external_servers_keys_under_grants_alone \
  a_snapshot_of_a_volume_with_tags_is_deleted_while_clients_write \
  a_snapshot_of_a_clear_volume_is_deleted_while_clients_write \
  an_exposed_volume_that_is_rekeyed_needs_both_keys_until_it_is_done \
  a_rekeying_that_is_cancelled_leaves_the_volume_under_its_key a_volume_is_encrypted_and_decrypted_with_its_snapshots \
  many_vms_go_on_and_off_through_the_queue a_restore_that_is_killed_leaves_a_server_that_starts \
  a_job_that_is_killed_at_random_moves_all_volumes_and_strands_none \
  whoever_is_killed_a_suspended_vm_loses_nothing_unsaid a_disk_is_encrypted_and_decrypted_whoever_is_killed \
  snapshots_of_several_vms_are_of_one_instant_whoever_is_killed three_machines_run_each_vm_once_whatever_is_killed_or_cut_off \
  an_administrator_without_cryptography_neither_sees_nor_copies_what_a_guest_keeps \
  no_caller_gets_a_5xx_or_gains_a_right_whatever_it_sends \
  a_client_that_is_generated_from_the_document_makes_and_runs_a_vm \
  a_vm_on_another_machine_is_reached_as_one_on_this_one \
  a_vm_boots_from_the_device_that_is_first_in_its_order \
  a_network_card_comes_goes_and_has_a_cable_while_its_vm_runs a_guest_gets_processors_and_memory_that_its_disks_reach \
  a_vm_is_renamed_while_it_runs_and_another_one_gets_its_name \
  a_vm_moves_between_two_machines_and_is_started_on_one_of_them \
  what_a_guest_keeps_and_its_keys_are_nowhere_else the_report_of_a_re_encryption_is_true_and_says_what_is_left \
  a_quiesced_snapshot_has_what_the_guest_has_written_and_not_flushed a_disk_comes_grows_and_goes_while_its_vm_runs \
  a_second_machine_joins_runs_a_guest_is_cut_off_and_removed \
  limits_of_a_vm_change_while_its_guest_runs_and_outlive_its_supervisor \
  a_webhook_is_told_of_an_alarm_and_of_its_end_though_the_control_plane_is_killed \
  the_report_of_an_encryption_says_what_was_freed_in_clear \
  nothing_that_was_acknowledged_is_lost_when_simulated_hosts_are_cut_off \
  a_session_is_found_by_other_commands_until_it_ends what_needs_a_key_whose_lease_has_ended_waits_for_it \
  passphrases_move_to_other_passphrases_and_then_to_a_key_file there_is_no_moment_at_which_a_kill_does_harm \
  there_is_no_moment_at_which_a_kill_makes_a_part_of_a_group \
  a_suspended_vm_goes_on_with_its_memory_which_is_sealed_and_whole \
  a_later_supervisor_serves_a_half_clear_disk_only_as_its_state_says \
  it_is_a_disk_on_an_erasure_coded_pool \
  no_acknowledged_write_is_lost_with_a_device_or_the_monitor \
  a_running_vm_moves_between_hosts_and_the_wire_sees_nothing a_vm_moves_between_hosts_whatever_is_killed_or_cut_off \
  a_vm_moves_with_its_volumes_between_machines_that_share_nothing \
  a_vm_moves_with_its_volumes_whatever_is_killed_or_cut_off

test-guests-slice: ## those of test-guests and test-ceph that CI runs as well; some minutes
	scripts/install-packages test
	scripts/ceph-programs >/dev/null
	STRONGROOM_BIN=$(tested_program) scripts/run-tests --lint --workspace --all-targets -- $(guest_slice)

test-full: ## the same, the long whole-system tests, libvirt and systemd, and every supported file system
	scripts/install-packages full
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --quiet -- --deny warnings
	STRONGROOM_BIN=$(tested_program) scripts/run-tests --workspace --lib --bins --tests --features strongroom-system-tests/full,strongroom-sim/full,strongroom-hypervisor/full,strongroom-control/full
	scripts/test-file-systems
	STRONGROOM_BIN=$(tested_program) scripts/test-libvirt-service

test-guests: ## the tests of a host and of the whole system that make test leaves out for their length; some twenty minutes
	scripts/install-packages test
	cargo test -p strongroom-hostd --test host -- --ignored --skip on_a_cluster
	cargo test -p strongroom-migrate --test migrate -- --ignored qemu::
	cargo test -p strongroom-control --test control -- --ignored
	cargo test -p strongroom-system-tests --test system -- --ignored

power-cuts: ## 100,000 power cuts beneath volumes, 50,000 after kills, 30,000 beneath linked clones, and 40,000 each beneath the store and the audit log, simulated; some ten minutes
	cargo test -p strongroom-sim --features full --test power_cuts --test families --test store_cuts --test audit_cuts --test tags -- --nocapture

attacks: ## 10,000 rounds of whoever writes the datastore, over every kind of volume, and the attacks on a whole host; an hour. ATTACK_ROUNDS=, ATTACK_SEED=
	scripts/install-packages test
	ATTACK_ROUNDS=$(or $(ATTACK_ROUNDS),10000) ATTACK_SEED=$(or $(ATTACK_SEED),1) \
	  cargo test --package strongroom-hostd --test datastore_fuzz -- --nocapture
	cargo test --package strongroom-hostd --test host -- --include-ignored

page: ## the page in web/, built anew into web/dist, which the program embeds
	scripts/page build

check-page: ## types, lints and units of the page, and that web/dist is what its sources make
	scripts/page check

test-page: ## the page in Debian's Chromium against a real serve: every screen in both themes and for each role, everyday tasks, ways to sign in, a key server that is away, attacks; some twelve minutes
	scripts/install-packages page
	cargo build --package strongroom-cli
	STRONGROOM_BIN=$(tested_program) scripts/page test

test-page-guests: ## the page with a real guest: its console and screen, keys renewed while it writes, and, as root, a move between two hosts; some four minutes
	scripts/install-packages page
	cargo build --package strongroom-cli
	STRONGROOM_BIN=$(tested_program) scripts/page guests

test-page-full: build ## both, the page's memory for some minutes, and what 10,000 VMs cost a browser; as root, some half an hour
	scripts/install-packages page
	cargo build --release --package strongroom-estate
	STRONGROOM_BIN=$(abspath $(programs)/strongroom) STRONGROOM_ESTATE=$(abspath $(programs)/strongroom-estate) scripts/page full

soak-page: build ## the page's memory while things happen to 10,000 VMs; as root, an hour, or MINUTES
	scripts/install-packages page
	cargo build --release --package strongroom-estate
	STRONGROOM_BIN=$(abspath $(programs)/strongroom) STRONGROOM_ESTATE=$(abspath $(programs)/strongroom-estate) scripts/page soak $(or $(MINUTES),60)

measure-page: build ## what the list of 10,000 VMs costs a browser; as root, on a quiet machine, some three minutes, docs/PAGE.md
	scripts/install-packages page
	cargo build --release --package strongroom-estate
	STRONGROOM_BIN=$(abspath $(programs)/strongroom) STRONGROOM_ESTATE=$(abspath $(programs)/strongroom-estate) scripts/page measure

test-ceph: ## volumes on a real Ceph cluster of this machine: the suite that every disk must pass, names, devices that are gone or full, fencing, a VM's directory, whole VMs, processes that are killed; some ten minutes. FENCING_ROUNDS=
	scripts/install-packages test
	scripts/ceph-programs >/dev/null
	cargo build -p strongroom-rbd -p strongroom-worker --examples
	FENCING_ROUNDS=$(FENCING_ROUNDS) cargo test -p strongroom-rbd --test cluster -- --ignored --test-threads 2
	cargo test -p strongroom-host --test cluster -- --ignored
	cargo test -p strongroom-worker --test supervise -- --ignored remote::
	cargo test -p strongroom-hostd --test host -- --ignored on_a_cluster
	cargo build --package strongroom-cli
	STRONGROOM_BIN=$(tested_program) cargo test -p strongroom-system-tests --test system -- --ignored --test-threads 2 ceph_datastores:: on_a_cluster

test-ceph-newer: ## volumes and whole VMs on Ceph with the librbd of Debian 13, on clusters of Debian 12's version and of its own; as root, some fifteen minutes
	scripts/install-packages test
	scripts/ceph-programs >/dev/null
	cargo build -p strongroom-rbd -p strongroom-worker --examples
	for ceph in client cluster; do \
	  scripts/newer-ceph $$ceph cargo test -p strongroom-rbd --test cluster -- --ignored --test-threads 2 && \
	  scripts/newer-ceph $$ceph cargo test -p strongroom-hostd --test host -- --ignored on_a_cluster || exit; \
	done

test-sealed-osds: ## a real Ceph cluster whose OSDs lie on encrypted devices of this machine; as root, some minutes
	scripts/install-packages test
	scripts/ceph-programs >/dev/null
	cargo build --package strongroom-cli
	STRONGROOM_BIN=$(tested_program) cargo test -p strongroom-devices --test devices -- --include-ignored --nocapture

attack-role: ## an administrator without cryptography calls everything that the API has, about a VM with a secret; an hour. ATTACK_SECONDS=
	scripts/install-packages test
	STRONGROOM_ATTACK_SECONDS=$(or $(ATTACK_SECONDS),3600) cargo test -p strongroom-system-tests --test system -- --ignored --nocapture role_attacked::

fuzz-roles: ## every role and every privilege for itself sends generated requests to all operations; an hour. FUZZ_SECONDS=, FUZZ_SEED=
	scripts/install-packages test
	STRONGROOM_FUZZ_ROLES_SECONDS=$(or $(FUZZ_SECONDS),3600) STRONGROOM_FUZZ_SEED=$(or $(FUZZ_SEED),1) \
	  cargo test -p strongroom-system-tests --test system -- --ignored --nocapture roles_fuzzed::

mutants: ## mistakes on purpose, each with the test that has to notice it, and cargo-mutants on the rooms of custody and durability; hours
	scripts/mutants mistakes
	for room in files keys crypto audit store; do scripts/mutants room strongroom-$$room || exit; done

rekey-volumes: ## 1,000 volumes move to other keys by a job that is killed at random; some minutes
	scripts/install-packages test
	cargo test -p strongroom-system-tests --features full --test system -- --nocapture rekeys_volumes::

kill-vms: ## whatever serves a VM is killed a hundred times at random while its guest writes; some ten minutes
	scripts/install-packages test
	cargo test -p strongroom-system-tests --features full --test system -- --nocapture vms_killed::

migrations: ## a VM that moves between two machines while it runs, 100 times each on one datastore, two, and a Ceph cluster, and whatever is killed or cut off meanwhile; an hour. MIGRATION_ROUNDS=, STRONGROOM_SEED=
	scripts/install-packages test
	scripts/ceph-programs >/dev/null
	MIGRATION_ROUNDS=$(or $(MIGRATION_ROUNDS),100) cargo test -p strongroom-system-tests --test system -- --ignored --nocapture live_migration:: evacuations::

snapshot-groups: ## 1,000 snapshots of 16 disks of two VMs under numbered writes, with kills and leases that run out; an hour. GROUP_ROUNDS=, GROUP_SEED=
	scripts/install-packages test
	GROUP_ROUNDS=$(or $(GROUP_ROUNDS),1000) GROUP_SEED=$(or $(GROUP_SEED),1) \
	  cargo test --package strongroom-hostd --test host -- --ignored --nocapture snapshots_of_several_vms_are_of_one_instant

soak: ## an hour of verified load with kills, upgrades, growth, new keys and full disks, memory and descriptors flat; SOAK_SECONDS=, SOAK_SEED=
	scripts/install-packages test
	cargo build --release --package strongroom-cli --package strongroom-lab
	$(programs)/strongroom-lab soak --program $(programs)/strongroom --seconds $(or $(SOAK_SECONDS),3600) --seed $(or $(SOAK_SEED),1) \
	  --samples $(programs)/soak.jsonl --report $(programs)/soak.json

power-cuts-file-systems: ## power cuts beneath ext4, XFS and btrfs, over a device that records; as root, some minutes
	scripts/install-packages test
	scripts/test-power-cuts

test-fresh-clones: ## this page's two commands in clones that were never built: either order, umask 022 and 077, root and a user with sudo; as root, two hours
	scripts/test-fresh-clone --first demo --umask 022 --user root
	scripts/test-fresh-clone --first test --umask 077 --user root
	scripts/test-fresh-clone --first demo --umask 077 --user ordinary
	scripts/test-fresh-clone --first test --umask 022 --user ordinary

test-fresh-clones-quick: ## the same with the compiled dependencies of this directory's target; its output says so; as root
	scripts/test-fresh-clone --first demo --umask 022 --user root --dependencies $(or $(CARGO_TARGET_DIR),target)
	scripts/test-fresh-clone --first test --umask 077 --user root --dependencies $(or $(CARGO_TARGET_DIR),target)
	scripts/test-fresh-clone --first demo --umask 077 --user ordinary --dependencies $(or $(CARGO_TARGET_DIR),target)
	scripts/test-fresh-clone --first test --umask 022 --user ordinary --dependencies $(or $(CARGO_TARGET_DIR),target)

test-newer-qemu: ## guests again, under the newest QEMU that Debian 12 has
	scripts/install-packages test
	STRONGROOM_QEMU=$$(scripts/newer-qemu) cargo test --package strongroom-system-tests --features full \
	  --test system -- boots_from_vhost_user:: killed_under_a_guest:: migrates:: hot_plug:: live_resize::
	STRONGROOM_QEMU=$$(scripts/newer-qemu) cargo test --package strongroom-hypervisor --features full \
	  --test machines --test guests

measure: build ## this program beside the raw file and QEMU's and nbdkit's servers, on a quiet machine; ten minutes, docs/LAB.md
	scripts/install-packages test
	cargo build --release --package strongroom-lab
	@$(programs)/strongroom-lab datapath --program $(programs)/strongroom

measure-first-writes: build ## first writes beside overwriting and beside qcow2, on ext4, XFS and btrfs; as root, long
	scripts/measure-first-writes

measure-snapshots: build ## what guests notice of snapshots, what those cost, and linked clones; as root, on a quiet machine, some 25 minutes, docs/LAB.md
	scripts/install-packages test
	cargo build --release --package strongroom-lab
	@scripts/measure-snapshots

measure-reencryption: build ## a guest's speed while its data keys are renewed, and the speed of that alone beside copies; as root, on a quiet machine, some ten minutes, docs/LAB.md
	scripts/install-packages test
	cargo build --release --package strongroom-lab
	@target/release/strongroom-lab snapshots reencrypt rewrite --directory target/lab/reencryption

measure-tags: build ## volumes with tags, by either algorithm, beside one without; on a quiet machine, some five minutes
	cargo build --release --package strongroom-lab
	@scripts/measure-tags

measure-qos: build ## limits of requests: how exactly they are held, what a neighbour notices, and what they cost; on a quiet machine, some ten minutes
	cargo build --release --package strongroom-lab
	@scripts/measure-qos

measure-estate: build ## the control plane of 64 simulated hosts with 1,000 and 10,000 VMs: starts, readings, idle time, a mixed load; as root, on a quiet machine, some ten minutes, docs/LAB.md
	cargo build --release --package strongroom-estate
	@scripts/measure-estate

measure-ceph: ## volumes on a Ceph cluster of this machine beside QEMU's own driver, plain and with LUKS; as root, on a quiet machine, a quarter of an hour, docs/LAB.md
	scripts/install-packages test
	cargo build --release --package strongroom-lab
	cargo build --release --package strongroom-worker --example serve_from_ceph
	@scripts/measure-ceph

measure-kmip: ## how often the key server releases a key, beside PyKMIP's and kmip-go's; on a quiet machine, some minutes
	scripts/install-packages test
	@scripts/measure-kmip

measure-migrations: build ## live migration beside QEMU's own ways, and what a guest notices of a whole move, over links of up to 150 ms; as root, on a quiet machine, some 40 minutes, docs/LAB.md
	scripts/install-packages test
	cargo build --release --package strongroom-lab
	cargo build --release --package strongroom-migrate --example relays
	STRONGROOM_NULL_CIPHER=1 cargo build --release --package strongroom-migrate --example null_relays
	@$(programs)/strongroom-lab migrate --program $(programs)/strongroom --relays $(programs)/examples/relays --null-relays $(programs)/examples/null_relays

measure-moves: build ## moves of a volume beside copies of the same file, with and without reading them back; and a guest while its volume moves; as root, on a quiet machine, some ten minutes
	cargo build --release --package strongroom-lab
	@scripts/measure-moves $(programs)/strongroom-lab $(programs)/strongroom

prove: ## the instrument that measures finds what is known beforehand; on a quiet machine, some six minutes
	scripts/install-packages test
	cargo run --release --package strongroom-lab -- prove $(or $(CARGO_TARGET_DIR),target)/prove

measure-vms: build ## VMs' life cycle with and without encryption, an inventory of 8,000, and 120 at once beside libvirt; on a quiet machine, some ten minutes
	scripts/install-packages full
	scripts/build-guest
	@scripts/measure-vms life-cycle
	@scripts/measure-vms inventory
	@scripts/measure-vms many

measure-volumes: ## maps of a thin volume of 500 GB, and a list of 1,024 volumes; a minute
	MAP_TIMES_DENSE_MIB=4096 cargo test --release --package strongroom-datastore --test map_times -- --nocapture
	cargo test --release --package strongroom-control --test control -- --nocapture volume_times::

fuzz: ## what a hostile front end, guest or KMIP peer sends, guided by coverage; ten minutes for each target
	scripts/install-packages fuzz
	scripts/fuzz

fuzz-slice: ## the same, twenty seconds for each target
	scripts/install-packages fuzz
	scripts/fuzz 20
