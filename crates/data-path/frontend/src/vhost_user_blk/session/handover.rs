//! Hands a session over from one server to the next.

use std::sync::Arc;

use super::super::guest_memory::Regions;
use super::super::in_flight::InFlightArea;
use super::super::protocol::protocol_feature;
use super::super::ring_setup::RingSetup;
use super::super::suspended::{Incoming, Outgoing, SessionState, SuspendedError};
use super::{Place, Refusal, Session, map_log};

impl Session {
    /// Ends the queues, after they have answered the requests that they took, and collects the
    /// state that a successor needs, except for the socket.
    pub fn suspend(&mut self, socket: usize, files: &mut Outgoing) -> Result<SessionState, SuspendedError> {
        self.end();
        let regions = self.regions.iter();
        let regions: Result<_, SuspendedError> =
            regions.map(|(region, file)| Ok((region, files.add(file)?))).collect();
        let rings: Result<_, SuspendedError> = self.rings.iter().map(|ring| ring.suspend(files)).collect();
        let in_flight = self.in_flight.as_ref().map(|area| (area.description(), area.file()));
        let log = self.log.as_ref().map(|log| (log.description(), log.file()));
        Ok(SessionState {
            socket,
            features: self.features,
            protocol_features: self.protocol_features,
            status: self.status,
            writeback: self.device.writeback(),
            run: self.run,
            is_active: self.place.activity.is_run_by(self.place.seat),
            regions: regions?,
            rings: rings?,
            backend_channel: files.add_some(self.backend_channel.as_ref())?,
            in_flight: files.add_described(in_flight)?,
            log: files.add_described(log)?,
        })
    }

    /// Resumes a predecessor's session.
    pub fn take_over(place: Place, state: &SessionState, files: &mut Incoming) -> Result<Self, Refusal> {
        let mut session = Self::new(place)?;
        let device = &session.device;
        if state.features & !device.features() != 0
            || state.protocol_features & !protocol_feature::OFFERED != 0
        {
            return Err(SuspendedError::DoesNotFit("a feature that was agreed on is not served").into());
        }
        if state.rings.len() > session.rings.len() {
            return Err(SuspendedError::DoesNotFit("rings").into());
        }
        device.set_writeback(state.writeback);
        session.features = state.features;
        session.protocol_features = state.protocol_features;
        session.status = state.status;
        session.run = state.run;
        let regions: Result<_, SuspendedError> =
            state.regions.iter().map(|(region, file)| Ok((*region, files.take(*file)?))).collect();
        session.regions = Regions::new(regions?)?;
        for (index, ring) in state.rings.iter().enumerate() {
            session.rings[index] = RingSetup::take_over(index, ring, files)?;
        }
        session.backend_channel = files.take_some(state.backend_channel)?;
        if let Some((area, file)) = state.in_flight {
            session.in_flight = Some(Arc::new(InFlightArea::map(area, files.take(file)?)?));
        }
        if let Some((log, file)) = state.log {
            session.log = Some(map_log(log, files.take(file)?)?);
        }
        session.map_memory()?;
        if state.is_active {
            session.place.activity.continue_run(session.place.seat);
            session.resume(0..session.rings.len())?;
        }
        Ok(session)
    }
}
