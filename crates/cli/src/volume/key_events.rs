//! Log messages about the key of an exposed volume.

use std::path::Path;

use strongroom_providers::HolderEvent;

use strongroom_types::without_numbers;

/// Logs the event, its effect on the volume's users, and the next step.
pub fn tell(volume: &Path, event: &HolderEvent) {
    let volume = volume.display();
    match event {
        HolderEvent::Outage { key, reason } => {
            let reason = without_numbers(reason);
            tracing::warn!("{volume}: the {key}, cannot be confirmed: {reason}. The volume is served on");
        }
        HolderEvent::Back { key } => tracing::warn!("{volume}: the {key}, is held and confirmed again"),
        HolderEvent::LeaseEnded { key } => tracing::error!(
            "{volume}: the lease of the {key}, has ended, and the key was wiped. The volume is served on; what needs the key, \
             such as another worker after this one, waits until the provider answers"
        ),
        HolderEvent::Expired { key, .. } => tracing::warn!(
            "{volume}: the {key}, is out of its time; replace it: strongroom volume rekey --kek {volume} \
             --to-key-provider {}",
            key.provider
        ),
        HolderEvent::Revoked { key, how } => tracing::error!(
            "{volume}: the {key}, was {how}, and was wiped here. Nobody opens the volume with it any more"
        ),
    }
}
