//! A control plane's requests to the broker: to adopt a key of an external provider, or to have one
//! made there.

use std::sync::Arc;

use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};

use super::protocol::BrokeredAnswer;
use super::{Management, refused, refused_by_server};
use crate::access::Identity;
use crate::authority::enrol::server::Unanswered;
use crate::broker::{self, Broker, BrokerError, UpstreamError, UpstreamState};
use crate::objects::keeping::Objects;

/// The state behind the broker's questions.
pub struct Brokering {
    /// The objects of the server.
    pub objects: Arc<Objects>,
    /// The broker, if the server has one.
    pub broker: Option<Arc<Broker>>,
}

impl Management {
    /// Adopts a provider's key, which must exist and be active or deactivated.
    pub(super) fn broker_add(
        &self,
        asker: &Identity,
        key: ProviderKey,
    ) -> Result<BrokeredAnswer, Unanswered> {
        let state = self.broker()?.upstream().state(&key).map_err(of_upstream)?;
        if state == UpstreamState::Compromised {
            let message = format!("the {key}, was revoked as compromised; have another one made");
            return Err(refused("broker", message));
        }
        self.taken_in(asker, key, state)
    }

    /// Has a key made at a provider, and adopts it.
    pub(super) fn broker_create(
        &self,
        asker: &Identity,
        provider: &ProviderName,
        request: KeyRequestId,
    ) -> Result<BrokeredAnswer, Unanswered> {
        let key = self.broker()?.upstream().create(provider, request).map_err(of_upstream)?;
        self.taken_in(asker, key, UpstreamState::Active)
    }

    fn taken_in(
        &self,
        asker: &Identity,
        key: ProviderKey,
        state: UpstreamState,
    ) -> Result<BrokeredAnswer, Unanswered> {
        let (id, state) =
            broker::take_in(&self.brokering.objects, asker.client, &key, state).map_err(of_broker)?;
        Ok(BrokeredAnswer { id: id.to_string(), key, state: state.word().to_owned() })
    }

    /// The keys of external providers.
    pub(super) fn brokered_keys(&self) -> Result<Vec<BrokeredAnswer>, Unanswered> {
        let listed =
            broker::list(&self.brokering.objects).map_err(|error| refused_by_server("store", &error))?;
        let answers = listed.into_iter().map(|(id, key, state)| BrokeredAnswer {
            id: id.to_string(),
            key,
            state: state.word().to_owned(),
        });
        Ok(answers.collect())
    }

    fn broker(&self) -> Result<&Broker, Unanswered> {
        self.brokering.broker.as_deref().ok_or_else(|| {
            let message =
                "the key server is the broker of no provider; start it with `strongroom keyserver run --broker PROVIDER`";
            refused("broker", message.to_owned())
        })
    }
}

fn of_upstream(error: UpstreamError) -> Unanswered {
    refused("upstream", error.to_string())
}

fn of_broker(error: BrokerError) -> Unanswered {
    match error {
        BrokerError::Contended => refused("contended", error.to_string()),
        error => refused_by_server("store", &error),
    }
}
