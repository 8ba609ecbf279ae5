//! From bytes and descriptors to a command that has the right form.

use crate::message::{
    INDEX_MASK, InflightDesc, NO_FD, Region, Request, SingleRegion, SyntaxError, TableHeader, VRING_LOG, VringAddr,
    VringState,
};
use lasthop_guestmem::RegionSpec;
use lasthop_types::MacAddr;
use std::os::fd::OwnedFd;
use zerocopy::FromBytes;

/// A well-formed request with the descriptors that came with it. Ring indices and values are still unjudged.
#[derive(Debug)]
pub(crate) enum Command {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<(RegionSpec, OwnedFd)>),
    SetVringNum(u32, u32),
    SetVringAddr(VringAddr),
    SetVringBase(u32, u32),
    GetVringBase(u32),
    SetVringKick(u32, Option<OwnedFd>),
    SetVringCall(u32, Option<OwnedFd>),
    SetVringErr(u32, Option<OwnedFd>),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(u32, bool),
    SendRarp(MacAddr),
    NetSetMtu(u64),
    SetBackendReqFd(OwnedFd),
    /// The body's length too: the reply has the same.
    GetInflightFd(InflightDesc, usize),
    SetInflightFd(InflightDesc, OwnedFd),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionSpec, OwnedFd),
    RemMemReg(RegionSpec),
    SetStatus(u64),
    GetStatus,
    /// Nothing that we ever offer: its form is not judged.
    Unsupported,
}

/// Judges the form of a message. Descriptors that are not in the result are closed.
pub(crate) fn parse(request: Request, body: &[u8], fds: Vec<OwnedFd>) -> Result<Command, SyntaxError> {
    let p = Parser { request, body };
    use Request as R;
    Ok(match request {
        R::GetFeatures => p.empty(fds, Command::GetFeatures)?,
        R::SetFeatures => Command::SetFeatures(p.u64(fds)?),
        R::SetOwner => p.empty(fds, Command::SetOwner)?,
        R::ResetOwner => p.empty(fds, Command::ResetOwner)?,
        R::SetMemTable => p.table(fds)?,
        R::SetVringNum => p.state(fds).map(|(index, num)| Command::SetVringNum(index, num))?,
        R::SetVringAddr => {
            let addr: VringAddr = p.exactly(fds)?;
            if addr.flags.get() & !VRING_LOG != 0 {
                return Err(p.value(addr.flags.get().into()));
            }
            Command::SetVringAddr(addr)
        }
        R::SetVringBase => p.state(fds).map(|(index, base)| Command::SetVringBase(index, base))?,
        R::GetVringBase => p.state(fds).map(|(index, _)| Command::GetVringBase(index))?,
        R::SetVringKick => p.vring_fd(fds).map(|(index, fd)| Command::SetVringKick(index, fd))?,
        R::SetVringCall => p.vring_fd(fds).map(|(index, fd)| Command::SetVringCall(index, fd))?,
        R::SetVringErr => p.vring_fd(fds).map(|(index, fd)| Command::SetVringErr(index, fd))?,
        R::GetProtocolFeatures => p.empty(fds, Command::GetProtocolFeatures)?,
        R::SetProtocolFeatures => Command::SetProtocolFeatures(p.u64(fds)?),
        R::GetQueueNum => p.empty(fds, Command::GetQueueNum)?,
        R::SetVringEnable => match p.state(fds)? {
            (index, enable @ 0..=1) => Command::SetVringEnable(index, enable == 1),
            (_, other) => return Err(p.value(other.into())),
        },
        R::SendRarp => {
            let [a, b, c, d, e, f, _, _] = p.u64(fds)?.to_le_bytes();
            Command::SendRarp(MacAddr([a, b, c, d, e, f]))
        }
        R::NetSetMtu => Command::NetSetMtu(p.u64(fds)?),
        R::SetBackendReqFd => {
            p.sized(0)?;
            Command::SetBackendReqFd(p.one_fd(fds)?)
        }
        R::GetInflightFd => {
            p.no_fds(&fds)?;
            Command::GetInflightFd(p.inflight()?, body.len())
        }
        R::SetInflightFd => Command::SetInflightFd(p.inflight()?, p.one_fd(fds)?),
        R::ResetDevice => p.empty(fds, Command::ResetDevice)?,
        R::GetMaxMemSlots => p.empty(fds, Command::GetMaxMemSlots)?,
        R::AddMemReg => Command::AddMemReg(p.body::<SingleRegion>()?.region.into(), p.one_fd(fds)?),
        R::RemMemReg => {
            // Some front-ends send the region's descriptor along; the specification lets us take and close it.
            if fds.len() > 1 {
                return Err(p.descriptors(fds.len(), 0));
            }
            Command::RemMemReg(p.body::<SingleRegion>()?.region.into())
        }
        R::SetStatus => Command::SetStatus(p.u64(fds)?),
        R::GetStatus => p.empty(fds, Command::GetStatus)?,
        R::SetLogBase
        | R::SetLogFd
        | R::IotlbMsg
        | R::SetVringEndian
        | R::GetConfig
        | R::SetConfig
        | R::CreateCryptoSession
        | R::CloseCryptoSession
        | R::PostcopyAdvise
        | R::PostcopyListen
        | R::PostcopyEnd
        | R::GpuSetSocket
        | R::VringKick
        | R::GetSharedObject
        | R::SetDeviceStateFd
        | R::CheckDeviceState
        | R::GetShmemConfig => Command::Unsupported,
    })
}

