//! Mirrors of the declarative file.

use super::Declared;
use super::document::Fields;
use super::plan::{Plan, Step, There};
use lasthop_policy::{Mirror, Mirrored};

/// What a mirror's table may have.
pub(super) const OF_MIRRORS: &[&str] = &["from", "to", "direction", "sample"];

/// Reads a mirror beside those read before it.
pub(super) fn mirror(name: String, mut of: Fields, others: &[Mirror]) -> Result<Mirror, String> {
    let from = of.words("from", ",")?.ok_or_else(|| of.wrong("from", "missing; write from = [\"vm1\", \"vm2\"]"))?;
    let to = of.text("to")?.ok_or_else(|| of.wrong("to", "missing; write to = \"ids\""))?;
    if to.contains('/') {
        return Err(of.wrong(
            "to",
            format!("a file is a port of its own here; write [port.{name}-file] with device = {to:?} and driver = \"file\", and to = \"{name}-file\""),
        ));
    }
    let direction = of.text("direction")?.map_or(Ok(Mirrored::Both), |text| text.parse());
    let direction = direction.map_err(|e| of.wrong("direction", e))?;
    let from = from.split(',').filter(|port| !port.is_empty()).map(str::to_owned).collect();
    let sample = of.text("sample")?.map_or(Ok(1), |text| crate::mirror::sample(&text));
    let sample = sample.map_err(|e| of.wrong("sample", e))?;
    let mirror = Mirror { name, from, to, direction, sample, labelled: false };
    mirror.check(others).map_err(|e| format!("{}: {e}", of.at()))?;
    Ok(mirror)
}

/// Mirrors that are remembered, with those of the file instead of what it says otherwise.
pub fn in_mirrors(remembered: &[Mirror], declared: &Declared) -> Result<Vec<Mirror>, String> {
    let named = |name: &str| declared.mirrors.iter().any(|mirror| mirror.name == name);
    let mut all: Vec<_> = remembered.iter().filter(|mirror| !named(&mirror.name)).cloned().collect();
    for mirror in &declared.mirrors {
        mirror.check(&all).map_err(|e| format!("[mirror.{}]: {e}", mirror.name))?;
        all.push(mirror.clone());
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

impl<'a> Plan<'a> {
    /// Mirrors that go, or are to be otherwise: before ports change, for one that was a destination may become a station.
    pub(super) fn remove_mirrors(&mut self, declared: &Declared, there: &There, prune: bool) {
        for mirror in &there.mirrors {
            match declared.mirrors.iter().find(|wanted| wanted.name == mirror.name) {
                Some(wanted) if is_as(mirror, wanted) => {}
                None if !prune => self.left.push(format!("mirror {}", mirror.name)),
                wanted => {
                    let why = if wanted.is_some() { ": it is to be otherwise" } else { "" };
                    self.push(Step::DelMirror(mirror.name.clone()), format!("- mirror {}{why}", mirror.name));
                }
            }
        }
    }

    /// And those that are missing, when their ports are there.
    pub(super) fn add_mirrors(&mut self, declared: &'a Declared, there: &There) {
        for mirror in &declared.mirrors {
            if !there.mirrors.iter().any(|other| other.name == mirror.name && is_as(other, mirror)) {
                let Mirror { name, from, to, direction, sample, labelled: _ } = mirror;
                let part = if *sample == 1 { String::new() } else { format!(", 1/{sample}") };
                let told = format!("+ mirror {name}: {direction} of {} to {to}{part}", from.join(","));
                self.push(Step::AddMirror(mirror), told);
            }
        }
    }
}

fn is_as(there: &lasthop_api::Mirror, wanted: &Mirror) -> bool {
    let (direction, sample) = (wanted.direction.to_string(), wanted.sample);
    there.from == wanted.from && there.to == wanted.to && there.direction == direction && there.sample == sample
}
