//! Where stations live because somebody says so, and what somebody has forgotten (`lasthop mac`).

use super::Learning;
use crate::flows::Cause;
use crate::mactable::Entry;
use crate::{Effects, PortSettings, StaticMac};
use lasthop_frame::{FlowKey, FlowMask};
use lasthop_text::MacAddr;
use lasthop_types::PortId;

impl Learning {
    /// Static addresses of a port are from now on those of these settings.
    pub(super) fn set_static_addresses(&mut self, id: PortId, settings: &PortSettings, now_ms: u64, out: &mut Effects) {
        let (before, wanted) = (self.macs.statics(id), settings.static_addresses().collect::<Vec<_>>());
        for (vlan, mac) in before.iter().filter(|address| !wanted.contains(address)) {
            self.forget_mac(*vlan, *mac, now_ms, out);
        }
        for (vlan, mac) in wanted.into_iter().filter(|address| !before.contains(address)) {
            // Of two ports that are both told to have it the first goes on.
            if let Some(from) = self.macs.add_static(vlan, mac, id).filter(|from| *from != id) {
                self.forget_source(vlan, mac, from, now_ms, out);
            }
            self.refresh_destination(vlan, mac, now_ms, out);
        }
    }

    /// The source of a frame with this key, in the VLAN that it belongs to, if it lives at the port that the frame comes from.
    pub fn source_of(&self, key: &FlowKey) -> Option<(u16, MacAddr)> {
        let vlan = self.member(key.port()).enters(key, &mut FlowMask::default())?;
        let mac = MacAddr(key.eth_src);
        self.macs.get(vlan, mac).filter(|e| e.port == key.port()).map(|_| (vlan, mac))
    }

    /// The static address as its port was told it, and that port.
    pub fn static_mac(&self, vlan: u16, mac: MacAddr) -> Option<(PortId, StaticMac)> {
        let port = self.macs.get(vlan, mac).filter(|e| e.is_static)?.port;
        let settings = self.settings.get(&port)?;
        let at = settings.static_addresses().position(|address| address == (vlan, mac))?;
        Some((port, *settings.static_macs.get(at)?))
    }

    /// Forgets an address until it says something again, static or not.
    pub fn forget_mac(&mut self, vlan: u16, mac: MacAddr, now_ms: u64, out: &mut Effects) {
        if self.forget_one(vlan, mac, now_ms, out) {
            // It may be heard from where it could not be learned.
            self.redo_all(Cause::Unlearned, now_ms, out);
        }
    }

    fn forget_one(&mut self, vlan: u16, mac: MacAddr, now_ms: u64, out: &mut Effects) -> bool {
        let Some(port) = self.macs.forget(vlan, mac) else { return false };
        self.forget_source(vlan, mac, port, now_ms, out);
        self.refresh_destination(vlan, mac, now_ms, out);
        true
    }

    /// Forgets what has been learned at a port, if one is given, in a VLAN, if one is, of the next `many` addresses behind `after`: how many, and where to go on
    /// unless these were the last. Static ones stay.
    pub fn flush(
        &mut self,
        after: Option<(u16, MacAddr)>,
        many: usize,
        (port, vlan): (Option<PortId>, Option<u16>),
        now_ms: u64,
        out: &mut Effects,
    ) -> (usize, Option<(u16, MacAddr)>) {
        let some = self.macs.behind(after, many);
        let meant =
            |e: &Entry, of: u16| !e.is_static && port.is_none_or(|id| id == e.port) && vlan.is_none_or(|id| id == of);
        let gone = some.iter().filter(|(of, mac)| self.macs.get(*of, *mac).is_some_and(|e| meant(e, *of)));
        let gone: Vec<_> = gone.copied().collect();
        for (vlan, mac) in &gone {
            self.forget_one(*vlan, *mac, now_ms, out);
        }
        if !gone.is_empty() {
            self.redo_all(Cause::Unlearned, now_ms, out);
        }
        (gone.len(), some.last().copied().filter(|_| some.len() == many))
    }
}
