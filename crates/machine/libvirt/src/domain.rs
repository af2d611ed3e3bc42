//! What a libvirt domain's XML says of its memory and its disks, and where another disk may go.

use std::path::PathBuf;

use strongroom_xml::Element;

/// Names of disks as libvirt has them for virtio: vda, vdb, ... vdz, vdaa, ...
const TARGET_PREFIX: &str = "vd";

/// What begins the aliases that a person, or a program, gives (libvirt, *Device aliases*).
const ALIAS_PREFIX: &str = "ua-strongroom-";

/// How the guest's memory is kept by QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestMemory {
    /// Its own: nobody but QEMU sees it.
    Private,
    /// In a file without a name, or in huge pages, which another process can map.
    Shared,
    /// The same, in a file on a disk of this machine.
    SharedInFile,
}

/// Where a disk's content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A vhost-user server at this socket.
    VhostUser(PathBuf),
    /// An NBD server at this unix socket.
    Nbd(PathBuf),
    /// Anything else.
    Other,
}

/// A disk of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What libvirt calls it: vda.
    pub target: String,
    /// The name that the device has by libvirt, or by who attached it.
    pub alias: Option<String>,
    /// Where its content comes from.
    pub place: Place,
}

/// A domain as it runs, or as it will be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its id as libvirt has it.
    pub uuid: String,
    /// How its memory is kept.
    pub memory: GuestMemory,
    /// Its disks, in order.
    pub disks: Vec<Disk>,
}

impl Domain {
    /// Reads what `virsh dumpxml` says of a domain, or of several in a row.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read_all(xml: &str) -> Result<Vec<Self>, String> {
        Element::read(xml)?.all("domain").map(Self::of).collect()
    }

    /// The same, of one.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(xml: &str) -> Result<Self, String> {
        Self::read_all(xml)?.into_iter().next().ok_or_else(|| "it has no <domain>".to_owned())
    }

    fn of(domain: &Element) -> Result<Self, String> {
        let text = |name: &str| domain.all(name).next().map(Element::text).unwrap_or_default().to_owned();
        let name = text("name");
        if name.is_empty() {
            return Err("its <domain> has no <name>".to_owned());
        }
        let devices = domain.all("devices").flat_map(|devices| devices.all("disk"));
        Ok(Self {
            name,
            uuid: text("uuid"),
            memory: memory(domain),
            disks: devices.filter_map(disk).collect(),
        })
    }

    /// The disk that is this volume: one that was attached as such, or one at a socket of it.
    pub fn disk_of(&self, volume: &str, sockets: &[PathBuf]) -> Option<&Disk> {
        let alias = alias_of(volume);
        let at_socket = |disk: &Disk| match &disk.place {
            Place::VhostUser(socket) | Place::Nbd(socket) => sockets.contains(socket),
            Place::Other => false,
        };
        let by_alias = self.disks.iter().find(|disk| disk.alias.as_deref() == Some(alias.as_str()));
        by_alias.or_else(|| self.disks.iter().find(|disk| at_socket(disk)))
    }

    /// Whether a disk is called so.
    pub fn has_target(&self, target: &str) -> bool {
        self.disks.iter().any(|disk| disk.target == target)
    }
}

/// The device alias of a volume, by its id.
pub fn alias_of(volume: &str) -> String {
    format!("{ALIAS_PREFIX}{volume}")
}

/// The first name that no disk of any of these has.
pub fn free_target<'a>(domains: impl IntoIterator<Item = &'a Domain> + Clone) -> String {
    // There is one: domains have an end.
    (0..)
        .map(target_name)
        .find(|name| !domains.clone().into_iter().any(|domain| domain.has_target(name)))
        .unwrap_or_default()
}

/// Whether it is a name that libvirt takes for a virtio disk.
pub fn is_target(name: &str) -> bool {
    let letters = name.strip_prefix(TARGET_PREFIX).unwrap_or_default();
    (1..=3).contains(&letters.len()) && letters.bytes().all(|letter| letter.is_ascii_lowercase())
}

