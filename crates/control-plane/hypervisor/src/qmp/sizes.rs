//! Plugs processors and memory in, and processors out.

use std::cmp::Reverse;

use serde_json::{Value, json};
use strongroom_vm::limits::MEMORY_MODULES_MAX;

use super::{Qmp, QmpError};
use crate::machine::memory_backend;

/// The QOM path of processors that were plugged in: those of the start have no id.
const PLUGGED_CPU: &str = "/machine/peripheral/cpu";

/// A place for a processor.
struct CpuPlace {
    /// Its numbers, as QEMU names them: socket, core, thread and others.
    numbers: Value,
    /// The processor's type.
    kind: String,
    /// The processor in it, if there is one.
    path: Option<String>,
}

impl CpuPlace {
    fn core(&self) -> u64 {
        self.numbers["core-id"].as_u64().unwrap_or_default()
    }

    fn id(&self) -> String {
        format!("cpu{}", self.core())
    }

    fn is_plugged(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.starts_with(PLUGGED_CPU))
    }
}

impl Qmp {
    /// Returns the number of processors.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn cpu_count(&self) -> Result<u64, QmpError> {
        let taken = self.cpu_places()?.iter().filter(|place| place.path.is_some()).count();
        Ok(taken as u64)
    }

    /// Plugs a processor in, at the first free place.
    ///
    /// # Errors
    /// [`QmpError::NoPort`] if there is none, and QEMU's errors.
    pub fn plug_cpu(&self) -> Result<(), QmpError> {
        let mut places = self.cpu_places()?;
        places.retain(|place| place.path.is_none());
        let place = places.into_iter().min_by_key(CpuPlace::core).ok_or(QmpError::NoPort)?;
        let mut device = json!({ "driver": place.kind, "id": place.id() });
        for (name, number) in place.numbers.as_object().into_iter().flatten() {
            device[name] = number.clone();
        }
        self.execute_value("device_add", &device).map(drop)
    }

    /// Asks the guest to release the last processor that was plugged in.
    ///
    /// # Errors
    /// [`QmpError::NoPort`] if there is none, and QEMU's errors, also if the guest was already
    /// asked.
    pub fn unplug_cpu(&self) -> Result<(), QmpError> {
        let mut places = self.cpu_places()?;
        places.retain(CpuPlace::is_plugged);
        let last = places.into_iter().min_by_key(|place| Reverse(place.core())).ok_or(QmpError::NoPort)?;
        self.execute_value("device_del", &json!({ "id": last.id() })).map(drop)
    }

    /// Returns the size of the guest's memory, in bytes.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn memory_bytes(&self) -> Result<u64, QmpError> {
        let summary = self.execute_value("query-memory-size-summary", &json!({}))?;
        let part = |name: &str| summary[name].as_u64().unwrap_or_default();
        Ok(part("base-memory").saturating_add(part("plugged-memory")))
    }

    /// Plugs a module of memory of this size in. QEMU shares it with the servers of vhost-user
    /// disks before it answers.
    ///
    /// # Errors
    /// [`QmpError::NoPort`] if there is no place for another one, and QEMU's errors.
    pub fn plug_memory(&self, bytes: u64) -> Result<(), QmpError> {
        let modules = self.execute_value("query-memory-devices", &json!({}))?;
        let number = modules.as_array().map_or(0, Vec::len) + 1;
        if number > MEMORY_MODULES_MAX {
            return Err(QmpError::NoPort);
        }
        let (module, memory) = (format!("dimm{number}"), format!("memory{number}"));
        // What an earlier attempt has left.
        let remove = || self.execute_value("object-del", &json!({ "id": memory }));
        let _ = remove();
        self.execute_value("object-add", &memory_backend(&memory, bytes))?;
        let device = json!({ "driver": "pc-dimm", "id": module, "memdev": memory });
        let added = self.execute_value("device_add", &device).map(drop);
        if let Err(QmpError::Refused { .. } | QmpError::Answer { .. }) = &added {
            let _ = remove();
        }
        added
    }

    fn cpu_places(&self) -> Result<Vec<CpuPlace>, QmpError> {
        let places = self.execute_value("query-hotpluggable-cpus", &json!({}))?;
        let place = |place: &Value| CpuPlace {
            numbers: place["props"].clone(),
            kind: place["type"].as_str().unwrap_or_default().to_owned(),
            path: place["qom-path"].as_str().map(str::to_owned),
        };
        Ok(places.as_array().into_iter().flatten().map(place).collect())
    }
}
