//! The declarative file: ports, uplinks, mirrors, access lists and sets of addresses as they are to be, in TOML. `lasthop apply FILE` makes a running lasthop like it,
//! `lasthop run --config FILE` begins with it.
//!
//! | file | does |
//! |---|---|
//! | `document` | the file's form: what is read, what is refused |
//! | `engines` | its engines |
//! | `lists` | its access lists |
//! | `mirrors` | its mirrors |
//! | `sets` | its sets of addresses |
//! | `macs` | its static addresses |
//! | `minimums` | its minimum rates, and what uplinks take |
//! | `plan` | what has to change so that a running lasthop is as the file says |
//! | `overruled` | what a command changes until the next start only, because the file says otherwise |
//! | `apply` | asks the running one, has it change, says what was changed |

mod apply;
mod document;
mod engines;
mod lists;
mod macs;
mod minimums;
mod mirrors;
mod overruled;
mod plan;
mod sets;

pub use apply::{ApplyArgs, apply};
pub use engines::DeclaredEngines;
pub use lists::in_book;
pub use mirrors::in_mirrors;
pub use overruled::overruled;

use crate::run::{PortArg, SavedUplink};
use lasthop_management_ipc::Settings;
use lasthop_policy::Mirror;
use lasthop_policy::acl::{Lists, Prefix, Scope};
use std::collections::BTreeSet;
use std::path::Path;

/// What a file says.
#[derive(Debug, Default)]
pub struct Declared {
    /// Guests' ports, each with all of its settings: what the file does not name is taken back.
    pub ports: Vec<PortArg>,
    /// Uplinks.
    pub uplinks: Vec<SavedUplink>,
    /// Sets of addresses that access lists may name: all of each.
    pub sets: Vec<DeclaredSet>,
    /// Access lists.
    pub lists: Vec<DeclaredLists>,
    /// Mirrors.
    pub mirrors: Vec<Mirror>,
    /// Which CPUs do ports' work.
    pub engines: DeclaredEngines,
    /// Settings of uplinks: all of each.
    pub uplink_settings: Vec<UplinkSettings>,
}

/// Settings of one uplink.
#[derive(Debug)]
pub struct UplinkSettings {
    /// Its name.
    pub uplink: String,
    /// Those that uplinks have, each as `lasthop port list` shows it; `none` for what the file does not name.
    pub settings: Settings,
}

/// A set of addresses.
#[derive(Debug)]
pub struct DeclaredSet {
    /// Its name.
    pub name: String,
    /// Its addresses and prefixes.
    pub members: BTreeSet<Prefix>,
}

/// The lists of one scope.
#[derive(Debug)]
pub struct DeclaredLists {
    /// Whose they are.
    pub scope: Scope,
    /// As they are to be loaded.
    pub text: String,
    /// The same, understood.
    pub lists: Lists,
}

impl Declared {
    /// Reads a file, and the files of access lists that it names. The error is one line that begins with the file's name: what is wrong;
    /// what to do.
    pub fn read(file: &Path) -> Result<Self, String> {
        let shown = file.display();
        let text = std::fs::read_to_string(file)
            .map_err(|e| format!("{shown}: {e}; name a file as docs/config.md describes it"))?;
        let dir = file.parent().unwrap_or(Path::new("."));
        document::read(&text, dir).map_err(|e| format!("{shown}: {e}"))
    }

    /// Names of its ports and uplinks.
    pub fn names(&self) -> BTreeSet<&str> {
        let ports = self.ports.iter().map(|port| port.name.as_str());
        ports.chain(self.uplinks.iter().map(|uplink| uplink.name.as_str())).collect()
    }
}
