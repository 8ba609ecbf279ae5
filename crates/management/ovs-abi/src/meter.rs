//! Meters (`enum ovs_meter_attr`, `enum ovs_band_attr`).

use crate::Refused;
use crate::netlink::{Writer, attributes, table, u32_of};

/// Attribute of a request: the meter's number.
pub const ID: u16 = 1;
const STATS: u16 = 3;
const BANDS: u16 = 4;
const USED: u16 = 5;
const MAX_METERS: u16 = 7;
const MAX_BANDS: u16 = 8;
const COUNT: usize = 9;
/// A band that drops what is above its rate, the only kind that there is.
const DROP: u32 = 1;
const BAND_TYPE: u16 = 1;
const BAND_RATE: u16 = 2;
const BAND_BURST: u16 = 3;
const BAND_STATS: u16 = 4;

/// Commands.
pub mod command {
    /// Tell what meters can be.
    pub const FEATURES: u8 = 1;
    /// Make or change one.
    pub const SET: u8 = 2;
    /// Remove it.
    pub const DEL: u8 = 3;
    /// Tell what it has counted.
    pub const GET: u8 = 4;
}

/// How much may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// Packets or kilobits a second.
    pub rate: u32,
    /// How many of these at once.
    pub burst: u32,
}

/// A meter, as Open vSwitch sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Rates are in kilobits a second, not in packets.
    pub kilobits: bool,
    /// Without one all may pass.
    pub band: Option<Band>,
}

/// What a meter has counted: packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that came.
    pub came: [u64; 2],
    /// What was dropped.
    pub dropped: [u64; 2],
    /// When the last came, in milliseconds of CLOCK_MONOTONIC.
    pub used_ms: u64,
}

/// The number of the meter that a request is about.
pub fn id_of(list: &[u8]) -> Result<u32, Refused> {
    let [_, id] = table::<2>(list)?;
    u32_of(id.ok_or(Refused::INVALID)?)
}

impl Meter {
    /// Reads one that is to be set. One with more than one band is refused, as by the kernel.
    pub fn read(list: &[u8]) -> Result<Self, Refused> {
        let [_, _, kilobits, _, bands, ..] = table::<COUNT>(list)?;
        let mut bands = attributes(bands.ok_or(Refused::INVALID)?);
        let band = bands.next().transpose()?.map(|(_, band)| Band::read(band)).transpose()?;
        if bands.next().is_some() {
            return Err(Refused::INVALID);
        }
        Ok(Self { kilobits: kilobits.is_some(), band })
    }
}

impl Band {
    fn read(list: &[u8]) -> Result<Self, Refused> {
        let [_, kind, rate, burst] = table::<4>(list)?;
        let number = |value: Option<&[u8]>| u32_of(value.ok_or(Refused::INVALID)?);
        let (kind, rate, burst) = (number(kind)?, number(rate)?, number(burst)?);
        if kind != DROP || rate == 0 { Err(Refused::INVALID) } else { Ok(Self { rate, burst }) }
    }
}

/// Writes what meters can be: so many of them.
pub fn write_features(most: u32, to: &mut Writer) {
    to.number(MAX_METERS, most);
    to.number(MAX_BANDS, 1);
    to.nest(BANDS, |to| to.nest(0, |to| to.number(BAND_TYPE, DROP)));
}

/// Writes what the meter `id` has counted; `counts`: nothing if there is none.
pub fn write(id: u32, counts: Option<&Counts>, has_band: bool, to: &mut Writer) {
    to.number(ID, id);
    let Some(counts) = counts else { return };
    to.attribute(STATS, &counts.came.map(u64::to_ne_bytes).concat());
    to.attribute(USED, &counts.used_ms.to_ne_bytes());
    to.nest(BANDS, |to| {
        if has_band {
            to.nest(0, |to| to.attribute(BAND_STATS, &counts.dropped.map(u64::to_ne_bytes).concat()));
        }
    });
}

/// Writes a request that sets one, for [`id_of`] and [`Meter::read`].
pub fn write_set(id: u32, meter: &Meter, to: &mut Writer) {
    to.number(ID, id);
    if meter.kilobits {
        to.attribute(2, &[]);
    }
    to.nest(BANDS, |to| {
        if let Some(band) = &meter.band {
            to.nest(0, |to| {
                to.number(BAND_TYPE, DROP);
                to.number(BAND_RATE, band.rate);
                to.number(BAND_BURST, band.burst);
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(fill: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::new();
        fill(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn a_meter_with_two_bands_or_another_kind_of_band_is_refused() {
        let band = |kind: u32, rate: u32| {
            move |to: &mut Writer| {
                to.nest(0, |to| {
                    to.number(BAND_TYPE, kind);
                    to.number(BAND_RATE, rate);
                    to.number(BAND_BURST, 9);
                });
            }
        };
        let with = |fill: &dyn Fn(&mut Writer)| Meter::read(&list(|to| to.nest(BANDS, fill)));
        assert_eq!(
            with(&|to| band(DROP, 5)(to)),
            Ok(Meter { kilobits: false, band: Some(Band { rate: 5, burst: 9 }) })
        );
        assert_eq!(with(&|_| ()), Ok(Meter { kilobits: false, band: None }));
        let two = with(&|to| {
            band(DROP, 5)(to);
            band(DROP, 6)(to);
        });
        assert_eq!(two, Err(Refused::INVALID));
        assert_eq!(with(&|to| band(2, 5)(to)), Err(Refused::INVALID), "it marks packets");
        assert_eq!(with(&|to| band(DROP, 0)(to)), Err(Refused::INVALID), "it lets nothing pass");
        assert_eq!(Meter::read(&[]), Err(Refused::INVALID));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(id: u32, kilobits: bool, rate in 1u32.., burst: u32, has: bool) {
            let meter = Meter { kilobits, band: has.then_some(Band { rate, burst }) };
            let bytes = list(|to| write_set(id, &meter, to));
            prop_assert_eq!((id_of(&bytes), Meter::read(&bytes)), (Ok(id), Ok(meter)));
        }

        #[test]
        fn any_list_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (id_of(&bytes), Meter::read(&bytes));
        }
    }
}
