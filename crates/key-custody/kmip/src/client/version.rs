//! Agreeing on a version of the protocol.

use super::Client;
use super::deadline::Deadline;
use super::error::ClientError;
use crate::message::{DiscoverVersionsRequest, QueryRequest, RequestPayload, ResponsePayload};
use crate::protocol::{ProtocolVersion, QueryFunction, ResultReason};

/// The versions in which Discover Versions is sent: first the oldest that has it, which most
/// servers speak, then those of servers that have dropped the older ones.
const ASKED_IN: [ProtocolVersion; 4] =
    [ProtocolVersion::V1_1, ProtocolVersion::V1_4, ProtocolVersion::V1_3, ProtocolVersion::V1_2];

impl Client {
    /// The version of messages to this server, negotiated once.
    ///
    /// # Errors
    /// If the server cannot be asked, or [`ClientError::NoCommonVersion`].
    pub fn version(&self) -> Result<ProtocolVersion, ClientError> {
        self.agreed_version(Deadline::after(self.options.request_timeout))
    }

    pub(super) fn agreed_version(&self, deadline: Deadline) -> Result<ProtocolVersion, ClientError> {
        if let Some(version) = *self.version.lock() {
            return Ok(version);
        }
        // Without the lock: a silent server must not make other callers wait beyond their own
        // deadlines.
        let theirs = self.ask_versions(deadline)?;
        let common = |version: &&ProtocolVersion| theirs.contains(version);
        let Some(version) = self.options.versions.iter().filter(common).max().copied() else {
            return Err(ClientError::NoCommonVersion {
                server: self.server().clone(),
                theirs,
                ours: self.options.versions.clone(),
            });
        };
        *self.version.lock() = Some(version);
        Ok(version)
    }

    fn ask_versions(&self, deadline: Deadline) -> Result<Vec<ProtocolVersion>, ClientError> {
        for version in ASKED_IN {
            let question = RequestPayload::DiscoverVersions(DiscoverVersionsRequest::default());
            match self.send(vec![question], version, deadline) {
                Ok(mut answers) => match answers.pop() {
                    Some(Ok(ResponsePayload::DiscoverVersions(answer))) => {
                        return Ok(answer.protocol_versions);
                    }
                    Some(Err(refusal)) if refusal.reason == ResultReason::OperationNotSupported => break,
                    _ => {}
                },
                // A server that does not speak the version cannot read the question.
                Err(ClientError::Refused { refusal, .. })
                    if refusal.reason == ResultReason::OperationNotSupported =>
                {
                    break;
                }
                Err(
                    ClientError::Refused { .. } | ClientError::Protocol { .. } | ClientError::Lost { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        self.try_1_0(deadline)
    }

    /// A server that does not know Discover Versions speaks KMIP 1.0, if it answers in that
    /// version.
    fn try_1_0(&self, deadline: Deadline) -> Result<Vec<ProtocolVersion>, ClientError> {
        let question = QueryRequest { query_functions: vec![QueryFunction::Operations] };
        let version = ProtocolVersion::V1_0;
        let mut answers = self.send(vec![RequestPayload::Query(question)], version, deadline)?;
        match answers.pop() {
            Some(Ok(_)) => Ok(vec![version]),
            Some(Err(refusal)) => Err(ClientError::Refused { server: self.server().clone(), refusal }),
            None => Err(self.nonsense("nothing is said about Query")),
        }
    }
}
