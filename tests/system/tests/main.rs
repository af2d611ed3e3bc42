//! All whole-system tests, one module for each thing that a user does: `cargo test --workspace
//! --test system -- vm_clones` runs those of one.
//!
//! They are one program, so that it is linked once and each processor has a test to run while
//! another waits for its guest.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what tests found is for people to read")]

mod api_certificate;
mod api_document;
mod bad_images;
mod bad_input;
mod boots_a_guest_from_a_volume;
mod boots_from_vhost_user;
mod clock;
mod cloud_images;
mod commands;
mod comments;
mod damaged_volumes;
mod datapath;
mod dying_disk;
mod estate;
mod evidence;
mod first_hour;
mod first_mistakes;
mod full_datastore;
mod full_datastore_guest;
mod guest_streams;
mod harness_notices_damage;
mod hot_plug;
mod imports_and_exports;
mod installs;
mod integrity;
mod key_backup;
mod key_broker;
mod key_commands;
mod key_grants;
mod key_leases;
mod key_providers;
mod key_server;
mod key_server_killed;
mod killed_under_a_guest;
mod libkmip;
mod libvirt;
mod libvirt_disks;
mod limits;
mod live_resize;
mod machine_types;
mod many_vms;
mod migrates;
mod monitoring;
mod moves_between_hosts;
mod named_tests;
mod opens_with_standard_tools;
mod operations;
mod ova;
mod people;
mod people_from_outside;
mod planes;
mod provider_secrets;
mod recipients;
mod reconnects_after_the_server_is_killed;
mod reencrypts_volumes;
mod rekeys_volumes;
mod remote_hosts;
mod removed_while_served;
mod role_attacked;
mod secrets;
mod serves_real_clients;
mod snapshot_figures;
mod soaks;
mod storage_api;
mod support_bundle;
mod three_hosts;
mod tracing_points;
mod vhost_user_hostile_neighbour;
mod vhost_user_kill;
mod vhost_user_load;
mod vhost_user_upgrade;
mod vm_boot_order;
mod vm_clones;
mod vm_device_state;
mod vm_dumps;
mod vm_hot_plug;
mod vm_installs;
mod vm_keys;
mod vm_keys_asked_by_people;
mod vm_markers;
mod vm_names;
mod vm_networks;
mod vm_quiesced_snapshots;
mod vm_reencryption;
mod vm_snapshot_groups;
mod vm_snapshots;
mod vm_statistics;
mod vm_walls;
mod vms;
mod vms_killed;
mod volume_changes_at_once;
mod volume_maps;
mod volume_merges;
mod volume_snapshots;
mod volume_statistics;
mod volumes_move;
mod worker_confined;
mod worker_life;
mod worker_times;

// What several of them use.
mod disk_support;
mod driven_api;
mod install_media;
mod key_site;
mod kmip_client;
mod machines_support;
mod secret_search;
mod worker_support;
