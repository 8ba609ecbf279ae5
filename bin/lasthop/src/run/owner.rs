//! Who may use a port: the owner of its socket's file, and of the process at the other end.

use lasthop_sys::{Peer, peer, peer_groups};
use nix::unistd::{Group, User};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

/// A user, and perhaps a group, as somebody wrote them: names or numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileOwner {
    user: String,
    group: Option<String>,
}

/// The same in numbers, as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The group that may use the port as well.
    pub gid: Option<u32>,
}

impl FromStr for FileOwner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_name = |name: &str| {
            !name.is_empty() && name.len() <= 64 && !name.contains([':', ',']) && !name.contains(char::is_whitespace)
        };
        if !is_name(user) || group.is_some_and(|group| !is_name(group)) {
            return Err(format!("{text:?} is no owner; write USER or USER:GROUP, each a name or a number"));
        }
        Ok(Self { user: user.into(), group: group.map(Into::into) })
    }
}

impl TryFrom<String> for FileOwner {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FileOwner> for String {
    fn from(owner: FileOwner) -> Self {
        owner.to_string()
    }
}

impl fmt::Display for FileOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.user)?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ":{group}"))
    }
}

impl FileOwner {
    /// Looks the names up. The error says which is not known.
    pub fn ids(&self) -> Result<Ids, String> {
        let unknown = |what: &str, name: &str| {
            format!("there is no {what} {name:?} here; give a name that is known, or a number")
        };
        // chown(2) leaves what it is given the greatest number for.
        let number = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
        let uid = match number(&self.user) {
            Some(uid) => uid,
            None => match User::from_name(&self.user) {
                Ok(Some(user)) => user.uid.as_raw(),
                _ => return Err(unknown("user", &self.user)),
            },
        };
        let gid = match &self.group {
            None => None,
            Some(group) => Some(match number(group) {
                Some(gid) => gid,
                None => match Group::from_name(group) {
                    Ok(Some(group)) => group.gid.as_raw(),
                    _ => return Err(unknown("group", group)),
                },
            }),
        };
        Ok(Ids { uid, gid })
    }
}

/// The process at the other end of a connection, as the kernel noted it when that process called connect(2).
pub fn who(connection: &OwnedFd) -> String {
    match peer(connection) {
        Ok(peer) => match peer.pid {
            Some(pid) => format!("process {pid} of {}", user_of(&peer)),
            None => format!("a process of {} that is not seen from here (another PID namespace)", user_of(&peer)),
        },
        Err(e) => format!("a process that the kernel does not name ({e})"),
    }
}

fn user_of(peer: &Peer) -> String {
    let unmapped = if Unmapped::users().is(peer.uid) {
        " (the kernel's number for users that are not mapped in this user namespace)"
    } else {
        ""
    };
    format!("user {}{unmapped}", peer.uid)
}

impl Ids {
    /// Whether the process at the other end of a connection may use the port: as the kernel noted it when that process called
    /// connect(2), or listen(2) where we connect. Root may: it could become the owner anyway. The error says who it is.
    pub fn check(&self, connection: &OwnedFd) -> Result<(), String> {
        let peer = peer(connection).map_err(|e| format!("a process that the kernel does not name ({e})"))?;
        let groups = || peer_groups(connection).unwrap_or_default();
        if self.may(&peer, groups, [Unmapped::users(), Unmapped::groups()]) { Ok(()) } else { Err(who(connection)) }
    }

    /// Whether that is the owner, or in the owner's group. A number that the kernel has for all who have none here is nobody's.
    fn may(&self, peer: &Peer, groups: impl FnOnce() -> Vec<u32>, [users, of_groups]: [Unmapped; 2]) -> bool {
        let is_owner = peer.uid == self.uid && !users.is(peer.uid);
        let in_group = |wanted| !of_groups.is(wanted) && (peer.gid == wanted || groups().contains(&wanted));
        peer.uid == 0 || is_owner || self.gid.is_some_and(in_group)
    }
}

/// The number that the kernel gives for whoever has none in this user namespace, as a container's (user_namespaces(7)); none where all have one.
#[derive(Clone, Copy, Debug)]
struct Unmapped(Option<u32>);

impl Unmapped {
    fn users() -> Self {
        Self::read("/proc/self/uid_map", "/proc/sys/kernel/overflowuid")
    }

    fn groups() -> Self {
        Self::read("/proc/self/gid_map", "/proc/sys/kernel/overflowgid")
    }

    fn read(map: &str, number: &str) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let all = read(map).split_whitespace().eq(["0", "0", "4294967295"]);
        Self((!all).then(|| read(number).trim().parse().unwrap_or(65_534)))
    }

    fn is(self, id: u32) -> bool {
        self.0 == Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let ids = |text: &str| text.parse::<FileOwner>().and_then(|owner| owner.ids());
        assert_eq!(ids("root"), Ok(Ids { uid: 0, gid: None }));
        assert_eq!(ids("root:root"), Ok(Ids { uid: 0, gid: Some(0) }));
        assert_eq!(ids("1234:77"), Ok(Ids { uid: 1234, gid: Some(77) }));
        assert!(ids("nobody-of-that-name").unwrap_err().contains("no user \"nobody-of-that-name\""));
        assert!(ids("root:no-such-group").unwrap_err().contains("no group \"no-such-group\""));
        for bad in ["", ":", "root:", ":kvm", "a:b:c", "a b", "a,b"] {
            assert!(bad.parse::<FileOwner>().unwrap_err().contains("USER:GROUP"), "{bad}");
        }
        assert_eq!("a:b".parse::<FileOwner>().unwrap().to_string(), "a:b");
    }

    /// In a user namespace all who are not mapped have one number: whose it is here is not the owner.
    #[test]
    fn whoever_has_no_number_here_is_nobody_s_owner() {
        let peer = Peer { pid: None, uid: 65_534, gid: 65_534 };
        let may = |ids: Ids, all: [Unmapped; 2]| ids.may(&peer, || vec![7], all);
        let [all_have, some_have_none] = [None, Some(65_534)].map(|number| [Unmapped(number); 2]);
        let nobody = Ids { uid: 65_534, gid: None };
        let nogroup = Ids { uid: 1, gid: Some(65_534) };
        for ids in [nobody, nogroup] {
            assert!(may(ids, all_have) && !may(ids, some_have_none), "{ids:?}");
        }
        assert!(may(Ids { uid: 1, gid: Some(7) }, some_have_none), "a group that has a number");
        let root = Peer { uid: 0, ..peer };
        assert!(nobody.may(&root, Vec::new, some_have_none));
        assert!("4294967295".parse::<FileOwner>().unwrap().ids().is_err());
        assert!(Unmapped::users().0.is_none_or(|number| number > 0));
    }

    #[test]
    fn root_and_the_owner_may() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let me = rustix::process::geteuid().as_raw();
        let connection = OwnedFd::from(ours);
        assert_eq!(Ids { uid: me, gid: None }.check(&connection), Ok(()));
        let other = Ids { uid: me + 1, gid: None }.check(&connection);
        assert_eq!(other.is_ok(), me == 0, "{other:?}");
    }
}
