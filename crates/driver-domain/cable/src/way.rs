//! One direction of a cable. Its buffers go round: the near switch fills them, the far switch reads them, and they are the near switch's again.

use crate::memory::{BUFFER, RING};
use arrayvec::ArrayVec;
use lasthop_frame::VnetHdr;
use lasthop_guestmem::GuestMemory;
use lasthop_sys::EventFd;
use lasthop_virtqueue::driver::{DriverError, DriverRing, Full, Piece, RingLayout};
use std::sync::Arc;

/// Most buffers one packet may be spread over: 64 KiB and its headers in buffers of 2 KiB, and some to spare.
const MAX_PIECES: usize = 40;
/// Packets that are carried before the far switch is shown them: as many as it takes in one burst.
const BURST: u16 = 64;

/// A switch broke the rules of its ring. Nothing more can be done with the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WayError {
    /// Of rings.
    #[error("ring: {0}")]
    Ring(#[from] DriverError),
    /// A packet that is said to be spread over more (or fewer) buffers than came, or more than any packet needs.
    #[error("a packet is said to be in {0} buffers, which cannot be")]
    Buffers(u16),
    /// A packet without a whole header, or a buffer without a byte of one.
    #[error("a buffer with {0} bytes of a packet is too short")]
    Short(u32),
    /// There are as many buffers as entries, so this is a fault of ours.
    #[error("{0}, though it has an entry for each buffer")]
    Full(#[from] Full),
}

/// One ring, and how both sides of it wake each other.
#[derive(Debug)]
pub struct End {
    pub ring: DriverRing,
    /// Where it lies.
    pub layout: RingLayout,
    /// We signal it when the switch is to look.
    pub kick: EventFd,
    /// The switch signals it when we are to look.
    pub call: EventFd,
}

impl End {
    /// Shows the switch what was added, and wakes it if it wants that.
    fn publish(&mut self) {
        if self.ring.publish() {
            self.kick.signal();
        }
    }
}

/// One direction. One thread at a time.
#[derive(Debug)]
pub struct Way {
    memory: Arc<GuestMemory>,
    /// The ring that the near switch fills.
    pub receive: End,
    /// The ring that the far switch reads.
    pub send: End,
    /// Guest address of the first buffer; they follow each other.
    buffers: u64,
    /// By buffer that the far switch has: the next one of the same packet, or itself in the last.
    next: Box<[u32]>,
}

impl Way {
    pub(crate) fn new(memory: Arc<GuestMemory>, [receive, mut send]: [End; 2], buffers: u64) -> Self {
        send.ring.disable_calls();
        Self { memory, receive, send, buffers, next: (0..u32::from(RING)).collect() }
    }

    /// Gives the near switch all buffers: once, before anything else.
    pub fn fill(&mut self) -> Result<(), WayError> {
        for token in 0..u32::from(RING) {
            self.lend(token)?;
        }
        self.receive.publish();
        Ok(())
    }

    /// The near switch may fill the buffer.
    fn lend(&mut self, token: u32) -> Result<(), WayError> {
        Ok(self.receive.ring.add(&[], &[(self.buffer(token), BUFFER)], token)?)
    }

    fn buffer(&self, token: u32) -> u64 {
        self.buffers + u64::from(token) * u64::from(BUFFER)
    }

    /// Carries a burst; true if there may be more.
    pub fn carry(&mut self) -> Result<bool, WayError> {
        self.take_back()?;
        let mut carried = 0;
        while carried < BURST && self.carry_one()? {
            carried += 1;
        }
        if carried > 0 {
            self.send.publish();
        }
        Ok(carried > 0)
    }

    /// Buffers that the far switch is done with are the near switch's again.
    fn take_back(&mut self) -> Result<(), WayError> {
        while let Some((mut token, _)) = self.send.ring.poll_used()? {
            loop {
                self.lend(token)?;
                let Some(next) = self.next.get_mut(token as usize) else { break };
                match std::mem::replace(next, token) {
                    last if last == token => break,
                    more => token = more,
                }
            }
        }
        if self.receive.ring.unpublished() > 0 {
            self.receive.publish();
        }
        Ok(())
    }

    /// Carries the next packet, if there is one.
    fn carry_one(&mut self) -> Result<bool, WayError> {
        let Some((first, len)) = self.receive.ring.poll_used()? else { return Ok(false) };
        if (len as usize) < VnetHdr::LEN {
            return Err(WayError::Short(len));
        }
        let buffers = self.readdress(first);
        if buffers == 0 || usize::from(buffers) > MAX_PIECES {
            return Err(WayError::Buffers(buffers));
        }
        let mut pieces: ArrayVec<Piece, MAX_PIECES> = ArrayVec::new();
        pieces.push((self.buffer(first), len));
        let mut last = first;
        for _ in 1..buffers {
            let Some((token, len)) = self.receive.ring.poll_used()? else { return Err(WayError::Buffers(buffers)) };
            if len == 0 {
                return Err(WayError::Short(len));
            }
            pieces.push((self.buffer(token), len));
            if let Some(next) = self.next.get_mut(last as usize) {
                *next = token;
            }
            last = token;
        }
        self.send.ring.add(&pieces, &[], first)?;
        Ok(true)
    }

    /// Makes the header that a switch has written for a receiver the header of a sender: it says no more in how many buffers the packet is,
    /// nor that somebody has verified its checksum (virtio 1.2 §5.1.6.2.1). What is left to be done to the packet stays in it. Returns in how
    /// many buffers the packet is.
    fn readdress(&self, token: u32) -> u16 {
        let Ok(slice) = self.memory.slice(self.buffer(token), VnetHdr::LEN) else { return 0 };
        let Some(bytes) = slice.read_array(0) else { return 0 };
        let mut header = VnetHdr::parse(&bytes);
        let buffers = std::mem::take(&mut header.num_buffers);
        header.flags &= VnetHdr::F_NEEDS_CSUM;
        slice.write_array(0, &header.to_bytes());
        buffers
    }

    /// Asks to be woken by the near switch, and by the far one if it has most of the buffers; true if something is there already.
    pub fn prepare_to_sleep(&mut self) -> bool {
        let mut more = self.receive.ring.enable_calls();
        if self.receive.ring.outstanding() < RING / 2 {
            more |= self.send.ring.enable_calls();
        }
        more
    }

    /// Asks for no interrupts: we look by ourselves.
    pub fn awake(&mut self) {
        for end in [&mut self.receive, &mut self.send] {
            end.call.drain();
            end.ring.disable_calls();
        }
    }
}
