//! Which instances use a datastore, and of which hosts, so that all of a lost host can be fenced.
//!
//! ```text
//! instance/BOOT/PID/STARTED/ID    > MACHINE USER ADDRESS    an instance that may write
//! fenced/USER                     >                         this user's host may have no instance
//! lost/BOOT                       >                         locks of this boot may be broken
//! ```
//!
//! They are entries of one object's map; each change that others depend on compares and sets its
//! version. An instance is entered before it writes anything else. So when a host's user is marked
//! as fenced, every instance of it that can have written is in the list, and none comes after that.
//!
//! A host has a cephx user of its own: the user names the host. Nothing here is believed where it
//! could do harm: an instance is fenced before a lock of it is broken, even if a mark says that it
//! is lost.

use rustix::io::Errno;

use crate::ceph::{Change, Pool, Step};
use crate::holder::Holder;
use crate::names::{compared_and_set, following};

const OBJECT: &str = "instances";
/// The attribute that a change of the list raises.
const VERSION: &str = "version";
const INSTANCE: &str = "instance/";
const FENCED: &str = "fenced/";
const LOST: &str = "lost/";
/// The most entries that are read.
const ENTRIES_MAX: usize = 1 << 16;

/// An instance that is entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    holder: Holder,
    machine: String,
    user: String,
    /// The address, by which it is fenced.
    pub(crate) address: String,
    /// Its entry.
    key: String,
}

impl Instance {
    fn parse(key: &str, value: &[u8]) -> Option<Self> {
        let holder = Holder::of_cookie(key.strip_prefix(INSTANCE)?)?;
        let mut parts = std::str::from_utf8(value).ok()?.split(' ').map(str::to_owned);
        let (machine, user, address) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self { holder, machine, user, address, key: key.to_owned() })
    }

    fn value(&self) -> Vec<u8> {
        format!("{} {} {}", self.machine, self.user, self.address).into_bytes()
    }

    /// The cephx user, which names its host.
    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// Whether it runs, or ran, since the same start of the same machine as `other`.
    pub(crate) fn is_of_boot_of(&self, other: &Self) -> bool {
        self.holder.boot() == other.holder.boot()
    }

    /// Whether it ran on the machine of `own`, before its last start: it has ended with that.
    fn is_of_an_earlier_boot(&self, own: &Self) -> bool {
        let is_same_machine = !own.machine.is_empty() && self.machine == own.machine;
        is_same_machine && self.user == own.user && self.holder.boot() != own.holder.boot()
    }
}

/// The list of a datastore.
pub(crate) struct Instances {
    pool: Pool,
}

impl Instances {
    pub(crate) fn of(pool: &Pool) -> Self {
        Self { pool: pool.clone() }
    }

    /// Enters this instance. `SHUTDOWN` if its host is fenced.
    pub(crate) fn enter(&self, user: &str, address: &str) -> Result<Instance, Errno> {
        if user.is_empty() || user.contains([' ', '/']) || address.contains(' ') {
            return Err(Errno::INVAL);
        }
        match self.pool.change(OBJECT, &Change(vec![Step::Create, Step::SetAttribute(VERSION, b"0")])) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let holder = Holder::own();
        let own = Instance {
            holder: holder.clone(),
            machine: holder.machine().to_owned(),
            user: user.to_owned(),
            address: address.to_owned(),
            key: format!("{INSTANCE}{}", holder.cookie()),
        };
        let value = own.value();
        self.changed(|| match self.is_marked(FENCED, user)? {
            true => Err(Errno::SHUTDOWN),
            false => Ok(Step::SetEntry(&own.key, &value)),
        })?;
        Ok(own)
    }

    /// Removes an instance that writes no more, or is fenced.
    pub(crate) fn leave(&self, instance: &Instance) -> Result<(), Errno> {
        self.pool.change(OBJECT, &Change(vec![Step::RemoveEntry(&instance.key)]))
    }

    /// The instances that have ended with their process or with their machine, as far as `own` can
    /// know it. They have to be fenced before they leave the list.
    pub(crate) fn ended(&self, own: &Instance) -> Result<Vec<Instance>, Errno> {
        let has_ended = |other: &Instance| other.holder.has_ended() || other.is_of_an_earlier_boot(own);
        Ok(self.all()?.into_iter().filter(has_ended).collect())
    }

