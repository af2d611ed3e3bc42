//! The operations of KMIP, one file each: their effect on objects, independent of connections,
//! batches and records.
//!
//! An operation is a function of a [`Context`] and its payload. It reads and stages changes through
//! the context's [`Work`], so it can be repeated after a conflict. It reports released secrets, so
//! that they are recorded before the answer leaves. It obtains every object through
//! [`Context::object`] or a variant, which check permissions.

mod activate;
mod add_attribute;
mod archive;
pub mod asking;
mod check;
pub mod ciphers;
mod create;
mod delete_attribute;
mod destroy;
mod discover_versions;
mod encrypt;
mod get;
mod get_attributes;
mod get_usage_allocation;
mod hash;
mod locate;
mod mac;
mod modify_attribute;
mod new_object;
mod obtain_lease;
mod poll;
mod query;
mod random;
mod re_key;
mod register;
mod revoke;
mod wrap;

use strongroom_keys::ProviderKey;
use strongroom_kmip::message::{RequestPayload, ResponsePayload, UniqueIdentifierResponse};
use strongroom_kmip::protocol::{Operation, ProtocolVersion, ResultReason};
use strongroom_memory::secret::SecretBytes;

use self::asking::{Answers, Ask};
use crate::access::{OperationClass, Role, Scope, scope};
use crate::broker;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::grant::holding;
use crate::objects::id::ObjectId;
use crate::objects::keeping::Work;
use crate::objects::object::Object;
use crate::settings::Settings;

pub use locate::GroupTurns;

/// The context of a request's operations.
pub struct Context<'a, 'w> {
    /// The client.
    pub caller: &'a Caller,
    /// The version of KMIP.
    pub version: ProtocolVersion,
    /// The server's settings.
    pub settings: &'a Settings,
    /// The turns in groups of objects.
    pub turns: &'a GroupTurns,
    /// The objects read and changed.
    pub work: &'a mut Work<'w>,
    /// The answers of providers and datastores so far.
    pub answers: &'a Answers,
    /// A request that must be made first. Then the attempt is dropped, and repeated with the
    /// answer.
    pub asks: Option<Ask>,
    /// The item's key at an external provider, for the record.
    pub upstream: Option<ProviderKey>,
    /// The object of an item that names none (KMIP 1.4, section 4, "ID Placeholder").
    pub placeholder: Option<ObjectId>,
    /// The objects of the item, for the record.
    pub objects: Vec<ObjectId>,
    /// The released secret, if there is one.
    pub released: Option<Released>,
    /// The current operation.
    pub operation: Operation,
}

/// A released secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// Whether it is wrapped under another key.
    pub wrapped: bool,
}

/// The permission class of an operation; `None` for those that are not offered.
pub fn class_of(operation: Operation) -> Option<OperationClass> {
    use OperationClass as Class;
    Some(match operation {
        Operation::DiscoverVersions | Operation::Query | Operation::Poll | Operation::Cancel => {
            Class::Discover
        }
        Operation::Create | Operation::ReKey => Class::CreateKey,
        Operation::Register => Class::RegisterKey,
        Operation::Get => Class::ReadKey,
        Operation::Locate
        | Operation::Check
        | Operation::GetAttributes
        | Operation::GetAttributeList
        | Operation::ObtainLease => Class::ReadMetadata,
        Operation::AddAttribute
        | Operation::ModifyAttribute
        | Operation::DeleteAttribute
        | Operation::Activate
        | Operation::Archive
        | Operation::Recover => Class::ChangeMetadata,
        Operation::Revoke => Class::RevokeKey,
        Operation::Destroy => Class::DestroyKey,
        Operation::GetUsageAllocation
        | Operation::Encrypt
        | Operation::Decrypt
        | Operation::Mac
        | Operation::MacVerify => Class::UseKey,
        Operation::RngRetrieve | Operation::RngSeed | Operation::Hash => Class::Random,
        // Public key cryptography, split keys, operations that servers initiate, and unknown ones.
        Operation::CreateKeyPair
        | Operation::DeriveKey
        | Operation::Certify
        | Operation::ReCertify
        | Operation::Validate
        | Operation::Notify
        | Operation::Put
        | Operation::ReKeyKeyPair
        | Operation::Sign
        | Operation::SignatureVerify
        | Operation::CreateSplitKey
        | Operation::JoinSplitKey
        | Operation::Import
        | Operation::Export
        | Operation::Other(_) => return None,
    })
}

