//! What one measurement yields.

use crate::distance::Distance;
use serde::Serialize;

/// One measurement.
#[derive(Debug, Serialize)]
pub struct Round {
    /// As the scenario says.
    pub figures: Vec<Option<f64>>,
    /// Between the CPUs all the while; null: they were moved meanwhile, or it is not known.
    pub distance: Option<Distance>,
    /// What that was judged by: how long a cache line took from one CPU to the other and back, in time order. Empty: not
    /// known.
    pub round_trips_ns: Vec<f64>,
}

impl Round {
    /// Figures, and the distance that follows from the round trips.
    pub fn new(figures: Vec<Option<f64>>, round_trips_ns: Vec<f64>) -> Self {
        Self { figures, distance: Distance::of_all(&round_trips_ns), round_trips_ns }
    }
}
