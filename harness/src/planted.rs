//! What arms are made to do wrong on purpose: how tests show that the harness finds a fault and blames the arm that
//! has it. Nothing on the command line plants anything.

use crate::plan::Case;
use runtime::Fault;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What is planted in the arms of one case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Planted {
    /// In the reference.
    pub reference: Plant,
    /// In the devices under test.
    pub device: Plant,
    /// The file that the oracle reads; it makes no mistakes of its own.
    pub oracle: Option<PathBuf>,
}

/// What one arm is made to do wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plant {
    /// A model file that it reads in place of the case's, which the other arms and the captures keep to.
    pub model: Option<PathBuf>,
    /// A mistake of its runtime.
    pub fault: Option<Fault>,
}

/// What is planted in a run, by case; nothing in cases that are not listed.
pub type Plantings = BTreeMap<Case, Planted>;
