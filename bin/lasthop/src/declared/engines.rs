//! Engines of the declarative file: `[engines]`.

use super::Declared;
use super::document::Fields;
use super::minimums::value_in;
use super::plan::{Plan, Step, There};
use crate::run::Near;
use lasthop_api::EngineList;
use lasthop_management_ipc::EngineKind;
use lasthop_policy::{ENGINE, PortEngine};
use lasthop_sys::CpuList;

/// What the table may have.
pub(super) const OF_ENGINES: &[&str] = &["poll", "helper", "ports", NEAR];
/// How near ports' threads are to their VMs.
const NEAR: &str = "near";

/// Which CPUs do ports' work, as far as the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredEngines([Option<String>; 3], Option<Near>);

impl DeclaredEngines {
    /// Those of `poll`, `helper` and `ports`, that is of [`EngineKind::ALL`]: CPUs, `none` or `all`.
    pub fn lists(&self) -> [Option<String>; 3] {
        self.0.clone()
    }

    /// How near ports' threads are to their VMs.
    pub fn near(&self) -> Option<Near> {
        self.1
    }

    /// Whether the file says anything of this kind, or of `near`.
    pub fn has(&self, kind: &str) -> bool {
        (kind == NEAR && self.1.is_some())
            || EngineKind::ALL.iter().zip(&self.0).any(|(other, list)| other.name() == kind && list.is_some())
    }
}

impl Declared {
    /// Whether ports are set to engines that the file has, if it says which there are.
    pub(super) fn check_engines(&self) -> Result<(), String> {
        let [Some(poll), ..] = &self.engines.0 else { return Ok(()) };
        let polls: CpuList = poll.parse().unwrap_or_default();
        let ports = self.ports.iter().map(|port| ("port", &port.name, &port.settings));
        let uplinks = self.uplink_settings.iter().map(|of| ("uplink", &of.uplink, &of.settings));
        for (kind, name, settings) in ports.chain(uplinks) {
            let set = value_in(settings, ENGINE);
            let cpu = set.parse().ok().and_then(PortEngine::polls_on).map(usize::from);
            if cpu.is_some_and(|cpu| !polls.contains(cpu)) {
                return Err(format!(
                    "[{kind}.{name}]: {ENGINE} = {set:?}, and [engines] has poll = {poll:?}; name one of those there, or add it"
                ));
            }
        }
        Ok(())
    }
}

/// Reads the table.
pub(super) fn engines(mut of: Fields) -> Result<DeclaredEngines, String> {
    let mut lists = [None, None, None];
    for (list, kind) in lists.iter_mut().zip(EngineKind::ALL) {
        let Some(text) = of.words(kind.name(), ",")? else { continue };
        *list = Some(match text.as_str() {
            "" | "none" if kind == EngineKind::Ports => {
                return Err(of.wrong("ports", "ports' threads need a CPU; write \"all\", or some"));
            }
            "" | "none" => "none".to_owned(),
            "all" if kind == EngineKind::Poll => {
                return Err(of.wrong("poll", "name the CPUs that are to do nothing else"));
            }
            "all" => text,
            text => text.parse::<CpuList>().map_err(|e| of.wrong(kind.name(), e))?.to_string(),
        });
    }
    let near = of.words(NEAR, ",")?.map(|text| text.parse().map_err(|e: String| of.wrong(NEAR, e))).transpose()?;
    Ok(DeclaredEngines(lists, near))
}

impl<'a> Plan<'a> {
    /// Those that the file has otherwise: before ports come, which are placed anew when engines change.
    pub(super) fn set_engines(&mut self, declared: &'a Declared, there: &There) {
        let EngineList { poll, helper, ports, .. } = &there.engines;
        let kinds = EngineKind::ALL.into_iter().zip(&declared.engines.0).zip([poll, helper, ports]);
        let told: Vec<_> = kinds
            .filter_map(|((kind, wanted), is)| {
                let wanted = wanted.as_ref().filter(|wanted| *wanted != is)?;
                Some(format!("{} {is} -> {wanted}", kind.name()))
            })
            .collect();
        if let Some(near) = declared.engines.1.filter(|near| near.name() != there.engines.near) {
            self.push(Step::SetNear(near), format!("~ engines: near {} -> {near}", there.engines.near));
        }
        if !told.is_empty() {
            self.push(Step::SetEngines(&declared.engines), format!("~ engines: {}", told.join(", ")));
        }
    }
}