/// Performs one operation.
///
/// # Errors
///
/// [`Failure`]; then the operation's staged changes must not be committed.
pub fn perform(payload: &RequestPayload, context: &mut Context<'_, '_>) -> Result<ResponsePayload, Failure> {
    use RequestPayload as Request;
    use ResponsePayload as Response;
    context.objects.clear();
    context.released = None;
    context.upstream = None;
    context.operation = payload.operation();
    context.check_offered()?;
    Ok(match payload {
        Request::Create(request) => Response::Create(create::create(context, request)?),
        Request::Register(request) => Response::Register(register::register(context, request)?),
        Request::ReKey(request) => Response::ReKey(re_key::re_key(context, request)?),
        Request::Locate(request) => Response::Locate(locate::locate(context, request)?),
        Request::Check(request) => Response::Check(check::check(context, request)?),
        Request::Get(request) => Response::Get(get::get(context, request)?),
        Request::GetAttributes(request) => {
            Response::GetAttributes(get_attributes::get_attributes(context, request)?)
        }
        Request::GetAttributeList(request) => {
            Response::GetAttributeList(get_attributes::get_attribute_list(context, request)?)
        }
        Request::AddAttribute(request) => {
            Response::AddAttribute(add_attribute::add_attribute(context, request)?)
        }
        Request::ModifyAttribute(request) => {
            Response::ModifyAttribute(modify_attribute::modify_attribute(context, request)?)
        }
        Request::DeleteAttribute(request) => {
            Response::DeleteAttribute(delete_attribute::delete_attribute(context, request)?)
        }
        Request::ObtainLease(request) => Response::ObtainLease(obtain_lease::obtain_lease(context, request)?),
        Request::GetUsageAllocation(request) => {
            Response::GetUsageAllocation(get_usage_allocation::get_usage_allocation(context, request)?)
        }
        Request::Activate(request) => Response::Activate(activate::activate(context, request)?),
        Request::Revoke(request) => Response::Revoke(revoke::revoke(context, request)?),
        Request::Destroy(request) => Response::Destroy(destroy::destroy(context, request)?),
        Request::Archive(request) => Response::Archive(archive::archive(context, request)?),
        Request::Recover(request) => Response::Recover(archive::recover(context, request)?),
        Request::Query(request) => Response::Query(query::query(context, request)),
        Request::Cancel(request) => Response::Cancel(poll::cancel(request)),
        Request::Poll(_) => return Err(poll::poll()),
        Request::DiscoverVersions(request) => {
            Response::DiscoverVersions(discover_versions::discover_versions(request))
        }
        Request::Encrypt(request) => Response::Encrypt(encrypt::encrypt(context, request)?),
        Request::Decrypt(request) => Response::Decrypt(encrypt::decrypt(context, request)?),
        Request::Mac(request) => Response::Mac(mac::mac(context, request)?),
        Request::MacVerify(request) => Response::MacVerify(mac::mac_verify(context, request)?),
        Request::RngRetrieve(request) => Response::RngRetrieve(random::retrieve(request)?),
        Request::RngSeed(request) => Response::RngSeed(random::seed(request)?),
        Request::Hash(request) => Response::Hash(hash::hash(request)?),
        Request::Undecodable { error, .. } => return Err(error.clone().into()),
        Request::Unknown { operation, .. } => return Err(not_supported(*operation)),
    })
}

fn not_supported(operation: Operation) -> Failure {
    Failure::new(ResultReason::OperationNotSupported, format!("{operation} is not offered here"))
}

impl Context<'_, '_> {
    /// Refuses operations that are disabled, that the version does not have, or that the caller may
    /// never do.
    fn check_offered(&self) -> Result<(), Failure> {
        let operation = self.operation;
        let Some(class) = class_of(operation) else { return Err(not_supported(operation)) };
        // A client that asks for the versions cannot know yet that Discover Versions needs 1.1.
        let is_known = operation.since() <= self.version || operation == Operation::DiscoverVersions;
        if !is_known || !self.settings.offers(operation) {
            return Err(not_supported(operation));
        }
        match scope(self.caller.role(), class) {
            Scope::Nothing => {
                Err(Failure::denied(format!("the role {} may not {operation}", self.caller.role())))
            }
            Scope::Own | Scope::Granted | Scope::All => Ok(()),
        }
    }

    /// The object of an item, if the caller may perform the operation on it. It may be a tombstone.
    ///
    /// # Errors
    ///
    /// `ItemNotFound` for a missing object; `PermissionDenied` for one of another client that was
    /// not granted.
    pub fn object(&mut self, named: Option<&String>) -> Result<Object, Failure> {
        let class = class_of(self.operation).ok_or_else(|| not_supported(self.operation))?;
        let object = self.object_for(named, class)?;
        self.placeholder = Some(object.id);
        Ok(object)
    }