/// vda for 0, vdz for 25, vdaa for 26.
fn target_name(number: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = number + 1;
    while rest > 0 {
        rest -= 1;
        letters.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    letters.reverse();
    TARGET_PREFIX.chars().chain(letters).collect()
}

fn disk(element: &Element) -> Option<Disk> {
    let source = |name| element.attribute_of(&["source"], name);
    let unix_host = || {
        let host = element.find(&["source", "host"])?;
        (host.attribute("transport") == Some("unix")).then(|| host.attribute("socket")).flatten()
    };
    let place = match element.attribute("type") {
        Some("vhostuser") => source("path").map(|path| Place::VhostUser(path.into())),
        Some("network") if source("protocol") == Some("nbd") => {
            unix_host().map(|path| Place::Nbd(path.into()))
        }
        _ => None,
    };
    Some(Disk {
        target: element.attribute_of(&["target"], "dev")?.to_owned(),
        alias: element.attribute_of(&["alias"], "name").map(str::to_owned),
        place: place.unwrap_or(Place::Other),
    })
}

/// As libvirt judges it for vhost-user (qemuValidateDomainDefVhostUserRequireSharedMemory): what
/// the memory as a whole is, unless each NUMA node says otherwise.
fn memory(domain: &Element) -> GuestMemory {
    let whole = domain.attribute_of(&["memoryBacking", "access"], "mode") == Some("shared");
    let nodes = domain.find(&["cpu", "numa"]);
    let mut nodes = nodes.iter().flat_map(|numa| numa.all("cell")).peekable();
    let shared = match nodes.peek() {
        None => whole,
        Some(_) => nodes.all(|node| node.attribute("memAccess").map_or(whole, |access| access == "shared")),
    };
    let nameless = domain.attribute_of(&["memoryBacking", "source"], "type") == Some("memfd")
        || domain.find(&["memoryBacking", "hugepages"]).is_some();
    match (shared, nameless) {
        (false, _) => GuestMemory::Private,
        (true, true) => GuestMemory::Shared,
        // Without a word on its source, libvirt makes a file in `memory_backing_dir` of qemu.conf.
        (true, false) => GuestMemory::SharedInFile,
    }
}

/// Who runs QEMU for libvirt on this machine, and what confines it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QemuUser {
    /// Its user and group; none where they are libvirt's own.
    pub user_and_group: Option<(u32, u32)>,
    /// `apparmor` or `selinux`.
    pub confined_by: Option<String>,
}

