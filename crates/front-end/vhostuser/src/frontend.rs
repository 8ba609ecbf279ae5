//! The front-end side: small and blocking, for our own driver domains and for tests.

use crate::message::{
    HEADER_LEN, Header, InflightDesc, IotlbMessage, LogDesc, MAX_BODY, NO_FD, Request, SingleRegion, VringAddr,
    VringState, flag,
};
use crate::{Features, ProtocolFeatures};
use lasthop_guestmem::RegionSpec;
use lasthop_sys::{receive_with_fds, send_with_fds};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Why a request of ours failed.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The back-end closed the connection.
    #[error("the back-end disconnected")]
    Closed,
    /// It answered that it could not do it.
    #[error("{0}: the back-end refused")]
    Refused(Request),
    /// It answered something else than was asked.
    #[error("{0}: the reply does not fit")]
    Reply(Request),
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] Errno),
}

/// A front-end's connection. Every call sends one message and waits for its reply, if it has one; messages without one
/// are acknowledged once REPLY_ACK is negotiated. Descriptors that are sent stay with the caller.
#[derive(Debug)]
pub struct Frontend {
    socket: OwnedFd,
    acks: bool,
}

impl Frontend {
    /// Over a connected stream socket in blocking mode.
    pub fn over(socket: OwnedFd) -> Self {
        Self { socket, acks: false }
    }

