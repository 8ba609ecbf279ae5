//! What each attack does in a slot.

use super::super::Outcome;
use super::super::frame::VNET;
use super::super::port::Memory;
use super::puppet::{Puppet, SMALL, large, small};
use super::{Attack, Mood, PORTS, Tally};

/// Frames taken or given at a time, small ones.
const BURST: usize = 32;
/// Large ones: as many as a switch takes from a ring at a time.
const LARGE_BURST: usize = 64;
/// Between two receive buffers of one who trickles, and two frames of one who is tame.
const MILLISECOND: u64 = 1_000_000;

/// Files for a switch to map: twice as many as fill 47 bits of addresses.
const FILES: u64 = 128;

/// An attack and where it has got to.
pub struct Deed {
    attack: Attack,
    /// A small frame of the attack's, some of it to be changed.
    frame: [u8; SMALL],
    /// One of a tame attacker's, from one port of the pair to the other.
    tame: [u8; SMALL],
    /// Large frames, in turns.
    large: Vec<(u64, usize)>,
    /// Large frames sent.
    count: usize,
    /// When the next buffer is to be posted, or a tame frame sent.
    due: u64,
    random: u64,
    /// Unknown addresses used so far.
    unknown: u32,
    enabled: bool,
    blocks: bool,
    /// Files that the switch was given.
    regions: u64,
}

impl Deed {
    pub fn new(attack: Attack, ports: &[Puppet; PORTS], memory: &mut Memory) -> Outcome<Self> {
        let [first, second] = ports;
        let number = first.number();
        let everybody = lasthop_text::MacAddr([0xff; 6]);
        let tame = match attack {
            _ if attack.draws() => small(second.mac(), first.mac()),
            _ => small(first.mac(), second.mac()),
        };
        let frame = if attack == Attack::Storm { small(first.mac(), everybody) } else { tame };
        let frames = match attack {
            // A header's and 65 160 bytes: 2037 and 510 segments.
            Attack::Segments => vec![(Some(second.number()), 32), (Some(second.number()), 128)],
            Attack::LargeStorm => vec![(None, 1448)],
            _ => vec![],
        };
        let large = frames.into_iter().map(|(to, size)| large(number, to, size, memory)).collect::<Outcome<_>>()?;
        let random = 0x9e37_79b9_7f4a_7c15 ^ (u64::from(number) << 32);
        Ok(Self {
            attack,
            frame,
            tame,
            large,
            count: 0,
            due: 0,
            random,
            unknown: 0,
            enabled: true,
            blocks: false,
            regions: 0,
        })
    }

    /// A slot's worth.
    pub fn act(
        &mut self,
        mood: Mood,
        now: u64,
        ports: &mut [Puppet; PORTS],
        memory: &Memory,
        tally: &mut Tally,
    ) -> Outcome<()> {
        if mood != Mood::Wild && !self.enabled && ports[0].enable(true) {
            self.enabled = true;
        }
        let wild = matches!(mood, Mood::Prepare | Mood::Wild);
        if self.attack == Attack::Call && wild != self.blocks {
            ports[0].block(wild)?;
            self.blocks = wild;
        }
        let [first, second] = ports;
        let most = if self.attack == Attack::Segments { 2 * LARGE_BURST } else { BURST };
        first.collect(most)?;
        second.collect(most)?;
        second.offer(most);
        let trickles = wild && self.attack == Attack::Trickle;
        if !trickles {
            first.offer(most);
        }
        match (self.attack, mood) {
            (_, Mood::Quiet) => {}
            (attack, Mood::Tame) => {
                if self.is_due(now) {
                    let (bytes, sender) =
                        (self.tame, if matches!(attack, Attack::Trickle | Attack::Call) { second } else { first });
                    sender.send(1, |addr| write(memory, addr, &bytes));
                }
            }
            (Attack::Trickle, _) => {
                if self.is_due(now) {
                    first.offer(1);
                }
                let bytes = self.frame;
                second.send(BURST, |addr| write(memory, addr, &bytes));
            }
            (Attack::Incast | Attack::Call, _) => {
                let (bytes, burst) = (self.frame, if self.attack == Attack::Call { 1 } else { BURST });
                second.send(burst, |addr| write(memory, addr, &bytes));
            }
            (Attack::Regions, _) => {
                if self.regions < FILES && self.is_due(now) && first.add_region(self.regions) {
                    self.regions += 1;
                    tally.messages += 1;
                }
            }
            (Attack::Storm, _) => {
                let bytes = self.frame;
                first.send(BURST, |addr| write(memory, addr, &bytes));
            }
            (Attack::Segments | Attack::LargeStorm, _) => {
                // All of a burst at once, or none.
                if first.room() >= LARGE_BURST {
                    first.send(LARGE_BURST, |_| {
                        self.count += 1;
                        self.large[self.count % self.large.len()]
                    });
                }
            }
            (Attack::Scan, _) => first.send(BURST, |addr| {
                let bytes = self.scan();
                write(memory, addr, &bytes)
            }),
            (Attack::Headers, _) => first.send(BURST, |addr| {
                let bytes = self.headers();
                write(memory, addr, &bytes)
            }),
            (Attack::Flap, Mood::Prepare) => first.send(BURST, |addr| {
                let bytes = self.unknown();
                write(memory, addr, &bytes)
            }),
            (Attack::Flap, _) => {
                if first.enable(!self.enabled) {
                    self.enabled = !self.enabled;
                    tally.messages += 1;
                }
            }
            // It consists of the others.
            (Attack::All, _) => {}
        }
        Ok(())
    }