struct Parser<'b> {
    request: Request,
    body: &'b [u8],
}

impl Parser<'_> {
    fn descriptors(&self, got: usize, wanted: usize) -> SyntaxError {
        SyntaxError::Descriptors(self.request, got, wanted)
    }

    fn value(&self, value: u64) -> SyntaxError {
        SyntaxError::Value(self.request, value)
    }

    fn size(&self) -> SyntaxError {
        SyntaxError::Size(self.request, self.body.len())
    }

    fn sized(&self, size: usize) -> Result<(), SyntaxError> {
        if self.body.len() == size { Ok(()) } else { Err(self.size()) }
    }

    fn no_fds(&self, fds: &[OwnedFd]) -> Result<(), SyntaxError> {
        if fds.is_empty() { Ok(()) } else { Err(self.descriptors(fds.len(), 0)) }
    }

    fn one_fd(&self, mut fds: Vec<OwnedFd>) -> Result<OwnedFd, SyntaxError> {
        match (fds.pop(), fds.len()) {
            (Some(fd), 0) => Ok(fd),
            (fd, rest) => Err(self.descriptors(rest + usize::from(fd.is_some()), 1)),
        }
    }

    fn empty(&self, fds: Vec<OwnedFd>, command: Command) -> Result<Command, SyntaxError> {
        self.sized(0)?;
        self.no_fds(&fds)?;
        Ok(command)
    }

    fn body<T: FromBytes>(&self) -> Result<T, SyntaxError> {
        T::read_from_bytes(self.body).map_err(|_| self.size())
    }

    fn exactly<T: FromBytes>(&self, fds: Vec<OwnedFd>) -> Result<T, SyntaxError> {
        self.no_fds(&fds)?;
        self.body()
    }

    fn u64(&self, fds: Vec<OwnedFd>) -> Result<u64, SyntaxError> {
        Ok(u64::from_le_bytes(self.exactly(fds)?))
    }

    fn state(&self, fds: Vec<OwnedFd>) -> Result<(u32, u32), SyntaxError> {
        let s: VringState = self.exactly(fds)?;
        Ok((s.index.get(), s.num.get()))
    }

    /// Index and flag in a u64; a descriptor exactly when the flag is clear.
    fn vring_fd(&self, fds: Vec<OwnedFd>) -> Result<(u32, Option<OwnedFd>), SyntaxError> {
        let value = u64::from_le_bytes(self.body()?);
        if value & !(INDEX_MASK | NO_FD) != 0 {
            return Err(self.value(value));
        }
        let fd = if value & NO_FD != 0 {
            self.no_fds(&fds)?;
            None
        } else {
            Some(self.one_fd(fds)?)
        };
        Ok(((value & INDEX_MASK) as u32, fd))
    }

    /// 20 bytes by the specification, 24 by the C structure that everybody sends.
    fn inflight(&self) -> Result<InflightDesc, SyntaxError> {
        match InflightDesc::read_from_prefix(self.body) {
            Ok((desc, rest)) if rest.is_empty() || rest.len() == 4 => Ok(desc),
            _ => Err(self.size()),
        }
    }

    fn table(&self, fds: Vec<OwnedFd>) -> Result<Command, SyntaxError> {
        let (header, rest) = TableHeader::read_from_prefix(self.body).map_err(|_| self.size())?;
        let regions = <[Region]>::ref_from_bytes(rest).map_err(|_| self.size())?;
        if regions.len() as u64 != u64::from(header.count.get()) || regions.len() > crate::message::MAX_TABLE {
            return Err(self.size());
        }
        if fds.len() != regions.len() {
            return Err(self.descriptors(fds.len(), regions.len()));
        }
        Ok(Command::SetMemTable(regions.iter().map(|r| (*r).into()).zip(fds).collect()))
    }
}
