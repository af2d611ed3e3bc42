//! The control plane with a host and key providers in memory: one program, because each is linked
//! with all of the control plane.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod access_log;
mod api;
mod backups;
mod balance;
mod boards;
mod browsers;
mod capacity;
mod carried_moves;
mod certificates;
mod client_keys;
mod clusters;
mod data_keys;
mod descriptions;
mod disk_moves;
mod disk_statistics;
mod emergency;
mod fuzz;
mod gone;
mod images;
mod joining;
mod killed;
mod live_moves;
mod live_moves_with_volumes;
mod moves;
mod networks;
mod on_record;
mod outside;
mod page;
mod placement;
mod placement_groups;
mod policies;
mod quotas;
mod reads;
mod recipients;
mod relay;
mod roles;
mod running_clones;
#[cfg(feature = "full")]
mod scale;
mod sealed_disks;
mod settling;
mod snapshot_groups;
mod snapshot_schedules;
mod support;
mod tasks;
mod titles;
mod volume_changes;
mod volume_times;
mod volumes;
