//! The form of a message: what its body holds and which descriptors belong to it, whatever they mean.

use crate::message::{INDEX_MASK, InflightDesc, MAX_TABLE, NO_FD, Request, SingleRegion, SyntaxError, VringState};
use lasthop_guestmem::RegionSpec;
use lasthop_sys::Foreign;
use zerocopy::FromBytes;

/// A request with the descriptors that came with it. Each call says what form it must have and takes out what it holds;
/// descriptors that are not taken out are closed.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) request: Request,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<Foreign>,
}

impl Form {
    fn descriptors(&self, wanted: usize) -> SyntaxError {
        SyntaxError::Descriptors(self.request, self.fds.len(), wanted)
    }

    /// A value that no state of the session makes right.
    pub(crate) fn wrong(&self, value: u64) -> SyntaxError {
        SyntaxError::Value(self.request, value)
    }

    fn size(&self) -> SyntaxError {
        SyntaxError::Size(self.request, self.body.len())
    }

    fn no_fds(&self) -> Result<(), SyntaxError> {
        if self.fds.is_empty() { Ok(()) } else { Err(self.descriptors(0)) }
    }

    fn one_fd(&mut self) -> Result<Foreign, SyntaxError> {
        if self.fds.len() == 1 { self.fds.pop() } else { None }.ok_or_else(|| self.descriptors(1))
    }

    fn body<T: FromBytes>(&self) -> Result<T, SyntaxError> {
        T::read_from_bytes(&self.body).map_err(|_| self.size())
    }

    /// No body, no descriptor.
    pub(crate) fn empty(&self) -> Result<(), SyntaxError> {
        self.exactly::<[u8; 0]>().map(|_| ())
    }

    /// A structure alone.
    pub(crate) fn exactly<T: FromBytes>(&self) -> Result<T, SyntaxError> {
        self.no_fds()?;
        self.body()
    }

    /// A structure and its descriptor.
    pub(crate) fn with_fd<T: FromBytes>(&mut self) -> Result<(T, Foreign), SyntaxError> {
        Ok((self.body()?, self.one_fd()?))
    }

    /// A ring's index and a number.
    pub(crate) fn state(&self) -> Result<(u32, u32), SyntaxError> {
        self.exactly().map(|VringState { index, num }| (index, num))
    }

    /// Index and flag in a u64; a descriptor exactly when the flag is clear.
    pub(crate) fn vring_fd(&mut self) -> Result<(u32, Option<Foreign>), SyntaxError> {
        let value: u64 = self.body()?;
        if value & !(INDEX_MASK | NO_FD) != 0 {
            return Err(self.wrong(value));
        }
        let fd = if value & NO_FD != 0 { self.no_fds().map(|()| None) } else { self.one_fd().map(Some) };
        Ok(((value & INDEX_MASK) as u32, fd?))
    }

    /// 20 bytes by the specification, 24 by the C structure that everybody sends; a descriptor if there is to be one.
    pub(crate) fn inflight(&mut self, with_fd: bool) -> Result<(InflightDesc, Option<Foreign>), SyntaxError> {
        let mut bytes = [0; size_of::<InflightDesc>()];
        let filled = bytes.get_mut(..self.body.len()).filter(|b| b.len() == 20 || b.len() == 24);
        filled.ok_or_else(|| self.size())?.copy_from_slice(&self.body);
        let fd = if with_fd { self.one_fd().map(Some) } else { self.no_fds().map(|()| None) };
        Ok((zerocopy::transmute!(bytes), fd?))
    }

    /// A region that goes. Some front-ends send its descriptor along; the specification lets us take and close it.
    pub(crate) fn gone(&self) -> Result<RegionSpec, SyntaxError> {
        if self.fds.len() > 1 { Err(self.descriptors(0)) } else { Ok(self.body::<SingleRegion>()?.region) }
    }

    /// Regions, and a descriptor for each.
    pub(crate) fn table(self) -> Result<Vec<(RegionSpec, Foreign)>, SyntaxError> {
        let (count, regions) = self.body.split_at_checked(8).ok_or_else(|| self.size())?;
        let regions = regions.chunks(size_of::<RegionSpec>()).map(RegionSpec::read_from_bytes);
        let regions: Vec<_> = regions.collect::<Result<_, _>>().map_err(|_| self.size())?;
        // The other half of the eight bytes is unused.
        let count = u32::read_from_prefix(count).map_or(0, |(count, _)| count as usize);
        if regions.len() != count || count > MAX_TABLE {
            return Err(self.size());
        }
        if self.fds.len() != count {
            return Err(self.descriptors(count));
        }
        Ok(regions.into_iter().zip(self.fds).collect())
    }
}