impl QemuUser {
    /// Reads what `virsh capabilities` says.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn read(xml: &str) -> Result<Self, String> {
        let root = Element::read(xml)?;
        let host = root.find(&["capabilities", "host"]).ok_or("it has no <capabilities>")?;
        let mut found = Self::default();
        for model in host.all("secmodel") {
            let name = model.all("model").next().map(Element::text).unwrap_or_default();
            match name {
                "dac" => {
                    found.user_and_group =
                        model.all("baselabel").find_map(|label| user_and_group(label.text()))
                }
                "apparmor" | "selinux" => found.confined_by = Some(name.to_owned()),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// `+64055:+994`
fn user_and_group(label: &str) -> Option<(u32, u32)> {
    let (user, group) = label.split_once(':')?;
    let number = |text: &str| text.strip_prefix('+').unwrap_or(text).parse().ok();
    Some((number(user)?, number(group)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    // As libvirt 9.0 (Debian 12) said them of domains of its own, defined and started.
    const PRIVATE: &str = include_str!("recorded/private.xml");
    const SHARED_RUNNING: &str = include_str!("recorded/shared-memfd-running.xml");
    const SHARED_IN_FILE: &str = include_str!("recorded/shared-in-file.xml");
    const SHARED_NUMA: &str = include_str!("recorded/shared-numa.xml");
    const ATTACHED: &str = include_str!("recorded/attached.xml");
    const CAPABILITIES: &str = include_str!("recorded/capabilities.xml");

    #[test]
    fn disks_and_names_are_read_as_they_are() {
        let domain = Domain::read(PRIVATE).unwrap();
        assert_eq!(
            (domain.name.as_str(), domain.uuid.as_str()),
            ("web&1", "04560f1c-a53a-47ef-9690-e12023397a10")
        );
        let found: Vec<_> = domain.disks.iter().map(|disk| (disk.target.as_str(), &disk.place)).collect();
        // This one's NBD server has no unix socket, so it is not ours.
        assert_eq!(found, [("vda", &Place::Other), ("vdc", &Place::Other), ("sda", &Place::Other)]);
        assert!(domain.disk_of("4711", &["/run/x.sock".into()]).is_none());
        assert_eq!(free_target([&domain]), "vdb");
    }

    #[test]
    fn memory_is_what_libvirt_makes_of_it() {
        let memory = |xml| Domain::read(xml).unwrap().memory;
        assert_eq!(memory(PRIVATE), GuestMemory::Private);
        assert_eq!(memory(SHARED_RUNNING), GuestMemory::Shared);
        assert_eq!(memory(SHARED_NUMA), GuestMemory::Shared);
        assert_eq!(memory(SHARED_IN_FILE), GuestMemory::SharedInFile);
        // One node that keeps its memory to itself is enough.
        let (before, after) = SHARED_NUMA.split_once("</numa>").unwrap();
        let another = format!("{before}<cell id='1' memory='1'/></numa>{after}");
        assert_eq!(memory(&another), GuestMemory::Private);
    }

    #[test]
    fn an_attached_volume_is_found_by_its_alias_and_by_its_socket() {
        let both = Domain::read_all(&format!("{SHARED_NUMA}\n{ATTACHED}")).unwrap();
        let [none, domain] = both.as_slice() else { panic!("{both:?}") };
        let volume =
            domain.disks.iter().find_map(|disk| disk.alias.as_ref()?.strip_prefix(ALIAS_PREFIX)).unwrap();
        let disk = domain.disk_of(volume, &[]).unwrap();
        let Place::VhostUser(socket) = &disk.place else { panic!("{disk:?}") };
        assert_eq!(domain.disk_of("another", std::slice::from_ref(socket)), Some(disk));
        let nbd = domain.disks.iter().find(|disk| matches!(disk.place, Place::Nbd(_))).unwrap();
        assert_eq!((disk.target.as_str(), nbd.target.as_str()), ("vdb", "vdc"));
        assert_eq!(free_target([none, domain]), "vdd");
        assert!(none.disk_of(volume, std::slice::from_ref(socket)).is_none());
    }

    #[test]
    fn names_of_disks_go_on_after_z() {
        let names: Vec<_> = [0, 1, 25, 26, 27, 701, 702].map(target_name).into();
        assert_eq!(names, ["vda", "vdb", "vdz", "vdaa", "vdab", "vdzz", "vdaaa"]);
        assert!(names.iter().all(|name| is_target(name)));
        assert!(!["", "vd", "sda", "vdA", "vda1", "vdaaaa"].into_iter().any(is_target));
    }

    #[test]
    fn qemus_user_is_what_libvirt_says() {
        let found = QemuUser::read(CAPABILITIES).unwrap();
        assert_eq!(found, QemuUser { user_and_group: Some((64055, 64055)), confined_by: None });
        // libvirt, *Capabilities information*: what it says where AppArmor confines.
        let confined = CAPABILITIES
            .replace("<secmodel>\n      <model>none</model>", "<secmodel>\n      <model>apparmor</model>");
        assert_eq!(QemuUser::read(&confined).unwrap().confined_by.as_deref(), Some("apparmor"));
        // A user's own libvirt has no DAC.
        let own = QemuUser::read("<capabilities><host/></capabilities>").unwrap();
        assert_eq!(own, QemuUser::default());
    }

    #[test]
    fn what_is_no_domain_is_refused_in_words() {
        for xml in ["", "error: nothing", "<domain/>", "<domain><name/></domain>", "<domain><name>a</name>"] {
            assert!(Domain::read(xml).is_err(), "{xml}");
        }
    }
}