    /// As [`Context::object`], and the object is not destroyed.
    ///
    /// # Errors
    ///
    /// `ItemNotFound` for a destroyed object, too.
    pub fn living_object(&mut self, named: Option<&String>) -> Result<Object, Failure> {
        let object = self.object(named)?;
        if object.is_destroyed() { Err(Failure::not_found()) } else { Ok(object) }
    }

    /// As [`Context::living_object`], and the object is not archived.
    ///
    /// # Errors
    ///
    /// `ObjectArchived`, too.
    pub fn online_object(&mut self, named: Option<&String>) -> Result<Object, Failure> {
        let object = self.living_object(named)?;
        check_online(&object)?;
        Ok(object)
    }

    /// An object for a permission of that class, whatever the operation; the ID placeholder stays.
    ///
    /// # Errors
    ///
    /// As [`Context::object`].
    pub fn object_for(&mut self, named: Option<&String>, class: OperationClass) -> Result<Object, Failure> {
        let id = match named {
            Some(text) => text.parse().map_err(|_| Failure::not_found())?,
            None => self.placeholder.ok_or_else(|| {
                Failure::new(ResultReason::ItemNotFound, "no object is named, and none comes from the batch")
            })?,
        };
        self.objects.push(id);
        // Checked before the look-up, so that a caller without permission does not learn which
        // objects exist.
        let scope = match self.caller.scope_for(id, class) {
            Err(_) if class == OperationClass::ReadMetadata && self.is_held(id)? => Scope::Granted,
            scope => scope?,
        };
        let object = self.work.load(id)?;
        match scope {
            Scope::Own if object.owner != self.caller.client() => {
                Err(Failure::denied("the object belongs to another client"))
            }
            // Refused above: such a caller has no scope here.
            Scope::Nothing => Err(Failure::denied("the caller may do this to no object")),
            Scope::Own | Scope::Granted | Scope::All => Ok(object),
        }
    }

    /// A key at an external provider.
    ///
    /// # Errors
    ///
    /// The provider's failure.
    fn key_of_provider(&mut self, key: &ProviderKey) -> Result<&SecretBytes, Failure> {
        self.upstream = Some(key.clone());
        match self.answers.keys.get(key) {
            Some(answer) => answer.as_ref().map_err(Failure::clone),
            None => Err(self.ask(Ask::Key(key.clone()))),
        }
    }

    /// The object, updated to the state at its external provider, if it has one.
    ///
    /// # Errors
    ///
    /// Why the state is unknown.
    fn as_provider_says(&mut self, mut object: Object) -> Result<Object, Failure> {
        let Some(key) = &object.upstream else { return Ok(object) };
        self.upstream = Some(key.clone());
        let state = match self.answers.states.get(key) {
            Some(answer) => answer.clone()?,
            None => return Err(self.ask(Ask::State(key.clone()))),
        };
        if broker::follow(&mut object, state, self.work.now()) {
            self.work.replace(object.duplicate()?)?;
        }
        Ok(object)
    }

    /// Requests an answer first; the returned failure reaches no client.
    fn ask(&mut self, ask: Ask) -> Failure {
        self.asks = Some(ask);
        Failure::new(ResultReason::GeneralFailure, "something has to be asked first")
    }

    /// Whether the caller is a host that was granted the object before, and may still read its
    /// state.
    fn is_held(&self, id: ObjectId) -> Result<bool, Failure> {
        let caller = self.caller;
        if caller.role() != Role::Host || caller.grant().is_some() {
            return Ok(false);
        }
        holding::is_held(self.work.snapshot(), caller.client(), &id.to_string())
            .map_err(|error| Failure::internal(&error))
    }
}

/// Refuses an archived object.
pub(crate) fn check_online(object: &Object) -> Result<(), Failure> {
    match object.life.archived() {
        Some(_) => {
            Err(Failure::new(ResultReason::ObjectArchived, "the object is archived; recover it first"))
        }
        None => Ok(()),
    }
}

/// Refuses objects without a state: templates and opaque objects.
pub(crate) fn check_has_state(object: &Object) -> Result<(), Failure> {
    use strongroom_kmip::protocol::ObjectType;
    match object.object_type {
        ObjectType::Template | ObjectType::OpaqueObject => Err(Failure::new(
            ResultReason::IllegalOperation,
            format!("an object of type {} has no state", object.object_type),
        )),
        _ => Ok(()),
    }
}

/// The answer of operations that return only the object's identifier.
pub(crate) fn answer_for(id: ObjectId) -> UniqueIdentifierResponse {
    UniqueIdentifierResponse { unique_identifier: id.to_string() }
}
