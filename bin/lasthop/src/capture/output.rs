//! What is captured, as pcapng: to standard output, or to a file or a ring of files, each of which can be read alone.
//!
//! Each port is an interface of its own. Directions are the port's, as those of a network card in the host: what its guest sends is inbound
//! there, what is sent to the guest outbound.

use lasthop_types::DropReason;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriteError};
use pcap_file::{DataLink, Endianness};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// First bytes of a capture: pcapng's section header, and libpcap's of either resolution, which earlier captures have.
const CAPTURES: [[u8; 4]; 3] = [[0x0a, 0x0d, 0x0d, 0x0a], [0x4d, 0x3c, 0xb2, 0xa1], [0xd4, 0xc3, 0xb2, 0xa1]];
/// Bits of the EPB flags word (pcapng, section 4.3.1): its direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A captured port.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// The port's name.
    pub name: String,
    /// What it is.
    pub about: String,
}

/// A packet that is written.
pub struct Packet<'a> {
    /// Its port's number among the interfaces.
    pub interface: u32,
    /// Since 1970.
    pub time: Duration,
    /// Its first bytes.
    pub data: &'a [u8],
    /// How long it is.
    pub len: u32,
    /// It was sent to the guest, or by it.
    pub to_guest: bool,
    /// Why it went no further.
    pub dropped: Option<DropReason>,
}

/// What is said of an interface at the end.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Packets that came, and those of them that the filter wanted.
    pub seen: (u64, u64),
    /// Copies that were lost.
    pub lost: u64,
    /// What else is known.
    pub comment: Option<String>,
}

/// What every file begins with.
#[derive(Clone, Debug)]
pub struct Head {
    /// The ports.
    pub interfaces: Vec<Interface>,
    /// Bytes of a packet that are kept.
    pub snaplen: u32,
    /// The filter.
    pub filter: Option<String>,
}

/// Files that take turns.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The first of them; the others have `.1`, `.2` … behind its name.
    pub path: PathBuf,
    /// How many bytes one may have.
    pub limit: u64,
    /// How many there are.
    pub files: u32,
}

type Writer = PcapNgWriter<BufWriter<Box<dyn Write + Send>>>;

/// Where packets go.
pub struct Output {
    head: Head,
    writer: Writer,
    /// Bytes of the present file, and whether there is a packet among them.
    written: u64,
    begun: bool,
    ring: Option<(Ring, u32)>,
}

fn failed(e: PcapNgWriteError) -> io::Error {
    match e {
        PcapNgWriteError::Io(e) => e,
        e => io::Error::other(e.to_string()),
    }
}

impl Ring {
    fn path(&self, number: u32) -> PathBuf {
        if number == 0 { self.path.clone() } else { PathBuf::from(format!("{}.{number}", self.path.display())) }
    }

    /// Opens a file to be written anew. One that is no capture stays as it is, and is an error.
    fn open(&self, number: u32) -> io::Result<File> {
        let path = self.path(number);
        let said = |text: String| io::Error::other(format!("{}{text}", path.display()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::LOOP) => return Err(said(" is a symbolic link; name the file itself".into())),
            Err(rustix::io::Errno::NOENT) => {
                return Err(said(": no such directory; make the directory, or name another".into()));
            }
            Err(rustix::io::Errno::ISDIR) => return Err(said(" is a directory; name a file in it".into())),
            Err(e) => return Err(said(format!(": {e}"))),
        };
        let stat = file.metadata()?;
        if !stat.is_file() {
            return Err(said(" is no file; name another".into()));
        }
        // Its owner could read what is captured, or be given what was captured before.
        if stat.uid() != geteuid().as_raw() {
            return Err(said(format!(" belongs to user {}; move it away, or name another file", stat.uid())));
        }
        let mut begin = [0; 4];
        let is_capture = (&file).read_exact(&mut begin).is_ok() && CAPTURES.contains(&begin);
        if stat.len() > 0 && !is_capture {
            return Err(said(" is there, and no capture; move it away, or name another file".into()));
        }
        Ok(file)
    }

    /// The same, and empties it. A capture that is there before the first file is written stays, as the second.
    fn begin(&self, number: u32, first: bool) -> io::Result<File> {
        let mut file = self.open(number)?;
        if first && file.metadata()?.len() > 0 {
            self.open(1)?;
            std::fs::rename(&self.path, self.path(1))?;
            file = self.open(number)?;
        }
        file.set_len(0)?;
        io::Seek::rewind(&mut file)?;
        Ok(file)
    }
}

