//! Where a divergence comes from.

pub mod ddmin;
pub mod journal;
pub mod pin;
pub mod pin_report;