    /// Lets no instance of a user enter from now on. Returns those that it has.
    pub(crate) fn close_to(&self, user: &str) -> Result<Vec<Instance>, Errno> {
        let mark = format!("{FENCED}{user}");
        self.changed(|| Ok(Step::SetEntry(&mark, b"")))?;
        Ok(self.all()?.into_iter().filter(|instance| instance.user == user).collect())
    }

    /// Lets instances of a user enter again.
    pub(crate) fn open_to(&self, user: &str) -> Result<(), Errno> {
        let mark = format!("{FENCED}{user}");
        self.changed(|| Ok(Step::RemoveEntry(&mark)))
    }

    /// Whether instances of a user are refused.
    pub(crate) fn is_closed_to(&self, user: &str) -> Result<bool, Errno> {
        self.is_marked(FENCED, user)
    }

    /// Marks the boot of an instance that is fenced: its host has lost all locks of that boot.
    pub(crate) fn mark_lost(&self, instance: &Instance) -> Result<(), Errno> {
        let mark = format!("{LOST}{}", instance.holder.boot());
        self.pool.change(OBJECT, &Change(vec![Step::SetEntry(&mark, b"")]))
    }

    /// Whether a lock's holder belongs to a lost boot.
    pub(crate) fn is_lost(&self, holder: &Holder) -> Result<bool, Errno> {
        self.is_marked(LOST, holder.boot())
    }

    fn all(&self) -> Result<Vec<Instance>, Errno> {
        let entries = self.pool.entries(OBJECT, ENTRIES_MAX)?;
        Ok(entries.iter().filter_map(|(key, value)| Instance::parse(key, value)).collect())
    }

    fn is_marked(&self, kind: &str, name: &str) -> Result<bool, Errno> {
        Ok(self.pool.entry(OBJECT, &format!("{kind}{name}"))?.is_some())
    }

    fn changed<'a>(&self, mut decide: impl FnMut() -> Result<Step<'a>, Errno>) -> Result<(), Errno> {
        compared_and_set(&self.pool, OBJECT, VERSION, |version| {
            let step = decide()?;
            let next = following(version)?;
            let raise = [Step::AttributeIs(VERSION, version), Step::SetAttribute(VERSION, &next)];
            self.pool.change(OBJECT, &Change(raise.into_iter().chain([step]).collect()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(machine: &str, user: &str) -> Instance {
        let holder = Holder::own();
        Instance {
            holder: holder.clone(),
            machine: machine.to_owned(),
            user: user.to_owned(),
            address: "127.0.0.1:0/1".to_owned(),
            key: format!("{INSTANCE}{}", holder.cookie()),
        }
    }

    #[test]
    fn an_instance_is_read_as_it_was_entered_and_nothing_else_is() {
        let own = instance("machine", "client.host1");
        assert_eq!(Instance::parse(&own.key, &own.value()).unwrap(), own);
        for (key, value) in [("instance/x", "m u a"), ("fenced/client.host1", ""), (own.key.as_str(), "m u")]
        {
            assert_eq!(Instance::parse(key, value.as_bytes()), None, "{key} {value}");
        }
    }

    #[test]
    fn an_instance_of_another_machine_or_user_is_never_taken_for_an_ended_one() {
        let own = instance("machine", "client.host1");
        let earlier = Instance { holder: Holder::of_cookie("boot/1/2/x").unwrap(), ..own.clone() };
        assert!(earlier.is_of_an_earlier_boot(&own));
        for (machine, user) in [("other", "client.host1"), ("machine", "client.host2"), ("", "client.host1")]
        {
            let (machine, user) = (machine.to_owned(), user.to_owned());
            assert!(!Instance { machine, user, ..earlier.clone() }.is_of_an_earlier_boot(&own));
        }
        let unnamed = Instance { machine: String::new(), ..own.clone() };
        assert!(!Instance { machine: String::new(), ..earlier }.is_of_an_earlier_boot(&unnamed));
        assert!(!own.is_of_an_earlier_boot(&own));
    }
}