impl Output {
    /// To standard output, or to files. What every file begins with is written at once.
    pub fn new(head: Head, ring: Option<Ring>) -> io::Result<Self> {
        let to: Box<dyn Write + Send> = match &ring {
            Some(ring) => Box::new(ring.begin(0, true)?),
            None => Box::new(io::stdout()),
        };
        let (writer, written) = Self::start(&head, to)?;
        Ok(Self { head, writer, written, begun: false, ring: ring.map(|ring| (ring, 0)) })
    }

    /// Refuses a file that cannot be written, before anything is captured. It may be there, empty, then.
    pub fn check(path: &Path) -> io::Result<()> {
        Ring { path: path.into(), limit: 0, files: 1 }.open(0).map(drop)
    }

    fn start(head: &Head, to: Box<dyn Write + Send>) -> io::Result<(Writer, u64)> {
        let program = concat!("lasthop ", env!("CARGO_PKG_VERSION")).into();
        let options = vec![SectionHeaderOption::OS("Linux".into()), SectionHeaderOption::UserApplication(program)];
        let section = SectionHeaderBlock { endianness: Endianness::Little, options, ..SectionHeaderBlock::default() };
        let mut writer = PcapNgWriter::with_section_header(BufWriter::new(to), section).map_err(failed)?;
        let mut written = 128;
        for interface in &head.interfaces {
            let mut options = vec![
                InterfaceDescriptionOption::IfName(interface.name.as_str().into()),
                InterfaceDescriptionOption::IfDescription(interface.about.as_str().into()),
                InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
            ];
            if let Some(filter) = &head.filter {
                // Its first byte says that it is text for libpcap (pcapng, section 4.2).
                let bytes = [&[0], filter.as_bytes()].concat();
                options.push(InterfaceDescriptionOption::IfFilter(bytes.into()));
            }
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: head.snaplen, options };
            written += writer.write_pcapng_block(block).map_err(failed)? as u64;
        }
        writer.get_mut().flush()?;
        Ok((writer, written))
    }

    /// Writes a packet; to the next file, if this one would become too long.
    pub fn write(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let room = packet.data.len() as u64 + 512;
        if let Some((ring, number)) = &mut self.ring
            && self.begun
            && self.written + room > ring.limit
        {
            self.writer.get_mut().flush()?;
            *number = (*number + 1) % ring.files;
            let file = ring.begin(*number, false)?;
            (self.writer, self.written) = Self::start(&self.head, Box::new(file))?;
        }
        let direction = if packet.to_guest { OUTBOUND } else { INBOUND };
        let mut options = vec![EnhancedPacketOption::Flags(direction)];
        if let Some(reason) = packet.dropped {
            let text = format!("dropped ({}): {}", reason.name(), reason.explain());
            options.push(EnhancedPacketOption::Common(CommonOption::Comment(text.into())));
        }
        let block = EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: packet.time,
            original_len: packet.len,
            data: packet.data.into(),
            options,
        };
        self.written += self.writer.write_pcapng_block(block).map_err(failed)? as u64;
        self.begun = true;
        Ok(())
    }

    /// Whoever reads gets what was written so far.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    /// Says of each interface what came, and what was lost.
    pub fn end(&mut self, started: Duration, statistics: Vec<Statistics>) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for (n, of) in (0..).zip(statistics) {
            let mut options = vec![
                InterfaceStatisticsOption::IsbStartTime(started),
                InterfaceStatisticsOption::IsbEndTime(now),
                InterfaceStatisticsOption::IsbIfRecv(of.seen.0 + of.lost),
                InterfaceStatisticsOption::IsbIfDrop(of.lost),
                InterfaceStatisticsOption::IsbFilterAccept(of.seen.1),
            ];
            let comment = of.comment.map(|text| InterfaceStatisticsOption::Common(CommonOption::Comment(text.into())));
            options.extend(comment);
            let block = InterfaceStatisticsBlock { interface_id: n, timestamp: now, options };
            self.writer.write_block(&block.into_block()).map_err(failed)?;
        }
        self.flush()
    }
}