    /// Connects to a back-end that listens at `path`.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, FrontendError> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path.as_ref())?)?;
        Ok(Self::over(socket))
    }

    /// GET_FEATURES. Unknown bits are kept.
    pub fn features(&self) -> Result<Features, FrontendError> {
        self.ask::<u64>(Request::GetFeatures, &[]).map(Features::from_bits_retain)
    }

    /// SET_FEATURES.
    pub fn set_features(&self, features: Features) -> Result<(), FrontendError> {
        self.request(Request::SetFeatures, &features.bits(), &[])
    }

    /// GET_PROTOCOL_FEATURES.
    pub fn protocol_features(&self) -> Result<ProtocolFeatures, FrontendError> {
        self.ask::<u64>(Request::GetProtocolFeatures, &[]).map(ProtocolFeatures::from_bits_retain)
    }

    /// SET_PROTOCOL_FEATURES.
    pub fn set_protocol_features(&mut self, features: ProtocolFeatures) -> Result<(), FrontendError> {
        self.acks = false;
        self.request(Request::SetProtocolFeatures, &features.bits(), &[])?;
        self.acks = features.contains(ProtocolFeatures::REPLY_ACK);
        Ok(())
    }

    /// SET_OWNER.
    pub fn set_owner(&self) -> Result<(), FrontendError> {
        self.request(Request::SetOwner, &(), &[])
    }

    /// GET_QUEUE_NUM: queue pairs.
    pub fn queue_pairs(&self) -> Result<u64, FrontendError> {
        self.ask(Request::GetQueueNum, &[])
    }

    /// SET_MEM_TABLE with at most 8 regions.
    pub fn set_mem_table(&self, regions: &[(RegionSpec, BorrowedFd<'_>)]) -> Result<(), FrontendError> {
        let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        let mut body = [count, 0].as_bytes().to_vec();
        regions.iter().for_each(|(spec, _)| body.extend_from_slice(spec.as_bytes()));
        let fds: Vec<_> = regions.iter().map(|(_, fd)| *fd).collect();
        self.request(Request::SetMemTable, body.as_slice(), &fds)
    }

    /// ADD_MEM_REG.
    pub fn add_region(&self, spec: RegionSpec, fd: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.request(Request::AddMemReg, &SingleRegion { padding: 0, region: spec }, &[fd])
    }

    /// REM_MEM_REG.
    pub fn remove_region(&self, spec: RegionSpec) -> Result<(), FrontendError> {
        self.request(Request::RemMemReg, &SingleRegion { padding: 0, region: spec }, &[])
    }

    /// SET_BACKEND_REQ_FD: the other end of the socket stays with the caller, who reads what is asked and answers.
    pub fn set_backend_requests(&self, socket: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.request(Request::SetBackendReqFd, &(), &[socket])
    }

    /// IOTLB_MSG.
    pub fn iotlb(&self, message: IotlbMessage) -> Result<(), FrontendError> {
        self.request(Request::IotlbMsg, &message, &[])
    }

    /// SET_VRING_NUM.
    pub fn set_size(&self, ring: u32, size: u32) -> Result<(), FrontendError> {
        self.request(Request::SetVringNum, &state(ring, size), &[])
    }

    /// SET_VRING_BASE.
    pub fn set_base(&self, ring: u32, base: u32) -> Result<(), FrontendError> {
        self.request(Request::SetVringBase, &state(ring, base), &[])
    }

    /// SET_VRING_ADDR: descriptors, the driver's part (available) and the device's (used), as user addresses.
    pub fn set_addr(&self, ring: u32, desc: u64, driver: u64, device: u64) -> Result<(), FrontendError> {
        let addr = VringAddr { index: ring, descriptor: desc, used: device, available: driver, ..VringAddr::default() };
        self.request(Request::SetVringAddr, &addr, &[])
    }

    /// SET_VRING_KICK; `None` asks the back-end to poll.
    pub fn set_kick(&self, ring: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), FrontendError> {
        self.vring_fd(Request::SetVringKick, ring, fd)
    }

    /// SET_VRING_CALL; `None` says that we poll.
    pub fn set_call(&self, ring: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), FrontendError> {
        self.vring_fd(Request::SetVringCall, ring, fd)
    }

    /// SET_VRING_ERR.
    pub fn set_err(&self, ring: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), FrontendError> {
        self.vring_fd(Request::SetVringErr, ring, fd)
    }

    /// SET_VRING_ENABLE.
    pub fn enable(&self, ring: u32, enabled: bool) -> Result<(), FrontendError> {
        self.request(Request::SetVringEnable, &state(ring, enabled.into()), &[])
    }

    /// GET_VRING_BASE: stops the ring and says where.
    pub fn stop(&self, ring: u32) -> Result<u32, FrontendError> {
        let reply: VringState = self.ask(Request::GetVringBase, state(ring, 0).as_bytes())?;
        if reply.index == ring { Ok(reply.num) } else { Err(FrontendError::Reply(Request::GetVringBase)) }
    }

    /// GET_INFLIGHT_FD.
    pub fn inflight(&self, queues: u16, size: u16) -> Result<(InflightDesc, OwnedFd), FrontendError> {
        let desc = InflightDesc { num_queues: queues, queue_size: size, ..InflightDesc::default() };
        self.send(Request::GetInflightFd as u32, flag::VERSION, desc.as_bytes(), &[])?;
        let (desc, mut fds) = self.receive(Request::GetInflightFd)?;
        let fd = fds.pop().ok_or(FrontendError::Reply(Request::GetInflightFd))?;
        Ok((desc, fd))
    }

    /// SET_INFLIGHT_FD.
    pub fn set_inflight(&self, desc: InflightDesc, fd: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.request(Request::SetInflightFd, &desc, &[fd])
    }

    /// Any request with a body that is a number, acknowledged if that was negotiated.
    pub fn set_u64(&self, request: Request, value: u64) -> Result<(), FrontendError> {
        self.request(request, &value, &[])
    }

    /// Any request without a body, acknowledged if that was negotiated.
    pub fn request_bare(&self, request: Request) -> Result<(), FrontendError> {
        self.request(request, &(), &[])
    }

    /// SET_LOG_BASE, which is always answered: `size` bytes at `offset` of a file.
    pub fn set_log(&self, size: u64, offset: u64, fd: BorrowedFd<'_>) -> Result<(), FrontendError> {
        self.send(Request::SetLogBase as u32, flag::VERSION, LogDesc { size, offset }.as_bytes(), &[fd])?;
        match self.receive::<u64>(Request::SetLogBase)? {
            (0, _) => Ok(()),
            _ => Err(FrontendError::Refused(Request::SetLogBase)),
        }
    }

    /// Any request without a body that is answered by a number.
    pub fn get_u64(&self, request: Request) -> Result<u64, FrontendError> {
        self.ask(request, &[])
    }

    /// Sends any bytes as a message: what a hostile front-end needs.
    pub fn send(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontendError> {
        let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let header = Header { request, flags, size };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(body);
        self.send_raw(&bytes, fds)
    }

    /// Sends any bytes at all.
    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontendError> {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let fds = if sent == 0 { fds } else { &[] };
            match send_with_fds(&self.socket, rest, fds, SendFlags::empty()) {
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(FrontendError::Closed),
                n => sent += n?,
            }
        }
        Ok(())
    }

    /// Waits for one reply and takes its body and descriptors.
    pub fn receive<T: FromBytes>(&self, request: Request) -> Result<(T, Vec<OwnedFd>), FrontendError> {
        let mut bytes = [0; HEADER_LEN + MAX_BODY];
        let mut fds = Vec::new();
        self.fill(&mut bytes[..HEADER_LEN], &mut fds)?;
        let wrong = || FrontendError::Reply(request);
        let (header, _) = Header::read_from_prefix(&bytes).map_err(|_| wrong())?;
        let fits = header.request == request as u32 && header.flags == flag::VERSION | flag::REPLY;
        let body = bytes[HEADER_LEN..].get_mut(..header.size as usize).filter(|_| fits).ok_or_else(wrong)?;
        self.fill(body, &mut fds)?;
        Ok((T::read_from_bytes(body).map_err(|_| wrong())?, fds))
    }

    fn fill(&self, mut room: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<(), FrontendError> {
        while !room.is_empty() {
            match receive_with_fds(&self.socket, room, fds, RecvFlags::empty()) {
                Err(Errno::CONNRESET) | Ok((0, _)) => return Err(FrontendError::Closed),
                received => room = room.split_at_mut(received?.0).1,
            }
        }
        Ok(())
    }

    fn ask<T: FromBytes>(&self, request: Request, body: &[u8]) -> Result<T, FrontendError> {
        self.send(request as u32, flag::VERSION, body, &[])?;
        Ok(self.receive(request)?.0)
    }

    fn request<T: IntoBytes + Immutable + ?Sized>(
        &self,
        request: Request,
        body: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), FrontendError> {
        let flags = if self.acks { flag::VERSION | flag::NEED_REPLY } else { flag::VERSION };
        self.send(request as u32, flags, body.as_bytes(), fds)?;
        match self.acks.then(|| self.receive::<u64>(request)).transpose()? {
            None | Some((0, _)) => Ok(()),
            Some(_) => Err(FrontendError::Refused(request)),
        }
    }

    fn vring_fd(&self, request: Request, ring: u32, fd: Option<BorrowedFd<'_>>) -> Result<(), FrontendError> {
        let value = u64::from(ring) | if fd.is_none() { NO_FD } else { 0 };
        self.request(request, &value, fd.as_slice())
    }
}

impl AsFd for Frontend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn state(index: u32, num: u32) -> VringState {
    VringState { index, num }
}
