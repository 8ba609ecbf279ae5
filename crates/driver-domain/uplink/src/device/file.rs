//! A capture file as a device: what the switch delivers is written there in libpcap's format, with nanoseconds, and nothing ever comes
//! from it. Wireshark and tcpdump read it. The process may do nothing with files but write those that were opened before it gave up its
//! rights, so a file that is full cannot be renamed: two that are open take turns.
//!
//! Packets are whole, up to 64 KiB, as a guest with offloads gets them. Checksums that their senders left to be filled in are filled in,
//! so that nobody takes them for wrong.

use super::{Device, DeviceError, Got, OpenError, Sent, Wanted};
use crate::counters::{Counters, Reason};
use crate::memory::MemoryConfig;
use crate::pair::{Packet, Pair, VNET};
use lasthop_frame::{VnetHdr, sum};
use lasthop_sys::EventFd;
use lasthop_text::MacAddr;
use lasthop_uplink_ipc::{UplinkDevice, UplinkDriver};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, ftruncate, open, rename};
use rustix::io::{Errno, pread, pwrite, write};
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// libpcap's file header: nanoseconds, version 2.4, packets of up to 256 KiB, Ethernet.
const HEADER: [u32; 6] = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1];
const HEADER_LEN: usize = 24;
/// Bytes of packets that are written at once.
const AT_ONCE: usize = 256 * 1024;

/// The device's one queue.
#[derive(Debug)]
pub struct File {
    to: To,
    /// Records that are not written yet, and how many packets, of how many bytes, they are.
    unsent: Vec<u8>,
    packets: (u64, u64),
}

#[derive(Debug)]
enum To {
    /// A named pipe: whoever reads it is waited for.
    Pipe(OwnedFd),
    Files {
        now: OwnedFd,
        /// Where it goes on when that is full.
        other: Option<OwnedFd>,
        written: u64,
        /// How long a file may be.
        limit: u64,
        /// Never readable: nothing comes from a file.
        nothing: EventFd,
    },
}

fn header() -> Vec<u8> {
    HEADER.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Opens a file to be written anew, which is empty or a capture that was written like this.
fn open_file(path: &str, failed: impl Fn(Errno) -> OpenError) -> Result<(OwnedFd, bool), OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(&failed)?;
    let stat = fstat(&file).map_err(&failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(OpenError(format!("{path} is neither a file nor a named pipe; name another")));
    }
    let mut begin = [0; HEADER_LEN];
    let is_ours = stat.st_size > 0 && pread(&file, &mut begin, 0) == Ok(HEADER_LEN) && begin[..] == header()[..];
    if stat.st_size > 0 && !is_ours {
        return Err(OpenError(format!(
            "{path} is there, and no capture of lasthop's; move it away, or name another file"
        )));
    }
    Ok((file, is_ours))
}

/// Opens a named pipe that is there, has a reader and belongs to the user `owner`. Whatever has its name otherwise gets no packets: when the
/// reader has gone, anybody may have taken the name.
fn open_pipe(path: &str, owner: u32, failed: impl Fn(Errno) -> OpenError) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let pipe = open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::NOENT => OpenError(format!("{path}: this named pipe is gone; whoever was to read it has ended")),
        e => failed(e),
    })?;
    let stat = fstat(&pipe).map_err(&failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Err(OpenError(format!("{path} is no named pipe; the driver pipe:UID writes to nothing else")));
    }
    if stat.st_uid != owner {
        return Err(OpenError(format!(
            "{path} belongs to user {}, and the pipe that was meant to user {owner}; it gets nothing",
            stat.st_uid
        )));
    }
    Ok(pipe)
}

impl File {
    pub(super) fn open(wanted: &Wanted) -> Result<Device, OpenError> {
        let path = &wanted.device;
        let failed = |e: Errno| {
            OpenError(match e {
                Errno::NXIO => format!("{path}: nobody reads this named pipe; start the reader first"),
                Errno::NOENT => format!("{path}: {e}; make the directory, or name another"),
                Errno::LOOP => format!("{path} is a symbolic link; name the file itself"),
                e => format!("{path}: {e}"),
            })
        };
        let is_pipe = wanted.pipe.is_some()
            || rustix::fs::stat(path.as_str())
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
        let (to, unsent) = if let Some(owner) = wanted.pipe {
            (To::Pipe(open_pipe(path, owner, failed)?), header())
        } else if is_pipe {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            (To::Pipe(open(path.as_str(), flags, Mode::empty()).map_err(failed)?), header())
        } else {
            (Self::files(path, wanted.max_size, failed)?, Vec::new())
        };
        let mode = match (is_pipe, wanted.max_size) {
            (true, _) => "pcap, pipe".into(),
            (false, None) => "pcap".into(),
            (false, Some(size)) => format!("pcap, two files of {size} bytes"),
        };
        let (driver, mac) = (UplinkDriver::File, MacAddr([2, 0, 0, 0, 0, 1]));
        let about = UplinkDevice { driver, mode, mac, mtu: 65_535, queues: 1, created: false, made_now: false };
        let queues = vec![super::Queue::File(Box::new(Self { to, unsent, packets: (0, 0) }))];
        let memory = MemoryConfig::whole_packets(1);
        Ok(Device { queues, about, features: super::whole_packets(false), memory, kept: None, steering: None })
    }

