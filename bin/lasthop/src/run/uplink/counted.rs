//! What all processes of an uplink have carried.

use lasthop_uplink_ipc::UplinkCounters;

/// Adds what one process has carried to what those before have.
pub(super) fn add(sum: &mut UplinkCounters, more: UplinkCounters) {
    sum.to_network_packets += more.to_network_packets;
    sum.to_network_bytes += more.to_network_bytes;
    sum.from_network_packets += more.from_network_packets;
    sum.from_network_bytes += more.from_network_bytes;
    // Whose queues they were goes with the process that gave them away.
    for queue in &mut sum.queues {
        (queue.stations, queue.pinned) = (Vec::new(), None);
    }
    sum.queues.resize_with(sum.queues.len().max(more.queues.len()), Default::default);
    for (sum, more) in sum.queues.iter_mut().zip(more.queues) {
        (sum.stations, sum.pinned, sum.size) = (more.stations, more.pinned, more.size);
        sum.packets += more.packets;
        sum.dropped += more.dropped;
        sum.sent += more.sent;
    }
    sum.merged += more.merged;
    for drop in more.drops {
        match sum.drops.iter_mut().find(|d| d.reason == drop.reason) {
            Some(same) => same.packets += drop.packets,
            None => sum.drops.push(drop),
        }
    }
}