    /// Once a millisecond; what was missed is not made up for.
    fn is_due(&mut self, now: u64) -> bool {
        let due = now >= self.due;
        if due {
            self.due = now + MILLISECOND;
        }
        due
    }

    /// The next frame to an address that nobody has.
    fn unknown(&mut self) -> [u8; SMALL] {
        let mut bytes = self.frame;
        self.unknown = self.unknown.wrapping_add(1);
        bytes[VNET..VNET + 2].copy_from_slice(&[2, 0x4d]);
        bytes[VNET + 2..VNET + 6].copy_from_slice(&self.unknown.to_be_bytes());
        bytes
    }

    /// A frame of random bytes from a random address, to one that nobody has or to the second port. Of every four one says it
    /// is IPv4, one IPv6, one VLAN-tagged, and the fourth has a random type.
    fn scan(&mut self) -> [u8; SMALL] {
        let mut bytes = self.frame;
        for word in bytes[VNET + 6..].chunks_mut(8) {
            let random = self.random().to_le_bytes();
            word.copy_from_slice(&random[..word.len()]);
        }
        let dice = self.random();
        if dice & 4 != 0 {
            bytes[VNET..VNET + 6].copy_from_slice(&dice.to_le_bytes()[2..]);
            bytes[VNET] = 6;
        }
        // A station's, not a group's, and none of those that are counted.
        bytes[VNET + 6] = 6;
        let kind = [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]];
        if let Some(kind) = kind.get((dice & 3) as usize) {
            bytes[VNET + 12..VNET + 14].copy_from_slice(kind);
        }
        bytes
    }

    /// A well-formed frame to the second port: from any address of 10.0.0.0/8 to any of that or of 172.16.0.0/12, any ports, UDP or
    /// TCP.
    fn headers(&mut self) -> [u8; SMALL] {
        let mut bytes = self.frame;
        let (random, dice) = (self.random().to_le_bytes(), self.random().to_le_bytes());
        let packet = &mut bytes[VNET + 14..];
        packet[9] = if dice[0] & 1 == 0 { 17 } else { 6 };
        packet[12..16].copy_from_slice(&[10, random[0] & 3, random[1], random[2]]);
        let to = if dice[0] & 2 == 0 { [10, random[3] & 3] } else { [172, 16 + (random[3] & 15)] };
        packet[16..18].copy_from_slice(&to);
        packet[18..24].copy_from_slice(&[random[4], random[5], random[6], random[7], dice[1], dice[2]]);
        packet[10..12].fill(0);
        let words = packet[..20].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let check = !((sum + (sum >> 16)) as u16);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    /// xorshift64*.
    fn random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn write(memory: &Memory, addr: u64, bytes: &[u8; SMALL]) -> (u64, usize) {
    memory.slice(addr, SMALL).write(0, bytes);
    (addr, SMALL)
}