    /// What was captured before stays as `PATH.1`.
    fn files(path: &str, limit: Option<u64>, failed: impl Fn(Errno) -> OpenError + Copy) -> Result<To, OpenError> {
        let second = format!("{path}.1");
        let (mut now, captured) = open_file(path, failed)?;
        if captured {
            open_file(&second, failed)?;
            rename(path, &second).map_err(failed)?;
            now = open_file(path, failed)?.0;
        }
        let other = limit.map(|_| open_file(&second, failed)).transpose()?.map(|(file, _)| file);
        let written = begin(&now).map_err(failed)?;
        let nothing = EventFd::new().map_err(failed)?;
        Ok(To::Files { now, other, written, limit: limit.unwrap_or(u64::MAX), nothing })
    }

    pub(super) fn send(
        &mut self,
        pair: &mut Pair,
        packets: &[Packet],
        counters: &Counters,
    ) -> Result<Sent, DeviceError> {
        let mut done = 0;
        for packet in packets {
            if self.unsent.len() >= AT_ONCE && !self.flush(counters)? {
                return Ok(Sent { done, blocked: true });
            }
            pair.progress.sending(packet.buffers(), 0);
            self.record(pair, packet);
            pair.progress.sent(packet.buffers());
            done += 1;
        }
        let blocked = !self.flush(counters)?;
        Ok(Sent { done, blocked })
    }

    /// Adds a packet to those that are to be written.
    fn record(&mut self, pair: &Pair, packet: &Packet) {
        let (now, len) = (clock_gettime(ClockId::Realtime), packet.frame_len());
        for word in [now.tv_sec as u32, now.tv_nsec as u32, len as u32, len as u32] {
            self.unsent.extend(word.to_le_bytes());
        }
        let (mut skip, frame) = (VNET, self.unsent.len());
        for run in &packet.runs {
            let skipped = skip.min(run.1);
            skip -= skipped;
            let (begin, bytes) = (self.unsent.len(), pair.bytes((run.0 + skipped, run.1 - skipped)));
            self.unsent.resize(begin + run.1 - skipped, 0);
            bytes.read(0, self.unsent.get_mut(begin..).unwrap_or_default());
        }
        let mut vnet = [0; VNET];
        if let Some(run) = packet.runs.first() {
            pair.bytes(*run).read(0, &mut vnet);
        }
        complete(&VnetHdr::parse(&vnet), self.unsent.get_mut(frame..).unwrap_or_default());
        self.packets = (self.packets.0 + 1, self.packets.1 + len as u64);
    }

    /// Writes what is to be written; false if a pipe takes no more now.
    fn flush(&mut self, counters: &Counters) -> Result<bool, DeviceError> {
        if self.unsent.is_empty() {
            return Ok(true);
        }
        match &mut self.to {
            To::Pipe(pipe) => {
                while !self.unsent.is_empty() {
                    match write(&*pipe, &self.unsent) {
                        Ok(n) => drop(self.unsent.drain(..n)),
                        Err(Errno::INTR) => {}
                        Err(Errno::AGAIN) => return Ok(false),
                        Err(Errno::PIPE) => return Err(DeviceError::Gone),
                        Err(e) => return Err(DeviceError::Io(e)),
                    }
                }
                self.written(counters);
            }
            To::Files { now, other, written, limit, .. } => {
                if *written > HEADER_LEN as u64
                    && *written + self.unsent.len() as u64 > *limit
                    && let Some(next) = other
                {
                    std::mem::swap(now, next);
                    *written = begin(&*now).map_err(DeviceError::Io)?;
                }
                match write_all(now, &self.unsent, *written) {
                    Ok(()) => {
                        *written += self.unsent.len() as u64;
                        self.written(counters);
                    }
                    Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO) => {
                        // Half a record would make the rest unreadable. If that fails, the next is written over it.
                        let _ = ftruncate(&*now, *written);
                        counters.dropped_several(Reason::NoRoom, std::mem::take(&mut self.packets).0);
                        self.unsent.clear();
                    }
                    Err(e) => return Err(DeviceError::Io(e)),
                }
            }
        }
        Ok(true)
    }

    fn written(&mut self, counters: &Counters) {
        let (packets, bytes) = std::mem::take(&mut self.packets);
        counters.sent(packets, bytes);
        self.unsent.clear();
    }

    /// Nothing comes from it; but whether somebody still reads a pipe is known by asking.
    pub(super) fn receive(&self) -> Result<Got, DeviceError> {
        if let To::Pipe(pipe) = &self.to {
            let mut fds = [PollFd::new(pipe, PollFlags::OUT)];
            let polled = poll(&mut fds, Some(&Timespec::default())).map_err(DeviceError::Io)?;
            if polled > 0 && fds[0].revents().contains(PollFlags::ERR) {
                return Err(DeviceError::Gone);
            }
        }
        Ok(Got::All)
    }
}

