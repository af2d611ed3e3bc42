//! The administrator's side: sends a question, and knows the type of its answer.

use rustls::pki_types::CertificateDer;
use strongroom_memory::secret::SecretBytes;

use super::questions::{Ask, Question};
use crate::authority::enrol::{Client, ClientError};

impl Client {
    /// Sends an administrator's question, authenticated by the caller's certificate.
    ///
    /// # Errors
    /// The failure.
    pub fn manage<Q: Ask>(
        &self,
        authorities: &[CertificateDer<'static>],
        present: CertificateDer<'static>,
        key: &SecretBytes,
        question: Q,
    ) -> Result<Q::Answer, ClientError> {
        let question: Question = question.into();
        self.ask_management(authorities, present, key, &question)
    }
}