/// Fills in the checksum that a frame's sender left to do; of a packet to be cut up it is that of the whole. One that lies outside the frame
/// stays as it is.
fn complete(vnet: &VnetHdr, frame: &mut [u8]) {
    let start = usize::from(vnet.csum_start);
    if vnet.flags & VnetHdr::F_NEEDS_CSUM != 0
        && let Some(summed) = frame.get_mut(start..)
    {
        let value = sum::finish(sum::sum(summed)).to_be_bytes();
        let at = usize::from(vnet.csum_offset);
        summed.get_mut(at..at + 2).into_iter().for_each(|field| field.copy_from_slice(&value));
    }
}

/// The file is empty but for its header; how long it is then.
fn begin(file: &OwnedFd) -> Result<u64, Errno> {
    ftruncate(file, 0)?;
    write_all(file, &header(), 0)?;
    Ok(HEADER_LEN as u64)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => (bytes, at) = (bytes.get(n..).unwrap_or_default(), at + n as u64),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.to {
            To::Pipe(pipe) => pipe.as_fd(),
            To::Files { nothing, .. } => nothing.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Gid, Uid, chown, mknodat};

    fn pipe(device: &str, owner: u32) -> Wanted {
        Wanted {
            device: device.into(),
            driver: Some(UplinkDriver::File),
            queues: 1,
            ours: false,
            made: None,
            gro: true,
            bring_up: true,
            max_size: None,
            pipe: Some(owner),
        }
    }

    /// What has the name of a pipe that is gone gets nothing, and no file is made.
    #[test]
    fn a_pipe_is_opened_if_it_is_there_and_of_the_user_who_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe").to_str().unwrap().to_owned();
        let us = rustix::process::geteuid();
        let refused = |wanted: &str| {
            let said = File::open(&pipe(&path, us.as_raw())).unwrap_err().to_string();
            assert!(said.contains(wanted), "{said}");
        };
        refused("this named pipe is gone");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a file was made");
        std::fs::write(&path, "").unwrap();
        refused("is no named pipe");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
        mknodat(rustix::fs::CWD, path.as_str(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused("nobody reads this named pipe");
        let reader = open(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).unwrap();
        File::open(&pipe(&path, us.as_raw())).unwrap();
        let said = File::open(&pipe(&path, us.as_raw() + 1)).unwrap_err().to_string();
        assert!(said.contains("belongs to user"), "{said}");
        if us.is_root() {
            chown(path.as_str(), Some(Uid::from_raw(65_534)), None::<Gid>).unwrap();
            refused("belongs to user 65534");
        }
        drop(reader);
    }

    #[test]
    fn checksums_are_filled_in_where_they_lie_in_the_frame() {
        let asks = |csum_start, csum_offset| VnetHdr {
            flags: VnetHdr::F_NEEDS_CSUM,
            csum_start,
            csum_offset,
            ..VnetHdr::default()
        };
        let frame: Vec<u8> = (0..61).collect();
        let completed = |vnet: VnetHdr| {
            let mut frame = frame.clone();
            complete(&vnet, &mut frame);
            frame
        };
        for (start, offset) in [(34, 16), (35, 6), (0, 58)] {
            let there = completed(asks(start, offset));
            let (start, at) = (usize::from(start), usize::from(start + offset));
            let is = u32::from(u16::from_be_bytes([there[at], there[at + 1]]));
            assert_eq!(u32::from(!sum::fold(sum::sum(&frame[start..]))), is, "{start} {offset}");
            assert_eq!((&there[..at], &there[at + 2..]), (&frame[..at], &frame[at + 2..]));
        }
        for vnet in [VnetHdr { flags: 0, ..asks(34, 16) }, asks(34, 26), asks(61, 0), asks(u16::MAX, u16::MAX)] {
            assert_eq!(completed(vnet), frame, "{vnet:?}");
        }
    }
}
